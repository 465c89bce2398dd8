"""Responses about queues, groups and the server. Unknown fields are ignored."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

from hark.model import GroupMode, Limits, QueueOptions

# Queues ----------------------------------------------------------------------------------------------------


class MessageCounts(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Message counts by state.

    `pending` and `processing` are those of the group that is furthest behind.
    """

    total: int
    pending: int
    processing: int = 0
    completed: int = 0
    failed: int = 0
    """Messages that wait for a retry, or are in one."""
    dead_letter: int = 0


class ConfiguredQueue(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A queue after `configure`."""

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
    """Only `total`, `pending` and `processing` are set."""


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
    """Number of messages that expired before they were delivered."""
    discarded: int
    """Number of messages dropped after the last attempt, because the queue keeps no dead letters."""
    options: QueueOptions


class PartitionDepth(msgspec.Struct, frozen=True, kw_only=True):
    """The backlog of a partition."""

    partition: str
    pending: int


class Depth(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The backlog of a group, or of the group that is furthest behind."""

    queue: str
    group: str | None
    pending: int
    partitions_pending: int
    partitions: tuple[PartitionDepth, ...]


class WorkStats(msgspec.Struct, frozen=True, kw_only=True):
    """Message counts of the default group of a queue, as the key-value API returns them."""

    pending: int
    processing: int
    dlq: int
    total: int


class WorkSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How long consumers of the key-value API hold a message."""

    queue: str
    lock_duration: int
    """Milliseconds."""
    inherited: bool
    """Whether this is the server's setting, not the queue's own."""


# Groups ----------------------------------------------------------------------------------------------------


class GroupSummary(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A consumer group of a queue."""

    name: str
    queue: str = msgspec.field(name="queueName")
    members: int
    """Number of active leases."""
    in_flight: int
    """Number of messages in flight."""
    partitions_with_lag: int
    """Number of partitions with a backlog."""
    total_lag: int
    """Number of messages in the backlog."""
    max_time_lag: int
    """Seconds that the oldest message has waited."""
    state: Literal["Stable", "Lagging", "Dead"]
    """`Lagging`: a message has waited more than 300 seconds. `Dead`: messages wait, no lease is active, and no
    consumer has popped for a day. Otherwise `Stable`."""
    subscription_mode: str
    subscription_timestamp: datetime | None
    subscription_created_at: datetime
    group_mode: GroupMode
    paused: bool
    limits: Limits
    last_seen_at: datetime
    """Accurate to the hour."""


class GroupPlace(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The position of a group in a partition."""

    partition: str
    partition_id: str
    worker_id: str | None
    """The id of an active lease, or None."""
    last_consumed_at: datetime | None
    total_consumed: int
    """The cursor. For a shared group: the offset where the group started."""
    offset_lag: int
    """Number of messages behind."""
    time_lag_seconds: int
    """Seconds that the oldest message has waited."""
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
    """What was deleted of a group."""

    deleted_partitions: int
    metadata_deleted: bool


class Sought(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a seek: the number of partitions, and for one partition the next offset."""

    partitions: int
    next_offset: int | None = None


class SubscriptionMoved(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The new start of a group, and the number of queues it applies to."""

    new_timestamp: datetime
    rows_updated: int


# The server ------------------------------------------------------------------------------------------------


class NamespaceSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Totals of the queues of a namespace."""

    namespace: str
    queues: int
    partitions: int
    messages: MessageCounts


class TaskSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Totals of the queues with a task label."""

    task: str
    queues: int
    partitions: int
    messages: MessageCounts


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of a value over all groups."""

    avg: float
    median: float
    min: float
    max: float


class Lags(msgspec.Struct, frozen=True, kw_only=True):
    """Lag of the groups: `time` in seconds, `offset` in messages."""

    time: Spread
    offset: Spread


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """Totals of the whole server."""

    queues: int
    partitions: int
    namespaces: int
    tasks: int
    messages: MessageCounts
    lag: Lags
    timestamp: datetime


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the server can reach its store."""

    status: Literal["healthy", "unhealthy"]
    version: str = ""
    error: str | None = None

    @property
    def healthy(self) -> bool:
        """Whether the status is `healthy`."""
        return self.status == "healthy"


class Maintenance(msgspec.Struct, frozen=True, kw_only=True):
    """Which operations are in maintenance mode."""

    push: bool = msgspec.field(name="maintenanceMode")
    pop: bool = msgspec.field(name="popMaintenanceMode")


class BatchSizes(msgspec.Struct, frozen=True, kw_only=True):
    """How many requests shared calls of the engine."""

    calls: int
    requests: int
    largest: int


class ServerMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Metrics of a server. docs/http.md describes them."""

    store: dict[str, float]
    delivery: dict[str, object]
    watching: dict[str, float]
    batching: dict[str, BatchSizes]
    peers: dict[str, float] = {}


class OperationCounts(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Counts of one operation of the key-value API."""

    count: int
    errors: int
    avg_latency_ms: float


class OperationsSoFar(msgspec.Struct, frozen=True, kw_only=True):
    """Operations of the key-value API since the server's start, by name and in total."""

    operations: dict[str, OperationCounts]
    totals: dict[str, int]


class StoredKeys(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Size of the key-value store."""

    entries: int
    size_bytes: int


class KeyMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Metrics of the key-value API: operations, the work queue and the stored data."""

    operations: OperationsSoFar
    queue: WorkStats
    storage: StoredKeys


# Waiting consumers -----------------------------------------------------------------------------------------


class Subscription(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A subscription of a stream."""

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
    """A waiting pop."""

    id: str
    queue: str | None
    partition: str | None
    namespace: str | None
    task: str | None
    consumer_group: str
    batch: int
    priority: int
    consumer: str | None = None
    """Its name, or the subject of its token and its address."""
    waiting_since: datetime
    deadline: datetime
    state: str


class WaitingStream(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag_field="kind", tag="stream"):
    """A connection that receives messages as a stream."""

    id: str
    waiting_since: datetime
    credit: int
    unsettled: int
    paused: bool
    draining: bool
    subscriptions: tuple[Subscription, ...]


class WaitingBrowser(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="browser"):
    """A queue browser, which reads messages without receiving them."""

    queue: str
    partition: str | None
    start: str = msgspec.field(name="from")


Waiting = WaitingPop | WaitingStream | WaitingBrowser


class WaitingPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of waiting consumers, and their total number."""

    items: tuple[Waiting, ...] = msgspec.field(name="consumers")
    total: int
