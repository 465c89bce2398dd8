"""Queues: their options, partitions and counts; namespaces, tasks and the overview of the server."""

from __future__ import annotations

from datetime import datetime
from typing import Generic, TypeVar

from hark.api.types import Answer, Page, Single, Success, renamed
from hark.model import Counts, QueueOptions

T = TypeVar("T")


class ConfiguredQueue(Answer):
    """The configured queue with all its options."""

    configured: bool
    queue_id: str
    partition_id: str | None
    queue: str
    namespace: str
    task: str
    options: QueueOptions
    ignored_options: tuple[str, ...]


class QueueHead(Answer):
    """The id, the name and the labels of a queue."""

    id: str
    name: str
    namespace: str
    task: str
    created_at: datetime
    paused: bool


class ListedCounts(Answer):
    """Message counts of a queue."""

    total: int
    pending: int
    scheduled: int
    processing: int


class ListedQueue(QueueHead):
    """A queue in a list."""

    partitions: int
    messages: ListedCounts


QueuePage = renamed(
    Page[ListedQueue], "QueuePage", "A page of queues, and the number of queues that match.", items="queues"
)


class GroupPosition(Answer):
    """The position of a consumer group in a partition."""

    consumer_group: str
    cursor: int
    """Offset up to which the group has settled all messages; of a shared group the offset where it started."""
    lag: int
    scheduled: int
    time_lag_seconds: int
    lease_id: str | None
    lease_until: datetime | None


class ShownPartition(Answer, omit_defaults=True):
    """A partition with its message counts."""

    id: str
    name: str
    created_at: datetime
    stats: Counts
    oldest_message: datetime | None
    newest_message: datetime | None
    positions: tuple[GroupPosition, ...] | None = None
    """Positions of the groups, with `positions=true`."""


class ShownQueue(QueueHead):
    """A queue with its options and a page of its partitions."""

    partition_count: int
    partitions: tuple[ShownPartition, ...]
    totals: Counts
    expired: int
    discarded: int
    """Number of messages dropped after the last attempt, because the queue keeps no dead letters."""
    options: QueueOptions


class PartitionDepth(Answer):
    """The backlog of a partition."""

    partition: str
    pending: int


class Depth(Answer):
    """The backlog of a queue for a consumer group, or for the group that is furthest behind."""

    queue: str
    group: str | None
    pending: int
    scheduled: int
    partitions_pending: int
    conflation: bool
    effective_pending: int
    partitions: tuple[PartitionDepth, ...]


class DeletedQueue(Answer):
    """The queue was deleted."""

    deleted: bool
    queue: str
    existed: bool


class OfQueue(Success, Generic[T], omit_defaults=True):
    """What was done to a queue or to a consumer group of it, in a field whose name `renamed` gives."""

    queue: str
    value: T
    consumer_group: str | None = None


Paused = renamed(OfQueue[bool], "Paused", "Whether a queue, or a consumer group of it, is paused.", value="paused")
Purged = renamed(
    OfQueue[int],
    "Purged",
    "The messages of the queue were deleted, or settled for a consumer group.",
    value="purged",
)


# Overview --------------------------------------------------------------------------------------------------


class LabelCounts(Answer):
    """Message counts of the queues with a label."""

    total: int
    pending: int
    scheduled: int


class Namespace(Answer):
    """Totals of a namespace."""

    namespace: str
    queues: int
    partitions: int
    messages: LabelCounts


class Task(Answer):
    """Totals of a task."""

    task: str
    queues: int
    partitions: int
    messages: LabelCounts


Namespaces = renamed(Single[tuple[Namespace, ...]], "Namespaces", "Namespaces, ordered by name.", value="namespaces")
Tasks = renamed(Single[tuple[Task, ...]], "Tasks", "Tasks, ordered by name.", value="tasks")


class Spread(Answer):
    """Statistics of a set of numbers."""

    avg: float
    median: float
    min: float
    max: float


class Lag(Answer):
    """The lag of consumer groups, in seconds and in messages."""

    time: Spread
    offset: Spread


class Throughput(Answer):
    """Throughput of this server process in the last second. Null: not known."""

    ingested_per_second: float | None = None
    processed_per_second: float | None = None


class Overview(Answer):
    """Totals over all queues."""

    queues: int
    partitions: int
    namespaces: int
    tasks: int
    messages: Counts
    lag: Lag
    throughput: Throughput
    timestamp: datetime
    stats_age: int


class Refreshed(Answer):
    """The refresh was skipped."""

    skipped: bool
    reason: str
