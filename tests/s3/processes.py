"""Processes on one bucket in memory that look at the log only when a test says so: what they ask for can be counted."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from hark.clock import FakeClock
from hark.engine.s3 import S3Engine
from hark.polling import PollingStrategy, PollMetrics
from hark.settings.sections import S3
from tests.engine.driver import Driver
from tests.s3.stub.faults import Faults
from tests.s3.stub.inprocess import StubBucket
from tests.s3.stub.store import StubStore

NEVER = PollingStrategy.fixed(interval_ms=86_400_000)
"""For a test as good as never."""


async def until(condition: Callable[[], object]) -> None:
    """Wait until something is so that another thread does."""
    while not condition():  # noqa: ASYNC110  # Threads know no events of this loop.
        await asyncio.sleep(0.001)


class Process(Driver):
    """One engine on a store; its tail has looked once, and rests."""

    def __init__(self, store: StubStore, clock: FakeClock, **settings: float) -> None:
        self.faults = Faults()
        self.looks = PollMetrics()
        self._store = store
        self._settings = S3(**settings)  # type: ignore[arg-type]  # They are checked by their names and values.
        super().__init__(lambda _clock: self._make(clock), clock)

    def _make(self, clock: FakeClock) -> S3Engine:
        engine = S3Engine(
            "s3://stub/counted",
            clock=clock,
            settings=self._settings,
            bucket=StubBucket(self._store, clock, faults=self.faults),
        )
        self.looks = engine.poll_as(NEVER)
        return engine

    async def start(self) -> None:
        """Start the engine, and wait until nothing of it is on its way."""
        await super().start()
        await until(lambda: self.looks.empty)


@asynccontextmanager
async def running(store: StubStore, clock: FakeClock, **settings: float) -> AsyncIterator[Process]:
    """A process that runs."""
    process = Process(store, clock, **settings)
    await process.start()
    try:
        yield process
    finally:
        await process.engine.close()


class Requests:
    """What came to a store since it was made, or since the last `clear`."""

    def __init__(self, store: StubStore) -> None:
        self._store = store
        store.forget_requests()

    def clear(self) -> None:
        """Count from here."""
        self._store.forget_requests()

    @property
    def counts(self) -> dict[str, int]:
        """How many of each kind there were, without those that there were none of."""
        return {kind: number for kind, number in self._store.counts.items() if number}

    @property
    def paths(self) -> Counter[str]:
        """The same by what was asked: `get log`, `put snap` ..."""
        return Counter(f"{kind} {key.partition('/')[0]}" for kind, key, _ in self._store.log)

    def answered(self, kind: str, status: int) -> int:
        """How many of a kind were answered so; 206 is a part of an object."""
        return sum((one, code) == (kind, status) for one, _, code in self._store.log)

    def dollars(self) -> float:
        """What they cost on S3 Standard."""
        counts = self._store.counts
        return (counts["put"] * 5.0 + counts["list"] * 5.0 + counts["get"] * 0.4) / 1e6
