"""Answers about queues, and about the whole server at a glance."""

from __future__ import annotations

from typing import NotRequired, TypedDict

from hark.http.answers.common import Counts, Pagination, Success
from hark.model import QueueOptions


class ConfiguredQueue(TypedDict):
    """A queue as it is from now on."""

    configured: bool
    queueId: str
    partitionId: str | None
    queue: str
    namespace: str
    task: str
    options: QueueOptions
    ignoredOptions: list[str]
    """Names that mean nothing here."""


class QueueHead(TypedDict):
    """What a queue is called and how it is labelled."""

    id: str
    name: str
    namespace: str
    task: str
    createdAt: str
    paused: bool


class ListedCounts(TypedDict):
    """How many messages a queue has."""

    total: int
    pending: int
    processing: int


class ListedQueue(QueueHead):
    """A queue in a list."""

    partitions: int
    messages: ListedCounts


class QueuePage(TypedDict):
    """Queues, and how many match."""

    queues: list[ListedQueue]
    total: int
    pagination: Pagination


class Place(TypedDict):
    """How far a group is in a partition."""

    consumerGroup: str
    cursor: int
    """The offset up to which it is done; of a shared group the one where it started."""
    lag: int
    timeLagSeconds: int
    leaseId: str | None
    leaseUntil: str | None


class ShownPartition(TypedDict):
    """A partition with its counts."""

    id: str
    name: str
    createdAt: str
    stats: Counts
    oldestMessage: str | None
    newestMessage: str | None
    places: NotRequired[list[Place]]
    """Where groups are in it, if that was asked for."""


class ShownQueue(QueueHead):
    """A queue with its options and a page of its partitions."""

    partitionCount: int
    partitions: list[ShownPartition]
    totals: Counts
    expired: int
    discarded: int
    options: QueueOptions


class PartitionDepth(TypedDict):
    """What a group has still to do in a partition."""

    partition: str
    pending: int


class Depth(TypedDict):
    """What a group has still to do in a queue."""

    queue: str
    group: str | None
    pending: int
    partitionsPending: int
    conflation: bool
    effectivePending: int
    partitions: list[PartitionDepth]


class DeletedQueue(TypedDict):
    """A queue is not there any more."""

    deleted: bool
    queue: str
    existed: bool


class PausedQueue(Success):
    """Whether a queue delivers."""

    queue: str
    paused: bool


class PurgedQueue(Success):
    """How many messages are gone."""

    queue: str
    purged: int


# At a glance -----------------------------------------------------------------------------------------------


class LabelCounts(TypedDict):
    """How many messages the queues with a label have."""

    total: int
    pending: int


class LabelledQueues(TypedDict):
    """What the queues with a label have together."""

    queues: int
    partitions: int
    messages: LabelCounts


class Namespace(LabelledQueues):
    """The queues of a namespace."""

    namespace: str


class Namespaces(TypedDict):
    """Namespaces by name."""

    namespaces: list[Namespace]


class Task(LabelledQueues):
    """The queues of a task."""

    task: str


class Tasks(TypedDict):
    """Tasks by name."""

    tasks: list[Task]


class Spread(TypedDict):
    """How numbers are spread."""

    avg: float
    median: float
    min: float
    max: float


class Lag(TypedDict):
    """How far behind groups are: in seconds, and in messages."""

    time: Spread
    offset: Spread


class Throughput(TypedDict):
    """What flows; null: not known."""

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
    """That there was nothing to do, and why."""

    skipped: bool
    reason: str
