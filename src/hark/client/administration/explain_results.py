"""Responses about why messages are where they are, and about leases."""

from __future__ import annotations

from datetime import datetime

import msgspec

from hark.model import GroupMode


class AheadMessage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A message that a group must process before another one, and why it has not."""

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
    """Why a message was not delivered to a group, or not settled by it. Fields without a meaning here are None."""

    consumer_group: str | None
    """None: no group has ever requested messages of the queue."""
    reason: str
    text: str
    """The reason as a sentence."""
    consumer: str | None = None
    """The consumer that holds the message, between `since` and `until`."""
    since: datetime | None = None
    until: datetime | None = None
    """When the obstacle ends: a lease, a window buffer or a rate limit."""
    deliver_at: datetime | None = None
    due: datetime | None = None
    """When the retry is due."""
    attempts: int | None = None
    retries_allowed: int | None = None
    error: str | None = None
    failed_at: datetime | None = None
    dead_letter_id: str | None = None
    expired_at: datetime | None = None
    settled_at_latest: datetime | None = None
    ahead: AheadMessage | None = None
    ahead_messages: int | None = None
    """Number of messages in front of it."""
    waiting: int | None = None
    """Number of consumers that wait for it on the server that answered."""
    asked_at: datetime | None = None
    """When a consumer of the group last requested messages."""


class ExplainedMessage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A message, and for each group why it is where it is."""

    message_id: str
    queue: str
    partition: str
    partition_id: str
    offset: int
    transaction_id: str | None
    """None, like `created_at`, if the message is not stored any more."""
    created_at: datetime | None
    reasons: tuple[GroupReason, ...] = msgspec.field(name="explanations")
    """Sorted by the names of the groups."""


class HeldLease(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The messages that an active lease holds in one partition."""

    lease_id: str | None
    """None if your token only has permission to read."""
    queue: str
    partition: str
    partition_id: str
    consumer_group: str
    mode: GroupMode
    consumer: str | None
    """The holder: the name of the consumer, or the subject of its token and its address."""
    since: datetime | None
    until: datetime
    messages: int
    first_message_id: str


class LeasePage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of active leases, oldest first, and their total number."""

    items: tuple[HeldLease, ...] = msgspec.field(name="leases")
    total: int
