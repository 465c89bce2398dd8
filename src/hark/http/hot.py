"""The hot routes, from ASGI straight to the broker: push, pop, ack, ack/batch.

A framework costs more than all of Hark's own work on a small request, so these four do without one.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from hark.broker import Broker
from hark.errors import InvalidInput, Overloaded
from hark.http.acks import ACK_TEXTS, AckBatchBody, AckBody, ack_answers, settlements_of
from hark.http.bodies import read_whole
from hark.http.checks import decode_json
from hark.http.pops import Pop, parse_pop, pop_reply
from hark.http.push_items import ITEM_TEXTS, PushBody, plain_messages, to_new_message
from hark.http.responses import (
    Receive,
    Scope,
    Send,
    encode,
    send_empty,
    send_failure,
    send_if_there,
    send_json,
    wait_until_left,
)
from hark.model import NewMessage
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
            body = await read_whole(receive, self._max_body)
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
            await send_failure(send, error)
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
            result = await self._broker.pop(
                asked.request, asked.wait_seconds, asked.priority, lambda: wait_until_left(receive)
            )
            if not result.messages:
                await send_empty(send)
                return
            answer = encode(pop_reply(asked.request, result))
        except Exception as error:
            await send_failure(send, error)
        else:
            if not await send_if_there(send, receive, 200, answer):
                self._broker.give_back(result)

    # Ack ---------------------------------------------------------------------------------------------------

    async def ack(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """POST /api/v1/ack"""
        try:
            body = await read_whole(receive, self._max_body)
            try:
                ack = _decode_ack(body)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                ack = decode_json(body, AckBody, "body")
            outcomes = await self._broker.settle(settlements_of([ack], ack.consumer_group, ""))
            answer = encode(ack_answers(outcomes))
        except Exception as error:
            await send_failure(send, error)
        else:
            await send_json(send, 200, answer)

    async def ack_batch(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """POST /api/v1/ack/batch"""
        try:
            body = await read_whole(receive, self._max_body)
            try:
                batch = _decode_ack_batch(body)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                batch = decode_json(body, AckBatchBody, "body", ACK_TEXTS)
            acks = batch.acknowledgments
            self._check_number("acknowledgments", len(acks))
            items = settlements_of(acks, batch.consumer_group, "acknowledgments")
            answer = encode(ack_answers(await self._broker.settle(items) if items else []))
        except Exception as error:
            await send_failure(send, error)
        else:
            await send_json(send, 200, answer)
