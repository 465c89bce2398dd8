"""Pushes: concurrent pushes share a request, and each has its own result."""

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
"""Maximum size of one request, in bytes. It is below the default limit of servers."""
_AROUND = 200
"""Estimated size of an item without its payload, in bytes."""
_PUSH = path("push")
_OF_ONE_QUEUE = frozenset({"queue_full", "encryption_unavailable"})
"""Codes that are not retried: they may last, and pushes to other queues would wait, too."""


class Pushed(msgspec.Struct, frozen=True, gc=False, rename={"id": "message_id", "queue": "queueName"}):
    """Result of a push: the message is stored.

    `status` is `queued`, or `duplicate` if a message with the same idempotency key is already stored in the partition.
    """

    status: Literal["queued", "duplicate"]
    id: str
    """Id of the message. Use it to find or cancel the message."""
    transaction_id: str
    """Idempotency key of the push."""
    partition_id: str
    """Id of the partition that stores the message."""
    queue: str
    """Name of the queue."""


class _Outcome(msgspec.Struct, gc=False, rename={"queue": "queueName"}):
    """The server's result for one item, including rejected ones."""

    status: str
    queue: str
    transaction_id: str | None = None
    message_id: str | None = None
    partition_id: str | None = None
    code: str = "error"
    error: str = ""


class Pusher:
    """Pushes messages. Messages of one partition arrive in the order of the calls.

    One request is in flight at a time; messages that arrive meanwhile share the next one. (Measured: two requests in
    flight are slower, because each carries fewer messages.)
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
        """Push one message. It is on stable storage when this returns. Raises the server's rejection.

        If the caller is cancelled, the outcome is unknown. The same `NewMessage` can be pushed again safely.
        """
        span = pushing((message,))
        if span is None:
            return await self._submit(message)
        with span:
            pushed = await self._submit(span.messages[0])
            span.done((pushed,))
        return pushed

    async def push_many(self, messages: Sequence[NewMessage]) -> list[Pushed]:
        """Push several messages. Results are in their order. Raises the first rejection after all have been tried."""
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
                    future.exception()  # Mark the exception as retrieved, otherwise asyncio logs it.
            raise
        pushed = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
        if len(pushed) == len(outcomes):
            return pushed
        first_error = next(outcome for outcome in outcomes if isinstance(outcome, BaseException))
        if pushed:
            first_error.add_note(f"{len(pushed)} of {len(outcomes)} messages are stored; it is safe to push all again")
        raise first_error

    async def drain(self) -> None:
        """Wait until all pushes so far have an answer."""
        if self._batcher is not None:
            await self._batcher.drain()

    def _submit(self, message: NewMessage) -> asyncio.Future[Pushed]:
        self._home.check()
        batcher = self._batcher or self._open()
        try:
            return batcher.submit(message)
        except Overloaded as error:
            refused: asyncio.Future[Pushed] = asyncio.get_running_loop().create_future()
            text = f"{self._max_pending} messages are waiting to be pushed; await pushes before you start more"
            refused.set_exception(Overloaded(text, code=error.code))
            return refused

    def _open(self) -> Batcher[NewMessage, Pushed]:
        # Created at the first push, because a batcher belongs to the running event loop.
        self._batcher = Batcher(
            "push", self._send, max_items=self._max_items, max_wait=0.0, max_pending=self._max_pending, max_calls=1
        )
        return self._batcher

    async def _send(self, messages: Sequence[NewMessage]) -> list[Pushed | HarkError]:
        """Send one request after the other, which keeps the order."""
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
            # One item is invalid, or the request is too large. Halving isolates the invalid item.
            half = len(messages) // 2
            return await self._request(messages[:half]) + await self._request(messages[half:])


def _parts(messages: Sequence[NewMessage], max_items: int, max_bytes: int) -> Iterator[Sequence[NewMessage]]:
    """Split messages, in order, into requests that fit. A message that is too large for any request is sent alone."""
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
        pushed = [_outcome(one) for one in decode(body, list[_Outcome])]  # At least one item was rejected.
    if len(pushed) != expected:
        text = (
            f"the server returned {len(pushed)} results for {expected} pushed messages; check that it is a Hark server"
        )
        raise HarkError(text, code="not_hark")
    return pushed


def _outcome(one: _Outcome) -> Pushed | HarkError:
    if one.status in ("queued", "duplicate") and one.message_id and one.partition_id and one.transaction_id:
        status: Literal["queued", "duplicate"] = "queued" if one.status == "queued" else "duplicate"
        return Pushed(status, one.message_id, one.transaction_id, one.partition_id, one.queue)
    text = one.error or f"the server rejected a message for queue {one.queue!r}"
    return error_of(429 if one.code == "queue_full" else 500, one.code, text)
