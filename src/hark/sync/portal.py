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
        # A daemon thread, so that a program that forgot to close its client can end.
        self._thread = threading.Thread(target=self._serve, name="hark-sync", daemon=True)
        self._lock = threading.Lock()
        self._closed = False
        self._thread.start()

    @property
    def closed(self) -> bool:
        """Whether its thread has ended, or is about to end."""
        return self._closed

    def run(self, work: Coroutine[object, object, T], interrupted: Callable[[], object] | None = None) -> T:
        """Wait for a coroutine, from any thread but its own.

        Ctrl-C cancels the coroutine. With `interrupted`, the first Ctrl-C calls that function, waits for the coroutine
        and then raises.
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
            raise HarkError("the client was closed during this call", code="client_closed") from None
        except BaseException:
            future.cancel()  # After Ctrl-C there is no caller any more. A completed future is not affected.
            raise

    def iterate(self, stream: AsyncIterator[T]) -> Iterator[T]:
        """Iterate over an async iterator."""

        async def step() -> tuple[T] | None:
            try:
                return (await anext(stream),)
            except StopAsyncIteration:
                return None

        while (found := self.run(step())) is not None:
            yield found[0]

    def post(self, call: Callable[[], object]) -> None:
        """Call a function soon on the event loop, without waiting for it."""
        with self._lock:
            if not self._closed:
                self._loop.call_soon_threadsafe(call)

    def close(self) -> None:
        """Cancel running coroutines and end the thread."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        asyncio.run_coroutine_threadsafe(_end_tasks(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _refusal(self) -> str | None:
        if self._closed:
            return "the client is closed; create a new one with connect()"
        if threading.current_thread() is self._thread:
            return "a sync client cannot be used on its own event loop; call it from another thread"
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
