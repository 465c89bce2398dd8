"""The limits of what groups may receive: of a queue, of a group, and of a group in each partition (rule 8).

A rate is a bucket of tokens, which each delivery takes from and time fills.
"""

from __future__ import annotations

from math import ceil, floor
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeVar

import msgspec

from hark.clock import SECOND
from hark.model import EmptyReason, Limited, Limits

if TYPE_CHECKING:
    from hark.engine.core.position import Position
    from hark.engine.core.state import Group, Queue

N = TypeVar("N", int, float)
MANY = 1 << 30
"""More than any pop requests."""


class Room(NamedTuple):
    """The number of messages that a group may receive now; if 0, the reason, and the time when it may again."""

    left: int
    reason: EmptyReason = ""
    look_again_at: int | None = None


FREE = Room(MANY)


class Each(NamedTuple):
    """The limits of a group in each partition. 0: no limit."""

    max_in_flight: int
    rate: float
    burst: int
    """The size of the bucket; 0 without a rate."""


def _each_of(limits: Limits) -> Each | None:
    rate = limits.rate_limit_per_partition
    if not (rate or limits.max_in_flight_per_partition):
        return None
    return Each(limits.max_in_flight_per_partition, rate, _size(rate, limits.rate_burst_per_partition))


def _size(rate: float, burst: int) -> int:
    return (burst or max(1, ceil(rate))) if rate else 0


def narrower(a: Each | None, b: Each | None) -> Each | None:
    """The limits of a queue and of one of its groups together."""
    if a is None or b is None:
        return a or b
    return Each(_least(a.max_in_flight, b.max_in_flight), _least(a.rate, b.rate), _least(a.burst, b.burst))


def _least(a: N, b: N) -> N:
    return min(a, b) if a and b else a or b


class Bucket(Protocol):
    """What has tokens of a rate."""

    tokens: float | None
    """Tokens that are left; None: all, because none was used."""
    filled_at: int


class Bounds(msgspec.Struct, eq=False):
    """The limits of a queue or of a group, and the tokens of its rate."""

    tokens: float | None = None
    """Tokens of the rate that are left; None: all, because none was used."""
    filled_at: int = 0
    blocked: bool = False
    """A pop got nothing because of `max_in_flight`, so a hint is needed when there is room."""
    limits: Limits = Limits()
    limited: bool = False
    each: Each | None = None
    """The limits in each partition."""

    def set(self, limits: Limits) -> None:
        """Replace the limits."""
        self.limits = limits
        self.blocked = self.blocked and limits.max_in_flight > 0
        self.limited = bool(limits.max_in_flight or limits.rate_limit)
        self.each = _each_of(limits)

    @property
    def size(self) -> int:
        """The size of the bucket."""
        return _size(self.limits.rate_limit, self.limits.rate_burst)


class Allowance(msgspec.Struct, eq=False):
    """The messages that all requests of one round may receive together, in groups that have limits."""

    now: int
    _reserved: dict[Bounds, int] = {}
    _in_partitions: dict[Position, tuple[int, int]] = {}
    """Reserved messages of partitions with limits, and how many of these will be in flight."""
    _unsure: set[Bounds] = set()

    def room(self, queue: Queue, group: Group, *, auto_ack: bool) -> Room:
        """The number left for a request. With `auto_ack`, messages are never in flight."""
        least = FREE
        for bounds, in_flight in ((queue.bounds, queue.in_flight), (group.bounds, group.in_flight)):
            reserved = self._reserved.get(bounds, 0)
            if bounds.limits.max_in_flight and not auto_ack:
                left = bounds.limits.max_in_flight - in_flight - reserved
                least = min(least, Room(max(0, left), "max_in_flight"))
            if (rate := bounds.limits.rate_limit) > 0:
                left = _whole_tokens(bounds, rate, bounds.size, self.now) - reserved
                least = min(least, Room(max(0, left), "rate_limited", _next_token(bounds, rate)))
        return least

    def room_in(self, position: Position, *, auto_ack: bool, own: int = 0) -> Room:
        """The same for one partition. `own`: messages in flight there that the request itself received."""
        reserved, leased = self._in_partitions.get(position, (0, 0))
        return room_in(position, self.now, reserved, leased - (own if auto_ack else 0), auto_ack=auto_ack)

    def reserve(self, position: Position, number: int, *, exact: bool, auto_ack: bool) -> None:
        """Reserve messages for a request, which receives all of them if `exact`, else at most that number."""
        for bounds in (position.partition.queue.bounds, position.group.bounds):
            if bounds.limited:
                self._reserved[bounds] = self._reserved.get(bounds, 0) + number
                if not exact:
                    self._unsure.add(bounds)
        if position.group.each is not None:
            reserved, leased = self._in_partitions.get(position, (0, 0))
            self._in_partitions[position] = reserved + number, leased + (0 if auto_ack else number)

    def is_unsure(self, queue: Queue, group: Group) -> bool:
        """Whether reserved messages must be delivered before the remaining number is known."""
        return queue.bounds in self._unsure or group.bounds in self._unsure

    def spend(self, position: Position, number: int) -> None:
        """Spend tokens for delivered messages."""
        for bounds in (position.partition.queue.bounds, position.group.bounds):
            if (rate := bounds.limits.rate_limit) > 0:
                bounds.tokens = _refill(bounds, rate, bounds.size, self.now) - number
        each = position.group.each
        if each is not None and number:  # Without a delivery, what the claim found out about the partition stays.
            if each.rate:
                position.tokens = _refill(position, each.rate, each.burst, self.now) - number
            position.refresh(self.now)


def room_in(position: Position, now: int, reserved: int = 0, leased: int = 0, *, auto_ack: bool = False) -> Room:
    """The number of messages that the limits of a partition leave for its group.

    At its limit of messages in flight a partition delivers nothing, with `auto_ack` either.
    """
    each = position.group.each
    if each is None:
        return FREE
    least = FREE
    if each.max_in_flight:
        left = each.max_in_flight - position.noted - leased
        if left <= 0 or not auto_ack:
            least = Room(max(0, left), "max_in_flight")
    if each.rate:
        left = _whole_tokens(position, each.rate, each.burst, now) - reserved
        least = min(least, Room(max(0, left), "rate_limited", _next_token(position, each.rate)))
    return least


def reached_limit(position: Position, now: int) -> Limited | None:
    """The limit that currently prevents deliveries to a group in a partition."""
    queue, group = position.partition.queue, position.group
    scopes: tuple[tuple[Literal["queue", "group"], Bounds, int], ...] = (
        ("queue", queue.bounds, queue.in_flight),
        ("group", group.bounds, group.in_flight),
    )
    for scope, bounds, in_flight in scopes:
        most = bounds.limits.max_in_flight
        if most and in_flight >= most:
            return Limited(reason="max_in_flight", scope=scope, limit=most, in_flight=in_flight)
    each = group.each
    if each is not None and each.max_in_flight and position.noted >= each.max_in_flight:
        return Limited(reason="max_in_flight", scope="partition", limit=each.max_in_flight, in_flight=position.noted)
    for scope, bounds, _ in scopes:
        rate = bounds.limits.rate_limit
        if rate and _whole_tokens(bounds, rate, bounds.size, now) <= 0:
            return Limited(reason="rate_limited", scope=scope, limit=rate, until=_next_token(bounds, rate))
    if each is not None and each.rate and _whole_tokens(position, each.rate, each.burst, now) <= 0:
        until = _next_token(position, each.rate)
        return Limited(reason="rate_limited", scope="partition", limit=each.rate, until=until)
    return None


def _whole_tokens(bucket: Bucket, rate: float, size: int, now: int) -> int:
    """The number of whole tokens, including one that is complete within half a microsecond."""
    return floor(_refill(bucket, rate, size, now) + rate / SECOND / 2)


def _refill(bucket: Bucket, rate: float, size: int, now: int) -> float:
    if bucket.tokens is None:
        bucket.tokens, bucket.filled_at = size, now
    gained = rate * max(0, now - bucket.filled_at) / SECOND  # The clock may have been set back before a restart.
    bucket.tokens, bucket.filled_at = min(size, bucket.tokens + gained), now
    return bucket.tokens


def _next_token(bucket: Bucket, rate: float) -> int:
    missing = max(0.0, 1 - (bucket.tokens or 0))
    # Never at once: who looks again at that time and finds a fraction missing must not do so for ever.
    return bucket.filled_at + max(1, round(missing / rate * SECOND))
