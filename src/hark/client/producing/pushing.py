"""Pushes: those that are made at the same time share a request, each has its own outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from hark.batching import Batcher
from hark.client.calling import Caller, decode, encoded, path
from hark.client.producing.new_message import NewMessage, new_message
from hark.client.tracing import pushing
from hark.client.transport.api import Home
from hark.errors import HarkError, InvalidInput, Overloaded, error_of

__all__ = ["NewMessage", "Pushed", "Pusher", "new_message"]

MAX_BYTES = 8_000_000
"""Of one request, by default less than a server takes."""
_AROUND = 200
"""What an item has beside its payload, in bytes; names are short."""
_PUSH = path("push")
_OF_ONE_QUEUE = frozenset({"queue_full", "encryption_unavailable"})
"""Not waited out by us: it may last, and those who push to other queues would wait with it."""


class Pushed(msgspec.Struct, frozen=True, gc=False, rename={"id": "message_id", "queue": "queueName"}):
    """What became of a message: it is stored, now (`queued`) or since an earlier push with this key (`duplicate`)."""

    status: Literal["queued", "duplicate"]
    id: str
    """Of the message, by which it can be found and cancelled."""
    transaction_id: str
    partition_id: str
    queue: str


class _Outcome(msgspec.Struct, gc=False, rename={"queue": "queueName"}):
    """What the server says of an item, refused ones included."""

    status: str
    queue: str
    transaction_id: str | None = None
    message_id: str | None = None
    partition_id: str | None = None
    code: str = "error"
    error: str = ""


class Pusher:
    """Pushes messages; those of one partition arrive in the order of the calls.

    One request is on its way at a time, and what comes meanwhile goes together in the next. (Measured: two at a time
    are slower, because each of them then carries less.)
    """

    def __init__(
        self, caller: Caller, *, max_items: int = 1000, max_bytes: int = MAX_BYTES, max_pending: int = 100_000
    ) -> None:
        self._caller = caller
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._max_pending = max_pending
        self._batcher: Batcher[NewMessage, Pushed] | None = None
        self._home = Home()

    async def push(self, message: NewMessage) -> Pushed:
        """Push one; it is on stable storage when this returns. Raises what the server has against it.

        Whoever is cancelled while it waits does not know whether the message was kept. The same `NewMessage` may be
        pushed again.
        """
        span = pushing((message,))
        if span is None:
            return await self._submit(message)
        with span:
            pushed = await self._submit(span.messages[0])
            span.done((pushed,))
        return pushed

    async def push_many(self, messages: Sequence[NewMessage]) -> list[Pushed]:
        """Push any number; the outcomes are in their order. Raises the first refusal, when all have been tried."""
        span = pushing(messages)
        if span is None:
            return await self._push_many(messages)
        with span:
            pushed = await self._push_many(span.messages)
            span.done(pushed)
        return pushed

    async def _push_many(self, messages: Sequence[NewMessage]) -> list[Pushed]:
        futures: list[asyncio.Future[Pushed]] = []
        ahead = min(4 * self._max_items, self._max_pending)
        try:
            for index, message in enumerate(messages):
                if index >= ahead and not (first := futures[index - ahead]).done():
                    await asyncio.wait([first])
                futures.append(self._submit(message))
            outcomes = await asyncio.gather(*futures, return_exceptions=True)
        except asyncio.CancelledError:
            for future in futures:
                if not future.cancel() and not future.cancelled():
                    future.exception()  # Looked at, or it would be told as one that nobody looked at.
            raise
        pushed = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
        if len(pushed) == len(outcomes):
            return pushed
        first_error = next(outcome for outcome in outcomes if isinstance(outcome, BaseException))
        if pushed:
            first_error.add_note(f"{len(pushed)} of {len(outcomes)} messages are stored; pushing all again is safe")
        raise first_error

    async def drain(self) -> None:
        """Wait until everything that was pushed so far has been answered."""
        if self._batcher is not None:
            await self._batcher.drain()

    def _submit(self, message: NewMessage) -> asyncio.Future[Pushed]:
        self._home.check()
        batcher = self._batcher or self._open()
        try:
            return batcher.submit(message)
        except Overloaded as error:
            refused: asyncio.Future[Pushed] = asyncio.get_running_loop().create_future()
            text = f"{self._max_pending} messages wait to be pushed already; push fewer at a time"
            refused.set_exception(Overloaded(text, code=error.code))
            return refused

    def _open(self) -> Batcher[NewMessage, Pushed]:
        # Made at the first push: a batcher belongs to the loop that runs then.
        self._batcher = Batcher(
            "push", self._send, max_items=self._max_items, max_wait=0.0, max_pending=self._max_pending, max_calls=1
        )
        return self._batcher

    async def _send(self, messages: Sequence[NewMessage]) -> list[Pushed | HarkError]:
        """One request after the other, so that the order is kept."""
        outcomes: list[Pushed | HarkError] = []
        for part in _parts(messages, self._max_items, self._max_bytes):
            outcomes += await self._request(part)
        return outcomes

    async def _request(self, messages: Sequence[NewMessage]) -> list[Pushed | HarkError]:
        try:
            body = encoded({"items": messages})
            answer = await self._caller.call("POST", _PUSH, raw_body=body, safe=True, final=_OF_ONE_QUEUE)
            return _outcomes(answer.body, len(messages))
        except HarkError as error:
            if len(messages) == 1:
                return [error]
            if not isinstance(error, InvalidInput) and error.code != "encryption_unavailable":
                return [error.again() for _ in messages]
            # One of them is wrong, or all are too much together. By halves that one is soon alone with its error.
            half = len(messages) // 2
            return await self._request(messages[:half]) + await self._request(messages[half:])


def _parts(messages: Sequence[NewMessage], max_items: int, max_bytes: int) -> Iterator[Sequence[NewMessage]]:
    """Messages in order, in parts that fit a request; one that is too large for any goes alone."""
    start = size = 0
    for index, message in enumerate(messages):
        size += len(message.payload) + _AROUND
        if index > start and (size > max_bytes or index - start == max_items):
            yield messages[start:index]
            start, size = index, len(message.payload) + _AROUND
    yield messages[start:]


def _outcomes(body: bytes, expected: int) -> list[Pushed | HarkError]:
    try:
        pushed: list[Pushed | HarkError] = msgspec.json.decode(body, type=list[Pushed])
    except (msgspec.DecodeError, UnicodeDecodeError):
        pushed = [_outcome(one) for one in decode(body, list[_Outcome])]  # Somebody was refused.
    if len(pushed) != expected:
        raise HarkError(f"the server answered {len(pushed)} of {expected} pushed items; is that Hark?", code="not_hark")
    return pushed


def _outcome(one: _Outcome) -> Pushed | HarkError:
    if one.status in ("queued", "duplicate") and one.message_id and one.partition_id and one.transaction_id:
        status: Literal["queued", "duplicate"] = "queued" if one.status == "queued" else "duplicate"
        return Pushed(status, one.message_id, one.transaction_id, one.partition_id, one.queue)
    text = one.error or f"the server refused a message for the queue {one.queue!r}"
    return error_of(429 if one.code == "queue_full" else 500, one.code, text)
