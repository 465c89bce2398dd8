"""The hot routes, from ASGI straight to the broker: push, pop, ack, ack/batch.

A framework costs more than all of Hark's own work on a small request, so these four do without one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import lru_cache

import msgspec

from hark.broker import Broker
from hark.errors import BodyTooLarge, HarkError, InvalidInput, Overloaded
from hark.http.acks import ACK_TEXTS, AckBatchBody, AckBody, settlements_of
from hark.http.checks import decode_json
from hark.http.pops import Pop, parse_pop, pop_reply
from hark.http.push_items import ITEM_TEXTS, PushBody, plain_messages, to_new_message
from hark.http.responses import (
    Receive,
    Scope,
    Send,
    encode,
    internal_error,
    send_empty,
    send_error,
    send_if_there,
    send_json,
)
from hark.model import NewMessage, PopResult, SettleOutcome
from hark.settings import Settings

_POP_CACHE = 4096
"""Consumers ask the same question over and over: its parsed form is kept."""


class PushAnswer(msgspec.Struct, gc=False, omit_defaults=True):
    """What became of a pushed item, on the wire."""

    index: int
    transaction_id: str | None
    status: str
    message_id: str | None
    partition_id: str | None
    trace_id: str | None
    queueName: str
    code: str | None = None
    error: str | None = None


class AckAnswer(msgspec.Struct, gc=False, omit_defaults=True, rename="camel"):
    """What became of a settlement, on the wire."""

    index: int
    transaction_id: str
    success: bool
    error: str | None
    queue_name: str | None
    partition_name: str | None
    lease_released: bool
    dlq: bool
    code: str | None = None


_decode_ack = msgspec.json.Decoder(AckBody).decode
_decode_ack_batch = msgspec.json.Decoder(AckBatchBody).decode


class HotRoutes:
    """The four routes, bound to a broker."""

    def __init__(self, broker: Broker, settings: Settings) -> None:
        self._broker = broker
        self._settings = settings
        self._max_body = settings.max_body_bytes
        self._max_batch = settings.limits.max_batch
        self._parse_pop = lru_cache(_POP_CACHE)(lambda path, query: parse_pop(path, query, settings))

    # Push --------------------------------------------------------------------------------------------------

    async def push(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """POST /api/v1/push"""
        try:
            body = await self._body(receive)
            messages = self._messages(body)
            outcomes = await self._broker.push(messages) if messages else []
            if outcomes and outcomes[0].code == "queue_full" and all(one.code == "queue_full" for one in outcomes):
                raise Overloaded(outcomes[0].error or "the queue is full", code="queue_full")
            answer = encode(
                [
                    PushAnswer(
                        index,
                        outcome.transaction_id,
                        outcome.status,
                        outcome.message_id,
                        outcome.partition_id,
                        messages[index].trace_id,
                        messages[index].queue,
                        outcome.code,
                        outcome.error,
                    )
                    for index, outcome in enumerate(outcomes)
                ]
            )
        except Exception as error:
            await _fail(send, error)
        else:
            await send_json(send, 201, answer)

    def _messages(self, body: bytes) -> list[NewMessage]:
        messages = plain_messages(body)
        if messages is None:
            items = decode_json(body, PushBody, "body", ITEM_TEXTS).items
            self._check_number("items", len(items))
            return [to_new_message(item, index) for index, item in enumerate(items)]
        self._check_number("items", len(messages))
        return messages

    def _check_number(self, field: str, number: int) -> None:
        if number > self._max_batch:
            raise InvalidInput(
                f"{field}: at most {self._max_batch} in one request (limits.max_batch), got {number}",
                code="batch_too_large",
            )

    # Pop ---------------------------------------------------------------------------------------------------

    async def pop(self, scope: Scope, receive: Receive, send: Send) -> None:
        """GET /api/v1/pop, /api/v1/pop/queue/{queue} and /api/v1/pop/queue/{queue}/partition/{partition}"""
        try:
            asked: Pop = self._parse_pop(scope["raw_path"], scope["query_string"])
            await receive()  # The (empty) body; from now on receive tells of nothing but the client's leaving.
            result = await self._broker.pop(asked.request)
            if not result.messages and asked.wait_seconds > 0:
                result = await self._wait(asked, receive)
            if not result.messages:
                await send_empty(send)
                return
            answer = encode(pop_reply(asked.request, result))
        except Exception as error:
            await _fail(send, error)
        else:
            if not await send_if_there(send, receive, 200, answer):
                self._give_back(result)

    async def _wait(self, asked: Pop, receive: Receive) -> PopResult:
        """Wait for messages, or for the client to leave: then what it would have got is free again."""
        pop = asyncio.ensure_future(self._broker.pop(asked.request, asked.wait_seconds))
        left = asyncio.ensure_future(_wait_until_left(receive))
        try:
            await asyncio.wait((pop, left), return_when=asyncio.FIRST_COMPLETED)
            if pop.done():
                return pop.result()
        finally:
            left.cancel()
            pop.cancel()
        return PopResult()

    def _give_back(self, result: PopResult) -> None:
        if result.lease_id:
            self._broker.release(result.lease_id)

    # Ack ---------------------------------------------------------------------------------------------------

    async def ack(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """POST /api/v1/ack"""
        try:
            body = await self._body(receive)
            try:
                ack = _decode_ack(body)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                ack = decode_json(body, AckBody, "body")
            outcomes = await self._broker.settle(settlements_of([ack], ack.consumer_group, ""))
            answer = _ack_answer(outcomes)
        except Exception as error:
            await _fail(send, error)
        else:
            await send_json(send, 200, answer)

    async def ack_batch(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """POST /api/v1/ack/batch"""
        try:
            body = await self._body(receive)
            try:
                batch = _decode_ack_batch(body)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                batch = decode_json(body, AckBatchBody, "body", ACK_TEXTS)
            acks = batch.acknowledgments
            self._check_number("acknowledgments", len(acks))
            items = settlements_of(acks, batch.consumer_group, "acknowledgments")
            answer = _ack_answer(await self._broker.settle(items) if items else [])
        except Exception as error:
            await _fail(send, error)
        else:
            await send_json(send, 200, answer)

    # Bodies ------------------------------------------------------------------------------------------------

    async def _body(self, receive: Receive) -> bytes:
        event = await receive()
        body: bytes = event.get("body", b"")
        if not event.get("more_body"):
            if len(body) > self._max_body:
                raise self._too_large()
            return body
        parts = [body]
        size = len(body)
        while event.get("more_body"):
            if size > self._max_body:
                raise self._too_large()
            event = await receive()
            if event["type"] == "http.disconnect":
                raise InvalidInput("the client left before its request was complete")
            parts.append(event.get("body", b""))
            size += len(parts[-1])
        if size > self._max_body:
            raise self._too_large()
        return b"".join(parts)

    def _too_large(self) -> BodyTooLarge:
        return BodyTooLarge(f"the request body is over {self._max_body} bytes (max_body_bytes); send smaller batches")


def _ack_answer(outcomes: Sequence[SettleOutcome]) -> bytes:
    return encode(
        [
            AckAnswer(
                index,
                outcome.transaction_id,
                outcome.success,
                outcome.error,
                outcome.queue,
                outcome.partition,
                outcome.lease_released,
                outcome.dead_lettered,
                outcome.code,
            )
            for index, outcome in enumerate(outcomes)
        ]
    )


async def _fail(send: Send, error: Exception) -> None:
    known = error if isinstance(error, HarkError) else internal_error(error)
    await send_error(send, known, close=isinstance(known, BodyTooLarge))


async def _wait_until_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
