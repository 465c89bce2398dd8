"""How much groups may take: bounds on what is in flight, and rates by a bucket of tokens."""

from __future__ import annotations

from math import ceil, floor
from typing import Literal, NamedTuple

from hark.clock import SECOND
from hark.engine.sqlite.state import Bounds, Group, Queue
from hark.model import EmptyReason, Limited

MANY = 1 << 30
"""More than any pop asks for."""


class Room(NamedTuple):
    """How many messages a group may take now; if none, why, and when it may again."""

    left: int
    reason: EmptyReason = ""
    look_again_at: int | None = None


FREE = Room(MANY)


class Allowance:
    """What the requests of one call may take at one moment, all of them together."""

    def __init__(self, now: int) -> None:
        self._now = now
        self._reserved: dict[Bounds, int] = {}
        self._unsure: set[Bounds] = set()

    def room(self, queue: Queue, group: Group, *, auto_ack: bool) -> Room:
        """What is left for a request; what is settled at delivery is never in flight."""
        if not (queue.bounds.limited or group.bounds.limited):
            return FREE
        least = FREE
        for bounds, in_flight in ((queue.bounds, queue.in_flight), (group.bounds, group.in_flight)):
            reserved = self._reserved.get(bounds, 0)
            if bounds.limits.max_in_flight and not auto_ack:
                left = bounds.limits.max_in_flight - in_flight - reserved
                least = min(least, Room(max(0, left), "max_in_flight"))
            if bounds.limits.rate_limit:
                left = _whole_tokens(bounds, self._now) - reserved
                least = min(least, Room(max(0, left), "rate_limited", _next_token(bounds)))
        return least

    def reserve(self, queue: Queue, group: Group, number: int, *, exact: bool) -> None:
        """A request is about to take so many, or, if that is not exact, some of them."""
        for bounds in (queue.bounds, group.bounds):
            if bounds.limited:
                self._reserved[bounds] = self._reserved.get(bounds, 0) + number
                if not exact:
                    self._unsure.add(bounds)

    def is_unsure(self, queue: Queue, group: Group) -> bool:
        """Whether nobody can say what is left before those have what they get who are about to take some."""
        return queue.bounds in self._unsure or group.bounds in self._unsure

    def release(self) -> None:
        """All who were about to take some have it now."""
        self._reserved.clear()
        self._unsure.clear()

    def spend(self, queue: Queue, group: Group, number: int) -> None:
        """So many were handed out."""
        for bounds in (queue.bounds, group.bounds):
            if bounds.limits.rate_limit:
                bounds.tokens = _refill(bounds, self._now) - number


def reached_limit(queue: Queue, group: Group, now: int) -> Limited | None:
    """The bound that lets a group have nothing more now; None: there is none."""
    scopes: tuple[tuple[Literal["queue", "group"], Bounds, int], ...] = (
        ("queue", queue.bounds, queue.in_flight),
        ("group", group.bounds, group.in_flight),
    )
    for scope, bounds, in_flight in scopes:
        most = bounds.limits.max_in_flight
        if most and in_flight >= most:
            return Limited(reason="max_in_flight", scope=scope, limit=most, in_flight=in_flight)
    for scope, bounds, _ in scopes:
        rate = bounds.limits.rate_limit
        if rate and _whole_tokens(bounds, now) <= 0:
            return Limited(reason="rate_limited", scope=scope, limit=rate, until=_next_token(bounds))
    return None


def _whole_tokens(bounds: Bounds, now: int) -> int:
    """How many messages a rate lets pass now; a token that is there in half a microsecond is there."""
    return floor(_refill(bounds, now) + bounds.limits.rate_limit / SECOND / 2)


def _refill(bounds: Bounds, now: int) -> float:
    limits = bounds.limits
    capacity = limits.rate_burst or max(1, ceil(limits.rate_limit))
    if bounds.tokens is None:
        bounds.tokens, bounds.filled_at = capacity, now
    gained = limits.rate_limit * (now - bounds.filled_at) / SECOND
    bounds.tokens, bounds.filled_at = min(capacity, bounds.tokens + gained), now
    return bounds.tokens


def _next_token(bounds: Bounds) -> int:
    missing = max(0.0, 1 - (bounds.tokens or 0))
    return bounds.filled_at + round(missing / bounds.limits.rate_limit * SECOND)
