"""What a store knows of one message, for those who ask why it was not delivered; and who holds what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from hark.model.queues import QueueOptions
from hark.model.words import GroupMode


class Explain(msgspec.Struct, frozen=True):
    """Which message to explain: for one group, or for all that the queue has."""

    message_id: str
    group: str | None = None


class MessageFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A message as it is stored, or what is left of it."""

    id: str
    queue: str
    partition: str
    partition_id: str
    offset: int
    namespace: str = ""
    """Of the queue, as is the next."""
    task: str = ""
    stored: bool = True
    """False: it was removed. What follows is known then only where there is a dead letter of it."""
    transaction_id: str | None = None
    created_at: int | None = None
    priority: int = 0
    deliver_at: int | None = None
    """When its delay is over, if it was pushed with one; also when that is past."""
    expires_at: int | None = None
    """When its time to live is over: its own, else the queue's (a requeued one has only its own)."""
    owner: str | None = None
    """The only group that it is for: it was a dead letter of that group, which may have been deleted since ("")."""
    retries_allowed: int = 0
    """How long its retry schedule is: its own, else the queue's."""


class Held(msgspec.Struct, frozen=True):
    """A live lease that keeps others from a message."""

    lease_id: str
    consumer: str
    """Who holds it, as the pop said; empty: it did not say."""
    since: int | None
    """When it was given; None: not known any more."""
    until: int


class Retrying(msgspec.Struct, frozen=True):
    """A message that used attempts, or that its consumer gave back."""

    attempts: int
    """How many were used; 0: it was given back uncounted."""
    due: int
    """When it may be delivered again; also when that is past."""
    error: str | None


class Ahead(msgspec.Struct, frozen=True, kw_only=True):
    """A message that an ordered group has to take before another one of the partition."""

    message_id: str
    offset: int
    held: Held | None = None
    retry: Retrying | None = None
    deliver_at: int | None = None
    """When its delay is over, or when it is old enough, whichever is later."""


class DeadFacts(msgspec.Struct, frozen=True):
    """The dead letter of a message."""

    id: str
    attempts: int
    error: str
    failed_at: int


class Ending(msgspec.Struct, frozen=True):
    """How a group came to be done with a message that nobody completed."""

    kind: Literal["discarded", "expired"]
    at: int
    attempts: int = 0
    error: str | None = None


class Limited(msgspec.Struct, frozen=True, kw_only=True):
    """A bound that lets nothing more be delivered now (rule 8)."""

    reason: Literal["rate_limited", "max_in_flight"]
    scope: Literal["queue", "group"]
    limit: float
    """Messages per second, or messages in flight."""
    in_flight: int = 0
    """For `max_in_flight`: how many there are."""
    until: int | None = None
    """For `rate_limited`: when the next one may be delivered."""


class GroupFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One group and one message. What does not apply has its default.

    Engines look at a bounded number of messages, however many there are. What is past and what is to come is for the
    reader to compare with `Facts.at`, but for `ahead`, `window_until` and `limited`, which are as of then.
    """

    group: str
    mode: GroupMode | None = None
    """None: nobody has ever asked for messages under this name."""
    paused: bool = False
    last_seen: int = 0
    """When it was last noted that somebody of the group asked; it is noted about once an hour."""
    begins_after: int | None = None
    """The message was created before the group began, at this time; None: it was not."""
    settled: bool = False
    """It is done with the message: the message is at or below its cursor, in what is settled beyond that, or (shared)
    passed and no exception. Nobody has anything to do with one that is not stored."""
    settled_at: int | None = None
    """When it last settled something of the partition."""
    dead: DeadFacts | None = None
    ending: Ending | None = None
    """Remembered for the last 10,000 of them since the server started, on the server where it happened."""
    held: Held | None = None
    """The message itself is on a live lease, which (ordered) keeps the partition."""
    retry: Retrying | None = None
    """What is known of the message's own attempts."""
    ahead: Ahead | None = None
    """Ordered, and not held itself: what is in its way. On a leased partition the first message that the lease holds;
    else the first unsettled one before it that is not due (among the first 1,000); else the first unsettled one before
    it, by name only, as it is not in its way for long. None: it is the next one."""
    ahead_messages: int = 0
    """Ordered: how many unsettled messages are before it."""
    window_until: int | None = None
    """When the queue's window buffer lets the partition be delivered; None: no window is open."""
    limited: Limited | None = None


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """All that a store knows of a message, at one moment."""

    at: int
    """When, by the engine's clock."""
    message: MessageFacts
    options: QueueOptions
    queue_paused: bool
    groups: Sequence[GroupFacts]
    """By name: all groups of the queue, or the one that was asked for (also when there is no such group)."""


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
"""Why a message has not been delivered to a group, or settled by it."""


class Explanation(msgspec.Struct, frozen=True):
    """Why a message is where it is, for one group."""

    group: str | None
    """None: the queue has no group at all."""
    reason: Reason
    text: str
    """One sentence for people."""
    data: Mapping[str, object]
    """The same for programs, by the names of the HTTP API; times are text."""


class Explained(msgspec.Struct, frozen=True):
    """A message, and why it is where it is for each group that was asked for."""

    message: MessageFacts
    explanations: Sequence[Explanation]


class LeaseFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which leases; absent fields match all."""

    queue: str | None = None
    partition: str | None = None
    group: str | None = None
    limit: int = 100
    offset: int = 0


class HeldPart(msgspec.Struct, frozen=True, kw_only=True):
    """What a live lease holds of one partition."""

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
    """How many it still holds here."""
    first_message_id: str
    """The one of them with the lowest offset."""


class Leases(msgspec.Struct, frozen=True):
    """A page of live leases, oldest first, and how many match in all."""

    items: Sequence[HeldPart]
    total: int
