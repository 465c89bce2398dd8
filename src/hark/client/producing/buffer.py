"""Buffered pushes: accepted immediately, sent together, and never dropped silently."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from hark.client.producing.new_message import NewMessage
from hark.client.producing.pushing import Pusher
from hark.client.tracing import stamped
from hark.errors import HarkError

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
        self._tell()
        if self._is_full:
            async with self._room:
                await self._room.wait_for(lambda: not self._is_full or self._failure is not None or self._closed)
            self._tell()
        if self._closed:
            raise _client_closed()
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
        self._tell()

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

    def _tell(self) -> None:
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

    def __init__(self, pusher: Callable[[], Pusher]) -> None:
        self._pusher = pusher
        self._buffers: dict[tuple[str, int, int], Buffer] = {}
        self._closed = False

    def of(self, queue: str, max_items: int, max_ms: int) -> Buffer:
        """The buffer of a queue."""
        buffer = self._buffers.get((queue, max_items, max_ms))
        if buffer is None:
            if self._closed:
                raise _client_closed()
            buffer = Buffer(self._pusher(), max_items=max_items, max_seconds=max_ms / 1000)
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


def _client_closed() -> HarkError:
    return HarkError("the client is closed; create a new one with connect()", code="client_closed")
