"""What the tests of delivery stand on: a broker whose time the test has in hand.

`Server` is a real broker on a real engine in memory. Nothing in it moves on its own: `quiet` waits until all that was
begun has come to an end, `advance` goes from one due time to the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from queue import SimpleQueue
from threading import Event
from typing import Any
from unittest.mock import Mock

import msgspec

from hark.broker import Broker
from hark.broker.delivery.delivery import Delivery, Gone
from hark.broker.delivery.stream import Arrival, Stream
from hark.clock import SECOND, FakeClock
from hark.engine.api import Answers, KeyListener, Listener, ignore_keys
from hark.engine.core.verbs import Call, Write
from hark.engine.sqlite import SqliteEngine
from hark.errors import HarkError
from hark.model import Delivery as Message
from hark.model import Hint, KeyNotification, NewMessage, PopRequest, PopResult, Settlement, SettleOutcome, Status
from hark.settings import Settings
from hark.testing.server import FakeTimers

QUEUE = "orders"
GROUP = "group"
_THREADS_SECONDS = 20.0
_LONGEST_WAIT_MS = 10_000
_LONGEST = 2000
"""Rounds in which everything has come to rest, however much it was."""
ANY = PopRequest(queue=QUEUE, group=GROUP)


def named(partition: str, **fields: Any) -> PopRequest:
    """A pop of one partition."""
    return PopRequest(queue=QUEUE, group=GROUP, partition=partition, **fields)


class WatchedEngine(SqliteEngine):
    """A real engine in memory that counts what is asked of it, and fails when told to.

    Its threads do their part before `_submit` returns, and the answer comes with the next turn of the loop: so what
    falls between what is up to the test alone, and the same every time.
    """

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(":memory:", clock=clock)
        self.calls = 0
        self.pops: list[int] = []
        """How many pops came with each call."""
        self.failure: HarkError | None = None
        """How pops and questions about leases fail."""
        self.is_silent = False
        """Nobody is told of anything, as if another server had done it."""
        self.questions = 0
        """How often leases were asked about."""
        self._posted: SimpleQueue[Call] = SimpleQueue()
        self._events: dict[Call, Event] = {}
        self._open = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def start(self, listener: Listener, key_listener: KeyListener = ignore_keys) -> None:
        """Begin, and listen to what the threads do."""
        await super().start(lambda hints: None if self.is_silent else listener(hints), key_listener)
        self._pass_on, self._pass_on_write = self._submit, self._submit_write
        self._submit = self._submit_write = self._watch
        threads = self._running()
        threads._claim_at_once = Mock(return_value=False)  # type: ignore[method-assign]  # more can happen in a look
        outbox = threads._outbox
        post, deliver = outbox.post, outbox.deliver

        def note(answers: Sequence[Call], hints: Sequence[Hint], keys: KeyNotification | None = None) -> None:
            post(answers, hints, keys)
            for call in answers:
                self._posted.put(call)

        def notify() -> None:
            done = [self._posted.get() for _ in range(self._posted.qsize())]
            deliver()
            for call in done:
                if call in self._events:
                    self._events.pop(call).set()

        outbox.post, outbox.deliver = note, notify  # type: ignore[method-assign]  # to hear when they are done

    def _watch(self, call: Call) -> None:
        self.calls += 1
        self._work_off(call)
        self._work_off(Write(None, lambda _transaction: None))  # After what the threads have to do of their own.
        if call.future is not None:
            self._open += 1
            self._idle.clear()
            call.future.add_done_callback(self._ended)

    def _work_off(self, call: Call) -> None:
        done = self._events[call] = Event()
        if isinstance(call, Write):
            self._pass_on_write(call)
        else:
            self._pass_on(call)
        assert done.wait(_THREADS_SECONDS), "the threads of the engine do not answer"

    def _ended(self, _future: asyncio.Future[Any]) -> None:
        self._open -= 1
        if not self._open:
            self._idle.set()

    def pop(self, requests: Sequence[PopRequest]) -> Awaitable[Answers[PopResult]]:
        """Count the call, and fail if the test wants it."""
        self.pops.append(len(requests))
        if self.failure is not None:
            failed: asyncio.Future[Answers[PopResult]] = asyncio.get_running_loop().create_future()
            failed.set_exception(self.failure)
            return failed
        return super().pop(requests)

    @property
    def idle(self) -> bool:
        """Whether every call has been answered."""
        return not self._open

    async def lease_ends(self, lease_ids: Sequence[str]) -> list[int | None]:
        """Count the question, and fail if the test wants it."""
        self.questions += 1
        if self.failure is not None:
            raise self.failure
        return await super().lease_ends(lease_ids)

    async def shorten(self, lease_ids: Sequence[str], microseconds: int) -> None:
        """Fail if the test wants it."""
        if self.failure is not None:
            raise self.failure
        await super().shorten(lease_ids, microseconds)

    async def until_idle(self) -> None:
        """Wait until every call has been answered, and all that the threads did of their own is told."""
        await self._idle.wait()
        await self.ping()


class SharedEngine(WatchedEngine):
    """One that believes that others work on the same store."""

    shared = True


class Server:
    """A broker, its engine and its time."""

    def __init__(self, settings: Settings, engine_type: type[WatchedEngine]) -> None:
        self.clock = FakeClock()
        self.timers = FakeTimers(self.clock)
        self.engine = engine_type(self.clock)
        # A batch that waits for a call in flight is sent when that call returns, not after a time of this machine.
        batching = msgspec.structs.replace(settings.batching, max_wait_ms=_LONGEST_WAIT_MS)
        settings = msgspec.structs.replace(settings, batching=batching)
        self.broker = Broker(self.engine, settings, self.clock, timers=self.timers, random=lambda: 0.5)
        self.tasks: list[asyncio.Task[PopResult]] = []

    @property
    def delivery(self) -> Delivery:
        """What is being tested."""
        return self.broker.delivery

    async def start(self) -> None:
        """Begin; the duties of the broker have the time of the wall, so their part is played by `advance`."""
        await self.broker.start()
        # Nobody looks at these servers, and the timers of whoever would are none of those who wait.
        await self.broker.observed.close()
        await self.broker.duties.end()

    # What clients do ---------------------------------------------------------------------------------------

    async def push(self, *partitions: str, queue: str = QUEUE, **options: Any) -> None:
        """A message into each partition."""
        await self.broker.push([NewMessage(queue, partition, **options) for partition in partitions])

    def pop(
        self, request: PopRequest = ANY, seconds: float = 60, priority: int = 0, gone: Gone | None = None
    ) -> asyncio.Task[PopResult]:
        """A long poll."""
        task = asyncio.get_running_loop().create_task(self.broker.pop(request, seconds, priority, gone))
        self.tasks.append(task)
        return task

    async def parked(
        self, request: PopRequest = ANY, seconds: float = 60, priority: int = 0, gone: Gone | None = None
    ) -> asyncio.Task[PopResult]:
        """A long poll that has found nothing and waits."""
        task = self.pop(request, seconds, priority, gone)
        await self.quiet()
        assert not task.done()
        return task

    async def stream(self, credit: int, request: PopRequest = ANY, priority: int = 0) -> Stream:
        """A stream with one subscription, which has got what it gets at once."""
        stream = self.delivery.streams.open(credit)
        stream.subscribe("s", request, priority)
        await self.quiet()
        return stream

    async def settle(
        self, result: PopResult, status: Status = "completed", group: str = GROUP, **fields: Any
    ) -> list[SettleOutcome]:
        """Say the same of all messages of a result."""
        return await self.broker.settle([settlement(result, one, status, group, **fields) for one in result.messages])

    # Time --------------------------------------------------------------------------------------------------

    async def quiet(self) -> None:
        """Wait until nothing moves any more."""
        for _ in range(_LONGEST):
            await self.engine.until_idle()
            before = self.engine.calls
            for _ in range(10):
                await asyncio.sleep(0)
            moves = self.delivery._tasks or self.delivery._looks or self.broker._releases or not self.engine.idle
            if self.engine.calls == before and not moves:
                return
        raise AssertionError("I8: it does not come to rest")

    async def advance(self, seconds: float) -> None:
        """Go from one due time to the next, and let all that happens at it come to an end."""
        await self.quiet()
        end = self.clock.now() + round(seconds * SECOND)
        while True:
            ends = (await self.engine.expire()).next_due  # The duty of the broker that is exact to the timer.
            await self.quiet()
            due_times = [due for due in (self.timers.next_due(), ends) if due is not None]
            due = min(due_times, default=end)
            self.timers.advance((max(self.clock.now(), min(due, end)) - self.clock.now()) / SECOND)
            if due > end or not due_times:
                break
            await self.quiet()
        await self.engine.expire()
        await self.quiet()

    def numbers(self) -> dict[str, Any]:
        """The metrics of delivery."""
        return self.delivery.snapshot()

    def empty_wakes(self) -> int:
        """How many consumers were told and found nothing."""
        return sum(self.numbers()["empty_wakes"].values())

    def is_clean(self) -> None:
        """Assert that nobody and nothing is left of those who waited."""
        delivery = self.delivery
        assert not delivery.subscriptions, "a subscription is left"
        for kept in list(delivery._kept.values()):
            kept.close()
        assert not delivery._subscriptions, "a subscription without consumers is left"
        assert not delivery._by_queue, "a queue is left in the index"
        assert not delivery._by_label, "a label is left in the index"
        assert not len(delivery.intentions), "an intention is left"
        assert not len(delivery.streams), "a stream is left"
        assert not delivery.streams.by_lease, "a lease is left"
        assert not len(delivery.browsers), "a browser is left"
        assert not delivery._tasks and not delivery._looks, "a look is left"
        assert self.timers.armed == 0, "a timer is left"

    async def close(self) -> None:
        """End all that waits, and the broker."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.broker.close()


@asynccontextmanager
async def serving(
    settings: Settings | None = None, engine: type[WatchedEngine] = WatchedEngine
) -> AsyncIterator[Server]:
    """A server for one test."""
    server = Server(settings or Settings(), engine)
    await server.start()
    try:
        yield server
    finally:
        await server.close()


def settlement(
    result: PopResult, message: Message, status: Status = "completed", group: str = GROUP, **fields: Any
) -> Settlement:
    """What a consumer says of one message."""
    return Settlement(
        message.transaction_id, message.partition_id, status, result.lease_id or None, group=group, **fields
    )


def outbox(stream: Stream) -> list[Arrival]:
    """What came for a stream and was not given to its socket yet."""
    return list(stream._outbox)


async def written(stream: Stream) -> Arrival:
    """Hand the next thing of a stream to its socket."""
    arrival = await stream.next()
    assert arrival is not None
    stream.written()
    return arrival


async def turns(number: int = 5) -> None:
    """Let the loop turn."""
    for _ in range(number):
        await asyncio.sleep(0)


def payloads(result: PopResult) -> list[bytes]:
    """The payloads of a result."""
    return [bytes(message.payload) for message in result.messages]
