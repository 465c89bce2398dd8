"""Threads with an event loop, and the thread for network calls, so that a blocking handler does not stop them."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import TypeVar

from hark.client.calling import Caller, CallPolicy, Transport, client_closed
from hark.errors import HarkError

T = TypeVar("T")


class LoopThread:
    """A thread with an event loop. It is a daemon thread, so that a program that forgot to close its client can end."""

    def __init__(self, name: str, at_end: Callable[[], Awaitable[object]] | None = None) -> None:
        self._at_end = at_end
        """Called on the loop before it is closed."""
        started: concurrent.futures.Future[asyncio.AbstractEventLoop] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._serve, args=(started,), name=name, daemon=True)
        self._lock = threading.Lock()
        self.closed = False
        """Whether it has ended, or is about to end."""
        self._thread.start()
        self.loop = started.result()

    def submit(self, work: Coroutine[object, object, T]) -> concurrent.futures.Future[T]:
        """Run a coroutine on the loop, from any thread. Raises `HarkError` if the thread is closed."""
        with self._lock:
            if not self.closed:
                return asyncio.run_coroutine_threadsafe(work, self.loop)
        work.close()
        raise client_closed()

    def post(self, call: Callable[[], object]) -> None:
        """Call a function soon on the loop, from any thread, unless the thread is closed."""
        with self._lock:
            if not self.closed:
                self.loop.call_soon_threadsafe(call)

    def close(self) -> None:
        """Cancel all tasks of the loop, and wait until they and the thread have ended."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()

    def _serve(self, started: concurrent.futures.Future[asyncio.AbstractEventLoop]) -> None:
        loop = _new_loop()
        asyncio.set_event_loop(loop)
        loop.call_soon(started.set_result, loop)
        try:
            loop.run_forever()
            loop.run_until_complete(end_tasks())
            if self._at_end is not None:
                loop.run_until_complete(self._at_end())
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
        finally:
            loop.close()


def _new_loop() -> asyncio.AbstractEventLoop:
    """The fastest available event loop: uvloop, which Windows does not have."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


async def end_tasks() -> None:
    """Cancel all tasks of this loop, and wait until they have ended."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def is_cancelling() -> bool:
    """Whether the running task is itself being cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class IoThread:
    """Runs calls on a separate event loop. A server that lives in the user's loop can only be reached there."""

    def __init__(self, transport: Transport, retry: CallPolicy | None = None) -> None:
        fork = transport.fork()
        self.is_inline = fork is None
        """There is no thread: everything runs on the loop that called `start`."""
        self.caller = Caller(fork or transport, retry)
        """For use on the loop of this thread only."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: LoopThread | None = None

    def start(self) -> None:
        """Start the thread, from the loop of its user. Call it once."""
        if self._loop is not None:
            raise HarkError("the network thread was already started")
        if self.is_inline:
            self._loop = asyncio.get_running_loop()
            return
        # The transport is closed twice if closing was cancelled: connections must not outlive their loop.
        self._thread = LoopThread("hark-io", at_end=self.caller.transport.close)
        self._loop = self._thread.loop

    def spawn(self, work: Coroutine[object, object, T]) -> asyncio.Future[T]:
        """Start a coroutine on the thread's loop at once, even if this loop is blocked after the call."""
        if self.is_inline:
            return asyncio.ensure_future(work)
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._started()))

    async def run(self, make: Callable[[], Awaitable[T]], late: Callable[[T], Awaitable[object]] | None = None) -> T:
        """Run a coroutine on the thread's loop and wait for it. Cancelling the wait cancels the coroutine.

        The coroutine may end before the cancellation reaches it: `late` gets its result then.
        """
        if self.is_inline:
            return await make()
        loop = self._started()
        running: asyncio.Future[T] | None = None
        cancelled = False

        async def call() -> T:
            nonlocal running
            running = asyncio.ensure_future(make())
            if cancelled:
                running.cancel()
            return await running

        def cancel() -> None:
            if running is not None:
                running.cancel()

        future = self.spawn(call())
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if not is_cancelling():
                if self._loop is None:
                    raise _closed() from None  # It was cancelled there, and this task was not.
                raise
            if late is None:
                future.cancel()
                raise
            cancelled = True
            loop.call_soon_threadsafe(cancel)
            await asyncio.wait([future])
            if not future.cancelled() and future.exception() is None:
                await late(future.result())
            raise

    def post(self, callback: Callable[[], object]) -> None:
        """Call a function soon on the thread's loop, from any thread. Calls keep their order."""
        self._started().call_soon_threadsafe(callback)

    async def close(self) -> None:
        """Close the transport, cancel running calls and end the thread. A transport without a thread stays open."""
        self._loop = None
        thread, self._thread = self._thread, None
        if thread is None:
            return

        async def hang_up() -> None:
            await end_tasks()
            await self.caller.transport.close()

        try:
            await asyncio.wrap_future(thread.submit(hang_up()))
        finally:
            thread.close()  # The thread has nothing left to do, so this returns immediately.

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise _closed()
        return self._loop


def _closed() -> HarkError:
    return HarkError(
        "the network thread is not running: it was closed or not started; create a new client", code="io_thread_closed"
    )
