"""Leases and their renewals, and explanations of messages that were not delivered."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

from hark.api.types.base import Answer, Body, Pagination
from hark.model import GroupMode, Reason


class ActiveLease(Answer):
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


class LeasePage(Answer):
    """A page of leases, the oldest first."""

    items: tuple[ActiveLease, ...] = msgspec.field(name="leases")
    total: int
    pagination: Pagination


class ExtendBody(Body):
    """The length of the renewal. The body can be empty."""

    seconds: int | None = None


class ExtendManyBody(Body):
    """The leases to renew, and the length of the renewal."""

    lease_ids: list[str]
    seconds: int | None = None


class RenewalAnswer(Answer, omit_defaults=True):
    """The result of one lease renewal."""

    lease_id: str
    success: bool
    expires_at: datetime | None
    error: str | None = None
    code: str | None = None


class ExtendedLeases(Answer):
    """The results of lease renewals, in the order of the leases."""

    results: tuple[RenewalAnswer, ...]


class ExtendedLease(Answer, omit_defaults=True):
    """The result of a lease renewal. The time has three names, because clients read different ones."""

    index: int
    lease_id: str
    success: bool
    renewed: int
    error: str | None
    expires_at: datetime | None
    new_expires_at: datetime | None
    lease_expires_at: datetime | None = msgspec.field(name="lease_expires_at")
    code: str | None = None


# Explanations ----------------------------------------------------------------------------------------------


class AheadMessage(Answer, omit_defaults=True):
    """An earlier message that blocks this message in an ordered group, and the reason."""

    message_id: str
    offset: int
    reason: Literal["leased", "retry", "delayed"]
    consumer: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    attempts: int | None = None
    due: datetime | None = None
    error: str | None = None
    deliver_at: datetime | None = None


class GroupReason(Answer, omit_defaults=True):
    """Why a message was not delivered to a consumer group or settled by it. The reason determines the other fields."""

    consumer_group: str | None
    """None: no group has ever requested messages of the queue."""
    reason: Reason
    text: str
    """The reason as a sentence."""
    consumer: str | None = None
    """The consumer that holds the message, between `since` and `until`."""
    since: datetime | None = None
    until: datetime | None = None
    """When the obstacle ends: a lease, a window buffer or a rate limit."""
    attempt: int | None = None
    attempts: int | None = None
    retries_allowed: int | None = None
    due: datetime | None = None
    """When the retry is due."""
    error: str | None = None
    failed_at: datetime | None = None
    dead_letter_id: str | None = None
    deliver_at: datetime | None = None
    delayed_processing: int | None = None
    window_buffer: int | None = None
    expired_at: datetime | None = None
    starts_after: datetime | None = None
    owner: str | None = None
    settled_at_latest: datetime | None = None
    certain: bool | None = None
    moved: bool | None = None
    ahead: AheadMessage | None = None
    ahead_messages: int | None = None
    """Number of messages in front of it."""
    scope: Literal["queue", "group"] | None = None
    limit: float | None = None
    in_flight: int | None = None
    waiting: int | None = None
    """Number of consumers that wait for it on the server that answered."""
    asked_at: datetime | None = None
    """When a consumer of the group last requested messages."""
    asked_here_only: bool | None = None


class ExplainedMessage(Answer):
    """A message, and an explanation of its state for each consumer group."""

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
