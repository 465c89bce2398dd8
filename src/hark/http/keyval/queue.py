"""Work queues, which call the broker without a web framework: enqueue, poll, ack, nack, cancel."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Literal, TypeVar

import msgspec

from hark.broker import Broker
from hark.broker.operations import Operation
from hark.errors import Conflict, InvalidInput
from hark.http.acks import MAX_ERROR_CHARACTERS
from hark.http.answers import keyval as answers
from hark.http.bodies import read_whole
from hark.http.callers import CONSUMER, caller
from hark.http.checks import check_text, decode_json, query_params
from hark.http.edge.identities import identity_of
from hark.http.edge.reaching import reached, stamp
from hark.http.edge.trace_contexts import carry
from hark.http.exchange import exchange_of
from hark.http.keyval.messages import EnqueueBody, check_milliseconds, new_message, wire_messages
from hark.http.keyval.params import BASE, QUEUE, queue_param
from hark.http.pops import WAIT, timeout_param
from hark.http.responses import (
    NO_STORE,
    Receive,
    Scope,
    Send,
    encode,
    send_failure,
    send_if_there,
    send_json,
    wait_until_left,
)
from hark.http.routes.requests import ANOTHER_MODE, MAINTENANCE, QUEUE_FULL
from hark.http.routes.table import Failure, Reach, Table, write
from hark.settings import Settings

T = TypeVar("T")

_WORK = f"{BASE}/queue"
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
    delay: int | float | None = None


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
        return {
            f"{_WORK}/enqueue": {
                "POST": write(
                    self.enqueue,
                    Reach.QUERY,
                    query=(QUEUE,),
                    body=EnqueueBody,
                    answer=answers.Enqueued,
                    errors=(MAINTENANCE, QUEUE_FULL),
                    raw=True,
                )
            },
            f"{_WORK}/poll": {
                "GET": write(
                    self.poll,
                    Reach.QUERY,
                    query=(QUEUE, WAIT, self._timeout, CONSUMER),
                    answer=answers.Polled,
                    errors=(ANOTHER_MODE,),
                    raw=True,
                )
            },
            f"{_WORK}/ack": {
                "POST": write(
                    self.ack,
                    Reach.ITEMS,
                    query=(QUEUE,),
                    body=WorkAckBody,
                    answer=answers.Settled,
                    errors=_LOST,
                    raw=True,
                )
            },
            f"{_WORK}/nack": {
                "POST": write(
                    self.nack,
                    Reach.ITEMS,
                    query=(QUEUE,),
                    body=NackBody,
                    answer=answers.Settled,
                    errors=_LOST,
                    raw=True,
                )
            },
            f"{_WORK}/cancel": {
                "POST": write(
                    self.cancel, Reach.ITEMS, query=(QUEUE,), body=CancelBody, answer=answers.Cancelled, raw=True
                )
            },
        }

    async def enqueue(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Enqueue a message. Stores a message in a work queue, which is created if it does not exist."""
        await _answer(send, self._measured("queue_enqueue", self._enqueue(scope, receive)))

    async def ack(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Acknowledge a message of a work queue.

        Removes the message. Send the receipt of the delivery: then an acknowledgement after the lease expired returns
        409. Without a receipt the request settles the current delivery, and returns `found` false if there is none.
        """
        await _answer(send, self._measured("queue_ack", self._ack(scope, receive)))

    async def nack(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Reject a message of a work queue.

        The message is redelivered after a delay from its backoff schedule. After its last attempt it becomes a dead
        letter. The receipt has the same meaning as in an acknowledgement.
        """
        await _answer(send, self._measured("queue_nack", self._nack(scope, receive)))

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
            polling = self._broker.work_queues.poll(queue, seconds, lambda: wait_until_left(receive), consumer)
            result = await self._measured("queue_dequeue", polling)
            message = wire_messages(result)[0] if result.messages else None
            answer = encode({"message": message})
        except Exception as error:
            await send_failure(send, error)
        else:
            if not await send_if_there(send, receive, 200, answer, NO_STORE):
                self._broker.give_back(result)

    async def _enqueue(self, scope: Scope, receive: Receive) -> object:
        queue = _queue(scope)
        body = decode_json(await self._body(receive), EnqueueBody, "body")
        message = new_message(queue, body.value, body.options)
        stamp(identity_of(scope), [message])
        carry(exchange_of(scope), [message])
        return {"ok": True, "id": await self._broker.work_queues.enqueue(message)}

    async def _ack(self, scope: Scope, receive: Receive) -> object:
        _queue(scope)
        body = decode_json(await self._body(receive), WorkAckBody, "body", _TEXTS)
        return await self._settle(scope, body, "completed")

    async def _nack(self, scope: Scope, receive: Receive) -> object:
        _queue(scope)
        body = decode_json(await self._body(receive), NackBody, "body", _TEXTS)
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
            return {"ok": True}
        if receipt is None:
            return {"ok": True, "found": False}
        raise Conflict(f"receipt: {outcome.error}", code=outcome.code)

    async def _cancel(self, scope: Scope, receive: Receive) -> object:
        _queue(scope)
        body = decode_json(await self._body(receive), CancelBody, "body", _TEXTS)
        message_id = await reached(identity_of(scope), self._broker, _check_id(body.id))
        [outcome] = await self._broker.engine.cancel([message_id])
        answer = {"ok": True, "cancelled": outcome == "cancelled"}
        return answer if outcome == "cancelled" else answer | {"reason": outcome}

    async def _measured(self, operation: Operation, work: Awaitable[T]) -> T:
        with self._broker.operations.measure(operation):
            return await work

    async def _body(self, receive: Receive) -> bytes:
        return await read_whole(receive, self._settings.max_body_bytes)


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
