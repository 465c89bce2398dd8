"""Facts about one message, which explain why it was not delivered; and lists of leases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from hark.api.options import QueueOptions
from hark.model.messages import GroupMode


class Explain(msgspec.Struct, frozen=True):
    """The message to explain, for one group or for all groups of the queue."""

    message_id: str
    group: str | None = None


class MessageFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A stored message, or the known facts of a removed message."""

    id: str
    queue: str
    partition: str
    partition_id: str
    offset: int
    namespace: str = ""
    """Label of the queue, like `task`."""
    task: str = ""
    stored: bool = True
    """False: it was removed. The following fields are then known only if there is a dead letter of it."""
    transaction_id: str | None = None
    created_at: int | None = None
    priority: int = 0
    deliver_at: int | None = None
    """End of its delay, if it was pushed with one; it may be in the past."""
    expires_at: int | None = None
    """End of its time to live: its own, else that of the queue (a requeued message has only its own)."""
    owner: str | None = None
    """The only group that receives it: it was requeued from the dead letters of that group. Empty if the group was
    deleted."""
    retries_allowed: int = 0
    """Number of retries of its retry schedule: its own, else that of the queue."""


class CurrentLease(msgspec.Struct, frozen=True):
    """The current lease on a message."""

    lease_id: str
    consumer: str
    """Name of the consumer that holds it; empty: not known."""
    since: int | None
    """Start of the lease; None: not known any more."""
    until: int


class Retrying(msgspec.Struct, frozen=True):
    """A message that used attempts, or whose lease was released."""

    attempts: int
    """Number of used attempts; 0: the lease was released without using one."""
    due: int
    """Time of the next delivery attempt; it may be in the past."""
    error: str | None


class Ahead(msgspec.Struct, frozen=True, kw_only=True):
    """An earlier message of the partition that an ordered group must receive first."""

    message_id: str
    offset: int
    lease: CurrentLease | None = None
    retry: Retrying | None = None
    deliver_at: int | None = None
    """End of its delay, or the time when it is old enough, whichever is later."""


class DeadFacts(msgspec.Struct, frozen=True):
    """The dead letter of a message."""

    id: str
    attempts: int
    error: str
    failed_at: int


class Ending(msgspec.Struct, frozen=True):
    """How a message ended for a group without an acknowledgement."""

    kind: Literal["discarded", "expired"]
    at: int
    attempts: int = 0
    error: str | None = None


class Limited(msgspec.Struct, frozen=True, kw_only=True):
    """A limit that currently prevents deliveries (rule 8)."""

    reason: Literal["rate_limited", "max_in_flight"]
    scope: Literal["queue", "group", "partition"]
    """What has the limit; `partition`: the group in this partition, because of its own limits or of the queue's."""
    limit: float
    """Messages per second, or messages in flight."""
    in_flight: int = 0
    """For `max_in_flight`: the current number of messages in flight."""
    until: int | None = None
    """For `rate_limited`: when the next message can be delivered."""


class GroupFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about one message in one group. Facts that do not apply have their default.

    Engines examine a bounded number of messages. Times are to be compared with `Facts.at`, except that `ahead`,
    `window_until` and `limited` already apply at that time.
    """

    group: str
    mode: GroupMode | None = None
    """None: no consumer has ever requested messages for this group."""
    paused: bool = False
    last_seen: int = 0
    """Last recorded request of the group; it is recorded about once an hour."""
    begins_after: int | None = None
    """Start of the group, if the message was created before it; else None."""
    settled: bool = False
    """The group has settled the message: the message is at or below its cursor, among the settled messages beyond it,
    or (shared) passed and not an exception. A message that is not stored counts as settled."""
    settled_at: int | None = None
    """When the group last settled a message of the partition."""
    dead: DeadFacts | None = None
    ending: Ending | None = None
    """Kept for the last 10,000 messages since the server started, on the server where it happened."""
    lease: CurrentLease | None = None
    """The current lease on the message; in an ordered group it covers the partition."""
    retry: Retrying | None = None
    """The attempts of the message."""
    ahead: Ahead | None = None
    """In an ordered group, if the message is not leased: the earlier message that blocks it. On a leased partition this
    is the first message of the lease; else the first earlier unsettled message that is not due (among the first 1,000);
    else the first earlier unsettled message, without a cause. None: the message is next."""
    ahead_messages: int = 0
    """In an ordered group: number of earlier unsettled messages."""
    window_until: int | None = None
    """When the window buffer of the queue allows delivery of the partition; None: no window is open."""
    limited: Limited | None = None


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """All facts that a store knows about a message at one time."""

    at: int
    """The time, by the clock of the engine."""
    message: MessageFacts
    options: QueueOptions
    queue_paused: bool
    groups: Sequence[GroupFacts]
    """Ordered by name: all groups of the queue, or the requested group (also if it does not exist)."""


Reason = Literal[
    "done",
    "dead_lettered",
    "discarded",
    "expired",
    "before_start",
    "removed",
    "no_group",
    "other_group",
    "leased",
    "pop_maintenance",
    "queue_paused",
    "key_missing",
    "group_paused",
    "delayed",
    "delayed_processing",
    "retry",
    "behind",
    "window_buffer",
    "rate_limited",
    "max_in_flight",
    "not_asked",
    "ready",
]
"""Why a message was not delivered to a group, or not settled by it."""


class Explanation(msgspec.Struct, frozen=True):
    """The explanation of the state of a message for one group."""

    group: str | None
    """None: the queue has no groups."""
    reason: Reason
    text: str
    """One sentence for people."""
    data: Mapping[str, object]
    """The same as data for programs, by the names of the HTTP API; times are text."""


class Explained(msgspec.Struct, frozen=True):
    """A message, and the explanation of its state for each requested group."""

    message: MessageFacts
    explanations: Sequence[Explanation]


class LeaseFilter(msgspec.Struct, frozen=True, kw_only=True):
    """A filter of leases. Absent fields match all."""

    queue: str | None = None
    partition: str | None = None
    group: str | None = None
    limit: int = 100
    offset: int = 0


class LeasePart(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a lease that concerns one partition."""

    lease_id: str
    queue: str
    partition: str
    partition_id: str
    group: str
    mode: GroupMode
    consumer: str
    since: int | None
    until: int
    messages: int
    """Number of its messages in this partition that are still leased."""
    first_message_id: str
    """The message of these with the lowest offset."""


class Leases(msgspec.Struct, frozen=True):
    """A page of leases, the oldest first, and the number of all matches."""

    items: Sequence[LeasePart]
    total: int
