"""Work queues, which call the broker without a web framework: enqueue, poll, ack, nack, cancel."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Iterator
from typing import Literal, TypeVar

import msgspec

from hark.api import operations
from hark.api.types.keys import Cancelled, Enqueued, Settled, WireMessage
from hark.broker import Broker
from hark.broker.tallies import Operation
from hark.errors import Conflict, InvalidInput
from hark.http.admission import identity_of, permitted_labels, reached, stamp
from hark.http.checks import (
    Number,
    check_int,
    check_text,
    decode_json,
    decode_unbounded,
    parse_moment,
    query_params,
    raw_default,
    short,
)
from hark.http.exchange import exchange_of
from hark.http.headers import carry
from hark.http.items import (
    MAX_BACKOFF_STEPS,
    MAX_DELAY_MS,
    MAX_ERROR_CHARACTERS,
    MAX_PRIORITY,
    MAX_TTL_MS,
    check_context,
    undelivered_keys,
)
from hark.http.keyval.paths import QUEUE, queue_param
from hark.http.pops import CONSUMER, WAIT, caller, timeout_param
from hark.http.responses import (
    NO_STORE,
    Receive,
    Scope,
    Send,
    decode_in_turns,
    encode,
    read_whole,
    send_failure,
    send_if_there,
    send_json,
    wait_until_left,
)
from hark.http.routes.requests import ANOTHER_MODE, MAINTENANCE, QUEUE_FULL
from hark.http.routes.table import LARGE_BODY, Failure, Table, bind, table
from hark.model import NewMessage, PopResult
from hark.model.messages import parted
from hark.settings import Settings

ABSENT = msgspec.Raw(b"null")
"""A missing field; compared by identity to distinguish it from an explicit null."""


class EnqueueOptions(msgspec.Struct, gc=False, rename="camel"):
    """Options of a message. Null means absent."""

    delay: Number | None = None
    deliver_at: str | int | None = None
    backoff_schedule: list[Number] | None = None
    keys_if_undelivered: msgspec.Raw = raw_default(ABSENT)
    priority: int | None = None
    ttl: Number | None = None
    traceparent: str | None = None
    tracestate: str | None = None


class EnqueueBody(msgspec.Struct, gc=False):
    """A message to enqueue."""

    value: msgspec.Raw = raw_default(ABSENT)
    options: EnqueueOptions | None = None


def payload_in(body: bytes) -> Iterator[msgspec.Raw]:
    """Return the payload of a body, for `decode_in_turns`."""
    yield decode_unbounded(body, Valued, "body").value


class Valued(msgspec.Struct, gc=False):
    """The part of a body, or of an item, that is not decoded."""

    value: msgspec.Raw = raw_default(ABSENT)


def new_message(queue: str, value: msgspec.Raw, options: EnqueueOptions | None, where: str = "") -> NewMessage:
    """Return the checked message. Errors name a field as `{where}value` or `{where}options.delay`."""
    if value is ABSENT:
        raise InvalidInput(f"{where}value: is required; send null to enqueue null")
    message = NewMessage(queue, payload=bytes(value))
    if options is not None:
        _apply(message, options, f"{where}options")
    return message


def _apply(message: NewMessage, options: EnqueueOptions, where: str) -> None:
    if options.delay is not None:
        message.delay_ms = check_milliseconds(options.delay, f"{where}.delay")
    if options.deliver_at is not None:
        if options.delay is not None:
            raise InvalidInput(f"{where}.deliverAt: give either delay or deliverAt, not both")
        message.deliver_at = parse_moment(options.deliver_at, f"{where}.deliverAt")
    if options.backoff_schedule is not None:
        message.backoff_ms = _backoff(options.backoff_schedule, f"{where}.backoffSchedule")
    if options.priority is not None:
        message.priority = check_int(options.priority, f"{where}.priority", 0, MAX_PRIORITY)
    if options.ttl is not None:
        message.ttl_ms = check_milliseconds(options.ttl, f"{where}.ttl", 1, MAX_TTL_MS)
    message.undelivered_keys = undelivered_keys(options.keys_if_undelivered, f"{where}.keysIfUndelivered")
    if options.traceparent or options.tracestate:
        message.trace_context = check_context(options.traceparent or "", options.tracestate or "", where)


def check_milliseconds(value: object, field: str, low: int = 0, high: int = MAX_DELAY_MS) -> int:
    """Return a duration in whole milliseconds, rounded up."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high:
        return math.ceil(value)
    raise InvalidInput(f"{field}: expected a number of milliseconds from {low} to {high}, got {short(value)}")


def _backoff(schedule: list[Number], field: str) -> tuple[int, ...]:
    if len(schedule) > MAX_BACKOFF_STEPS:
        raise InvalidInput(f"{field}: at most {MAX_BACKOFF_STEPS} entries, got {len(schedule)}")
    return tuple(check_milliseconds(delay, f"{field}[{step}]") for step, delay in enumerate(schedule))


def wire_messages(result: PopResult) -> list[WireMessage]:
    """Return delivered messages in the form of the HTTP API."""
    return [
        WireMessage(
            message.id,
            message.payload,
            message.attempt,
            result.lease_id,
            message.priority,
            *(() if message.trace_context is None else parted(message.trace_context)),
        )
        for message in result.messages
    ]


T = TypeVar("T")

_LOST = (Failure(409, "lease_lost"), Failure(409, "message_not_found"))
_ID_TEXT = "id must be a non-empty string"
_TEXTS = {"id": _ID_TEXT}


class WorkAckBody(msgspec.Struct, gc=False):
    """The message to acknowledge. With a receipt, only that delivery can be acknowledged."""

    id: str = ""
    receipt: str | None = None


class NackBody(WorkAckBody, gc=False):
    """The message to reject, with the error and the delay before its redelivery."""

    error: str | None = None
    delay: Number | None = None


class CancelBody(msgspec.Struct, gc=False):
    """The message to cancel."""

    id: str = ""


class QueueRoutes:
    """The routes of work queues, bound to a broker."""

    def __init__(self, broker: Broker, settings: Settings) -> None:
        self._broker = broker
        self._settings = settings
        self._timeout = timeout_param(settings)

    def table(self) -> Table:
        """Return the table of these routes."""
        return table(
            bind(
                operations.KEYVAL_ENQUEUE,
                self.enqueue,
                query=(QUEUE,),
                body=EnqueueBody,
                body_bytes=LARGE_BODY,
                errors=(MAINTENANCE, QUEUE_FULL),
                raw=True,
            ),
            bind(
                operations.KEYVAL_POLL,
                self.poll,
                query=(QUEUE, WAIT, self._timeout, CONSUMER),
                errors=(ANOTHER_MODE,),
                raw=True,
            ),
            bind(operations.KEYVAL_ACK, self.ack, query=(QUEUE,), body=WorkAckBody, errors=_LOST, raw=True),
            bind(operations.KEYVAL_NACK, self.nack, query=(QUEUE,), body=NackBody, errors=_LOST, raw=True),
            bind(operations.KEYVAL_CANCEL, self.cancel, query=(QUEUE,), body=CancelBody, raw=True),
        )

    async def enqueue(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Enqueue a message. Stores a message in a work queue, which is created if it does not exist."""
        await _answer(send, self._timed("queue_enqueue", self._enqueue(scope, receive)))

    async def ack(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Acknowledge a message of a work queue.

        Removes the message. Send the receipt of the delivery: then an acknowledgement after the lease expired returns
        409. Without a receipt the request settles the current delivery, and returns `found` false if there is none.
        """
        await _answer(send, self._timed("queue_ack", self._ack(scope, receive)))

    async def nack(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Reject a message of a work queue.

        The message is redelivered after a delay from its backoff schedule. After its last attempt it becomes a dead
        letter. The receipt has the same meaning as in an acknowledgement.
        """
        await _answer(send, self._timed("queue_nack", self._nack(scope, receive)))

    async def cancel(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Cancel a message of a work queue.

        Removes the message if no consumer has received it. Otherwise `cancelled` is false and `reason` says why.
        """
        await _answer(send, self._cancel(scope, receive))

    async def poll(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Receive a message of a work queue.

        Leases one message to the consumer. With `wait=true` the request waits until a message is available. Returns
        null if no message is available.
        """
        try:
            query = query_params(scope["query_string"])
            queue = queue_param(query)
            timeout = self._timeout.of(query)
            seconds = timeout / 1000 if WAIT.of(query) else 0
            await receive()  # The (empty) body. From now on `receive` reports only that the client disconnected.
            consumer = CONSUMER.of(query) or caller(exchange_of(scope))
            labels = permitted_labels(identity_of(scope), queue)
            polling = self._broker.work_queues.poll(queue, seconds, lambda: wait_until_left(receive), consumer, labels)
            result = await self._timed("queue_dequeue", polling)
            message = wire_messages(result)[0] if result.messages else None
            answer = encode({"message": message})
        except Exception as error:
            await send_failure(send, error)
        else:
            if not await send_if_there(send, receive, 200, answer, NO_STORE):
                self._broker.give_back(result)

    async def _enqueue(self, scope: Scope, receive: Receive) -> object:
        queue = _queue(scope)
        body = await decode_in_turns(await self._body(scope, receive), EnqueueBody, "body", payloads=payload_in)
        message = new_message(queue, body.value, body.options)
        stamp(identity_of(scope), [message])
        carry(exchange_of(scope), [message])
        return Enqueued(ok=True, id=await self._broker.work_queues.enqueue(message))

    async def _ack(self, scope: Scope, receive: Receive) -> object:
        _queue(scope)
        body = decode_json(await self._body(scope, receive), WorkAckBody, "body", _TEXTS)
        return await self._settle(scope, body, "completed")

    async def _nack(self, scope: Scope, receive: Receive) -> object:
        _queue(scope)
        body = decode_json(await self._body(scope, receive), NackBody, "body", _TEXTS)
        error = body.error[:MAX_ERROR_CHARACTERS] if body.error else None
        delay = None if body.delay is None else check_milliseconds(body.delay, "delay")
        return await self._settle(scope, body, "failed", error, delay)

    async def _settle(
        self,
        scope: Scope,
        body: WorkAckBody,
        status: Literal["completed", "failed"],
        error: str | None = None,
        delay: int | None = None,
    ) -> object:
        message_id = await reached(identity_of(scope), self._broker, _check_id(body.id))
        receipt = body.receipt
        if receipt is not None and not check_text(receipt, "receipt"):
            raise InvalidInput("receipt: must not be empty; leave it out to settle the current delivery")
        outcome = await self._broker.work_queues.settle(message_id, receipt, status, error, delay)
        if outcome.success:
            return Settled(ok=True)
        if receipt is None:
            return Settled(ok=True, found=False)
        raise Conflict(f"receipt: {outcome.error}", code=outcome.code)

    async def _cancel(self, scope: Scope, receive: Receive) -> object:
        _queue(scope)
        body = decode_json(await self._body(scope, receive), CancelBody, "body", _TEXTS)
        message_id = await reached(identity_of(scope), self._broker, _check_id(body.id))
        [outcome] = await self._broker.engine.cancel([message_id])
        cancelled = outcome == "cancelled"
        return Cancelled(ok=True, cancelled=cancelled, reason=None if cancelled else outcome)

    async def _timed(self, operation: Operation, work: Awaitable[T]) -> T:
        with self._broker.operations.measure(operation):
            return await work

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        return await read_whole(scope, receive, self._settings)


async def _answer(send: Send, work: Awaitable[object]) -> None:
    try:
        answer = encode(await work)
    except Exception as error:
        await send_failure(send, error)
    else:
        await send_json(send, 200, answer)


def _queue(scope: Scope) -> str:
    return queue_param(query_params(scope["query_string"]))


def _check_id(id: str) -> str:
    if not id:
        raise InvalidInput(_ID_TEXT)
    return id
