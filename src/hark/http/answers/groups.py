"""Answers about consumer groups."""

from __future__ import annotations

from typing import TypedDict

from hark.http.answers.common import Success
from hark.model import Limits


class ListedGroup(TypedDict):
    """A group of a queue."""

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
    """A partition in which a group is behind."""

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
    """Where a group is in a partition."""

    partition: str
    partitionId: str
    workerId: str | None
    lastConsumedAt: str | None
    totalConsumed: int
    offsetLag: int
    timeLagSeconds: int
    leaseActive: bool


class ShownTracks(TypedDict):
    """Where a group is in a queue."""

    partitions: list[ShownTrack]


class DeletedGroup(Success):
    """A group is forgotten."""

    consumerGroup: str
    deletedPartitions: int
    metadataDeleted: bool


class DeletedGroupOfQueue(DeletedGroup):
    """A group is forgotten in one queue."""

    queueName: str


class Resubscribed(Success):
    """Where a group starts in partitions that it has not touched yet."""

    consumerGroup: str
    newTimestamp: str
    rowsUpdated: int


class PausedGroup(Success):
    """Whether a queue delivers to a group."""

    queue: str
    consumerGroup: str
    paused: bool


class PurgedGroup(Success):
    """How many messages a group is done with at once."""

    queue: str
    consumerGroup: str
    purged: int


class ShownLimits(Success):
    """The limits of a group of a queue; 0: no bound."""

    consumerGroup: str
    queueName: str
    limits: Limits


class SoughtQueue(Success):
    """A group was moved in all partitions of a queue."""

    consumerGroup: str
    queueName: str
    seekToEnd: bool
    targetTimestamp: str | None
    targetOffset: int | None
    partitionsUpdated: int


class SoughtPartition(Success):
    """A group was moved in one partition."""

    consumerGroup: str
    queueName: str
    partitionName: str
    updated: bool
    cursorMovedTo: int | None
    nextOffset: int | None
