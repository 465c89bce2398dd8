"""Time that passes because a test says so."""

from __future__ import annotations

import asyncio


class Pauses:
    """Stands in for the clock and for sleeping: a pause is written down, and is over at once."""

    def __init__(self) -> None:
        self.now = 0.0
        self.taken: list[float] = []

    def monotonic(self) -> float:
        """The time of the test."""
        return self.now

    async def pause(self, event: asyncio.Event, seconds: float) -> None:
        """Let the time pass, unless the event ends it before it began."""
        assert not event.is_set()
        self.taken.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


def middle() -> float:
    """A random number that makes no jitter."""
    return 0.5
