"""A process that waits: ten minutes of it, by a clock that jumps, and every request that it sends meanwhile.

Everything runs as it does in a worker without a server: the broker with its duties, the engine with its threads, the
tail with its poller. Only their sleeping is replaced: all of them sleep until `Time` wakes them, one after the other.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from hark.broker import Broker, upkeep
from hark.broker.keyvalue import KeyWatcher
from hark.clock import SECOND, FakeClock
from hark.engine.s3 import S3Engine
from hark.model import NewMessage, PopRequest, Settlement, Subscription
from hark.polling import Poller, PollingStrategy
from hark.settings import Settings
from hark.testing.server import FakeTimers
from tests.s3.processes import Requests, until
from tests.s3.stub.inprocess import StubBucket
from tests.s3.stub.store import StubStore

SLEEPERS = 6
"""The five duties of the broker, and the tail."""
MINUTES = 10
FEW_MINUTES = 3
"""Enough for several long polls, and for a request more for each of them to be found."""
MOST_GETS_A_MINUTE = 12.8
"""Twelve polls, and what retention reads every five minutes."""
LONG_POLL_SECONDS = 30.0


class Time:
    """Sleeping, in any thread and event loop, until the test has come to that moment."""

    def __init__(self, clock: FakeClock) -> None:
        self.timers = FakeTimers(clock)
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._serial = count()
        self._sleepers: list[tuple[int, int, Callable[[], None]]] = []

    async def sleep(self, seconds: float) -> None:
        """Stands in for `asyncio.sleep`, but not for a server that another test has in this process."""
        if asyncio.get_running_loop() is self._loop:
            await self.pause(asyncio.Event(), seconds)
        else:
            await asyncio.sleep(seconds)

    async def pause(self, event: asyncio.Event, seconds: float) -> None:
        """Stands in for the pause of a poller: over when it is time, or when the event is set."""
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        due = self._clock.now() + round(seconds * SECOND)

        def wake() -> None:
            loop.call_soon_threadsafe(over.set)

        entry = (due, next(self._serial), wake)
        with self._lock:
            heapq.heappush(self._sleepers, entry)
        waiting = [asyncio.ensure_future(one.wait()) for one in (event, over)]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waiting:
                one.cancel()
            with self._lock:
                if entry in self._sleepers:
                    self._sleepers.remove(entry)
                    heapq.heapify(self._sleepers)

    @property
    def asleep(self) -> int:
        """How many sleep."""
        with self._lock:
            return len(self._sleepers)

    def step(self, end: int) -> bool:
        """Go to the next moment at which somebody wakes, and wake him; False: that is after the end."""
        with self._lock:
            due = self._sleepers[0][0]
        ringing = self.timers.next_due()
        moment = due if ringing is None else min(due, ringing)
        self.timers.advance((min(moment, end) - self._clock.now()) / SECOND)
        if moment > end:
            return False
        with self._lock:
            wake = heapq.heappop(self._sleepers)[2] if due <= moment else None
        if wake is not None:
            wake()
        return True


class Waiting:
    """A process without a server, of which the test has the time in hand."""

    def __init__(self, broker: Broker, clock: FakeClock, time: Time) -> None:
        self.broker = broker
        self._clock = clock
        self._time = time
        self.tasks: list[asyncio.Task[Any]] = []

    async def quiet(self) -> None:
        """Wait until everybody sleeps, and every look has been answered."""
        delivery = self.broker.delivery
        await until(lambda: self._time.asleep == SLEEPERS and not delivery._tasks)

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Let somebody wait in the background."""
        self.tasks.append(asyncio.create_task(work))

    async def pop_for_ever(self, request: PopRequest) -> None:
        """A consumer that gets nothing and asks again when the server has nothing to say."""
        while True:
            await self.broker.pop(request, LONG_POLL_SECONDS)

    async def advance(self, seconds: float) -> None:
        """Let so much time pass, and all that falls due in it happen."""
        end = self._clock.now() + round(seconds * SECOND)
        await self.quiet()
        while self._time.step(end):
            await self.quiet()


@pytest.fixture
async def time(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> Time:
    """Time that passes because a test says so."""
    time = Time(clock)
    monkeypatch.setattr(upkeep, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": time.sleep}))

    def poller(strategy: PollingStrategy, **options: Any) -> Poller:
        return Poller(strategy, **{**options, "pause": time.pause, "random": lambda: 0.5})

    monkeypatch.setattr("hark.engine.s3.engine.Poller", poller)
    return time


@asynccontextmanager
async def process(store: StubStore, clock: FakeClock, time: Time) -> AsyncIterator[Waiting]:
    """A broker on an engine on a bucket, which has had a message and is done with it."""
    engine = S3Engine("s3://stub/idle", clock=clock, bucket=StubBucket(store, clock))
    broker = Broker(engine, Settings(), clock, timers=time.timers, random=lambda: 0.5)
    await broker.start()
    waiting = Waiting(broker, clock, time)
    try:
        await waiting.quiet()
        await broker.push([NewMessage("orders", payload=b'"a"')])
        got = await broker.pop(PopRequest(queue="orders"))
        [message] = got.messages
        await broker.settle([Settlement(message.transaction_id, message.partition_id, lease_id=got.lease_id)])
        yield waiting
    finally:
        for task in waiting.tasks:
            task.cancel()
        await asyncio.gather(*waiting.tasks, return_exceptions=True)
        await broker.close()


async def watch(watcher: KeyWatcher) -> None:
    """A client that is told of changes."""
    while not watcher.closed:
        await watcher.next()


async def requests_of(store: StubStore, waiting: Waiting, minutes: int = MINUTES) -> Requests:
    """What is asked for in so many minutes: nothing but looks at the log, as seldom as if nobody waited."""
    await waiting.quiet()
    requests = Requests(store)
    await waiting.advance(minutes * 60)
    assert set(requests.counts) == {"get"}
    assert minutes * 60 / 5 - 1 <= requests.counts["get"] <= MOST_GETS_A_MINUTE * minutes
    return requests


async def test_a_process_that_waits_looks_at_the_next_record_and_at_nothing_else(
    stub_store: StubStore, clock: FakeClock, time: Time
) -> None:
    async with process(stub_store, clock, time) as waiting:
        waiting.begin(waiting.pop_for_ever(PopRequest(queue="orders")))
        requests = await requests_of(stub_store, waiting)
        assert set(requests.paths) == {"get log"}
        assert {status for _, _, status in stub_store.log} == {404}


async def test_a_hundred_long_polls_cost_no_more_than_one(stub_store: StubStore, clock: FakeClock, time: Time) -> None:
    async with process(stub_store, clock, time) as waiting:
        for request in (
            PopRequest(queue="orders", partition="p"),
            PopRequest(queue="nobody-made-it"),
            PopRequest(namespace="shop"),
            PopRequest(queue="orders", group_mode="shared", group="workers", subscription=Subscription("new")),
        ):
            await waiting.broker.pop(request)  # It makes its group known, which is a record.
            for _ in range(25):
                waiting.begin(waiting.pop_for_ever(request))
        await waiting.advance(60)  # Until the looks are as rare as they get.
        await requests_of(stub_store, waiting, FEW_MINUTES)


async def test_who_watches_a_key_or_reads_along_costs_nothing(
    stub_store: StubStore, clock: FakeClock, time: Time
) -> None:
    async with process(stub_store, clock, time) as waiting:
        waiting.begin(watch(await waiting.broker.keyvalue.watchers.watch_keys([("flags", "x")])))
        await waiting.broker.delivery.browsers.open("orders", None, "tail")
        await waiting.advance(60)  # Until the looks are as rare as they get.
        await requests_of(stub_store, waiting, FEW_MINUTES)
