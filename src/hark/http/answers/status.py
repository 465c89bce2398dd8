"""Answers about what goes on: samples, the last hour, and the original's words for it."""

from __future__ import annotations

from typing import Any, TypedDict

import msgspec

from hark.http.answers.common import Counts
from hark.http.answers.queues import QueueHead
from hark.model import QueueOptions


class LatencyMs(TypedDict):
    """How old messages were at their first delivery, in milliseconds; null: nothing was delivered."""

    p50: float | None
    p99: float | None


class HistorySample(TypedDict):
    """What went through this server process in an interval, and what the store had at its end; null: not known."""

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
    """The last hour, the oldest sample first."""

    intervalSeconds: int
    samples: list[HistorySample]


class Waiting(TypedDict):
    """How many wait on this server process."""

    pops: int
    streams: int
    browsers: int


class Stopped(TypedDict):
    """What is stopped for maintenance."""

    push: bool
    pop: bool


class BusyQueue(TypedDict):
    """What goes through a queue."""

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


# Of the original -------------------------------------------------------------------------------------------


class TimeRange(msgspec.Struct, rename={"since": "from", "until": "to"}):
    """From when to when."""

    since: str
    until: str


class ThroughputPoint(TypedDict):
    """What went through in a minute; what the original has and this server does not keep is null."""

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
    """A queue of the status."""

    id: str
    name: str
    namespace: str
    task: str
    partitions: int
    totalConsumed: int


class ByVerb(TypedDict):
    """A number for each of the three verbs; null where nothing was asked yet."""

    push: float | None
    pop: float | None
    ack: float | None


class StatusMessages(Counts):
    """Messages by state, and requests of this server process since it started."""

    requests: ByVerb
    batchEfficiency: ByVerb


class StatusLeases(TypedDict):
    """What is held; null: see GET /api/v1/leases."""

    active: None
    partitionsWithLeases: None
    totalBatchSize: int
    totalAcked: int


class StatusDeadLetters(TypedDict):
    """How many dead letters there are; null: see GET /api/v1/dlq."""

    totalMessages: int
    affectedPartitions: None
    topErrors: None


class StatusErrors(TypedDict):
    """What went wrong in this server process since it started."""

    dbErrors: int
    ackFailed: int
    dlqMessages: int


class Status(TypedDict):
    """The server at a glance, as the original shows it."""

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
    """How many messages of a partition were settled."""

    totalConsumed: int
    batchesConsumed: None


class StatusPartition(TypedDict):
    """A partition with its counts."""

    id: str
    name: str
    createdAt: str
    messages: Counts
    cursor: PartitionCursor
    oldestMessage: str | None
    lastActivity: str | None


class StatusTotals(TypedDict):
    """What a queue has in all."""

    partitions: int
    messages: Counts


class StatusOfQueue(TypedDict):
    """A queue with a page of its partitions."""

    queue: StatusQueueHead
    partitions: list[StatusPartition]
    totals: StatusTotals


class StatusMessage(TypedDict):
    """A message in a list."""

    id: str
    transactionId: str
    partitionId: str
    queuePath: str
    queue: str
    partition: str
    status: str
    createdAt: str


class DataPoint(TypedDict):
    """How many messages were pushed in an interval."""

    timestamp: str
    messages: int


class Analytics(msgspec.Struct, rename={"since": "from", "until": "to", "data_points": "dataPoints"}):
    """How many messages were pushed, interval by interval."""

    data_points: list[DataPoint]
    interval: str
    since: str
    until: str


class Buffers(TypedDict):
    """Of the original: what waits to be stored; here nothing is answered before it is."""

    pending: int
    failed: int
    dbHealthy: bool
    worker: int


# Settings --------------------------------------------------------------------------------------------------


class ShownSetting(TypedDict):
    """A setting; secrets are hidden."""

    name: str
    value: Any
    meaning: str


class ShownSettings(TypedDict):
    """What the server runs on and with."""

    version: str
    engine: str
    settings: list[ShownSetting]
