"""What a server says about why messages are where they are, and about who holds what."""

from __future__ import annotations

from datetime import datetime

import msgspec

from hark.model import GroupMode


class AheadMessage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A message that a group has to take before another one, and why it does not."""

    message_id: str
    offset: int
    reason: str
    """`leased`, `retry` or `delayed`."""
    consumer: str | None = None
    until: datetime | None = None
    due: datetime | None = None
    error: str | None = None
    deliver_at: datetime | None = None


class GroupReason(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Why a message was not delivered to a group, or settled by it. What the reason does not need is None."""

    consumer_group: str | None
    """None: no group has ever asked for messages of the queue."""
    reason: str
    text: str
    """The reason in a sentence."""
    consumer: str | None = None
    """Who holds it, `since` and `until` when."""
    since: datetime | None = None
    until: datetime | None = None
    """When what keeps it is over: a lease, a window, a rate."""
    deliver_at: datetime | None = None
    due: datetime | None = None
    """When its retry is due."""
    attempts: int | None = None
    retries_allowed: int | None = None
    error: str | None = None
    failed_at: datetime | None = None
    dead_letter_id: str | None = None
    expired_at: datetime | None = None
    settled_at_latest: datetime | None = None
    ahead: AheadMessage | None = None
    ahead_messages: int | None = None
    """How many come before it."""
    waiting: int | None = None
    """How many consumers wait for it on the server that answered."""
    asked_at: datetime | None = None
    """Nobody asked since then."""


class ExplainedMessage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A message, and why it is where it is for each group."""

    message_id: str
    queue: str
    partition: str
    partition_id: str
    offset: int
    transaction_id: str | None
    """None, as is the next, when it is not stored any more."""
    created_at: datetime | None
    reasons: tuple[GroupReason, ...] = msgspec.field(name="explanations")
    """By the names of the groups."""


class HeldLease(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a live lease holds of one partition."""

    lease_id: str | None
    """None for those who may only read."""
    queue: str
    partition: str
    partition_id: str
    consumer_group: str
    mode: GroupMode
    consumer: str | None
    """Who holds it: what it called itself, else its token and its address."""
    since: datetime | None
    until: datetime
    messages: int
    first_message_id: str


class LeasePage(msgspec.Struct, frozen=True, kw_only=True):
    """Some of the live leases, oldest first, and how many there are."""

    items: tuple[HeldLease, ...] = msgspec.field(name="leases")
    total: int
