"""A delivered message that a consumer holds."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import msgspec

from hark.api.types.delivery import Delivered
from hark.client.arguments import milliseconds
from hark.client.delivery.leases import Lease
from hark.client.delivery.settling import MAX_ERROR_CHARACTERS, Settled, SettleDecision
from hark.client.tracing import Note, processing
from hark.errors import HarkError, InvalidInput, LeaseLost, NotFound
from hark.model import Status

if TYPE_CHECKING:
    from hark.client.delivery.prefetcher import ConsumerSession

T = TypeVar("T")

_UNREAD = object()


class _Field(Generic[T]):
    """A field of the delivery as an attribute of the message."""

    def __init__(self, name: str, doc: str) -> None:
        self._name = name
        self.__doc__ = doc

    def __get__(self, message: Received, _kind: type | None = None) -> T:
        value: T = self if message is None else getattr(message.delivered, self._name)
        return value


class Received:
    """A delivered message: its payload and its metadata."""

    __slots__ = ("_data", "delivered")

    def __init__(self, delivered: Delivered) -> None:
        self.delivered = delivered
        self._data: Any = _UNREAD

    id = _Field[str]("id", "Id of the message, unique across all queues.")
    queue = _Field[str]("queue", "Name of the queue.")
    partition = _Field[str]("partition", "Name of the partition.")
    offset = _Field[int](
        "offset", "Offset of the message in its partition. The first message of a partition has offset 1."
    )
    attempt = _Field[int](
        "delivery_attempt",
        "Number of this delivery attempt, from 1. Failures and expired leases count; released deliveries do not.",
    )
    transaction_id = _Field[str]("transaction_id", "Idempotency key of the push.")
    trace_id = _Field[str | None]("trace_id", "The `trace_id` that the producer gave, or None.")
    lease_id = _Field[str]("lease_id", "Id of the lease. Empty if the message was received with `auto_ack`.")
    group = _Field[str]("consumer_group", "Name of the consumer group that received the message.")
    priority = _Field[int](
        "priority", "Priority of the message, 0 to 9. Shared groups receive higher priorities first."
    )

    @property
    def raw(self) -> bytes:
        """The payload as bytes, exactly as it was pushed."""
        return bytes(self.delivered.data)

    @property
    def data(self) -> Any:
        """The payload, decoded from JSON on first access."""
        if self._data is _UNREAD:
            self._data = msgspec.json.decode(self.delivered.data)
        return self._data

    def decode(self, shape: type[T]) -> T:
        """Decode the payload as a type, for example a msgspec struct. Raises `InvalidInput` if it does not fit."""
        try:
            return msgspec.json.decode(self.delivered.data, type=shape)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidInput(
                f"message {self.id} cannot be decoded as {getattr(shape, '__name__', shape)}: {error}"
            ) from error

    @property
    def created_at(self) -> datetime:
        """Time of the push, by the server's clock."""
        return datetime.fromisoformat(self.delivered.created_at)


_MAX_DELAY_SECONDS = (2**53 - 1) / 1000


class Message(Received):
    """A delivered message. Settle it once: with `async with`, or with `ack`, `nack`, `retry` or `dead_letter`.

    ```python
    async for message in client.queue("orders").group("billing").messages():
        async with message:
            print(message.data)
    ```

    At the end of the `async with` block the message is acknowledged. If the block raises, the message is rejected with
    the error text and the traceback, and the exception propagates. If the block is cancelled, the message is released
    without counting an attempt. Inside the block the lease is renewed, also while the event loop is blocked.
    """

    __slots__ = ("_lease", "_needs_lease", "_outcome", "_session", "_settled_as", "_span", "in_span")

    def __init__(self, delivered: Delivered, session: ConsumerSession, lease: Lease) -> None:
        super().__init__(delivered)
        self._session = session
        self._lease = lease
        self._needs_lease = True
        self._settled_as: Status | None = None if delivered.lease_id else "completed"
        self._outcome: Settled | None = None
        self.in_span = False
        """Whether a span for the processing of this message was started."""
        self._span: tuple[AbstractContextManager[Note], Note] | None = None

    @property
    def settled(self) -> Status | None:
        """The settlement: `completed`, `failed`, `retry` or `dlq`. None while the message is not settled."""
        return self._settled_as

    @property
    def lost(self) -> bool:
        """Whether the lease is known to have expired: another consumer may have received the message."""
        return self._lease.lost and self._settled_as is None

    @property
    def released(self) -> bool:
        """Whether a message of the same lease and partition was released or rejected.

        In an ordered group this message is then redelivered.
        """
        return self.delivered.partition_id in self._lease.released

    async def ack(self) -> Settled:
        """Acknowledge the message: this group never receives it again.

        A message that is already settled stays as it is. Raises `LeaseLost` if the lease has expired.
        """
        return await self._settle("completed")

    async def nack(self, error: str | BaseException | None = None, delay: float | timedelta | None = None) -> Settled:
        """Reject the message: it is redelivered, or dead-lettered after the last attempt.

        `error` is the text of a dead letter; an exception is stored with its traceback. `delay` is the time in seconds
        before the redelivery. The default is the retry policy of the message or the queue. Raises `LeaseLost` if the
        lease has expired.
        """
        return await self._settle("failed", error_text(error), _delay_ms(delay))

    async def retry(self, delay: float | timedelta | None = None) -> Settled:
        """Release the message: it is redelivered, and this delivery does not count as an attempt.

        `delay` is the time in seconds before the redelivery. The default is immediately. Raises `LeaseLost` if the
        lease has expired.
        """
        return await self._settle("retry", None, _delay_ms(delay))

    async def dead_letter(self, error: str | BaseException | None = None) -> Settled:
        """Dead-letter the message immediately, without further attempts.

        `error` is the text of the dead letter; an exception is stored with its traceback. Raises `LeaseLost` if the
        lease has expired.
        """
        return await self._settle("dlq", error_text(error))

    async def renew(self, seconds: int) -> datetime:
        """Renew the lease for this many seconds from now. Returns the time when it expires.

        Raises `LeaseLost` if the lease has expired, and `InvalidInput` if the message has no lease (`auto_ack`).
        """
        if not self.lease_id:
            raise InvalidInput("renew: this message has no lease, because it was received with auto_ack")
        return await self._session.extend(self.lease_id, seconds)

    async def trace(self, data: object, event: str = "info", names: Sequence[str] = ()) -> None:
        """Record a trace event about the message. `client.traces` finds it by the message and by each of the `names`.

        `data` is any JSON value; `event` is the type of the event.
        """
        await self._session.traces.add(self.delivered, data, event=event, names=names)

    async def begin(self) -> None:
        """Renew the lease from now on, until the message is settled. `async with` calls this."""
        if self._settled_as is None and self.delivered.lease_id:
            await self._lease.begin(self._session.extend)

    async def __aenter__(self) -> Self:
        await self.begin()
        self.open_span()
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        try:
            await self.settle_at_end(error)
        finally:
            self.close_span(error)

    def open_span(self) -> None:
        """Start a span for the processing of this message in the caller's context, unless there is one."""
        if not self.in_span:
            self.in_span = True
            scope = processing((self.delivered,))
            self._span = scope, scope.__enter__()

    def close_span(self, error: BaseException | None) -> None:
        """End the span. A cancellation is not recorded as an error of the processing."""
        if self._span is not None:
            (scope, note), self._span = self._span, None
            note(self._settled_as or "unknown", error if isinstance(error, Exception) else None)
            scope.__exit__(None, None, None)

    async def settle_at_end(self, error: BaseException | None) -> None:
        """Settle the message by how its processing ended, unless it is settled."""
        if error is None:
            await self.ack()
            return
        settlement = self.nack(error) if isinstance(error, Exception) else self.retry()
        try:
            await settlement
        except HarkError as refusal:
            # The caller's own error is the important one.
            error.add_note(f"message {self.id} could not be settled: {refusal}")

    async def _settle(self, status: Status, error: str | None = None, delay_ms: int | None = None) -> Settled:
        if self._settled_as is not None:
            outcome = self._outcome or Settled(True)
            if self._settled_as != status or outcome.success:
                return outcome
        else:
            self._settled_as = status
            try:
                outcome = await self._session.settle(SettleDecision(self.delivered, status, error, delay_ms))
            except BaseException:
                self._settled_as = None  # The outcome is unknown, so the settlement can be repeated.
                raise
            self.conclude(status, outcome)
            if outcome.success:
                return outcome
        text = f"message {self.id} was not settled: {outcome.error or outcome.code}"
        if outcome.code == "not_found":
            raise NotFound(text, code="message_not_found")
        raise LeaseLost(f"{text}; another consumer receives the message, or has received it")

    def conclude(self, status: Status, outcome: Settled) -> None:
        """Record that the message was settled, by this object or for it."""
        self._settled_as = status
        self._outcome = outcome
        if status != "completed":
            self._lease.released.add(self.delivered.partition_id)
        self.stop_renewing()

    def stop_renewing(self) -> None:
        """Stop renewing the lease on behalf of this message."""
        if self._needs_lease:
            self._needs_lease = False
            self._lease.stop_renewing()

    def __repr__(self) -> str:
        state = "open" if self._settled_as is None else self._settled_as
        return f"Message({self.queue}/{self.partition}#{self.offset}, attempt={self.attempt}, {state})"


def error_text(error: str | BaseException | None) -> str | None:
    """The text of a dead letter. Of an exception: its type, its message and the end of the traceback."""
    if not isinstance(error, BaseException):
        return error
    head = "".join(traceback.format_exception_only(error)).strip()
    trace = "".join(traceback.format_tb(error.__traceback__))
    room = MAX_ERROR_CHARACTERS - 1
    head = head[:room]
    tail = trace[-max(0, room - len(head)) :] if len(head) < room else ""
    return f"{head}\n{tail}" if tail else head


def _delay_ms(delay: float | timedelta | None) -> int | None:
    return None if delay is None else milliseconds(delay, "delay", 0, _MAX_DELAY_SECONDS)
