"""Consuming: loops that receive, handle and settle messages, and iteration over messages."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Self, cast

import msgspec

from hark.client.arguments import a_function, name_of
from hark.client.builder import Choices
from hark.client.delivery.message import Message, error_text
from hark.client.delivery.prefetcher import Prefetcher
from hark.client.delivery.settling import PiggybackedAcks
from hark.client.io_thread import is_cancelling
from hark.client.tracing import processing
from hark.errors import HarkError

if TYPE_CHECKING:
    from hark.client.client import Client


class Messages:
    """An async iterator over messages, received in batches. `queue.messages()` creates it.

    However the iteration ends, messages that were received but not yet returned are released.
    """

    def __init__(self, client: Client, choices: Choices) -> None:
        self._client = client
        self._choices = choices
        self._left = choices.limit
        self._prefetcher: Prefetcher | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """Wait for the next message. The iteration ends at `limit`, after `idle` milliseconds, or with the client."""
        if self._ended or self._left == 0:
            await self.aclose()
            raise StopAsyncIteration
        if self._prefetcher is None:
            self._prefetcher = self._client.open_prefetcher(self._choices)
            self._loop = asyncio.get_running_loop()
        message = await self._prefetcher.next(self._choices.batch if self._left is None else self._left)
        if message is None:
            await self.aclose()
            raise StopAsyncIteration
        if self._left is not None:
            self._left -= 1
        return message

    async def aclose(self) -> None:
        """End the iteration, and release messages that were received but not yet returned."""
        self._ended = True
        prefetcher, self._prefetcher = self._prefetcher, None
        if prefetcher is not None:
            await prefetcher.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        # After `break` or an exception no method is called any more, so the client closes the prefetcher.
        if self._prefetcher is not None and self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._client.retire, self._prefetcher)


Handler = Callable[[Message], object] | Callable[[list[Message]], object]
"""A handler gets one message (with `batch` 1 or `each`), or a list of messages. It is an async function, or a
function that does not block."""
OnSuccess = Callable[[Message, object], object] | Callable[[list[Message], object], object]
OnError = Callable[[Message, Exception], object] | Callable[[list[Message], Exception], object]

_log = logging.getLogger(__name__)


class HandlerCancelled(HarkError):
    """A handler ended because something that it awaited was cancelled; its messages are rejected."""

    code = "handler_cancelled"


class Consumed(msgspec.Struct, frozen=True):
    """Result of a consumption: numbers of messages."""

    succeeded: int
    """Messages whose handler returned."""
    failed: int
    """Messages whose handler raised."""


class Budget:
    """The number of messages that may still be started, shared by several loops."""

    def __init__(self, limit: int | None) -> None:
        self._free = limit
        self._pending = 0
        self._changed = asyncio.Event()

    @property
    def used_up(self) -> bool:
        """Whether nothing can be reserved now."""
        return self._free == 0

    async def reserve(self, most: int) -> int:
        """Reserve some of the rest. Waits while other loops may return some. 0: nothing is left."""
        while self._free == 0 and self._pending:
            self._changed.clear()
            await self._changed.wait()
        if self._free is None:
            return most
        got = min(most, self._free)
        self._free -= got
        self._pending += got
        return got

    def used(self, reserved: int, begun: int) -> None:
        """Return the unused part of a reservation."""
        if self._free is not None:
            self._free += reserved - begun
            self._pending -= reserved
            self._changed.set()


class Acks:
    """The acknowledgements of one loop.

    If the server waits for messages anyway, the ack of a batch travels with the next pop in one request. There is one
    ack at a time, and it is answered before the next batch starts.
    """

    def __init__(self, prefetcher: Prefetcher) -> None:
        self._prefetcher = prefetcher
        self._under_way: asyncio.Task[None] | None = None
        self._for_pop: PiggybackedAcks | None = None

    async def send(self, messages: Sequence[Message], *, last: bool) -> None:
        """Acknowledge handled messages. The last ack of a batch does not wait for its answer, if that is possible.

        Earlier acks wait for their answer, so that a later failure cannot overtake them.
        """
        acks = self._prefetcher.session.piggyback(messages) if last and self._prefetcher.overlaps else None
        if acks is not None:
            self._for_pop = acks
            self._under_way = asyncio.create_task(self._say(messages, acks))
        else:
            await self._say(messages)

    def for_pop(self) -> PiggybackedAcks | None:
        """The acknowledgements to send with the next pop, if there are any."""
        acks, self._for_pop = self._for_pop, None
        return acks

    async def answered(self) -> None:
        """Wait for the answer to the ack in flight. A cancelled consumer does not cancel the ack."""
        if (acks := self.for_pop()) is not None:
            acks.not_sent()
        if self._under_way is not None:
            task, self._under_way = self._under_way, None
            await asyncio.shield(task)

    async def _say(self, messages: Sequence[Message], acks: PiggybackedAcks | None = None) -> None:
        await self._prefetcher.session.say(messages, "completed", road=acks)
        for message in messages:
            message.stop_renewing()


class Consumption:
    """A consumption: await it to run it. `limit`, `idle` or `stop` ends it.

    ```python
    consuming = client.queue("orders").group("billing").concurrency(4).consume(handle)
    result = await consuming
    print(result.succeeded, result.failed)
    ```

    When the handler returns, its messages are acknowledged. When it raises, they are rejected with the error text and
    the traceback. A handler can also settle messages itself.
    """

    def __init__(self, client: Client, choices: Choices, handler: Handler) -> None:
        self._client = client
        self._choices = choices
        self._handler = cast(Callable[[object], object], a_function(handler, "handler"))
        self._on_success: Callable[[object, object], object] | None = None
        self._on_error: Callable[[object, Exception], object] | None = None
        self._singly = choices.each or choices.batch == 1
        self._stopping = False
        self._prefetchers: set[Prefetcher] = set()
        self._begun = False
        self._succeeded = self._failed = 0

    def on_success(self, callback: OnSuccess) -> Self:
        """Call this function with the message or messages and the handler's result, instead of acknowledging.

        The function must settle the messages. The leases of unsettled messages are not renewed any more, so those are
        redelivered when their leases expire.
        """
        self._on_success = cast(Callable[[object, object], object], a_function(callback, "on_success"))
        return self

    def on_error(self, callback: OnError) -> Self:
        """Call this function with the message or messages and the exception, before they are rejected.

        The function can settle the messages itself; unsettled ones are rejected.
        """
        self._on_error = cast(Callable[[object, Exception], object], a_function(callback, "on_error"))
        return self

    def __await__(self) -> Generator[object, None, Consumed]:
        return self.run().__await__()

    def stop(self) -> None:
        """Stop receiving messages, and end when the running handlers have ended."""
        self._stopping = True
        for prefetcher in self._prefetchers:
            prefetcher.interrupt()

    async def run(self) -> Consumed:
        """Consume until it ends. `await consumption` does the same.

        If it is cancelled, the handlers are cancelled, too, and their messages are released without counting an
        attempt. A consumption runs once: a second run raises `HarkError` with the code `already_run`.
        """
        if self._begun:
            raise HarkError("this consumption was already run; call consume() again for a new one", code="already_run")
        self._begun = True
        budget = Budget(self._choices.limit)
        loops = [asyncio.ensure_future(self._loop(budget)) for _ in range(self._choices.concurrency)]
        try:
            await asyncio.gather(*loops)
        finally:
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
        return Consumed(self._succeeded, self._failed)

    async def _loop(self, budget: Budget) -> None:
        # A handler that blocks the event loop must not keep the messages of the others from being read and renewed.
        apart = self._choices.concurrency > 1 and self._choices.renewed_seconds is not None
        prefetcher = self._client.open_prefetcher(self._choices, apart)
        self._prefetchers.add(prefetcher)
        if self._stopping:
            prefetcher.interrupt()
        acks = Acks(prefetcher)
        try:
            while not self._stopping:
                if budget.used_up:
                    await acks.answered()  # No pop follows soon that could carry them.
                most = await budget.reserve(self._choices.batch)
                if not most:
                    break
                begun = 0
                try:
                    found = await prefetcher.batch(most, acks.for_pop())
                    await acks.answered()
                    if not found:
                        return
                    begun = await self._handle(prefetcher, acks)
                finally:
                    budget.used(most, begun)
        finally:
            self._prefetchers.discard(prefetcher)
            try:
                await acks.answered()
            finally:
                await prefetcher.close()

    async def _handle(self, prefetcher: Prefetcher, acks: Acks) -> int:
        """Handle the held messages. Returns how many were started."""
        begun = 0
        try:
            while not self._stopping and (messages := await prefetcher.begin(1 if self._singly else None)):
                begun += len(messages)
                await self._attempt(prefetcher, acks, messages, last=not prefetcher.buffered)
        finally:
            await prefetcher.give_back_buffered()
        return begun

    async def _attempt(self, prefetcher: Prefetcher, acks: Acks, messages: list[Message], *, last: bool) -> None:
        given = messages[0] if self._singly else messages
        try:
            await self._process(messages, given)
        except BaseException as error:
            failure = error
            if isinstance(error, asyncio.CancelledError) and not is_cancelling():
                # Not our own cancellation: releasing the message without counting an attempt would repeat for ever.
                failure = HandlerCancelled("the handler ended because something that it awaited was cancelled")
                failure = failure.with_traceback(error.__traceback__)
            if not isinstance(failure, Exception):
                await prefetcher.give_back(messages)
                raise
            self._failed += len(messages)
            await self._fail(prefetcher, messages, given, failure)
            return
        self._succeeded += len(messages)
        if self._on_success is None:
            await acks.send(messages, last=last)
        else:
            for message in messages:
                message.stop_renewing()

    async def _process(self, messages: Sequence[Message], given: Message | list[Message]) -> None:
        """Call the handler, within a span if tracing is active."""
        with processing([message.delivered for message in messages]) as note:
            for message in messages:
                message.in_span = True
            try:
                result = await _call(self._handler, given)
                if self._on_success is not None:
                    await _call(self._on_success, given, result)
            except Exception as error:
                note("failed", error)
                raise
            except BaseException:
                note("retry", None)
                raise
            note(messages[0].settled or "completed", None)

    async def _fail(
        self, prefetcher: Prefetcher, messages: Sequence[Message], given: Message | list[Message], error: Exception
    ) -> None:
        if self._on_error is None:
            text = "handler failed for %d messages of queue %s: %s: %s; they are rejected"
            _log.warning(text, len(messages), messages[0].queue, type(error).__name__, error)
        else:
            try:
                await _call(self._on_error, given, error)
            except Exception as other:
                _log.exception("on_error callback raised; the messages are rejected with the handler's error")
                error.add_note(f"on_error raised, too: {type(other).__name__}: {other}")
        await prefetcher.session.say(messages, "failed", error_text(error))


async def _call(function: Callable[..., object], *arguments: object) -> object:
    """Call a user's function, and await the result if it is awaitable."""
    result = function(*arguments)
    return await result if inspect.isawaitable(result) else what_ran(function, result)


def what_ran(function: object, result: object) -> object:
    """The result of a function. A generator raises, because none of its code has run."""
    if inspect.isasyncgen(result) or inspect.isgenerator(result):
        raise TypeError(f"{name_of(function)} is a generator: calling it runs nothing; remove the yield")
    return result
