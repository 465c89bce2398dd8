"""The status routes in the form of the Queen API. Values that Hark does not record are null."""

from __future__ import annotations

from datetime import datetime

import msgspec

from hark.api.types.base import Answer
from hark.api.types.queues import QueueHead
from hark.model import Counts, QueueOptions


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


class Analytics(Answer):
    """Messages pushed, by interval."""

    data_points: tuple[DataPoint, ...]
    interval: str
    since: datetime = msgspec.field(name="from")
    until: datetime = msgspec.field(name="to")


class Buffers(Answer):
    """Write buffers of the Queen API. Hark has none, so the counts are 0."""

    pending: int
    failed: int
    db_healthy: bool
    worker: int
