"""Producing messages: build, batch, buffer and push them."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

import msgspec

from hark.api import operations
from hark.api.types.delivery import PushAnswer
from hark.batching import Batcher
from hark.client.arguments import NewMessage, new_message
from hark.client.calling import Caller, Home, client_closed, decode, not_hark, parts_of
from hark.client.tracing import pushing, stamped
from hark.errors import HarkError, InvalidInput, Overloaded, error_of
from hark.model.messages import RESERVED

__all__ = ["NewMessage", "Pushed", "Pusher", "new_message"]

MAX_BYTES = 8_000_000
"""Maximum size of one request, in bytes. It is below the default limit of servers."""
_AROUND = 200
"""Estimated size of an item without its payload, in bytes."""
_STATUSES = {"queue_full": 429, RESERVED: 409}
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
        self._closed = False

    async def push(self, message: NewMessage) -> Pushed:
        """Push one message. It is on stable storage when this returns. Raises the server's rejection.

        If the caller is cancelled, the outcome is unknown. The same `NewMessage` can be pushed again safely.
        """
        in_span = pushing((message,))
        return await self._submit(message) if in_span is None else (await in_span(self._push_many))[0]

    async def push_many(self, messages: Sequence[NewMessage]) -> list[Pushed]:
        """Push several messages. Results are in their order. Raises the first rejection after all have been tried."""
        in_span = pushing(messages)
        return await (self._push_many(messages) if in_span is None else in_span(self._push_many))

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

    async def close(self) -> None:
        """Accept nothing more, and wait until all pushes have an answer."""
        self._closed = True
        await self.drain()

    def _submit(self, message: NewMessage) -> asyncio.Future[Pushed]:
        self._home.check()
        if self._closed:
            return _refused(client_closed())
        if self._batcher is None:  # Created at the first push, because a batcher belongs to the running event loop.
            self._batcher = Batcher(
                "push", self._send, max_items=self._max_items, max_wait=0.0, max_pending=self._max_pending, max_calls=1
            )
        try:
            return self._batcher.submit(message)
        except Overloaded as error:
            text = f"{self._max_pending} messages are waiting to be pushed; await pushes before you start more"
            return _refused(Overloaded(text, code=error.code))

    async def _send(self, messages: Sequence[NewMessage]) -> list[Pushed | HarkError]:
        """Send one request after the other, which keeps the order."""
        outcomes: list[Pushed | HarkError] = []
        sizes = self._max_items, self._max_bytes
        for part in parts_of(messages, *sizes, lambda message: len(message.payload) + _AROUND):
            outcomes += await self._request(part)
        return outcomes

    async def _request(self, messages: Sequence[NewMessage]) -> list[Pushed | HarkError]:
        try:
            body = {"items": messages}
            answer = await self._caller.send(operations.PUSH, body=body, safe=True, final=_OF_ONE_QUEUE)
            return _outcomes(answer.body, len(messages))
        except HarkError as error:
            if len(messages) == 1:
                return [error]
            if not isinstance(error, InvalidInput) and error.code != "encryption_unavailable":
                return [error.again() for _ in messages]
            # One item is invalid, or the request is too large. Halving isolates the invalid item.
            half = len(messages) // 2
            return await self._request(messages[:half]) + await self._request(messages[half:])


def _refused(error: HarkError) -> asyncio.Future[Pushed]:
    future: asyncio.Future[Pushed] = asyncio.get_running_loop().create_future()
    future.set_exception(error)
    return future


def _outcomes(body: bytes, expected: int) -> list[Pushed | HarkError]:
    try:
        pushed: list[Pushed | HarkError] = msgspec.json.decode(body, type=list[Pushed])
    except (msgspec.DecodeError, UnicodeDecodeError):
        pushed = [_outcome(one) for one in decode(body, list[PushAnswer])]  # At least one item was rejected.
    if len(pushed) != expected:
        text = f"the server returned {len(pushed)} results for {expected} pushed messages"
        raise not_hark(f"{text}; check that it is a Hark server")
    return pushed


def _outcome(one: PushAnswer) -> Pushed | HarkError:
    try:
        return msgspec.convert(msgspec.to_builtins(one), Pushed)
    except msgspec.ValidationError:
        text = one.error or f"the server rejected a message for queue {one.queue!r}"
        return error_of(_STATUSES.get(one.code or "", 500), one.code or "error", text)


_BOUND = 10
"""A full buffer holds this many times `max_items` messages. Pushes then wait for room."""
_RETRY_SECONDS = 1.0


class FlushFailed(HarkError):
    """Buffered messages could not be sent.

    `refused` holds the messages that the server rejected; they will not be sent again. `kept` is the number of messages
    that stay in the buffer and are sent again. `cause` is the first error.
    """

    code = "flush_failed"

    def __init__(self, cause: HarkError, refused: Sequence[NewMessage], kept: int) -> None:
        super().__init__(
            f"buffered messages were not sent: {cause}; {len(refused)} rejected (`refused`), {kept} stay buffered",
            retry_after=cause.retry_after,
        )
        self.cause = cause
        self.refused = tuple(refused)
        self.kept = kept
        self.status = cause.status
        self.retryable = not refused


class Buffer:
    """Collects messages of one queue, and sends them when there are enough or the first has waited long enough.

    An error is raised by the next push, flush or close. Messages that the server may accept later stay in the buffer,
    in their order, and are sent again. When the buffer is full, pushes wait.
    """

    def __init__(
        self,
        pusher: Pusher,
        *,
        max_items: int,
        max_seconds: float,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._pusher = pusher
        self._max_items = max_items
        self._max_seconds = max_seconds
        self._sleep = sleep
        self._waiting: deque[NewMessage] = deque()
        self._failure: FlushFailed | None = None
        self._sending: asyncio.Task[None] | None = None
        self._timer: asyncio.Task[None] | None = None
        self._room = asyncio.Condition()
        self._closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    async def add(self, message: NewMessage) -> None:
        """Add a message. Raises `FlushFailed` if an earlier message failed; this message was then not added."""
        message = stamped(message)
        self._raise_failure()
        if self._is_full:
            async with self._room:
                await self._room.wait_for(lambda: not self._is_full or self._failure is not None or self._closed)
            self._raise_failure()
        if self._closed:
            raise client_closed()
        self._waiting.append(message)
        if len(self._waiting) >= self._max_items:
            self._send()
        elif self._timer is None:
            self._timer = asyncio.ensure_future(self._send_after(self._max_seconds))

    async def flush(self) -> None:
        """Send everything. Raises `FlushFailed` for messages that could not be sent, now or before."""
        earlier, self._failure = self._failure, None
        while self._waiting and self._failure is None:
            await asyncio.shield(self._send())
        if earlier is not None and earlier.refused:
            # Messages that stayed buffered then were sent now, or are part of the new failure.
            again = () if self._failure is None else self._failure.refused
            self._failure = FlushFailed(earlier.cause, (*earlier.refused, *again), len(self._waiting))
        self._raise_failure()

    async def close(self) -> None:
        """Flush for the last time. Messages that cannot be sent now are dropped and reported in the error."""
        self._closed = True
        try:
            await self.flush()
        except FlushFailed as failure:
            raise FlushFailed(failure.cause, (*failure.refused, *self._waiting), 0) from failure
        finally:
            for task in (self._timer, self._sending):
                if task is not None:
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await task
            async with self._room:
                self._room.notify_all()

    @property
    def _is_full(self) -> bool:
        return len(self._waiting) >= _BOUND * self._max_items

    def _raise_failure(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _send(self) -> asyncio.Task[None]:
        if self._sending is None or self._sending.done():
            self._sending = asyncio.ensure_future(self._send_all())
        return self._sending

    async def _send_after(self, seconds: float) -> None:
        await self._sleep(seconds)
        self._timer = None
        self._send()

    async def _send_all(self) -> None:
        """Send batch after batch, until the buffer is empty or a push failed."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        while self._waiting:
            batch = [self._waiting[index] for index in range(min(self._max_items, len(self._waiting)))]
            outcomes = await asyncio.gather(*(self._pusher.push(message) for message in batch), return_exceptions=True)
            # Messages leave the buffer only now, so that a cancellation loses none.
            for _ in batch:
                self._waiting.popleft()
            failed = self._keep(batch, outcomes)
            async with self._room:
                self._room.notify_all()
            if failed:
                return

    def _keep(self, batch: Sequence[NewMessage], outcomes: Sequence[object]) -> bool:
        """Put retryable messages back and note rejected ones. Returns whether there were any."""
        cause: HarkError | None = None
        kept: list[NewMessage] = []
        refused: list[NewMessage] = []
        for message, outcome in zip(batch, outcomes, strict=True):
            if not isinstance(outcome, BaseException):
                continue
            if not isinstance(outcome, HarkError):
                outcome = HarkError(f"{type(outcome).__name__}: {outcome}")
            (kept if outcome.retryable else refused).append(message)
            cause = cause or outcome
        if cause is None:
            return False
        self._waiting.extendleft(reversed(kept))
        before = self._failure.refused if self._failure is not None else ()
        self._failure = FlushFailed(cause, (*before, *refused), len(self._waiting))
        if self._waiting:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.ensure_future(self._send_after(max(cause.retry_after or 0.0, _RETRY_SECONDS)))
        return True


class Buffers:
    """The buffers of a client, one for each queue and size."""

    def __init__(self, pusher: Pusher) -> None:
        self._pusher = pusher
        self._buffers: dict[tuple[str, int, int], Buffer] = {}
        self._closed = False

    def of(self, queue: str, max_items: int, max_ms: int) -> Buffer:
        """The buffer of a queue."""
        buffer = self._buffers.get((queue, max_items, max_ms))
        if buffer is None:
            if self._closed:
                raise client_closed()
            buffer = Buffer(self._pusher, max_items=max_items, max_seconds=max_ms / 1000)
            self._buffers[queue, max_items, max_ms] = buffer
        return buffer

    async def flush(self) -> None:
        """Flush all buffers. Raises the first failure after all have been tried."""
        await self._all([buffer.flush() for buffer in self._buffers.values()])

    async def close(self) -> None:
        """Flush all buffers for the last time."""
        self._closed = True
        buffers, self._buffers = self._buffers, {}
        await self._all([buffer.close() for buffer in buffers.values()])

    @staticmethod
    async def _all(works: Sequence[Awaitable[None]]) -> None:
        for outcome in await asyncio.gather(*works, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
