"""Group commit: requests of one verb that arrive together share an engine call."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context, copy_context
from functools import partial
from math import inf
from typing import Any, Generic, TypeVar

import msgspec

from hark.errors import EngineFailure, HarkError, Overloaded

Q = TypeVar("Q")
A = TypeVar("A")
T = TypeVar("T")


def _completing(complete: Callable[[Any, Any], T]) -> Callable[[Any, Any], T]:
    """Let a method that completes an `Answer` call back at once."""

    def completing(self: Answer[Any], value: Any) -> T:
        completed = complete(self, value)
        if callbacks := self.callbacks:
            self.callbacks = ()
            for callback in callbacks:
                try:
                    callback(self)
                except Exception as error:  # It must not affect the answers to others.
                    context = {"message": f"{callback} failed", "exception": error, "future": self}
                    self.get_loop().call_exception_handler(context)
        return completed

    return completing


class Answer(asyncio.Future[A]):
    """A future with callbacks that run as soon as it is done, not a turn of the event loop later.

    At low load a turn of the loop costs as much as the work that it delays.
    """

    callbacks: tuple[Callable[[asyncio.Future[A]], object], ...] = ()
    """What `when_done` has added, in this order."""

    set_result = _completing(asyncio.Future.set_result)
    set_exception = _completing(asyncio.Future.set_exception)
    _cancel = _completing(asyncio.Future.cancel)

    def cancel(self, msg: Any | None = None) -> bool:
        return self._cancel(msg)


def when_done(future: asyncio.Future[A], callback: Callable[[asyncio.Future[A]], object]) -> None:
    """Call a function as soon as a future is done."""
    if isinstance(future, Answer) and not future.done():
        future.callbacks += (callback,)
    else:
        future.add_done_callback(callback)


class BatchSizes(msgspec.Struct, eq=False):
    """The number of requests that shared a call, since the start."""

    calls: int = 0
    requests: int = 0
    largest: int = 0
    counts: list[int] = msgspec.field(default_factory=lambda: [0] * 64)
    """At i: calls for more than 2**(i-1) and at most 2**i requests."""


class _Batch(msgspec.Struct, Generic[Q, A], eq=False):
    """Requests of one engine call."""

    entries: list[tuple[Q, Answer[A], int]] = msgspec.field(default_factory=list)
    items: int = 0
    # The call is made for all of them, but it belongs to the trace and to the request of the first.
    context: Context = msgspec.field(default_factory=copy_context)


class Batcher(Generic[Q, A]):
    """Collects requests of one verb while a call is in flight, and sends them when it returns.

    An idle batcher sends at the end of this turn of the loop, so that requests read in the same turn share the call. A
    batch is also sent, beside the one in flight, at `max_items` or after `max_wait` seconds, unless `max_calls` are in
    flight. No call has more than `max_items`, unless a single request has: the rest waits for the next call. More than
    `max_pending` items in all are rejected, so that memory stays bounded.
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
        orphaned: Callable[[A], object] | None = None,
    ) -> None:
        self._name = name
        self._call = call
        self._max_items = max_items
        self._max_wait = max_wait
        self._max_pending = max_pending
        self._max_calls = inf if max_calls is None else max_calls
        self._orphaned = orphaned
        self._waiting: deque[_Batch[Q, A]] = deque()
        """The batches to send. Only the last one accepts more requests."""
        self._pending_items = 0
        self._calls = 0
        self._in_flight: set[asyncio.Future[Sequence[A | HarkError]]] = set()
        self._flush_handle: asyncio.Handle | None = None
        self._loop = asyncio.get_running_loop()
        self.sizes = BatchSizes()

    def submit(self, request: Q, items: int = 1) -> Answer[A]:
        """Queue a request that counts as `items`. The future has its answer or its error."""
        if self._pending_items + items > self._max_pending and self._pending_items:
            raise Overloaded(
                f"{self._pending_items} {self._name} items are already waiting; "
                f"retry later or raise limits.max_pending ({self._max_pending})"
            )
        future: Answer[A] = Answer(loop=self._loop)
        waiting = self._waiting
        if not waiting or waiting[-1].items + items > self._max_items:
            waiting.append(_Batch())
        batch = waiting[-1]
        batch.entries.append((request, future, items))
        batch.items += items
        self._pending_items += items
        if self._calls >= self._max_calls:
            pass  # Sent when one of the calls returns.
        elif len(waiting) > 1 or batch.items >= self._max_items:
            self._flush()
        elif self._flush_handle is None:
            if self._calls:
                self._flush_handle = self._loop.call_later(self._max_wait, self._flush)
            else:
                self._flush_handle = self._loop.call_soon(self._flush)
        return future

    async def drain(self) -> None:
        """Wait until everything submitted so far has been answered."""
        self._flush()
        # Without later requests: they may never end.
        waiting = (future for batch in self._waiting for _, future, _ in batch.entries)
        so_far: list[asyncio.Future[Any]] = [*self._in_flight, *waiting]
        if so_far:
            await asyncio.wait(so_far)

    def _flush(self) -> None:
        if self._flush_handle is not None:
            self._flush_handle.cancel()
            self._flush_handle = None
        waiting = self._waiting
        while waiting and self._calls < self._max_calls:
            batch = waiting.popleft()
            self._calls += 1
            sizes, number = self.sizes, len(batch.entries)
            sizes.calls += 1
            sizes.requests += number
            sizes.largest = max(sizes.largest, number)
            sizes.counts[(number - 1).bit_length()] += 1
            context = batch.context
            try:
                call = context.run(self._call, [request for request, _, _ in batch.entries])
            except Exception as error:
                call = self._loop.create_future()
                call.set_exception(error)
            if not isinstance(call, asyncio.Future):  # A call that is a future needs no task.
                call = self._loop.create_task(_awaited(call), context=context)
            self._in_flight.add(call)
            when_done(call, partial(self._returned, batch))
            if len(waiting) == 1 and waiting[0].items < self._max_items:  # It accepts more requests.
                if self._calls < self._max_calls and self._flush_handle is None:
                    self._flush_handle = self._loop.call_later(self._max_wait, self._flush)
                break

    def _returned(self, batch: _Batch[Q, A], future: asyncio.Future[Sequence[A | HarkError]]) -> None:
        self._in_flight.discard(future)
        if future.cancelled():
            text = "the server stopped before the store answered; the request may have had an effect"
            error: BaseException | None = EngineFailure(text, code="outcome_unknown")
        else:
            error = future.exception()
        answers: Sequence[A | Exception]
        answers = [error] * len(batch.entries) if isinstance(error, Exception) else future.result()
        self._calls -= 1
        if self._waiting and (not self._calls or self._max_calls != inf):
            # Before the callers are answered: the engine works on the next batch while the answers are written.
            self._flush()
        for (_, waiter, items), answer in zip(batch.entries, answers, strict=True):
            self._pending_items -= items
            if waiter.done():  # The client disconnected meanwhile.
                if self._orphaned is not None and not isinstance(answer, Exception):
                    self._orphaned(answer)
            elif isinstance(answer, Exception):
                waiter.set_exception(answer)
            else:
                waiter.set_result(answer)


async def _awaited(call: Awaitable[T]) -> T:
    return await call
