"""What administrators ask for and see."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from hark.model.messages import Subscription
from hark.model.queues import Limits, QueueInfo
from hark.model.words import QUEUE_MODE, GroupMode, MessageState


class Seek(msgspec.Struct, frozen=True, kw_only=True):
    """Move a group of a queue: exactly one of `to_end`, `timestamp`, `offset`."""

    queue: str
    group: str
    partition: str | None = None
    to_end: bool = False
    timestamp: int | None = None
    """The next message is the first one created after this time."""
    offset: int | None = None
    """The next message is the one at this offset."""


class SeekOutcome(msgspec.Struct, frozen=True):
    """How many partitions a seek moved, and the next offset of the last one."""

    partitions: int
    next_offset: int | None = None


class GroupDeletion(msgspec.Struct, frozen=True):
    """How much of a group was deleted."""

    partitions: int
    subscriptions: int


class Expired(msgspec.Struct, frozen=True):
    """What `expire` did, and when it has to be called next."""

    leases: int
    next_due: int | None


class Collected(msgspec.Struct, frozen=True):
    """How many messages a step of retention looked at and removed; `more` if it did not get to the end."""

    examined: int
    removed: int
    more: bool


class DeadLetterFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which dead letters; absent fields match all."""

    queue: str | None = None
    group: str | None = None
    partition: str | None = None
    since: int | None = None
    until: int | None = None
    id: str | None = None
    """A dead letter's own id or the id of the message that died."""
    limit: int = 100
    offset: int = 0


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A message that could not be delivered to a group."""

    id: str
    message_id: str
    transaction_id: str
    partition_id: str
    queue: str
    partition: str
    group: str
    payload: msgspec.Raw
    sealed: bool
    producer: str | None
    trace_id: str | None
    attempts: int
    error: str
    created_at: int
    failed_at: int


class DeadLetters(msgspec.Struct, frozen=True):
    """A page of dead letters, newest failure first, and how many match in all."""

    items: Sequence[DeadLetter]
    total: int


class Counts(msgspec.Struct, kw_only=True):
    """Messages by state; `pending` and `processing` as the group that is furthest behind sees them."""

    total: int = 0
    pending: int = 0
    processing: int = 0
    completed: int = 0
    failed: int = 0
    dead_letter: int = 0


class PartitionStats(msgspec.Struct, kw_only=True):
    """A partition and its messages by state."""

    id: str
    name: str
    created_at: int
    counts: Counts
    oldest: int | None
    newest: int | None


class QueueStats(msgspec.Struct, kw_only=True):
    """A queue and its messages by state."""

    info: QueueInfo
    partitions: int
    counts: Counts
    expired: int = 0
    """Messages not delivered because their time to live was over."""
    discarded: int = 0
    """Messages without retries left, dropped because the queue keeps no dead letters."""


class GroupStats(msgspec.Struct, kw_only=True):
    """A group of a queue."""

    group: str
    queue: str
    mode: GroupMode
    subscription: Subscription
    created_at: int
    last_seen: int
    paused: bool
    lag: int
    """Messages not yet settled."""
    partitions_with_lag: int
    oldest_waiting: int | None
    """Creation time of the oldest message not yet settled."""
    leases: int
    in_flight: int = 0
    """Messages that are on leases."""
    limits: Limits = Limits()


class TrackStats(msgspec.Struct, kw_only=True):
    """A group's place in a partition."""

    group: str
    queue: str
    partition: str
    partition_id: str
    cursor: int
    lag: int
    oldest_waiting: int | None
    last_settled: int | None
    lease_id: str | None
    lease_expires_at: int | None


class MessageFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which messages; absent fields match all."""

    queue: str | None = None
    partition: str | None = None
    namespace: str | None = None
    task: str | None = None
    state: MessageState | None = None
    since: int | None = None
    until: int | None = None
    limit: int = 200
    offset: int = 0


class GroupView(msgspec.Struct, kw_only=True):
    """What one group has done with one message."""

    group: str
    state: MessageState
    attempts: int
    error: str | None
    lease_expires_at: int | None


class MessageView(msgspec.Struct, kw_only=True):
    """A stored message as an administrator sees it."""

    id: str
    transaction_id: str
    partition_id: str
    queue: str
    partition: str
    namespace: str
    task: str
    offset: int
    state: MessageState
    trace_id: str | None
    producer: str | None
    priority: int
    queue_priority: int
    created_at: int
    deliver_at: int | None
    groups: Sequence[GroupView]
    payload: msgspec.Raw | None = None
    """Only when one message is asked for."""
    sealed: bool = False


class NewTrace(msgspec.Struct, frozen=True, kw_only=True):
    """An event that a consumer records about a message."""

    partition_id: str
    transaction_id: str
    data: bytes
    group: str = QUEUE_MODE
    event: str = "info"
    names: tuple[str, ...] = ()


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded event."""

    id: str
    event: str
    data: msgspec.Raw
    group: str
    created_at: int
    names: Sequence[str]
    transaction_id: str
    partition_id: str
    queue: str
    partition: str
    payload: msgspec.Raw | None
    sealed: bool


class TraceName(msgspec.Struct, frozen=True):
    """A name that events were recorded under."""

    name: str
    traces: int
    messages: int
    last_seen: int
