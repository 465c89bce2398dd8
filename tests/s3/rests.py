"""Rests between tries that take no time, and those who take them."""

from __future__ import annotations

import asyncio

from hark.clock import FakeClock
from hark.engine.s3.bucket import Refused
from hark.engine.s3.objects import BucketRetries
from tests.s3.stub.faults import Faults
from tests.s3.stub.inprocess import StubBucket
from tests.s3.stub.store import Request, StubStore


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

    def retries(self, seconds: float = 30.0) -> BucketRetries:
        """Patience by this clock, without jitter."""
        return BucketRetries(seconds=seconds, pause=self.pause, random=no_jitter, monotonic=self.monotonic)


def no_jitter() -> float:
    """A random number with which a rest is as long as it was meant."""
    return 1.0


class Party:
    """One of those who use a store, with faults of its own; its rests take no time."""

    def __init__(self, store: StubStore | None = None, faults: Faults | None = None) -> None:
        self.clock = FakeClock()
        self.store = store or StubStore(self.clock)
        self.faults = faults or Faults()
        self.rests = Rests()
        self.bucket = StubBucket(self.store, self.clock, faults=self.faults)


def refuse(_: Request) -> None:
    """A hook: the store has another answer."""
    raise Refused("403 AccessDenied")
