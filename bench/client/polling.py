"""What strategies cost and how late they are: the real poller through a day of a quiet queue, by a clock that jumps."""

from __future__ import annotations

import asyncio
import random

import msgspec

from hark.cli.bench import percentile
from hark.polling import AWS_S3, Poller, PollingStrategy

DAY = 86_400.0
MESSAGES = 200
"""A day, at times of no pattern: the queue is idle nearly always."""
STRATEGIES = {
    "adaptive, max 30 s": PollingStrategy.adaptive(max_interval_ms=30_000),
    "adaptive, max 5 s (default)": PollingStrategy.adaptive(),
    "adaptive, max 1 s": PollingStrategy.adaptive(max_interval_ms=1_000),
    "fixed, 100 ms": PollingStrategy.fixed(interval_ms=100),
    "fixed, 500 ms": PollingStrategy.fixed(interval_ms=500),
}


class Day(msgspec.Struct, frozen=True):
    """What became of one day."""

    polls: int
    latencies_ms: list[float]
    """From when a message was there to the poll that found it."""

    @property
    def dollars(self) -> float:
        """A month of such days, each poll a GET of a paid store."""
        return 30 * self.polls / 1000 * AWS_S3.get_per_thousand


def live(strategy: PollingStrategy, seconds: float = DAY, messages: int = MESSAGES, seed: int = 1) -> Day:
    """One consumer, polling for a day."""
    chance = random.Random(seed)
    arrivals = sorted(chance.uniform(0, seconds) for _ in range(messages))
    return asyncio.run(_poll(strategy, arrivals, seconds, chance))


async def _poll(strategy: PollingStrategy, arrivals: list[float], seconds: float, chance: random.Random) -> Day:
    now = 0.0

    async def jump(_event: asyncio.Event, rest: float) -> None:
        nonlocal now
        now += rest

    poller = Poller(strategy, monotonic=lambda: now, random=chance.random, pause=jump)
    latencies: list[float] = []
    while now < seconds:
        poller.begin()
        found = [arrival for arrival in arrivals[len(latencies) :] if arrival <= now]
        latencies += [1e3 * (now - arrival) for arrival in found]
        poller.saw(bool(found))
        await poller.rest()
    return Day(poller.metrics.polls, latencies)


def worst(day: Day) -> float:
    """Milliseconds of the latest."""
    return percentile(day.latencies_ms, 100)
