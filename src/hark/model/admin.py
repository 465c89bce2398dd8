"""Queues, and data types of administration: filters, statistics, dead letters, messages and traces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from hark.api.options import Limits, QueueOptions
from hark.model.messages import QUEUE_MODE, GroupMode, Key, MessageState, NewMessage, ScheduledReason, Subscription


def labels_of(queue: str) -> tuple[str, str]:
    """Namespace and task that the name of a queue stands for: those of `a.b` and `a.b.c` are `a` and `b` (rule 2)."""
    namespace, _, rest = queue.partition(".")
    return namespace, rest.partition(".")[0]


class QueueSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A queue to create or configure."""

    name: str
    namespace: str = ""
    task: str = ""
    options: QueueOptions = QueueOptions()


class QueueInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A stored queue."""

    id: str
    name: str
    namespace: str
    task: str
    options: QueueOptions
    created_at: int
    paused: bool
    partition_id: str | None = None
    """The id of the partition `Default`, in the response to `configure`."""


QueueSort = Literal["newest", "name"]


class Seek(msgspec.Struct, frozen=True, kw_only=True):
    """A seek of a consumer group. Exactly one of `to_end`, `timestamp` and `offset` is set."""

    queue: str
    group: str
    partition: str | None = None
    to_end: bool = False
    timestamp: int | None = None
    """The next message is the first message created after this time."""
    offset: int | None = None
    """The next message is the message at this offset."""


class SeekOutcome(msgspec.Struct, frozen=True):
    """The number of partitions that a seek moved, and the next offset of the last one."""

    partitions: int
    next_offset: int | None = None


class GroupDeletion(msgspec.Struct, frozen=True):
    """The number of deleted positions and subscriptions of a group."""

    partitions: int
    subscriptions: int


class Expired(msgspec.Struct, frozen=True):
    """The number of leases that `expire` processed, and when it must be called next."""

    leases: int
    next_due: int | None


class Collected(msgspec.Struct, frozen=True):
    """The number of messages that a retention step examined and removed; `more` if it did not reach the end."""

    examined: int
    removed: int
    more: bool


class DeadLetterFilter(msgspec.Struct, frozen=True, kw_only=True):
    """A filter of dead letters. Absent fields match all."""

    queue: str | None = None
    group: str | None = None
    partition: str | None = None
    since: int | None = None
    until: int | None = None
    ids: Sequence[str] | None = None
    """Ids of dead letters, or ids of their messages."""
    search: str | None = None
    """Text that the error contains, without regard to the case of ASCII letters."""
    payloads: bool = True
    """False: payloads are null."""
    oldest_first: bool = False
    limit: int = 100
    offset: int = 0


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A message that could not be delivered to a consumer group."""

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
    priority: int = 0
    backoff_ms: tuple[int, ...] | None = None
    undelivered_keys: tuple[Key, ...] = ()
    trace_context: str | None = None
    unreadable: str | None = None
    """Why the payload, which is null then, cannot be read (rule 26): code and text."""


class NewDeadLetter(msgspec.Struct, kw_only=True):
    """A dead letter of another store. The times of delivery and expiry of its message do not count."""

    message: NewMessage
    id: str
    """A UUID that identifies the dead letter: a second import of it changes nothing."""
    group: str
    attempts: int
    error: str
    created_at: int
    failed_at: int


class DeadLetters(msgspec.Struct, frozen=True):
    """A page of dead letters, by default the newest failure first, and the number of all matches."""

    items: Sequence[DeadLetter]
    total: int


class Counts(msgspec.Struct, kw_only=True, rename="camel"):
    """Message counts by state; the unsettled ones are those of the group that is furthest behind."""

    total: int = 0
    pending: int = 0
    scheduled: int = 0
    """Messages that are delayed or wait for a retry (rule 28)."""
    processing: int = 0
    completed: int = 0
    failed: int = 0
    dead_letter: int = 0


class PartitionStats(msgspec.Struct, kw_only=True):
    """A partition and its message counts."""

    id: str
    name: str
    created_at: int
    counts: Counts
    oldest: int | None
    newest: int | None


class QueueFilter(msgspec.Struct, frozen=True, kw_only=True):
    """A filter of queues, and their order. Absent fields match all."""

    names: Sequence[str] | None = None
    search: str | None = None
    """Text that the name contains."""
    namespace: str | None = None
    task: str | None = None
    paused: bool | None = None
    sort: QueueSort = "newest"
    limit: int | None = None
    offset: int = 0
    uncounted: Sequence[str] = ()
    """Queues whose partitions are not looked at: their partitions and stored, open and held messages are 0."""


class QueueStats(msgspec.Struct, kw_only=True):
    """A queue and its message counts."""

    info: QueueInfo
    partitions: int
    counts: Counts
    expired: int = 0
    """Messages that expired before they were delivered."""
    discarded: int = 0
    """Messages discarded after their last attempt, because the queue keeps no dead letters."""


class QueuePage(msgspec.Struct, frozen=True):
    """A page of queues, and the number of all matches."""

    items: Sequence[QueueStats]
    total: int


class Depth(msgspec.Struct, frozen=True, gc=False):
    """Some partitions of a queue, and the lag of a group in them, or all stored messages without a group."""

    queue: str
    group: str | None
    partitions: int
    messages: int
    oldest: int | None
    """See `GroupStats.oldest_waiting`; unknown without a group, unless the queue has no groups."""
    scheduled: int = 0
    """Scheduled messages of the group; without a group they are among the stored messages."""
    lagging: int = 0
    """Partitions in which the group has a lag."""


class Survey(msgspec.Struct, frozen=True):
    """One step of a survey of all partitions. Entries of a queue are adjacent, also across steps."""

    depths: Sequence[Depth]
    next: tuple[int, str] | None
    """Where the next step continues; None: this was the last step."""


class Totals(msgspec.Struct, frozen=True):
    """Counts of queues, dead letters and messages in flight."""

    queues: int
    dead_letters: Mapping[str, int]
    """By queue, without zeros."""
    in_flight: Mapping[tuple[str, str], int]
    """Messages in flight by queue and group, without zeros."""


class GroupStats(msgspec.Struct, kw_only=True):
    """A consumer group of a queue."""

    group: str
    queue: str
    mode: GroupMode
    subscription: Subscription
    created_at: int
    last_seen: int
    paused: bool
    lag: int
    """Unsettled messages that are neither scheduled nor in flight."""
    partitions_with_lag: int
    oldest_waiting: int | None
    """Creation time of the oldest of these; of a delayed message, the time at which it became deliverable."""
    leases: int
    scheduled: int = 0
    in_flight: int = 0
    """Messages in flight."""
    limits: Limits = Limits()


class PositionStats(msgspec.Struct, kw_only=True):
    """The position of a consumer group in a partition."""

    group: str
    queue: str
    partition: str
    partition_id: str
    cursor: int
    lag: int
    oldest_waiting: int | None
    scheduled: int
    oldest_unsettled: int | None
    """Creation time of the oldest unsettled message, scheduled or not."""
    last_settled: int | None
    lease_id: str | None
    lease_expires_at: int | None


class MessageFilter(msgspec.Struct, frozen=True, kw_only=True):
    """A filter of messages. Absent fields match all."""

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
    """The state of a message in a consumer group."""

    group: str
    state: MessageState
    attempts: int
    error: str | None
    lease_expires_at: int | None
    reason: ScheduledReason | None = None
    due_at: int | None = None
    """When a scheduled message becomes deliverable."""


class MessageView(msgspec.Struct, kw_only=True):
    """A stored message with its state in each consumer group."""

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
    reason: ScheduledReason | None = None
    due_at: int | None = None
    payload: msgspec.Raw | None = None
    """Set only in the response for a single message."""
    sealed: bool = False
    unreadable: str | None = None


class NewTrace(msgspec.Struct, frozen=True, kw_only=True):
    """A trace event that a consumer records about a message."""

    partition_id: str
    transaction_id: str
    data: bytes
    group: str = QUEUE_MODE
    event: str = "info"
    names: tuple[str, ...] = ()


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded trace event."""

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
    unreadable: str | None = None


class TraceName(msgspec.Struct, frozen=True):
    """A trace name with counts."""

    name: str
    traces: int
    messages: int
    last_seen: int
