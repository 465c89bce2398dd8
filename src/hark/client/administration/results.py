"""What a server says about queues, groups and itself; fields that it has beyond these are ignored."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

from hark.model import GroupMode, Limits, QueueOptions

# Queues ----------------------------------------------------------------------------------------------------


class MessageCounts(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Messages by state; `pending` and `processing` as the group sees them that is furthest behind."""

    total: int
    pending: int
    processing: int = 0
    completed: int = 0
    failed: int = 0
    """Waiting for a further attempt, or in one."""
    dead_letter: int = 0


class ConfiguredQueue(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A queue as `configure` left it."""

    queue: str
    queue_id: str
    namespace: str
    task: str
    options: QueueOptions


class QueueSummary(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A queue in a list of queues."""

    id: str
    name: str
    namespace: str
    task: str
    created_at: datetime
    paused: bool
    partitions: int
    messages: MessageCounts
    """Only the first three of the counts."""


class PartitionSummary(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A partition of a queue."""

    id: str
    name: str
    created_at: datetime
    stats: MessageCounts
    oldest_message: datetime | None
    newest_message: datetime | None


class QueueStats(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A queue with its options, and a page of its partitions."""

    id: str
    name: str
    namespace: str
    task: str
    created_at: datetime
    paused: bool
    partition_count: int
    partitions: tuple[PartitionSummary, ...]
    totals: MessageCounts
    expired: int
    """Messages not delivered because their time to live was over."""
    discarded: int
    """Messages without attempts left, dropped because the queue keeps no dead letters."""
    options: QueueOptions


class PartitionDepth(msgspec.Struct, frozen=True, kw_only=True):
    """What is left to do in a partition."""

    partition: str
    pending: int


class Depth(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a group, or the one furthest behind, has left to do in a queue."""

    queue: str
    group: str | None
    pending: int
    partitions_pending: int
    partitions: tuple[PartitionDepth, ...]


class WorkStats(msgspec.Struct, frozen=True, kw_only=True):
    """A queue as the key-value API counts it: its default group."""

    pending: int
    processing: int
    dlq: int
    total: int


class WorkSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How long consumers of the key-value API hold a message of a queue."""

    queue: str
    lock_duration: int
    """Milliseconds."""
    inherited: bool
    """It is the server's setting, not the queue's own."""


# Groups ----------------------------------------------------------------------------------------------------


class GroupSummary(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A group of a queue."""

    name: str
    queue: str = msgspec.field(name="queueName")
    members: int
    """Live leases."""
    in_flight: int
    """Messages on leases."""
    partitions_with_lag: int
    total_lag: int
    max_time_lag: int
    """Seconds that the oldest message waits."""
    state: Literal["Stable", "Lagging", "Dead"]
    subscription_mode: str
    subscription_timestamp: datetime | None
    subscription_created_at: datetime
    group_mode: GroupMode
    paused: bool
    limits: Limits
    last_seen_at: datetime
    """Kept to the hour."""


class GroupPlace(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How far a group has got in a partition."""

    partition: str
    partition_id: str
    worker_id: str | None
    """The lease, or one of them."""
    last_consumed_at: datetime | None
    total_consumed: int
    """The cursor; of a shared group the offset where it started."""
    offset_lag: int
    time_lag_seconds: int
    lease_active: bool


class LaggingPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A partition in which a message has waited long for a group."""

    consumer_group: str
    queue_name: str
    partition_name: str
    partition_id: str
    worker_id: str | None
    offset_lag: int
    time_lag_seconds: int
    lag_hours: float
    oldest_unconsumed_at: datetime | None
    last_consumed_at: datetime | None


class GroupDeleted(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How much of a group was forgotten."""

    deleted_partitions: int
    metadata_deleted: bool


class Sought(msgspec.Struct, frozen=True, kw_only=True):
    """How many partitions a seek moved; of a seek in one partition, what is delivered next."""

    partitions: int
    next_offset: int | None = None


class SubscriptionMoved(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Where a group starts from now on, and in how many queues that was noted."""

    new_timestamp: datetime
    rows_updated: int


# The server ------------------------------------------------------------------------------------------------


class NamespaceSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The queues of a namespace together."""

    namespace: str
    queues: int
    partitions: int
    messages: MessageCounts


class TaskSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The queues of a task together."""

    task: str
    queues: int
    partitions: int
    messages: MessageCounts


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """A number over all groups."""

    avg: float
    median: float
    min: float
    max: float


class Lags(msgspec.Struct, frozen=True, kw_only=True):
    """How far behind groups are, in seconds and in messages."""

    time: Spread
    offset: Spread


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """The whole server at a glance."""

    queues: int
    partitions: int
    namespaces: int
    tasks: int
    messages: MessageCounts
    lag: Lags
    timestamp: datetime


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a server can reach its store."""

    status: Literal["healthy", "unhealthy"]
    version: str = ""
    error: str | None = None

    @property
    def healthy(self) -> bool:
        """Whether it can."""
        return self.status == "healthy"


class Maintenance(msgspec.Struct, frozen=True, kw_only=True):
    """What is stopped on purpose."""

    push: bool = msgspec.field(name="maintenanceMode")
    pop: bool = msgspec.field(name="popMaintenanceMode")


class BatchSizes(msgspec.Struct, frozen=True, kw_only=True):
    """How often requests of a verb shared a call of the engine."""

    calls: int
    requests: int
    largest: int


class ServerMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of a server; docs/http.md says what they mean."""

    store: dict[str, float]
    delivery: dict[str, object]
    watching: dict[str, float]
    batching: dict[str, BatchSizes]
    peers: dict[str, float] = {}


class OperationCounts(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How often an operation of the key-value API was asked for, and how it went."""

    count: int
    errors: int
    avg_latency_ms: float


class OperationsSoFar(msgspec.Struct, frozen=True, kw_only=True):
    """The operations of the key-value API since the server's start, by name and in all."""

    operations: dict[str, OperationCounts]
    totals: dict[str, int]


class StoredKeys(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How much the key-value store holds."""

    entries: int
    size_bytes: int


class KeyMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of the key-value API: operations, the work queue, and what is stored."""

    operations: OperationsSoFar
    queue: WorkStats
    storage: StoredKeys


# Who waits -------------------------------------------------------------------------------------------------


class Subscription(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a stream asked for."""

    id: str
    queue: str | None
    partition: str | None
    namespace: str | None
    task: str | None
    consumer_group: str
    batch: int
    priority: int
    consumer: str | None = None
    state: str


class WaitingPop(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag_field="kind", tag="pop"):
    """A pop that waits for messages."""

    id: str
    queue: str | None
    partition: str | None
    namespace: str | None
    task: str | None
    consumer_group: str
    batch: int
    priority: int
    consumer: str | None = None
    """What it calls itself, else its token and its address."""
    waiting_since: datetime
    deadline: datetime
    state: str


class WaitingStream(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag_field="kind", tag="stream"):
    """A connection on which messages come by themselves."""

    id: str
    waiting_since: datetime
    credit: int
    unsettled: int
    paused: bool
    draining: bool
    subscriptions: tuple[Subscription, ...]


class WaitingBrowser(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="browser"):
    """Somebody who looks at the messages of a queue and takes none."""

    queue: str
    partition: str | None
    start: str = msgspec.field(name="from")


Waiting = WaitingPop | WaitingStream | WaitingBrowser


class WaitingPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some of those who wait, and how many there are."""

    items: tuple[Waiting, ...] = msgspec.field(name="consumers")
    total: int
