"""The options that a user chose on a builder, checked when they are set, so that the error points at the right line."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import msgspec

from hark.errors import InvalidInput
from hark.model import GroupMode

RENEWED_LEASE_SECONDS = 30
"""Lease time of leases that are renewed. If their consumer crashes, another one receives the messages after this
time."""
MAX_TIMEOUT_MS = 600_000
MAX_LEASE_SECONDS = 315_360_000
MAX_BATCH = 10_000
MAX_CONSUMER_PRIORITY = 1000


class Choices(msgspec.Struct, frozen=True, kw_only=True):
    """Which messages of which queue to consume, and how. None means not chosen."""

    queue: str | None = None
    partition: str | None = None
    namespace: str | None = None
    task: str | None = None
    group: str | None = None
    group_mode: GroupMode | None = None
    batch: int = 1
    partitions: int = 1
    wait: bool | None = None
    timeout_ms: int = 30_000
    concurrency: int = 1
    limit: int | None = None
    idle_ms: int | None = None
    each: bool = False
    auto_ack: bool = False
    renew: bool | None = None
    renew_ms: int | None = None
    lease_seconds: int | None = None
    polling: bool = False
    poll_ms: int | None = None
    subscription_mode: str | None = None
    subscription_from: str | None = None
    consumer_priority: int = 0
    consumer: str | None = None
    buffer_items: int | None = None
    buffer_ms: int | None = None

    @property
    def queue_name(self) -> str:
        """The name of the queue, for operations that need one."""
        if self.queue is None:
            raise InvalidInput('queue: this operation needs a queue name; use client.queue("orders")')
        return self.queue

    @property
    def renewed_seconds(self) -> int | None:
        """The lease time in seconds of renewed leases. None if leases are not renewed."""
        if self.renew is False or self.auto_ack:
            return None
        if self.lease_seconds is not None:
            return self.lease_seconds
        # Leases are renewed after a third of their time.
        return RENEWED_LEASE_SECONDS if self.renew_ms is None else max(1, math.ceil(3 * self.renew_ms / 1000))


def a_switch(value: object, field: str) -> bool:
    """Check that a value is True or False."""
    if not isinstance(value, bool):
        raise InvalidInput(f"{field}: expected True or False, got {value!r}")
    return value


def an_integer(value: object, field: str, low: int, high: int) -> int:
    """Check that a value is an integer within bounds."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidInput(f"{field}: expected an integer from {low} to {high}, got {value!r}")
    return value


def a_group_mode(value: object) -> GroupMode | None:
    """Check a group mode: `ordered`, `shared`, or None for the stored mode."""
    match value:
        case None | "ordered" | "shared":
            return value
    raise InvalidInput(f"group mode: expected 'ordered', 'shared' or None, got {value!r}")


def a_subscription_mode(value: object) -> str:
    """Check the subscription mode, which says where a new group starts."""
    modes = ("all", "from_beginning", "new", "new-only")
    if value not in modes:
        raise InvalidInput(f"subscription_mode: expected one of {', '.join(modes)}, got {value!r}")
    return str(value)


def a_beginning(value: object) -> str:
    """The time after which a new group starts, in the format of the API."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            text = f"expected a datetime with a time zone (datetime.now(UTC)), got {value!r}"
            raise InvalidInput(f"subscription_from: {text}")
        return value.astimezone(UTC).isoformat()
    if not isinstance(value, str) or not value:
        raise InvalidInput(f"subscription_from: expected 'now', an ISO 8601 time or a datetime, got {value!r}")
    return value
