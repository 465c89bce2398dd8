"""A thread with its own event loop for network calls, so that a blocking handler does not stop them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

from hark.client.calling import Caller, CallPolicy
from hark.client.transport.api import Transport
from hark.errors import HarkError

T = TypeVar("T")


class IoThread:
    """Runs calls on a separate event loop. A server that lives in the user's loop can only be reached there."""

    def __init__(self, transport: Transport, retry: CallPolicy | None = None) -> None:
        fork = transport.fork()
        self.is_inline = fork is None
        """There is no thread: everything runs on the loop that called `start`."""
        self.caller = Caller(fork or transport, retry)
        """For use on the loop of this thread only."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    async def start(self) -> None:
        """Start the thread. Call it once."""
        if self._loop is not None:
            raise HarkError("the network thread was already started")
        if self.is_inline:
            self._loop = asyncio.get_running_loop()
            return
        loop = self._loop = _new_loop()
        started = threading.Event()
        # A daemon thread, so that a program that forgot to close its client can end.
        self._thread = threading.Thread(target=self._serve, args=(loop, started), name="hark-io", daemon=True)
        self._thread.start()
        started.wait()

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

        future = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call(), loop))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not (task and task.cancelling()):
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
        loop, thread = self._loop, self._thread
        if loop is None:
            return
        self._loop = None
        if thread is None:
            return

        async def hang_up() -> None:
            await _end_tasks()
            await self.caller.transport.close()

        try:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(hang_up(), loop))
        finally:
            loop.call_soon_threadsafe(loop.stop)
            # The thread has nothing left to do, so this returns immediately.
            thread.join()
            self._thread = None

    def _serve(self, loop: asyncio.AbstractEventLoop, started: threading.Event) -> None:
        """The main function of the thread."""
        asyncio.set_event_loop(loop)
        loop.call_soon(started.set)
        try:
            loop.run_forever()
            # Already done, unless the closing task was cancelled: connections must not outlive their loop.
            loop.run_until_complete(self.caller.transport.close())
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise _closed()
        return self._loop


def _closed() -> HarkError:
    return HarkError(
        "the network thread is not running: it was closed or not started; create a new client", code="io_thread_closed"
    )


async def _end_tasks() -> None:
    """Cancel all tasks of this loop, and wait until they have ended."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _new_loop() -> asyncio.AbstractEventLoop:
    """The fastest available event loop: uvloop, which Windows does not have."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
