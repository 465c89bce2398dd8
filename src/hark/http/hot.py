"""The hot routes, which call the broker without a web framework: push, pop, ack, ack/batch.

On a small request a framework costs more time than all work of Hark.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from hark.broker import Broker
from hark.errors import InvalidInput, Overloaded
from hark.http.acks import ACK_TEXTS, AckAnswer, AckBatchBody, AckBody, ack_answers, settlements_of
from hark.http.bodies import read_whole
from hark.http.callers import named
from hark.http.checks import decode_json
from hark.http.edge.identities import identity_of
from hark.http.edge.reaching import settle, stamp
from hark.http.edge.trace_contexts import CONTEXT, carry
from hark.http.pops import Pop, PopReply, parse_pop, place_in_path, pop_params, pop_reply
from hark.http.push_items import ITEM_TEXTS, PushBody, plain_messages, to_new_message
from hark.http.responses import (
    NO_STORE,
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
from hark.http.routes.requests import ANOTHER_MODE, MAINTENANCE, NOT_SUPPORTED, QUEUE_FULL, TOO_MANY
from hark.http.routes.table import Operation, Reach, Table, write
from hark.model import NewMessage
from hark.settings import Settings

_POP_CACHE = 4096
"""Number of parsed pop requests to cache: consumers repeat the same request. Longer query strings are not cached."""
_KEPT_BYTES = 1024


class PushAnswer(msgspec.Struct, gc=False, omit_defaults=True):
    """The result of one pushed message."""

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
    """The hot routes, bound to a broker."""

    def __init__(self, broker: Broker, settings: Settings) -> None:
        self._broker = broker
        self._settings = settings
        self._max_body = settings.max_body_bytes
        self._max_batch = settings.limits.max_batch
        self._recall_pop = lru_cache(_POP_CACHE)(lambda place, query: parse_pop(place, query, settings))

    def table(self) -> Table:
        """Return the table of these routes."""
        return {
            "/api/v1/push": {
                "POST": write(
                    self.push,
                    Reach.ITEMS,
                    body=PushBody,
                    answer={201: list[PushAnswer]},
                    errors=(TOO_MANY, MAINTENANCE, QUEUE_FULL),
                    raw=True,
                )
            },
            "/api/v1/ack": {"POST": write(self.ack, Reach.ITEMS, body=AckBody, answer=list[AckAnswer], raw=True)},
            "/api/v1/ack/batch": {
                "POST": write(
                    self.ack_batch,
                    Reach.ITEMS,
                    body=AckBatchBody,
                    answer=list[AckAnswer],
                    errors=(TOO_MANY,),
                    raw=True,
                )
            },
            "/api/v1/pop": {"GET": self._pop(Reach.QUERY)},
            "/api/v1/pop/queue/{queue}": {"GET": self._pop(Reach.PATH)},
            "/api/v1/pop/queue/{queue}/partition/{partition}": {"GET": self._pop(Reach.PATH)},
        }

    def _pop(self, reach: Reach) -> Operation:
        return write(
            self.pop,
            reach,
            query=pop_params(self._settings, place=reach is Reach.QUERY),
            answer={200: PopReply, 204: None},
            errors=(NOT_SUPPORTED, ANOTHER_MODE),
            raw=True,
        )

    # Push --------------------------------------------------------------------------------------------------

    async def push(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Push messages.

        Stores messages durably and creates missing queues and partitions. The response has one result for each item,
        in the order of the request, with the status `queued`, `duplicate` or `failed`.
        """
        try:
            body = await read_whole(receive, self._max_body)
            messages = self._messages(body)
            stamp(identity_of(scope), messages)
            if CONTEXT in scope:
                carry(scope, messages)
            outcomes = await self._broker.push(messages) if messages else []
            if outcomes and outcomes[0].code == "queue_full" and all(one.code == "queue_full" for one in outcomes):
                raise Overloaded(
                    outcomes[0].error or "the queue is full (option maxSize); retry later", code="queue_full"
                )
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
                f"{field}: at most {self._max_batch} in one request (setting limits.max_batch), got {number}; "
                "send smaller batches",
                code="batch_too_large",
            )

    # Pop ---------------------------------------------------------------------------------------------------

    async def pop(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Receive messages.

        Leases messages to a consumer, in a consumer group. With `wait=true` the request waits until a message is
        available or `timeout` is over. Returns 204 without a body if no message is available. Acknowledge each message
        with the `leaseId` before the lease expires.
        """
        try:
            place, query = place_in_path(scope), scope["query_string"]
            asked: Pop = (
                self._recall_pop(place, query) if len(query) <= _KEPT_BYTES else parse_pop(place, query, self._settings)
            )
            await receive()  # The (empty) body. From now on `receive` reports only that the client disconnected.
            wish = named(asked.request, scope)
            result = await self._broker.pop(wish, asked.wait_seconds, asked.priority, lambda: wait_until_left(receive))
            if not result.messages:
                await send_empty(send)
                return
            answer = encode(pop_reply(asked.request, result))
        except Exception as error:
            await send_failure(send, error)
        else:
            if not await send_if_there(send, receive, 200, answer, NO_STORE):
                self._broker.give_back(result)

    # Ack ---------------------------------------------------------------------------------------------------

    async def ack(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Acknowledge a message.

        Settles one message: `completed` acknowledges it, `failed` rejects it and uses an attempt, `retry` returns it
        without using an attempt, `dlq` dead-letters it. The response has one result. A refused acknowledgement, such as
        one under an expired lease, returns 200 with `success` false.
        """
        try:
            body = await read_whole(receive, self._max_body)
            try:
                ack = _decode_ack(body)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                ack = decode_json(body, AckBody, "body")
            items = settlements_of([ack], ack.consumer_group, "")
            outcomes = await settle(identity_of(scope), self._broker, items)
            answer = encode(ack_answers(outcomes))
        except Exception as error:
            await send_failure(send, error)
        else:
            await send_json(send, 200, answer)

    async def ack_batch(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Acknowledge several messages.

        Settles messages of one consumer group. The response has one result for each acknowledgement, in the order of
        the request.
        """
        try:
            body = await read_whole(receive, self._max_body)
            try:
                batch = _decode_ack_batch(body)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                batch = decode_json(body, AckBatchBody, "body", ACK_TEXTS)
            acks = batch.acknowledgments
            self._check_number("acknowledgments", len(acks))
            items = settlements_of(acks, batch.consumer_group, "acknowledgments")
            outcomes = await settle(identity_of(scope), self._broker, items) if items else []
            answer = encode(ack_answers(outcomes))
        except Exception as error:
            await send_failure(send, error)
        else:
            await send_json(send, 200, answer)
