"""Responses about consumer groups."""

from __future__ import annotations

from typing import TypedDict

from hark.http.answers.common import Success
from hark.model import Limits


class ListedGroup(TypedDict):
    """A consumer group of a queue."""

    name: str
    topics: list[str]
    queueName: str
    members: int
    inFlight: int
    partitionsWithLag: int
    totalLag: int
    maxTimeLag: int
    state: str
    subscriptionMode: str
    subscriptionTimestamp: str | None
    subscriptionCreatedAt: str
    groupMode: str
    paused: bool
    limits: Limits
    lastSeenAt: str


class LaggingTrack(TypedDict):
    """A partition in which a consumer group lags."""

    consumer_group: str
    queue_name: str
    partition_name: str
    partition_id: str
    worker_id: str | None
    offset_lag: int
    time_lag_seconds: int
    lag_hours: float
    oldest_unconsumed_at: str | None
    last_consumed_at: str | None


class ShownTrack(TypedDict):
    """The position of a consumer group in a partition."""

    partition: str
    partitionId: str
    workerId: str | None
    lastConsumedAt: str | None
    totalConsumed: int
    offsetLag: int
    timeLagSeconds: int
    leaseActive: bool


class ShownTracks(TypedDict):
    """The positions of a consumer group in a queue."""

    partitions: list[ShownTrack]


class DeletedGroup(Success):
    """The consumer group was deleted."""

    consumerGroup: str
    deletedPartitions: int
    metadataDeleted: bool


class DeletedGroupOfQueue(DeletedGroup):
    """The consumer group was deleted in one queue."""

    queueName: str


class Resubscribed(Success):
    """The new start position of a consumer group."""

    consumerGroup: str
    newTimestamp: str
    rowsUpdated: int


class PausedGroup(Success):
    """Whether a consumer group of a queue is paused."""

    queue: str
    consumerGroup: str
    paused: bool


class PurgedGroup(Success):
    """The messages of a queue were settled for a consumer group."""

    queue: str
    consumerGroup: str
    purged: int


class ShownLimits(Success):
    """The limits of a consumer group of a queue. 0 means no limit."""

    consumerGroup: str
    queueName: str
    limits: Limits


class SoughtQueue(Success):
    """The consumer group was moved in all partitions of a queue."""

    consumerGroup: str
    queueName: str
    seekToEnd: bool
    targetTimestamp: str | None
    targetOffset: int | None
    partitionsUpdated: int


class SoughtPartition(Success):
    """The consumer group was moved in one partition."""

    consumerGroup: str
    queueName: str
    partitionName: str
    updated: bool
    cursorMovedTo: int | None
    nextOffset: int | None
