"""The thread with the event loop behind a sync client."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import TypeVar

from hark.errors import HarkError

T = TypeVar("T")


class Portal:
    """Runs coroutines for threads that have no event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        # A daemon: a program that forgot to close its client can still end.
        self._thread = threading.Thread(target=self._serve, name="hark-sync", daemon=True)
        self._lock = threading.Lock()
        self._closed = False
        self._thread.start()

    @property
    def closed(self) -> bool:
        """Whether its thread has ended, or is about to."""
        return self._closed

    def run(self, work: Coroutine[object, object, T], interrupted: Callable[[], object] | None = None) -> T:
        """Wait for a coroutine, from any thread but its own.

        Ctrl-C cancels it; with `interrupted` the first one calls that, and is raised when the coroutine has ended.
        """
        with self._lock:
            refusal = self._refusal()
            future = None if refusal else asyncio.run_coroutine_threadsafe(work, self._loop)
        if future is None:
            work.close()
            raise HarkError(refusal or "", code="client_closed")
        try:
            try:
                return future.result()
            except KeyboardInterrupt:
                if interrupted is None:
                    raise
                interrupted()
                future.result()
                raise
        except concurrent.futures.CancelledError:
            raise HarkError("the client was closed meanwhile", code="client_closed") from None
        except BaseException:
            future.cancel()  # Ctrl-C: nobody waits any more. Of no effect on what is done.
            raise

    def iterate(self, stream: AsyncIterator[T]) -> Iterator[T]:
        """The steps of an async iterator."""

        async def step() -> tuple[T] | None:
            try:
                return (await anext(stream),)
            except StopAsyncIteration:
                return None

        while (found := self.run(step())) is not None:
            yield found[0]

    def post(self, call: Callable[[], object]) -> None:
        """Call something soon on the loop, and do not wait for it."""
        with self._lock:
            if not self._closed:
                self._loop.call_soon_threadsafe(call)

    def close(self) -> None:
        """End the thread; what still runs is cancelled."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        asyncio.run_coroutine_threadsafe(_end_tasks(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _refusal(self) -> str | None:
        if self._closed:
            return "the client is closed; connect again"
        if threading.current_thread() is self._thread:
            return "a sync client can't be used on its own event loop: handlers run in threads"
        return None

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()


async def _end_tasks() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
