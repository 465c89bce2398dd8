"""One run of a worker: from its start to its graceful shutdown, or to the end of a process that handlers block."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from types import FrameType
from typing import TYPE_CHECKING, Any

import msgspec

from hark.api.types.delivery import Delivered
from hark.client.arguments import MAX_NAME_BYTES
from hark.client.builder import PopParams
from hark.client.io_thread import IoThread
from hark.client.pushing import NewMessage
from hark.polling import Poller, PollMetrics
from hark.worker import stats
from hark.worker.executor import Executor, UnknownTasks
from hark.worker.fetcher import LAST_ANSWER_SECONDS, Answered, Fetcher, seconds_until_due
from hark.worker.queues import Fetchers
from hark.worker.retrying import Ended
from hark.worker.stats import Health, HealthEndpoint, Snapshot, Summary

if TYPE_CHECKING:
    from hark.client.client import Client
    from hark.sync.client import Client as SyncClient
    from hark.worker.middleware import Address
    from hark.worker.worker import Plan, Worker

EXIT_CODE = 1
SIGNALS = (signal.SIGTERM, signal.SIGINT)
MOST_RESERVED = 2.0
"""Maximum number of seconds at the end of the grace period that are reserved for releasing work. At most a fifth of
it."""
LEAST_SECONDS = 0.5
"""Minimum time in seconds for the last settlements, however short the grace period is."""
LEAST_RESPONSE_SECONDS = 1.0
"""Minimum time in seconds for the handlers' event loop to respond at the end of the grace period."""
SILENCE_SECONDS = 30.0
"""How many seconds late an answer of the server may be before the worker reports itself as unhealthy."""
_log = logging.getLogger("hark.worker")


async def leave_if_blocked(
    *,
    after: float,
    response_seconds: float,
    ask: Callable[[Callable[[], None]], None],
    give_back: Callable[[], Awaitable[None]],
    leave: Callable[[int], object],
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> None:
    """Ends a process whose handlers block their event loop for longer than the grace period.

    A blocked event loop cannot start a graceful shutdown. The supervisor of the process would then kill it, and its
    tasks would run again only after their leases expire, with one attempt less. Instead, the network thread releases
    them and ends the process. This runs there, from the stop on, until the thread is closed.

    After `after` seconds, `ask` requests a response from the handlers' event loop, again and again. If there is none
    within `response_seconds` seconds, it calls `give_back` and `leave`.
    """
    await sleep(after)
    while True:
        answered = asyncio.Event()
        ask(answered.set)
        try:
            async with asyncio.timeout(response_seconds):
                await answered.wait()
        except TimeoutError:
            break
        await sleep(response_seconds)
    _log.error("a handler blocks the event loop: all tasks are released, and the process exits with code 1")
    await give_back()
    leave(EXIT_CODE)


@contextmanager
def stop_signals(enabled: bool, stop: Callable[[], None], stop_now: Callable[[], None]) -> Iterator[None]:
    """Handle signals until the end of the block. Works only in the main thread, as Python requires.

    Python's own signal handlers are used, not those of the event loop, so that signals work while a handler blocks the
    loop. Both callbacks must be safe to call from anywhere. Call it in the event loop.
    """
    if not enabled or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    signals = 0

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        nonlocal signals
        signals += 1
        if signals == 1:
            stop()
            return
        stop_now()
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)

    for number in SIGNALS:
        signal.signal(number, on_signal)
    try:
        with _waking_the_loop():
            yield
    finally:
        for number, handler in before.items():
            # None is a handler that was not installed from Python. It cannot be restored.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextmanager
def _waking_the_loop() -> Iterator[None]:
    """Let each signal wake the event loop.

    Python runs signal handlers in the main thread. A signal that another thread receives, or that arrives just before
    the loop begins to wait, would otherwise be handled only when something else wakes the loop.
    """
    loop = asyncio.get_running_loop()
    reader, writer = socket.socketpair()
    with reader, writer:
        reader.setblocking(False)
        writer.setblocking(False)
        before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        if before != -1:  # The loop handles signals of its own, so they wake it.
            signal.set_wakeup_fd(before)
            yield
            return
        loop.add_reader(reader, reader.recv, 4096)
        try:
            yield
        finally:
            loop.remove_reader(reader)
            signal.set_wakeup_fd(-1)


class WorkerRun:
    """Connects the network side (`Fetcher`, in its own thread) with the handlers, which run on this loop."""

    def __init__(
        self,
        worker: Worker,
        client: Client,
        plan: Plan,
        poll_metrics: PollMetrics | None = None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        leave: Callable[[int], object] = os._exit,
    ) -> None:
        self.worker_id = f"{worker.name}-{uuid.uuid4().hex}"
        """New for each run: a restarted worker has another id."""
        self.plan = plan
        self.health_port: int | None = None
        self._worker = worker
        self.client = client
        """The client of the handlers' event loop."""
        self._stats = stats.Stats(monotonic, worker.queues if len(worker.queues) > 1 else ())
        self._monotonic = monotonic
        self.loop = asyncio.get_running_loop()
        """The event loop of the handlers."""
        self.io_thread = IoThread(client.caller.transport, client.caller.retry)
        """The network thread."""
        self._params = PopParams(
            queue=worker.queue,
            group=worker.group,
            group_mode="shared",
            batch=plan.concurrency,
            partitions=plan.concurrency,
            wait=plan.wait,
            timeout_ms=plan.timeout_ms,
            lease_seconds=plan.lease_seconds,
            consumer=self.worker_id.encode()[-MAX_NAME_BYTES:].decode(errors="ignore"),
        )
        self._own_polls = PollMetrics()
        self._poll_metrics = self._own_polls if poll_metrics is None else poll_metrics
        """The polls that cost something: the worker's own, or those of the store that polls for it."""
        self._fetcher: Fetcher | Fetchers | None = None
        self._endpoint = HealthEndpoint(self._health, self.metrics)
        self._executor = Executor(
            worker.tasks,
            worker.middleware,
            worker_id=self.worker_id,
            concurrency=plan.concurrency,
            finished=self._hand_over,
            report=self._report,
            clients=self,
            unknown=UnknownTasks(plan.unknown_task_seconds, monotonic),
            monotonic=monotonic,
        )
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()
        self.ready = asyncio.Event()
        """The run receives messages, or has failed to start."""
        self.over = asyncio.Event()
        """The run has ended."""
        self._stopped_at: float | None = None
        self._interrupted = False
        self._hung_up = False
        self._by_signal = False
        self._leave = leave
        self._last_resort: asyncio.Task[None] | None = None

    # Called from any thread ----------------------------------------------------------------------------------

    def stop(self) -> None:
        """Stop receiving immediately, and end within the grace period."""
        if self._stopped_at is None:
            self._stopped_at = self._monotonic()
        self._on_io_thread(self._stop_fetcher)
        self._here(self._stop.set)

    def _stop_by_signal(self) -> None:
        self._by_signal = True
        self.stop()

    def stop_now(self) -> None:
        """Stop waiting for running handlers."""
        self.stop()
        self._here(self._stop_now.set)

    def expect(self, message: NewMessage) -> None:
        """A message was pushed: a polling worker must not sleep past its due time."""
        fetcher = self._fetcher
        if fetcher is not None and fetcher.rests:
            seconds = seconds_until_due(message)
            self._on_io_thread(lambda: fetcher.of(message.queue).expect(seconds))

    @cached_property
    def sync_client(self) -> SyncClient:
        """The client for handlers in threads. It runs on the event loop of the handlers."""
        from hark.sync.client import BorrowedClient  # Imported here: few handlers need it.

        return BorrowedClient(self.client, self.loop)

    @property
    def address(self) -> Address | None:
        """How a process of a task connects to the server."""
        return self._worker.address

    @property
    def seconds_left(self) -> float:
        """Seconds left of the grace period, with a minimum."""
        return max(self._grace_left, LEAST_SECONDS)

    @property
    def _grace_left(self) -> float:
        since = 0.0 if self._stopped_at is None else self._monotonic() - self._stopped_at
        return self.plan.grace_seconds - since

    def snapshot(self) -> Snapshot:
        """The current state and counts."""
        return Snapshot(
            worker_id=self.worker_id,
            queue=", ".join(self._worker.queues),
            concurrency=self.plan.concurrency,
            running=self._executor.running,
            stuck=self._executor.stuck,
            stopping=self._stopped_at is not None,
            totals=msgspec.structs.replace(self._stats.totals),
            queues=self._queues(),
            tasks={name: msgspec.structs.replace(counts) for name, counts in list(self._stats.tasks.items())},
            rate=self._stats.rate,
            poll_interval=self._poll_metrics.interval_seconds,
            polls=self._poll_metrics.polls,
            empty_polls=self._poll_metrics.empty,
        )

    def _queues(self) -> dict[str, stats.QueueState]:
        totals, running = self._stats.totals, self._executor.running
        one = len(self._worker.queues) == 1
        by_queue = self._fetcher.running if isinstance(self._fetcher, Fetchers) else {}
        return {
            name: stats.QueueState(
                weight,
                running if one else by_queue.get(name, 0),
                msgspec.structs.replace(totals if one else self._stats.queues[name]),
            )
            for name, weight in self._worker.queues.items()
        }

    # The run --------------------------------------------------------------------------------------------------

    async def run(self) -> Summary:
        """Work until stopped, or in a burst until there is nothing to do."""
        self.io_thread.start()
        try:
            with stop_signals(self.plan.handle_signals, self._stop_by_signal, self.stop_now):
                await self.io_thread.run(self._open)
                self.ready.set()
                abandoned = await self._work()
        finally:
            self._hung_up = True
            await self.io_thread.close()
            self.ready.set()
            self.over.set()
        last = self.snapshot()
        return Summary(
            worker_id=last.worker_id,
            totals=last.totals,
            tasks=last.tasks,
            queues={name: state.totals for name, state in last.queues.items()},
            polls=last.polls,
            empty_polls=last.empty_polls,
            abandoned=abandoned,
        )

    async def _open(self) -> None:
        """Runs in the network thread: creates the objects that belong to its event loop."""
        plan = self.plan
        if plan.health is not None:  # First, because it is the most likely to fail.
            self.health_port = await self._endpoint.open(*plan.health)
        self._fetcher = self._make_fetcher(
            slots=plan.concurrency,
            lease_seconds=plan.lease_seconds,
            receive=lambda in_flight: self._here(lambda: self._executor.receive(in_flight)),
            lose=lambda in_flight: self._here(lambda: self._executor.lose(in_flight)),
            cancel=lambda in_flight, ids: self._here(lambda: self._executor.cancel_tasks(in_flight, ids)),
            answered=self._count,
            burst=plan.burst,
            monotonic=self._monotonic,
        )
        if self._stopped_at is not None:  # A signal came first.
            self._stop_fetcher()

    def _make_fetcher(self, **rest: Any) -> Fetcher | Fetchers:
        """Runs in the network thread. Several queues do not use WebSockets: each waits with its own request."""

        def poller() -> Poller:
            return Poller(self.plan.polling, metrics=self._own_polls, monotonic=self._monotonic)

        caller, queues = self.io_thread.caller, self._worker.queues
        if len(queues) > 1:
            return Fetchers(caller, self._params, poller, weights=queues, **rest)
        return Fetcher(caller, self._params, poller(), sockets=self.client.sockets, **rest)

    async def _work(self) -> int:
        pulling = asyncio.create_task(self.io_thread.run(self._opened.pull))
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait((pulling, stopping), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._interrupted = True  # The caller is in a hurry, but unfinished work must be released.
            self._stop_now.set()
        stopping.cancel()
        self.stop()
        abandoned = await self._end(pulling)
        if self._interrupted:
            raise asyncio.CancelledError
        await pulling  # Raises the error that ended it, if it was not the stop.
        return abandoned

    async def _end(self, pulling: asyncio.Task[None]) -> int:
        """Let handlers finish, release the rest, and settle everything within the grace period."""
        reserved = self._reserved
        # The grace period starts with the signal, which a blocking handler may have delayed.
        seconds = max(self._grace_left - reserved, 0.0)
        self._executor.stop()
        if self._executor.running:
            _log.info("worker shutting down; running handlers: %d, %.1f s to finish", self._executor.running, seconds)
        await self._finish_or_hurry(seconds)
        # The last poll must have ended, otherwise it would receive the released messages.
        await asyncio.wait((pulling,), timeout=max(reserved / 2, 2 * LAST_ANSWER_SECONDS))
        pulling.cancel()
        self._executor.cancel()
        await self._executor.wait(max(reserved / 2, 0.1))
        abandoned = self._executor.close()
        if abandoned:
            _log.warning(
                "handlers that did not end in time: %d; they are abandoned, their tasks are released and run again",
                abandoned,
            )
        left = self.seconds_left
        await self.io_thread.run(lambda: self._close(left))
        return abandoned

    async def _finish_or_hurry(self, seconds: float) -> None:
        finishing = asyncio.create_task(self._executor.wait(seconds))
        hurrying = asyncio.create_task(self._stop_now.wait())
        try:
            await asyncio.wait((finishing, hurrying), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._interrupted = True  # The same as a second signal.
        finally:
            finishing.cancel()
            hurrying.cancel()

    async def _close(self, seconds: float) -> None:
        """Runs in the network thread."""
        if self._last_resort is not None:
            self._last_resort.cancel()
        await self._opened.close(seconds)
        await self._endpoint.close()

    # Between the two sides ------------------------------------------------------------------------------------

    @property
    def _opened(self) -> Fetcher | Fetchers:
        assert self._fetcher is not None, "the run has begun"
        return self._fetcher

    def _stop_fetcher(self) -> None:
        """Runs in the network thread."""
        if self._fetcher is None:
            return
        self._fetcher.stop()
        # After a signal that would have ended the process, if this thread can act while the handlers block theirs.
        if self._last_resort is None and self._by_signal and not self.io_thread.is_inline:
            self._last_resort = asyncio.get_running_loop().create_task(
                leave_if_blocked(
                    after=max(self._grace_left - self._reserved, 0.0),
                    response_seconds=max(self._reserved - LEAST_SECONDS, LEAST_RESPONSE_SECONDS),
                    ask=lambda answer: self._here(lambda: self._on_io_thread(answer)),
                    give_back=lambda: self._opened.give_back(LEAST_SECONDS),
                    leave=self._leave,
                )
            )

    @property
    def _reserved(self) -> float:
        """Seconds at the end of the grace period that are reserved for releasing work."""
        return min(MOST_RESERVED, self.plan.grace_seconds / 5)

    def _hand_over(self, ended: Sequence[Ended], slots: int) -> None:
        fetcher = self._opened
        self._on_io_thread(lambda: fetcher.finished(ended, slots))

    def _report(self, message: Delivered, progress: float | None, note: str | None) -> None:
        fetcher = self._opened
        self._on_io_thread(lambda: fetcher.of(message.queue).report(message, progress, note))

    def _count(self, answered: Sequence[Answered]) -> None:
        self._stats.add(answered)
        if self._worker.listeners:  # Waking the other event loop costs more than counting.
            self._here(lambda: self._notify(answered))

    def _notify(self, answered: Sequence[Answered]) -> None:
        for listener in list(self._worker.listeners):
            for ended, settled in answered:
                try:
                    listener(stats.event_of(ended, settled))
                except Exception:
                    _log.exception("a worker listener raised; the worker continues")

    def _here(self, callback: Callable[[], object]) -> None:
        """Call a function in the event loop of the handlers."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(callback)

    def _on_io_thread(self, callback: Callable[[], object]) -> None:
        if not self._hung_up:  # An abandoned handler may end after the run.
            self.io_thread.post(callback)

    # Health ---------------------------------------------------------------------------------------------------

    def metrics(self) -> str:
        """The metrics in the text format of Prometheus."""
        return stats.prometheus(self.snapshot(), self._poll_metrics.text(), self._worker.middleware)

    def health(self) -> Health | None:
        """The health. None before the run has begun."""
        return None if self._fetcher is None else self._health()

    def _health(self) -> Health:
        fetcher = self._opened
        silent = self._monotonic() - fetcher.answered_at
        due = (self.plan.timeout_ms / 1000 if self.plan.wait else 0.0) + self._poll_metrics.interval_seconds
        if self._stopped_at is not None:
            status = "stopping"
        elif self._executor.stuck >= self.plan.concurrency:
            status = "stuck"
        elif silent > due + SILENCE_SECONDS and fetcher.free:
            status = "silent"
        else:
            status = "running"
        return Health(
            status,
            self.worker_id,
            ", ".join(self._worker.queues),
            self.plan.concurrency,
            self._executor.running,
            self._executor.stuck,
            round(silent, 3),
            fetcher.problem,
            {name: one.running for name, one in self._queues().items()},
        )
