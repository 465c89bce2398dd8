"""Responses about queues, and the overview of the server."""

from __future__ import annotations

from typing import NotRequired, TypedDict

from hark.http.answers.common import Counts, Pagination, Success
from hark.model import QueueOptions


class ConfiguredQueue(TypedDict):
    """The configured queue with all its options."""

    configured: bool
    queueId: str
    partitionId: str | None
    queue: str
    namespace: str
    task: str
    options: QueueOptions
    ignoredOptions: list[str]
    """Names of unknown options."""


class QueueHead(TypedDict):
    """The id, the name and the labels of a queue."""

    id: str
    name: str
    namespace: str
    task: str
    createdAt: str
    paused: bool


class ListedCounts(TypedDict):
    """Message counts of a queue."""

    total: int
    pending: int
    processing: int


class ListedQueue(QueueHead):
    """A queue in a list."""

    partitions: int
    messages: ListedCounts


class QueuePage(TypedDict):
    """A page of queues, and the number of queues that match."""

    queues: list[ListedQueue]
    total: int
    pagination: Pagination


class Place(TypedDict):
    """The position of a consumer group in a partition."""

    consumerGroup: str
    cursor: int
    """Offset up to which the group has settled all messages; of a shared group the offset where it started."""
    lag: int
    timeLagSeconds: int
    leaseId: str | None
    leaseUntil: str | None


class ShownPartition(TypedDict):
    """A partition with its message counts."""

    id: str
    name: str
    createdAt: str
    stats: Counts
    oldestMessage: str | None
    newestMessage: str | None
    places: NotRequired[list[Place]]
    """Positions of the groups, with `places=true`."""


class ShownQueue(QueueHead):
    """A queue with its options and a page of its partitions."""

    partitionCount: int
    partitions: list[ShownPartition]
    totals: Counts
    expired: int
    discarded: int
    options: QueueOptions


class PartitionDepth(TypedDict):
    """The backlog of a partition."""

    partition: str
    pending: int


class Depth(TypedDict):
    """The backlog of a queue for a consumer group."""

    queue: str
    group: str | None
    pending: int
    partitionsPending: int
    conflation: bool
    effectivePending: int
    partitions: list[PartitionDepth]


class DeletedQueue(TypedDict):
    """The queue was deleted."""

    deleted: bool
    queue: str
    existed: bool


class PausedQueue(Success):
    """Whether a queue is paused."""

    queue: str
    paused: bool


class PurgedQueue(Success):
    """The messages of the queue were deleted."""

    queue: str
    purged: int


# Overview --------------------------------------------------------------------------------------------------


class LabelCounts(TypedDict):
    """Message counts of the queues with a label."""

    total: int
    pending: int


class LabelledQueues(TypedDict):
    """Totals of the queues with a label."""

    queues: int
    partitions: int
    messages: LabelCounts


class Namespace(LabelledQueues):
    """Totals of a namespace."""

    namespace: str


class Namespaces(TypedDict):
    """Namespaces, ordered by name."""

    namespaces: list[Namespace]


class Task(LabelledQueues):
    """Totals of a task."""

    task: str


class Tasks(TypedDict):
    """Tasks, ordered by name."""

    tasks: list[Task]


class Spread(TypedDict):
    """Statistics of a set of numbers."""

    avg: float
    median: float
    min: float
    max: float


class Lag(TypedDict):
    """The lag of consumer groups, in seconds and in messages."""

    time: Spread
    offset: Spread


class Throughput(TypedDict):
    """Throughput of this server process in the last second. Null: not known."""

    ingestedPerSecond: float | None
    processedPerSecond: float | None


class Overview(TypedDict):
    """Totals over all queues."""

    queues: int
    partitions: int
    namespaces: int
    tasks: int
    messages: Counts
    lag: Lag
    throughput: Throughput
    timestamp: str
    statsAge: int


class Refreshed(TypedDict):
    """The refresh was skipped."""

    skipped: bool
    reason: str
