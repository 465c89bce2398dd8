"""Consumer groups: their positions, limits and seeks; waiting consumers."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

from hark.api.types import Answer, Body, Page, SingleBody, Success, renamed
from hark.model import GroupMode, Limits


class ListedGroup(Answer):
    """A consumer group of a queue."""

    name: str
    topics: tuple[str, ...]
    queue: str = msgspec.field(name="queueName")
    members: int
    in_flight: int
    partitions_with_lag: int
    total_lag: int
    scheduled: int
    """Number of messages that are delayed or wait for a retry."""
    max_time_lag: int
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


class LaggingPosition(Answer, rename=None):
    """A partition in which a consumer group lags."""

    consumer_group: str
    queue_name: str
    partition_name: str
    partition_id: str
    worker_id: str | None
    offset_lag: int
    scheduled: int
    time_lag_seconds: int
    lag_hours: float
    oldest_unconsumed_at: datetime | None
    last_consumed_at: datetime | None


class ShownPosition(Answer):
    """The position of a consumer group in a partition."""

    partition: str
    partition_id: str
    worker_id: str | None
    last_consumed_at: datetime | None
    total_consumed: int
    """The cursor. For a shared group: the offset where the group started."""
    offset_lag: int
    scheduled: int
    """Number of messages that are delayed or wait for a retry."""
    time_lag_seconds: int
    lease_active: bool


class ShownPositions(Answer):
    """The positions of a consumer group in a queue."""

    partitions: tuple[ShownPosition, ...]


class DeletedGroup(Success, omit_defaults=True):
    """The consumer group was deleted, in one queue or in all queues."""

    consumer_group: str
    deleted_partitions: int
    metadata_deleted: bool
    queue_name: str | None = None


SubscriptionBody = renamed(
    SingleBody[str | int],
    "SubscriptionBody",
    "The new start position of a consumer group.",
    value="subscriptionTimestamp",
)


class Resubscribed(Success):
    """The new start position of a consumer group."""

    consumer_group: str
    new_timestamp: datetime
    rows_updated: int


class ShownLimits(Success):
    """The limits of a consumer group of a queue. 0 means no limit."""

    consumer_group: str
    queue_name: str
    limits: Limits


class SeekBody(Body):
    """The new position: exactly one of the fields."""

    to_end: bool | None = None
    timestamp: str | int | None = None
    offset: int | None = None


class SoughtQueue(Success):
    """The consumer group was moved in all partitions of a queue."""

    consumer_group: str
    queue_name: str
    seek_to_end: bool
    target_timestamp: datetime | None
    target_offset: int | None
    partitions_updated: int


class SoughtPartition(Success):
    """The consumer group was moved in one partition."""

    consumer_group: str
    queue_name: str
    partition_name: str
    updated: bool
    cursor_moved_to: int | None
    next_offset: int | None


# Waiting consumers -----------------------------------------------------------------------------------------


class StreamSubscription(Answer):
    """A subscription of a stream."""

    id: str
    queue: str | None
    partition: str | None
    namespace: str | None
    task: str | None
    consumer_group: str
    batch: int
    priority: int
    consumer: str | None
    """Its name, or the subject of its token and its address."""
    state: str


class WaitingPop(StreamSubscription, tag_field="kind", tag="pop", kw_only=True):
    """A waiting pop."""

    waiting_since: datetime
    deadline: datetime


class WaitingStream(Answer, tag_field="kind", tag="stream"):
    """A streaming consumer: server-sent events or WebSocket."""

    id: str
    waiting_since: datetime
    credit: int
    unsettled: int
    paused: bool
    draining: bool
    subscriptions: tuple[StreamSubscription, ...]


class WaitingBrowser(Answer, tag_field="kind", tag="browser"):
    """A queue browser: it reads messages without receiving them."""

    queue: str
    partition: str | None
    start: str = msgspec.field(name="from")


WaitingConsumer = WaitingPop | WaitingStream | WaitingBrowser
Consumers = renamed(
    Page[WaitingConsumer], "Consumers", "A page of the waiting consumers of this server process.", items="consumers"
)
