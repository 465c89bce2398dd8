"""Work queues, from ASGI straight to the broker: enqueue, poll, ack, nack, cancel."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Literal, TypeVar

import msgspec

from hark.broker import Broker
from hark.broker.operations import Operation
from hark.errors import Conflict, InvalidInput
from hark.http.acks import MAX_ERROR_CHARACTERS
from hark.http.bodies import read_whole
from hark.http.checks import bool_param, check_text, decode_json, int_param, query_params
from hark.http.keyval.messages import EnqueueBody, check_milliseconds, new_message, wire_messages
from hark.http.keyval.params import queue_param
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
from hark.settings import Settings

T = TypeVar("T")

_ID_TEXT = "id must be a non-empty string"
_TEXTS = {"id": _ID_TEXT}


class AckBody(msgspec.Struct, gc=False):
    """Which message; with the receipt of its delivery, only that one counts."""

    id: str = ""
    receipt: str | None = None


class NackBody(AckBody, gc=False):
    """Which message failed, why, and when it should come again."""

    error: str | None = None
    delay: int | float | None = None


class CancelBody(msgspec.Struct, gc=False):
    """Which message to take back."""

    id: str = ""


class QueueRoutes:
    """The routes, bound to a broker."""

    def __init__(self, broker: Broker, settings: Settings) -> None:
        self._broker = broker
        self._settings = settings

    async def enqueue(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST /keyval/api/queue/enqueue"""
        await _answer(send, self._measured("queue_enqueue", self._enqueue(scope, receive)))

    async def ack(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST /keyval/api/queue/ack"""
        await _answer(send, self._measured("queue_ack", self._ack(scope, receive)))

    async def nack(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST /keyval/api/queue/nack"""
        await _answer(send, self._measured("queue_nack", self._nack(scope, receive)))

    async def cancel(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST /keyval/api/queue/cancel"""
        await _answer(send, self._cancel(scope, receive))

    async def poll(self, scope: Scope, receive: Receive, send: Send) -> None:
        """GET /keyval/api/queue/poll"""
        try:
            query = query_params(scope["query_string"])
            queue = queue_param(query)
            pop = self._settings.pop
            timeout = int_param(query, "timeout", pop.default_timeout_ms, 0, pop.max_timeout_ms)
            seconds = timeout / 1000 if bool_param(query, "wait") else 0
            await receive()  # The (empty) body; from now on receive tells of nothing but the client's leaving.
            polling = self._broker.work_queues.poll(queue, seconds, lambda: wait_until_left(receive))
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
        return {"ok": True, "id": await self._broker.work_queues.enqueue(message)}

    async def _ack(self, scope: Scope, receive: Receive) -> object:
        _queue(scope)
        body = decode_json(await self._body(receive), AckBody, "body", _TEXTS)
        return await self._settle(body, "completed")

    async def _nack(self, scope: Scope, receive: Receive) -> object:
        _queue(scope)
        body = decode_json(await self._body(receive), NackBody, "body", _TEXTS)
        error = body.error[:MAX_ERROR_CHARACTERS] if body.error else None
        delay = None if body.delay is None else check_milliseconds(body.delay, "delay")
        return await self._settle(body, "failed", error, delay)

    async def _settle(
        self, body: AckBody, status: Literal["completed", "failed"], error: str | None = None, delay: int | None = None
    ) -> object:
        message_id, receipt = _check_id(body.id), body.receipt
        if receipt is not None and not check_text(receipt, "receipt"):
            raise InvalidInput("receipt: must not be empty; leave it out to settle whatever delivery is live")
        outcome = await self._broker.work_queues.settle(message_id, receipt, status, error, delay)
        if outcome.success:
            return {"ok": True}
        if receipt is None:
            return {"ok": True, "found": False}
        raise Conflict(f"receipt: {outcome.error}", code=outcome.code)

    async def _cancel(self, scope: Scope, receive: Receive) -> object:
        _queue(scope)
        body = decode_json(await self._body(receive), CancelBody, "body", _TEXTS)
        [outcome] = await self._broker.engine.cancel([_check_id(body.id)])
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
