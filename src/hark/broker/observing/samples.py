"""What is known of the server at one moment."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Rates(msgspec.Struct, frozen=True):
    """Messages per second that went through this server process."""

    pushed: float = 0.0
    delivered: float = 0.0
    settled: float = 0.0
    failed: float = 0.0
    dead_lettered: float = 0.0


class Latency(msgspec.Struct, frozen=True):
    """How old messages were when they were first delivered, in milliseconds."""

    p50: float
    p99: float


class QueueRates(msgspec.Struct, frozen=True):
    """Messages per second of one queue."""

    queue: str
    pushed: float
    delivered: float
    settled: float


class QueueDepth(msgspec.Struct, frozen=True, gc=False):
    """What one queue has. `backlog` is what waits for the group that is furthest behind."""

    partitions: int
    backlog: int
    in_flight: int
    """Messages on leases of all its groups."""
    oldest_waiting: int | None
    """When the oldest message was created that some group has not settled."""
    dead_letters: int


class Depths(msgspec.Struct, frozen=True):
    """What the store has, as the last survey of it found."""

    at: int
    """When the survey ended."""
    queues: int
    partitions: int
    backlog: int
    in_flight: int
    oldest_waiting: int | None
    dead_letters: int
    by_queue: Mapping[str, QueueDepth]
    """Those with the longest backlogs; all of them unless there are very many."""


class Standing(msgspec.Struct, frozen=True):
    """Who waits on this server process, and what is stopped."""

    pops: int
    streams: int
    browsers: int
    push_maintenance: bool
    pop_maintenance: bool


class Point(msgspec.Struct, frozen=True):
    """Rates over the time before a moment, and the depths that were known at it."""

    at: int
    rates: Rates
    latency: Latency | None
    """None: nothing was delivered."""
    depths: Depths | None
    """None: the store has not been surveyed yet."""

    @property
    def oldest_waiting_seconds(self) -> float | None:
        """How long the oldest message has been waiting; None: none is, or it is not known yet."""
        if self.depths is None or self.depths.oldest_waiting is None:
            return None
        return max(0.0, (self.at - self.depths.oldest_waiting) / 1_000_000)


class Sample(msgspec.Struct, frozen=True):
    """A point of one second, with what only those want to know who watch right now."""

    point: Point
    standing: Standing
    busiest: tuple[QueueRates, ...]
    """Over the last ten seconds, the busiest first."""
    changed: tuple[str, ...]
    """Queues that something happened to in this second."""
    more: bool
    """Whether there were more of them than are named."""
