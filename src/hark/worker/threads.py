"""Threads for functions that are not async.

They are not those of `concurrent.futures`: Python waits for those at exit, and a worker must be able to abandon a
function that does not end.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

_Work = tuple[Callable[[], Any], contextvars.Context, "asyncio.Future[Any]"]


class Threads:
    """A limited number of daemon threads, started on demand."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        self._threads = 0
        self._busy = 0

    def submit(self, call: Callable[[], Any]) -> asyncio.Future[Any]:
        """Run a function in a thread, with the caller's context variables. The future gets its result."""
        future: asyncio.Future[Any] = self._loop.create_future()
        future.add_done_callback(_look_at)
        self._busy += 1
        if self._busy > self._threads and self._threads < self._most:
            self._threads += 1
            threading.Thread(target=self._run, name=f"{self._name}-{self._threads}", daemon=True).start()
        self._work.put((call, contextvars.copy_context(), future))
        return future

    def close(self) -> None:
        """Let idle threads end."""
        for _ in range(self._threads):
            self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            call, context, future = work
            try:
                result, error = context.run(call), None
            except BaseException as failure:
                result, error = None, failure
            try:
                self._loop.call_soon_threadsafe(self._ended, future, result, error)
            except RuntimeError:
                return  # The worker has ended, and its loop is closed.
            del call, context, future, work, result, error  # An idle thread keeps no objects alive.

    def _ended(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self._busy -= 1
        if future.done():
            return
        if isinstance(error, StopIteration):
            error = RuntimeError("the function raised StopIteration")  # A future cannot carry StopIteration.
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)


def _look_at(future: asyncio.Future[Any]) -> None:
    """Mark the exception as retrieved, otherwise asyncio logs it."""
    if not future.cancelled():
        future.exception()
