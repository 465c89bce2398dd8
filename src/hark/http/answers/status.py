"""Responses about throughput and depths: samples, history, and the status routes of the Queen API."""

from __future__ import annotations

from typing import Any, TypedDict

import msgspec

from hark.http.answers.common import Counts
from hark.http.answers.queues import QueueHead
from hark.model import QueueOptions


class LatencyMs(TypedDict):
    """Age of messages at their first delivery, in milliseconds. Null: no message was delivered."""

    p50: float | None
    p99: float | None


class HistorySample(TypedDict):
    """Throughput of this server process in an interval, and depths of the store at its end. Null: not known."""

    at: str
    pushedPerSecond: float | None
    deliveredPerSecond: float | None
    settledPerSecond: float | None
    failedPerSecond: float | None
    deadLetteredPerSecond: float | None
    backlog: int | None
    inFlight: int | None
    oldestWaitingSeconds: float | None
    latencyMs: LatencyMs


class History(TypedDict):
    """Samples of the last hour, the oldest first."""

    intervalSeconds: int
    samples: list[HistorySample]


class Waiting(TypedDict):
    """Number of waiting consumers of this server process."""

    pops: int
    streams: int
    browsers: int


class Stopped(TypedDict):
    """Whether pushes or pops are stopped for maintenance."""

    push: bool
    pop: bool


class BusyQueue(TypedDict):
    """Throughput of a queue."""

    queue: str
    pushedPerSecond: float
    deliveredPerSecond: float
    settledPerSecond: float


class LiveSample(HistorySample):
    """A sample of the last second, as an event."""

    queues: int | None
    partitions: int | None
    deadLetters: int | None
    waiting: Waiting | None
    maintenance: Stopped
    busiest: list[BusyQueue]
    changed: list[str]
    more: bool


# Status routes of the Queen API ----------------------------------------------------------------------------


class TimeRange(msgspec.Struct, rename={"since": "from", "until": "to"}):
    """A period of time."""

    since: str
    until: str


class ThroughputPoint(TypedDict):
    """Throughput of one minute. Values that Hark does not record are null."""

    timestamp: str
    ingested: int
    processed: int
    popMessages: int
    ingestedPerSecond: float
    processedPerSecond: float
    popPerSecond: float
    dlqCount: int
    avgLagMs: None
    maxLagMs: None
    avgEventLoopLagMs: None
    maxEventLoopLagMs: None
    minFreeSlots: None
    dbErrors: None
    ackFailed: None
    queenCpuUserPct: None
    queenCpuSysPct: None
    queenRssMb: None
    dbPoolActive: None
    dbPoolIdle: None
    dbPoolSize: None


class StatusQueue(TypedDict):
    """A queue in the status."""

    id: str
    name: str
    namespace: str
    task: str
    partitions: int
    totalConsumed: int


class ByVerb(TypedDict):
    """A number for each of push, pop and ack. Null: there were no requests yet."""

    push: float | None
    pop: float | None
    ack: float | None


class StatusMessages(Counts):
    """Messages by state, and requests of this server process since it started."""

    requests: ByVerb
    batchEfficiency: ByVerb


class StatusLeases(TypedDict):
    """Leased messages. For details see GET /api/v1/leases."""

    active: None
    partitionsWithLeases: None
    totalBatchSize: int
    totalAcked: int


class StatusDeadLetters(TypedDict):
    """Dead letters. For details see GET /api/v1/dlq."""

    totalMessages: int
    affectedPartitions: None
    topErrors: None


class StatusErrors(TypedDict):
    """Errors of this server process since its start."""

    dbErrors: int
    ackFailed: int
    dlqMessages: int


class Status(TypedDict):
    """The status of the server, in the form of the Queen API."""

    timeRange: TimeRange
    bucketMinutes: int
    pointCount: int
    throughput: list[ThroughputPoint]
    queues: list[StatusQueue]
    messages: StatusMessages
    leases: StatusLeases
    deadLetterQueue: StatusDeadLetters
    workers: list[str]
    errors: StatusErrors
    statsAge: int


class StatusQueueHead(QueueHead):
    """A queue with its options."""

    config: QueueOptions


class PartitionCursor(TypedDict):
    """Settled messages of a partition."""

    totalConsumed: int
    batchesConsumed: None


class StatusPartition(TypedDict):
    """A partition with its message counts."""

    id: str
    name: str
    createdAt: str
    messages: Counts
    cursor: PartitionCursor
    oldestMessage: str | None
    lastActivity: str | None


class StatusTotals(TypedDict):
    """Totals of a queue."""

    partitions: int
    messages: Counts


class StatusOfQueue(TypedDict):
    """A queue with a page of its partitions."""

    queue: StatusQueueHead
    partitions: list[StatusPartition]
    totals: StatusTotals


class StatusMessage(TypedDict):
    """A message without its payload."""

    id: str
    transactionId: str
    partitionId: str
    queuePath: str
    queue: str
    partition: str
    status: str
    createdAt: str


class DataPoint(TypedDict):
    """Messages pushed in an interval."""

    timestamp: str
    messages: int


class Analytics(msgspec.Struct, rename={"since": "from", "until": "to", "data_points": "dataPoints"}):
    """Messages pushed, by interval."""

    data_points: list[DataPoint]
    interval: str
    since: str
    until: str


class Buffers(TypedDict):
    """Write buffers of the Queen API. Hark has none, so the counts are 0."""

    pending: int
    failed: int
    dbHealthy: bool
    worker: int


# Settings --------------------------------------------------------------------------------------------------


class ShownSetting(TypedDict):
    """A setting. Secrets are hidden."""

    name: str
    value: Any
    meaning: str


class ShownSettings(TypedDict):
    """Version, store and settings of the server."""

    version: str
    engine: str
    settings: list[ShownSetting]
