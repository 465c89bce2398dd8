"""What administrators ask for and see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from hark.model.messages import Subscription
from hark.model.queues import Limits, QueueInfo
from hark.model.words import QUEUE_MODE, GroupMode, MessageState

QueueSort = Literal["newest", "name"]


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
    ids: Sequence[str] | None = None
    """Dead letters' own ids, or the ids of the messages that died."""
    search: str | None = None
    """What the error contains; capital letters of ASCII count as small ones."""
    payloads: bool = True
    """False: payloads are null, for those who only want to know which ones there are."""
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


class QueueFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which queues, in which order; absent fields match all."""

    names: Sequence[str] | None = None
    search: str | None = None
    """What the name contains."""
    namespace: str | None = None
    task: str | None = None
    paused: bool | None = None
    sort: QueueSort = "newest"
    limit: int | None = None
    offset: int = 0


class QueueStats(msgspec.Struct, kw_only=True):
    """A queue and its messages by state."""

    info: QueueInfo
    partitions: int
    counts: Counts
    expired: int = 0
    """Messages not delivered because their time to live was over."""
    discarded: int = 0
    """Messages without retries left, dropped because the queue keeps no dead letters."""


class QueuePage(msgspec.Struct, frozen=True):
    """A page of queues, and how many match in all."""

    items: Sequence[QueueStats]
    total: int


class Depth(msgspec.Struct, frozen=True, gc=False):
    """Some partitions of a queue, and what one group has open in them; without a group, what is stored in them."""

    queue: str
    group: str | None
    partitions: int
    messages: int
    oldest: int | None
    """When the oldest of these messages was created; unknown without a group, unless the queue has none at all."""


class Survey(msgspec.Struct, frozen=True):
    """One step of a look at all partitions: entries of one queue follow each other, also from step to step."""

    depths: Sequence[Depth]
    next: tuple[int, str] | None
    """Where the next step goes on; None: this was the last."""


class Census(msgspec.Struct, frozen=True):
    """What a store has besides messages that wait."""

    queues: int
    dead_letters: Mapping[str, int]
    """By queue, those that have any."""
    in_flight: Mapping[tuple[str, str], int]
    """Messages on leases by queue and group, those that have any."""


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
