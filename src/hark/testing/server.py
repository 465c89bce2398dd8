"""A real server for a test: HTTP on a free port, a store in memory, and a clock that the test moves."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import wait
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from heapq import heappop, heappush
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from hark.broker import Broker
from hark.client.io_thread import LoopThread
from hark.clock import SECOND, Clock, FakeClock
from hark.engine.api import KeyListener, Listener, ignore_keys
from hark.engine.core.verbs import Call
from hark.engine.sqlite import SqliteEngine
from hark.http.app import App
from hark.http.wire.server import Server
from hark.model import QUEUE_MODE, DeadLetterFilter, MessageFilter, PopRequest
from hark.serving import listening
from hark.settings import Settings
from hark.testing import messages
from hark.testing.messages import ANYTHING, DeadMessage, ReceivedMessage, StoredMessage

if TYPE_CHECKING:
    from hark.client.client import Client
    from hark.worker import Summary, Worker


class ServerClock:
    """The clock of a test server, `hark_server.clock`.

    Delays, leases, retries and times to live pass only when the test moves the clock:

        await client.queue("mails").push({"to": "ada"}, delay=3600)
        assert hark_server.drain("mails") == []
        hark_server.clock.advance(3600)
        assert [message.data for message in hark_server.drain("mails")] == [{"to": "ada"}]

    It starts at the current time, so that `deliver_at=datetime.now(UTC) + timedelta(hours=1)` works.
    """

    def __init__(self, clock: FakeClock, advance: Callable[[float], None]) -> None:
        self._clock = clock
        self._advance = advance

    def now(self) -> datetime:
        """The current time of the clock."""
        return datetime.fromtimestamp(self._clock.now() / SECOND, UTC)

    def advance(self, seconds: float) -> datetime:
        """Move the clock forward by this many seconds. Returns the new time.

        It returns after everything that became due on the way has happened, in order. Raises `ValueError` for a
        negative number.
        """
        if not seconds >= 0:
            raise ValueError(f"advance: expected 0 seconds or more, got {seconds}")
        self._advance(seconds)
        return self.now()

    def advance_to(self, moment: datetime) -> datetime:
        """Move the clock forward to a datetime with a time zone. Returns the new time."""
        if moment.tzinfo is None:
            raise ValueError(f"advance_to: expected a datetime with a time zone (datetime.now(UTC)), got {moment}")
        return self.advance((moment - self.now()).total_seconds())


class FakeTimer:
    """One scheduled call."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Cancel the call."""
        self.callback = None


class FakeTimers:
    """Timers whose clock stands still until the test moves it."""

    def __init__(self, clock: FakeClock | None = None) -> None:
        self.clock = clock or FakeClock()
        self.set = 0
        """Number of timers that were ever set."""
        self._heap: list[tuple[int, int, FakeTimer]] = []

    @property
    def armed(self) -> int:
        """Number of timers that were neither cancelled nor called."""
        return sum(timer.callback is not None for _, _, timer in self._heap)

    def next_due(self) -> int | None:
        """The time of the first timer that was neither cancelled nor called."""
        while self._heap and self._heap[0][2].callback is None:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def now(self) -> int:
        """The time of the clock."""
        return self.clock.now()

    def at(self, due: int, callback: Callable[[], None]) -> FakeTimer:
        """Call a function when the clock reaches `due`."""
        timer = FakeTimer(callback)
        self.set += 1
        heappush(self._heap, (due, self.set, timer))
        return timer

    def advance(self, seconds: float) -> None:
        """Move the clock, and call due timers in order, each at its own time."""
        end = self.now() + round(seconds * SECOND)
        while self._heap and self._heap[0][0] <= end:
            due, _, timer = heappop(self._heap)
            if timer.callback is not None:
                self._move_to(due)
                callback, timer.callback = timer.callback, None
                callback()
        self._move_to(end)

    def _move_to(self, time: int) -> None:
        self.clock.advance(max(0, time - self.now()) / SECOND)


_FOR_EVER = 100 * 365 * 86400
_QUIET_TURNS = 8
"""Turns of the event loop without a new call, after which the engine counts as idle."""


C = TypeVar("C", bound=Call)


class ObservedEngine(SqliteEngine):
    """A store in memory that keeps settled messages for tests, and knows when no call is in flight."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(":memory:", clock=clock, completed_retention_seconds=_FOR_EVER, idle_group_seconds=_FOR_EVER)
        self._calls = 0
        self._open: set[asyncio.Future[Any]] = set()

    async def start(self, listener: Listener, key_listener: KeyListener = ignore_keys) -> None:
        """Open the store, and observe its calls."""
        await super().start(listener, key_listener)
        self._submit, self._submit_write = self._observed(self._submit), self._observed(self._submit_write)

    def _observed(self, submit: Callable[[C], object]) -> Callable[[C], None]:
        def observed(call: C) -> None:
            submit(call)
            self._calls += 1
            if call.future is not None:
                self._open.add(call.future)
                call.future.add_done_callback(self._open.discard)

        return observed

    async def rest(self) -> None:
        """Wait until every call has been answered and no answer has led to another call."""
        quiet = 0
        while quiet < _QUIET_TURNS:
            calls = self._calls
            if self._open:
                await asyncio.wait(self._open)
            await asyncio.sleep(0)
            quiet = quiet + 1 if calls == self._calls and not self._open else 0


T = TypeVar("T")

_ANSWER_SECONDS = 60.0
_CLOSE_SECONDS = 5.0


class ServerThread:
    """The parts that `hark serve` runs, with a clock that the test moves."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.clock = FakeClock(time.time_ns() // 1000)
        self._timers = FakeTimers(self.clock)
        self.engine = ObservedEngine(self.clock)
        self.broker = Broker(self.engine, settings, self.clock, timers=self._timers)
        self.url = ""
        self._thread: LoopThread | None = None
        self._ready = threading.Event()
        self._stop = asyncio.Event()

    def start(self) -> None:
        """Start the server. Returns when it accepts requests; raises if it cannot start."""
        self._thread = LoopThread("hark-test-server")
        self._serving = self._thread.submit(self._serve())
        self._serving.add_done_callback(lambda _serving: self._ready.set())
        self._ready.wait(_ANSWER_SECONDS)
        if not self.url:
            self.stop()

    def stop(self) -> None:
        """Answer waiting requests, close everything and wait for the end of the thread."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        thread.post(self._stop.set)
        if not wait([self._serving], _ANSWER_SECONDS).done:
            raise TimeoutError(f"the test server did not stop within {_ANSWER_SECONDS:g} s")
        thread.close()
        self._serving.result()

    def call(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine in the server, and wait for it."""
        if self._thread is None:
            raise RuntimeError(
                "the test server is not running; use it as a context manager: with HarkServer() as server"
            )
        return self._thread.submit(make()).result(_ANSWER_SECONDS)

    async def advance(self, seconds: float) -> None:
        """Move the clock from one due time to the next, and wait for the consequences of each."""
        end = self.clock.now() + round(seconds * SECOND)
        await self.engine.rest()
        while True:
            expired = await self.engine.expire()
            now = min(due for due in (self._timers.next_due(), expired.next_due, end) if due is not None)
            self._timers.advance(max(0, now - self.clock.now()) / SECOND)
            await self.engine.rest()
            if now >= end:
                break
        await self.engine.expire()
        await self.engine.sweep_keys(10_000)
        while (await self.engine.collect()).more:
            pass
        await self.engine.rest()

    def _app(self) -> App:
        return App(self.broker, self._settings)

    async def _serve(self) -> None:
        listener = listening.bound("127.0.0.1", 0)
        try:
            await self.broker.start()
        except BaseException:
            listener.close()
            raise
        try:
            app = self._app()
            self.server = Server(app, limits=self._settings.limits, max_body_bytes=self._settings.max_body_bytes)
            app.metrics.load = self.server.load
            await self.server.start(listener)
            self.url = listening.shown(listener)
            self._ready.set()
            await self._stop.wait()
            self.server.stop_accepting()
            self.broker.stop_waiting()
            await self.server.stop(_CLOSE_SECONDS)
        finally:
            await self.broker.close()


_ALL = 1_000_000_000
_AT_ONCE = 1000


class HarkServer:
    """A Hark server for tests. The fixture `hark_server` returns one; without pytest, use it as a context manager:

        with HarkServer() as server:
            async with server.connect() as client:
                await client.queue("orders").push({"id": 1})
            server.assert_pushed("orders", {"id": 1})

    It runs in a thread of this process and speaks real HTTP, so every client of a Hark server can use it. Async tests
    can call its methods directly: they do not need the test's event loop.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self._thread = ServerThread(settings or Settings())
        self.clock = ServerClock(self._thread.clock, self._advance)
        """The clock of the server. It stands still until the test moves it."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._thread.stop()

    @property
    def url(self) -> str:
        """The URL of the server, for example `http://127.0.0.1:54321`."""
        return self._thread.url

    def connect(self) -> Client:
        """A client of this server: `async with server.connect() as client`."""
        from hark.connecting import connect

        return connect(self.url)

    # Inspection --------------------------------------------------------------------------------------------

    def pushed(self, queue: str | None = None, *, partition: str | None = None) -> list[StoredMessage]:
        """All pushed messages in the order of the pushes, settled or not. Deleted messages are not included."""
        where = MessageFilter(queue=queue, partition=partition, limit=_ALL)
        return self._thread.call(lambda: self._read(where))

    def assert_pushed(
        self,
        queue: str,
        data: Any = ANYTHING,
        *,
        times: int | None = 1,
        partition: str | None = None,
        key: str | None = None,
        task: str | None = None,
        arguments: Any = ANYTHING,
    ) -> list[StoredMessage]:
        """Fail unless exactly `times` matching messages were pushed (None: at least one). Returns the messages.

            hark_server.assert_pushed("orders", {"id": 1}, partition="customer-7")
            hark_server.assert_pushed("orders", lambda data: data["total"] > 100, times=2)
            hark_server.assert_pushed("emails", task="send_email", arguments={"to": "a@b.c", "subject": "hi"})

        `data` and `arguments` are values that must be equal, or functions that return whether a value matches. `key` is
        the idempotency key. The text of the `AssertionError` lists pushed messages, the closest match first.
        """
        __tracebackhide__ = True
        expected = messages.Expected(
            queue=queue, data=data, partition=partition, key=key, task=task, arguments=arguments
        )
        return messages.check_count(expected, self.pushed(queue), times)

    def assert_not_pushed(
        self,
        queue: str,
        data: Any = ANYTHING,
        *,
        partition: str | None = None,
        key: str | None = None,
        task: str | None = None,
        arguments: Any = ANYTHING,
    ) -> None:
        """Fail if a matching message was pushed. With a queue only, fail if anything was pushed to it."""
        __tracebackhide__ = True
        self.assert_pushed(queue, data, times=0, partition=partition, key=key, task=task, arguments=arguments)

    def dead_letters(self, queue: str | None = None, *, group: str | None = None) -> list[DeadMessage]:
        """The dead letters, oldest failure first."""
        where = DeadLetterFilter(queue=queue, group=group, limit=_ALL)
        page = self._thread.call(lambda: self._thread.broker.dead_letters(where))
        return [messages.dead(letter) for letter in reversed(page.items)]

    # Receiving ---------------------------------------------------------------------------------------------

    def drain(self, queue: str | None = None, *, group: str | None = None) -> list[ReceivedMessage]:
        """Receive and acknowledge everything that can be delivered now. Returns it in order.

        Without a queue it drains all queues. Delayed messages, messages in flight and messages that wait for a retry
        stay: advance the clock first. The default for `group` is the default group of the queue.
        """
        return self._thread.call(lambda: self._drain(queue, group or QUEUE_MODE))

    async def _drain(self, queue: str | None, group: str) -> list[ReceivedMessage]:
        broker = self._thread.broker
        await self._thread.engine.rest()
        names = [queue] if queue is not None else [info.name for info in await broker.engine.queue_infos()]
        taken: list[ReceivedMessage] = []
        for name in names:
            request = PopRequest(queue=name, group=group, batch=_AT_ONCE, partitions=_AT_ONCE, auto_ack=True)
            while (result := await broker.pop(request)).messages:
                taken += messages.received(result.messages)
        return taken

    @property
    def waiting(self) -> int:
        """Number of waiting pops."""

        async def count() -> int:
            return len(self._thread.broker.delivery.intentions)

        return self._thread.call(count)

    # Workers -----------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def serving(self, worker: Worker) -> AsyncIterator[Worker]:
        """Let a worker of the application, and pushes of its tasks, use this server within the block.

        async with hark_server.serving(app.worker):
            await app.sign_up("ada")                          # pushes a task
            hark_server.assert_pushed("emails", task="send_email", arguments={"to": "ada"})
        """
        with worker.connect_to(self.url):
            try:
                yield worker
            finally:
                await worker.close()

    async def run_worker(self, worker: Worker, *, concurrency: int | None = None) -> Summary:
        """Run a worker with this server until there is nothing to do. Returns its summary.

        Delayed tasks and tasks that wait for a retry stay: advance the clock and run it again.

            summary = await hark_server.run_worker(app.worker)
            assert summary.totals.done == 1
        """
        from hark.worker import WorkerRunOptions

        options = WorkerRunOptions(burst=True, concurrency=concurrency, handle_signals=False)
        async with self.serving(worker):
            return await worker.run(options)

    # The server --------------------------------------------------------------------------------------------

    async def _read(self, where: MessageFilter) -> list[StoredMessage]:
        broker = self._thread.broker
        await self._thread.engine.rest()
        views = [
            await broker.message(view.partition_id, view.id) for view in reversed(await broker.engine.messages(where))
        ]
        return [messages.stored(view) for view in views if view is not None]

    def _advance(self, seconds: float) -> None:
        self._thread.call(lambda: self._thread.advance(seconds))
