"""`await queue.consume(handler)`: loops that take, handle and settle."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Self, cast

import msgspec

from hark.client.choices import Choices
from hark.client.delivery.message import Message, error_text
from hark.client.delivery.supplying import Supply
from hark.client.tracing import processing
from hark.client.values import a_function, name_of
from hark.errors import HarkError

Handler = Callable[[Message], object] | Callable[[list[Message]], object]
"""Gets one message (batch of 1, or `each`) or a list of them; a coroutine function, or one that does not block."""
OnSuccess = Callable[[Message, object], object] | Callable[[list[Message], object], object]
OnError = Callable[[Message, Exception], object] | Callable[[list[Message], Exception], object]

_log = logging.getLogger(__name__)


class HandlerCancelled(HarkError):
    """A handler ended by a cancellation that came from within, of something that it awaited."""

    code = "handler_cancelled"


class Consumed(msgspec.Struct, frozen=True):
    """What a consumption came to, in messages."""

    succeeded: int
    failed: int


class Budget:
    """How many messages may still be begun, shared by loops of which each takes some and may need fewer."""

    def __init__(self, limit: int | None) -> None:
        self._free = limit
        self._pending = 0
        self._news = asyncio.Event()

    async def reserve(self, most: int) -> int:
        """A part of what is left; waits while others may give some back. 0: there is nothing left."""
        while self._free == 0 and self._pending:
            self._news.clear()
            await self._news.wait()
        if self._free is None:
            return most
        got = min(most, self._free)
        self._free -= got
        self._pending += got
        return got

    def used(self, reserved: int, begun: int) -> None:
        """So many of a part were begun; the rest is for others."""
        if self._free is not None:
            self._free += reserved - begun
            self._pending -= reserved
            self._news.set()


class Acks:
    """The acks of one loop.

    Where the server waits for messages anyway, the ack of a batch and the pop of the next one are on their way at the
    same time, which saves a round trip: a pop that comes before the ack waits for it there. One ack at a time, and it
    is answered before the next batch is begun.
    """

    def __init__(self, supply: Supply) -> None:
        self._supply = supply
        self._under_way: asyncio.Task[None] | None = None

    async def send(self, messages: Sequence[Message], *, last: bool) -> None:
        """Ack what was handled; the last of a batch, where that can be, without waiting for the answer.

        Of the others the answer is waited for: a failure behind them must not overtake them.
        """
        if last and self._supply.overlaps:
            self._under_way = asyncio.create_task(self._say(messages))
        else:
            await self._say(messages)

    async def answered(self) -> None:
        """Wait until the ack that is on its way has been answered; a cancelled consumer does not take it back."""
        if self._under_way is not None:
            task, self._under_way = self._under_way, None
            await asyncio.shield(task)

    async def _say(self, messages: Sequence[Message]) -> None:
        await self._supply.desk.say(messages, "completed")
        for message in messages:
            message.let_go()


class Consumption:
    """A running or coming consumption: `await` it. It ends at the limit, after the idle time, or by `stop`.

    What the handler gets is acked when it returns, and nacked with the error when it raises, unless it settled it
    itself. `on_success` settles what succeeded instead; what it leaves open is not renewed any more, and comes again
    when its lease ends. `on_error` is asked before a message fails; what it leaves open is nacked.
    """

    def __init__(self, open_supply: Callable[[], Supply], choices: Choices, handler: Handler) -> None:
        self._open_supply = open_supply
        self._choices = choices
        self._handler = cast(Callable[[object], object], a_function(handler, "handler"))
        self._on_success: Callable[[object, object], object] | None = None
        self._on_error: Callable[[object, Exception], object] | None = None
        self._singly = choices.each or choices.batch == 1
        self._stopping = False
        self._supplies: set[Supply] = set()
        self._begun = False
        self._succeeded = self._failed = 0

    def on_success(self, callback: OnSuccess) -> Self:
        """Call this with what the handler got and what it returned, instead of acking."""
        self._on_success = cast(Callable[[object, object], object], a_function(callback, "on_success"))
        return self

    def on_error(self, callback: OnError) -> Self:
        """Call this with what the handler got and its exception, before it is nacked."""
        self._on_error = cast(Callable[[object, Exception], object], a_function(callback, "on_error"))
        return self

    def __await__(self) -> Generator[object, None, Consumed]:
        return self.run().__await__()

    def stop(self) -> None:
        """Take nothing more, and end when the handlers that run have ended."""
        self._stopping = True
        for supply in self._supplies:
            supply.interrupt()

    async def run(self) -> Consumed:
        """Consume until it ends; cancelled, the handlers are too, and what they had is handed back, uncounted."""
        if self._begun:
            raise HarkError("this consumption has been run already; call consume() again", code="already_run")
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
        supply = self._open_supply()
        self._supplies.add(supply)
        if self._stopping:
            supply.interrupt()
        acks = Acks(supply)
        try:
            while not self._stopping and (most := await budget.reserve(self._choices.batch)):
                begun = 0
                try:
                    messages = await supply.batch(most)
                    await acks.answered()
                    if not messages:
                        return
                    begun = await self._handle(supply, acks, messages)
                finally:
                    budget.used(most, begun)
        finally:
            self._supplies.discard(supply)
            await acks.answered()
            await supply.close()

    async def _handle(self, supply: Supply, acks: Acks, messages: list[Message]) -> int:
        """How many of them were begun."""
        if not self._singly:
            await self._attempt(supply, acks, messages, messages, last=True)
            return len(messages)
        begun = 0
        waiting = deque(messages)
        skipped: list[Message] = []
        try:
            while waiting and not self._stopping:
                message = waiting.popleft()
                if supply.is_ours(message):
                    begun += 1
                    await self._attempt(supply, acks, [message], message, last=not (waiting or skipped))
                else:
                    skipped.append(message)
        finally:
            await supply.give_back([*skipped, *waiting])
        return begun

    async def _attempt(
        self, supply: Supply, acks: Acks, messages: Sequence[Message], given: Message | list[Message], *, last: bool
    ) -> None:
        try:
            await self._process(messages, given)
        except Exception as error:
            self._failed += len(messages)
            await self._fail(supply, messages, given, error)
            return
        except BaseException as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and not (task and task.cancelling()):
                # Nobody cancels us: to hand it back uncounted would go on for ever.
                self._failed += len(messages)
                await self._fail(supply, messages, given, _cancelled_within(error))
                return
            await supply.give_back(messages)
            raise
        self._succeeded += len(messages)
        if self._on_success is None:
            await acks.send(messages, last=last)
        else:
            for message in messages:
                message.let_go()

    async def _process(self, messages: Sequence[Message], given: Message | list[Message]) -> None:
        """Call the handler, within a span where there are any."""
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
        self, supply: Supply, messages: Sequence[Message], given: Message | list[Message], error: Exception
    ) -> None:
        if self._on_error is None:
            _log.warning("%d messages failed: %s: %s", len(messages), type(error).__name__, error)
        else:
            try:
                await _call(self._on_error, given, error)
            except Exception as other:
                _log.exception("on_error failed; its messages are nacked with what it was told")
                error.add_note(f"on_error failed too: {type(other).__name__}: {other}")
        await supply.desk.say(messages, "failed", error_text(error))


async def _call(function: Callable[..., object], *arguments: object) -> object:
    """What a function of the user returns, awaited if it is to be."""
    result = function(*arguments)
    return await result if inspect.isawaitable(result) else what_ran(function, result)


def what_ran(function: object, result: object) -> object:
    """What a function returned, unless that is only the promise to run: it must not pass for done."""
    if inspect.isasyncgen(result) or inspect.isgenerator(result):
        raise TypeError(f"{name_of(function)} yields, so that calling it runs nothing: a handler returns")
    return result


def _cancelled_within(error: asyncio.CancelledError) -> HandlerCancelled:
    failure = HandlerCancelled("the handler ended by the cancellation of something that it awaited")
    return failure.with_traceback(error.__traceback__)
