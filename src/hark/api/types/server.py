"""The server: health, metrics, maintenance, sessions, settings, audit records, samples, status."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec

from hark.api.types import Answer, Single, renamed
from hark.api.types.queues import QueueHead
from hark.model import Counts, QueueOptions


class Health(Answer, rename=None, omit_defaults=True):
    """The health of the server."""

    status: Literal["healthy", "unhealthy"]
    database: Literal["connected", "disconnected"]
    server: str
    worker_id: int
    version: str
    shared_state: dict[str, bool]
    queen: dict[str, int | str]
    error: str | None = None
    code: str | None = None
    warnings: tuple[str, ...] | None = None

    @property
    def healthy(self) -> bool:
        """Whether the status is `healthy`."""
        return self.status == "healthy"


class Ready(Answer, omit_defaults=True):
    """Whether the process responds, or whether the server is ready for requests."""

    status: Literal["live", "ready", "not ready"]
    error: str | None = None
    code: str | None = None


class BatchSizes(Answer):
    """How many requests shared calls of the store."""

    calls: int
    requests: int
    largest: int


class SystemMetrics(Answer, omit_defaults=True):
    """Internal numbers of this server process."""

    store: dict[str, Any]
    delivery: dict[str, Any]
    watching: dict[str, Any]
    batching: dict[str, BatchSizes]
    peers: dict[str, Any] = msgspec.field(default_factory=dict)


# Maintenance -----------------------------------------------------------------------------------------------


MaintenanceBody = renamed(Single[bool], "MaintenanceBody", "Whether maintenance is on.", value="enabled")


class Maintenance(Answer):
    """The maintenance mode of pushes and pops. The buffer exists for compatibility with the Queen API."""

    push: bool = msgspec.field(name="maintenanceMode")
    pop: bool = msgspec.field(name="popMaintenanceMode")
    buffered_messages: int
    buffer_healthy: bool
    buffer_stats: dict[str, Any]


class PushMaintenance(Answer):
    """The maintenance mode of pushes."""

    maintenance_mode: bool
    buffered_messages: int
    buffer_healthy: bool
    message: str


class PopMaintenance(Answer):
    """The maintenance mode of pops."""

    pop_maintenance_mode: bool
    message: str


# Sessions, settings and audit records ----------------------------------------------------------------------


SessionBody = renamed(Single[str], "SessionBody", "The token to log in with.", value="token")


class Session(Answer):
    """The current login, and whether a token is required."""

    required: bool
    authenticated: bool
    subject: str = ""
    role: str | None = None
    queues: tuple[str, ...] = ()


class ShownSetting(Answer):
    """A setting. Secrets are hidden."""

    name: str
    value: Any
    meaning: str


class ShownSettings(Answer):
    """Version, store and settings of the server."""

    version: str
    engine: str
    settings: tuple[ShownSetting, ...]


class AuditRecord(Answer):
    """A record of the audit log: an action, its target, its subject and its result."""

    at: datetime
    action: str
    """For example `delete_queue`, `login` or `refused`."""
    subject: str
    """Empty when authentication is off or the token is unknown."""
    role: str
    """Empty when the token is unknown."""
    target: dict[str, Any]
    status: int
    result: str
    """`done`, `failed`, or the error code of a refusal."""
    request_id: str
    client: str
    suppressed: int = 0
    """Number of refusals before this one that were not recorded, because there were too many."""


AuditRecords = renamed(
    Single[tuple[AuditRecord, ...]],
    "AuditRecords",
    "The latest audit records of this server process, the newest first.",
    value="records",
)


# Samples ---------------------------------------------------------------------------------------------------


class LatencyMs(Answer):
    """Age of messages at their first delivery, in milliseconds. Null: no message was delivered."""

    p50: float | None = None
    p99: float | None = None


class HistorySample(Answer):
    """Throughput of this server process in an interval, and depths of the store at its end. Null: not known."""

    at: datetime
    pushed_per_second: float | None = None
    delivered_per_second: float | None = None
    settled_per_second: float | None = None
    failed_per_second: float | None = None
    dead_lettered_per_second: float | None = None
    backlog: int | None = None
    scheduled: int | None = None
    in_flight: int | None = None
    oldest_waiting_seconds: float | None = None
    latency_ms: LatencyMs = LatencyMs()


class History(Answer):
    """Samples of the last hour, the oldest first."""

    interval_seconds: int
    samples: tuple[HistorySample, ...]


class Waiting(Answer):
    """Number of waiting consumers of this server process."""

    pops: int
    streams: int
    browsers: int


class Stopped(Answer):
    """Whether pushes or pops are stopped for maintenance."""

    push: bool = False
    pop: bool = False


class BusyQueue(Answer):
    """Throughput of a queue."""

    queue: str
    pushed_per_second: float
    delivered_per_second: float
    settled_per_second: float


class LiveSample(HistorySample):
    """A sample of the last second, as an event."""

    queues: int | None = None
    partitions: int | None = None
    dead_letters: int | None = None
    waiting: Waiting | None = None
    maintenance: Stopped = Stopped()
    busiest: tuple[BusyQueue, ...] = ()
    changed: tuple[str, ...] = ()
    more: bool = False


# Status routes in the form of the Queen API. Values that Hark does not record are null. ---------------------


class TimeRange(Answer):
    """A period of time."""

    since: datetime = msgspec.field(name="from")
    until: datetime = msgspec.field(name="to")


class ThroughputPoint(Answer):
    """Throughput of one minute. Values that Hark does not record are null."""

    timestamp: datetime
    ingested: int
    processed: int
    pop_messages: int
    ingested_per_second: float
    processed_per_second: float
    pop_per_second: float
    dlq_count: int
    avg_lag_ms: None = None
    max_lag_ms: None = None
    avg_event_loop_lag_ms: None = None
    max_event_loop_lag_ms: None = None
    min_free_slots: None = None
    db_errors: None = None
    ack_failed: None = None
    queen_cpu_user_pct: None = None
    queen_cpu_sys_pct: None = None
    queen_rss_mb: None = None
    db_pool_active: None = None
    db_pool_idle: None = None
    db_pool_size: None = None


class StatusQueue(Answer):
    """A queue in the status."""

    id: str
    name: str
    namespace: str
    task: str
    partitions: int
    total_consumed: int


class ByVerb(Answer):
    """A number for each of push, pop and ack. Null: there were no requests yet."""

    push: float | None
    pop: float | None
    ack: float | None


class StatusMessages(Counts, kw_only=True):
    """Messages by state, and requests of this server process since it started."""

    requests: ByVerb
    batch_efficiency: ByVerb


class StatusLeases(Answer):
    """Leased messages. For details see GET /api/v1/leases."""

    active: None
    partitions_with_leases: None
    total_batch_size: int
    total_acked: int


class StatusDeadLetters(Answer):
    """Dead letters. For details see GET /api/v1/dlq."""

    total_messages: int
    affected_partitions: None = None
    top_errors: None = None


class StatusErrors(Answer):
    """Errors of this server process since its start."""

    db_errors: int
    ack_failed: int
    dlq_messages: int


class Status(Answer):
    """The status of the server, in the form of the Queen API."""

    time_range: TimeRange
    bucket_minutes: int
    point_count: int
    throughput: tuple[ThroughputPoint, ...]
    queues: tuple[StatusQueue, ...]
    messages: StatusMessages
    leases: StatusLeases
    dead_letter_queue: StatusDeadLetters
    workers: tuple[str, ...]
    errors: StatusErrors
    stats_age: int


class StatusQueueHead(QueueHead):
    """A queue with its options."""

    config: QueueOptions


class PartitionCursor(Answer):
    """Settled messages of a partition."""

    total_consumed: int
    batches_consumed: None = None


class StatusPartition(Answer):
    """A partition with its message counts."""

    id: str
    name: str
    created_at: datetime
    messages: Counts
    cursor: PartitionCursor
    oldest_message: datetime | None
    last_activity: datetime | None


class StatusTotals(Answer):
    """Totals of a queue."""

    partitions: int
    messages: Counts


class StatusOfQueue(Answer):
    """A queue with a page of its partitions."""

    queue: StatusQueueHead
    partitions: tuple[StatusPartition, ...]
    totals: StatusTotals


class StatusMessage(Answer):
    """A message without its payload."""

    id: str
    transaction_id: str
    partition_id: str
    queue_path: str
    queue: str
    partition: str
    status: str
    created_at: datetime


class DataPoint(Answer):
    """Messages pushed in an interval."""

    timestamp: datetime
    messages: int


class Analytics(TimeRange):
    """Messages pushed, by interval."""

    data_points: tuple[DataPoint, ...]
    interval: str


class Buffers(Answer):
    """Write buffers of the Queen API. Hark has none, so the counts are 0."""

    pending: int
    failed: int
    db_healthy: bool
    worker: int
