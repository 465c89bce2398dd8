"""The thread in which all requests to the bucket run.

It has an event loop of its own: a program that blocks its main loop must not stall the store, and the thread that
owns the state can wait for a request as for a function.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

NAME = "hark-s3-io"
T = TypeVar("T")


class IoThread:
    """An event loop in a thread of its own. Its methods are for other threads; `submit` and `call` for all."""

    def __init__(self, name: str = NAME) -> None:
        self._lock = threading.Lock()
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)

    def start(self) -> None:
        """Start the loop; returns when it runs."""
        self._thread.start()
        self._ready.wait()

    def run(self, coroutine: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine there and wait for its result, for so many seconds at most.

        Raises `TimeoutError` when time is over (the coroutine is cancelled then), and
        `concurrent.futures.CancelledError` when the thread is stopped meanwhile.
        """
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("run() would wait for its own thread for ever")
        future = self.submit(coroutine)
        try:
            return future.result(timeout)
        except BaseException:
            # Also when this thread is interrupted: nobody would look at the result any more.
            future.cancel()
            raise

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine there; cancelling the future cancels it."""
        with self._lock:
            if self._loop is not None:
                return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        coroutine.close()
        raise RuntimeError("the thread of the bucket does not run")

    def call(self, function: Callable[[], object]) -> None:
        """Call a function there soon."""
        with self._lock:
            if self._loop is None:
                raise RuntimeError("the thread of the bucket does not run")
            self._loop.call_soon_threadsafe(function)

    def stop(self) -> None:
        """Cancel whatever runs, wait for its end and close the loop. A second time it does nothing."""
        if threading.current_thread() is self._thread:
            raise RuntimeError("stop() would wait for its own thread for ever")
        with self._lock:
            loop, self._loop = self._loop, None
            if loop is not None and self._stopping is not None:
                loop.call_soon_threadsafe(self._stopping.set)
        if self._thread.ident is not None:
            self._thread.join()

    def _serve(self) -> None:
        # A runner cancels what is left when it closes, and waits for generators and helper threads.
        with asyncio.Runner() as runner:
            runner.run(self._until_stopped())

    async def _until_stopped(self) -> None:
        self._stopping = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._ready.set()
        await self._stopping.wait()
