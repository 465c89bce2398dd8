"""Rests between tries that take no time."""

from __future__ import annotations

import asyncio

from hark.engine.s3.log.patience import Patience


class Rests:
    """Stands in for the clock and for sleeping: a rest is written down, and is over at once."""

    def __init__(self) -> None:
        self.now = 0.0
        self.taken: list[float] = []

    def monotonic(self) -> float:
        """The time of the test."""
        return self.now

    async def pause(self, seconds: float) -> None:
        """Let the time pass, and others have their turn."""
        self.taken.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)

    def patience(self, seconds: float = 30.0) -> Patience:
        """Patience by this clock, without jitter."""
        return Patience(seconds, pause=self.pause, random=no_jitter, monotonic=self.monotonic)


def no_jitter() -> float:
    """A random number with which a rest is as long as it was meant."""
    return 1.0
