"""Group commit: calls of one verb that arrive together go to the engine together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import copy_context
from functools import partial
from typing import Generic, TypeVar

from hark.errors import EngineFailure, HarkError, Overloaded

Q = TypeVar("Q")
A = TypeVar("A")
T = TypeVar("T")
_Batch = list[tuple[Q, "asyncio.Future[A]", int]]


class BatchSizes:
    """How many requests shared a call, since the start."""

    __slots__ = ("calls", "counts", "largest", "requests")

    def __init__(self) -> None:
        self.calls = self.requests = self.largest = 0
        self.counts = [0] * 64
        """At i: calls that more than 2**(i-1) and at most 2**i shared."""

    def add(self, requests: int) -> None:
        """Record the size of a call."""
        self.calls += 1
        self.requests += requests
        self.largest = max(self.largest, requests)
        self.counts[(requests - 1).bit_length()] += 1


class Batcher(Generic[Q, A]):
    """Collects requests of one verb while a call is in flight, and sends them when it returns.

    An idle batcher sends at once (at the end of this turn of the loop, so that requests read in the same turn
    share the call). A batch also goes out, beside the one in flight, at `max_items` or after `max_wait`
    seconds, unless `max_calls` are in flight. More than `max_pending` items in all are refused: memory stays bounded.
    """

    def __init__(
        self,
        name: str,
        call: Callable[[Sequence[Q]], Awaitable[Sequence[A | HarkError]]],
        *,
        max_items: int,
        max_wait: float,
        max_pending: int,
        max_calls: int | None = None,
        orphaned: Callable[[A], None] | None = None,
    ) -> None:
        self._name = name
        self._call = call
        self._max_items = max_items
        self._max_wait = max_wait
        self._max_pending = max_pending
        self._max_calls = max_calls
        self._orphaned = orphaned
        self._waiting: list[tuple[Q, asyncio.Future[A], int]] = []
        self._waiting_items = 0
        self._pending_items = 0
        self._calls = 0
        self._in_flight: set[asyncio.Future[Sequence[A | HarkError]]] = set()
        self._flush_handle: asyncio.Handle | None = None
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        self.sizes = BatchSizes()

    def submit(self, request: Q, items: int = 1) -> asyncio.Future[A]:
        """Queue a request that counts as `items`; the future has its answer, or raises it."""
        if self._pending_items + items > self._max_pending and self._pending_items:
            raise Overloaded(
                f"{self._pending_items} {self._name} items are already waiting; "
                f"retry later or raise limits.max_pending ({self._max_pending})"
            )
        future: asyncio.Future[A] = self._loop.create_future()
        if not self._waiting:
            # The call is made for all of them, but it belongs to the trace and to the request of the first.
            self._context = copy_context()
        self._waiting.append((request, future, items))
        self._waiting_items += items
        self._pending_items += items
        if self._is_busy:
            pass  # Sent when one of the calls returns.
        elif self._waiting_items >= self._max_items:
            self._flush()
        elif self._flush_handle is None:
            if self._calls:
                self._flush_handle = self._loop.call_later(self._max_wait, self._flush)
            else:
                self._flush_handle = self._loop.call_soon(self._flush)
        return future

    @property
    def _is_busy(self) -> bool:
        return self._max_calls is not None and self._calls >= self._max_calls

    async def drain(self) -> None:
        """Wait until everything submitted so far has been answered."""
        self._flush()
        while self._in_flight:
            await asyncio.wait(self._in_flight)

    def _flush(self) -> None:
        if self._flush_handle is not None:
            self._flush_handle.cancel()
            self._flush_handle = None
        if not self._waiting or self._is_busy:
            return
        batch, self._waiting, self._waiting_items = self._waiting, [], 0
        self._calls += 1
        self.sizes.add(len(batch))
        context = self._context
        try:
            call = context.run(self._call, [request for request, _, _ in batch])
        except Exception as error:
            self._answer(batch, [error] * len(batch))
            return
        # A call that is a future needs no task.
        future = call if isinstance(call, asyncio.Future) else self._loop.create_task(_awaited(call), context=context)
        self._in_flight.add(future)
        future.add_done_callback(partial(self._returned, batch), context=context)

    def _returned(self, batch: _Batch[Q, A], future: asyncio.Future[Sequence[A | HarkError]]) -> None:
        self._in_flight.discard(future)
        if future.cancelled():
            text = "the server stopped before the store answered; the request may have had an effect"
            error: BaseException | None = EngineFailure(text, code="outcome_unknown")
        else:
            error = future.exception()
        self._answer(batch, [error] * len(batch) if isinstance(error, Exception) else future.result())

    def _answer(self, batch: _Batch[Q, A], answers: Sequence[A | Exception]) -> None:
        self._calls -= 1
        if self._waiting and (not self._calls or self._max_calls is not None):
            # Before the callers are answered: the engine works on the next batch while the answers are written.
            self._flush()
        for (_, future, items), answer in zip(batch, answers, strict=True):
            self._pending_items -= items
            if future.done():  # The client went away meanwhile.
                if self._orphaned is not None and not isinstance(answer, Exception):
                    self._orphaned(answer)
            elif isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)


async def _awaited(call: Awaitable[T]) -> T:
    return await call
