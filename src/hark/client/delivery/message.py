"""A message in a consumer's hands."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from types import TracebackType
from typing import Protocol, Self

from hark.client.delivery.holding import Lease
from hark.client.delivery.received import Received
from hark.client.delivery.settling import MAX_ERROR_CHARACTERS, Settled, Verdict
from hark.client.delivery.sources import Delivered
from hark.client.tracing import Note, processing
from hark.client.values import milliseconds
from hark.errors import HarkError, InvalidInput, LeaseLost, NotFound
from hark.model import Status

_MAX_DELAY_SECONDS = (2**53 - 1) / 1000


class Hands(Protocol):
    """What a message needs of the client that it came through."""

    async def settle(self, verdict: Verdict) -> Settled:
        """Tell the server what became of it."""

    async def extend(self, lease_id: str, seconds: int) -> datetime:
        """Prolong a lease; answers its new end."""

    async def trace(self, message: Delivered, data: object, event: str, names: Sequence[str]) -> None:
        """Leave a trace of the work on it."""


class Message(Received):
    """A message in a consumer's hands, to be settled once: by `async with`, or by `ack`, `nack` and their like.

    `async with message:` acks at its end. When it ends by an exception, the message fails with its text and traceback,
    and the exception goes on; a cancellation hands the message back, uncounted. Meanwhile its lease is renewed, also
    when the loop is blocked.
    """

    __slots__ = ("_hands", "_lease", "_needs_lease", "_outcome", "_said", "_span", "in_span")

    def __init__(self, delivered: Delivered, hands: Hands, lease: Lease) -> None:
        super().__init__(delivered)
        self._hands = hands
        self._lease = lease
        self._needs_lease = True
        self._said: Status | None = None if delivered.lease_id else "completed"
        self._outcome: Settled | None = None
        self.in_span = False
        """Whether somebody has begun a span for the work on it."""
        self._span: tuple[AbstractContextManager[Note], Note] | None = None

    @property
    def settled(self) -> Status | None:
        """What was said of it; None as long as it is open."""
        return self._said

    @property
    def lost(self) -> bool:
        """Whether its lease is known to have ended: somebody else may have it by now."""
        return self._lease.lost and self._said is None

    @property
    def released(self) -> bool:
        """Whether one of its partition was handed back: in an ordered group this one comes again behind it."""
        return self.delivered.partition_id in self._lease.released

    async def ack(self) -> Settled:
        """Done, for ever. What is settled already stays as it is."""
        return await self._settle("completed")

    async def nack(self, error: str | BaseException | None = None, delay: float | timedelta | None = None) -> Settled:
        """Failed: it comes again, after `delay` seconds or by the schedule, or becomes a dead letter."""
        text = error_text(error) if isinstance(error, BaseException) else error
        return await self._settle("failed", text, _delay_ms(delay))

    async def retry(self, delay: float | timedelta | None = None) -> Settled:
        """Hand it back: it comes again, and this delivery was no attempt."""
        return await self._settle("retry", None, _delay_ms(delay))

    async def dead_letter(self, error: str | BaseException | None = None) -> Settled:
        """Give it up: a dead letter at once."""
        return await self._settle("dlq", error_text(error) if isinstance(error, BaseException) else error)

    async def renew(self, seconds: int) -> datetime:
        """Hold it for so long from now on; answers until when."""
        if not self.lease_id:
            raise InvalidInput("renew: this message was settled at delivery (auto_ack) and has no lease")
        return await self._hands.extend(self.lease_id, seconds)

    async def trace(self, data: object, event: str = "info", names: Sequence[str] = ()) -> None:
        """Leave a trace of the work on it, to be found by the message and by names."""
        await self._hands.trace(self.delivered, data, event, names)

    async def begin(self) -> None:
        """Renew its lease from now on, until it is settled; `async with` does it."""
        if self._said is None and self.lease_id:
            await self._lease.begin(self._hands.extend)

    async def __aenter__(self) -> Self:
        """Begin."""
        await self.begin()
        self.open_span()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Settle it, unless that was done inside."""
        try:
            await self.settle_at_end(error)
        finally:
            self.close_span(error)

    def open_span(self) -> None:
        """Begin a span around the work on it, in the context of whoever calls this, unless it is in one already."""
        if not self.in_span:
            self.in_span = True
            scope = processing((self.delivered,))
            self._span = scope, scope.__enter__()

    def close_span(self, error: BaseException | None) -> None:
        """End that span; an error that is none of the program, such as a cancellation, is none of the work."""
        if self._span is not None:
            (scope, note), self._span = self._span, None
            note(self._said or "unknown", error if isinstance(error, Exception) else None)
            scope.__exit__(None, None, None)

    async def settle_at_end(self, error: BaseException | None) -> None:
        """Settle it by how the work on it ended, unless that was done before."""
        if error is None:
            await self.ack()
            return
        settlement = self.nack(error) if isinstance(error, Exception) else self.retry()
        try:
            await settlement
        except HarkError as refusal:
            # The caller's own error is the one that matters.
            error.add_note(f"message {self.id} could not be handed back: {refusal}")

    async def _settle(self, status: Status, error: str | None = None, delay_ms: int | None = None) -> Settled:
        if self._said is not None:
            outcome = self._outcome or Settled(True)
            if self._said == status and not outcome.success:
                raise refusal_of(self.delivered, outcome)
            return outcome
        self._said = status
        try:
            outcome = await self._hands.settle(Verdict(self.delivered, status, error, delay_ms))
        except BaseException:
            self._said = None  # Unknown to us: it may be said again.
            raise
        self.conclude(status, outcome)
        if not outcome.success:
            raise refusal_of(self.delivered, outcome)
        return outcome

    def conclude(self, status: Status, outcome: Settled) -> None:
        """It was settled, by this object or for it; nothing more is to be said."""
        self._said = status
        self._outcome = outcome
        if status in ("failed", "retry") and not outcome.dead_lettered:
            self._lease.released.add(self.delivered.partition_id)
        self.let_go()

    def let_go(self) -> None:
        """Renew its lease no longer on its behalf."""
        if self._needs_lease:
            self._needs_lease = False
            self._lease.let_go()

    def __repr__(self) -> str:
        state = "open" if self._said is None else self._said
        return f"Message({self.queue}/{self.partition}#{self.offset}, attempt={self.attempt}, {state})"


def refusal_of(delivered: Delivered, outcome: Settled) -> HarkError:
    """The error that a refused settlement is."""
    text = f"message {delivered.id} was not settled: {outcome.error or outcome.code}"
    if outcome.code == "not_found":
        return NotFound(text, code="message_not_found")
    return LeaseLost(f"{text}; it comes again, or came to somebody else")


def error_text(error: BaseException) -> str:
    """An exception as a dead letter shows it: type, text and the end of the traceback."""
    head = "".join(traceback.format_exception_only(error)).strip()
    trace = "".join(traceback.format_tb(error.__traceback__))
    room = MAX_ERROR_CHARACTERS - 1
    head = head[:room]
    tail = trace[-max(0, room - len(head)) :] if len(head) < room else ""
    return f"{head}\n{tail}" if tail else head


def _delay_ms(delay: float | timedelta | None) -> int | None:
    return None if delay is None else milliseconds(delay, "delay", 0, _MAX_DELAY_SECONDS)
