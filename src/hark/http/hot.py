"""The hot routes: push, pop, ack, ack/batch, next and the renewal of a lease.

They go from the parsed request to the broker without a web framework and without a task: the future of the broker
answers by a callback. On a small request, a framework costs more time than all work of Hark.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache, partial
from typing import Annotated, Any, TypeVar

import msgspec

from hark.access.tokens import UNRESTRICTED
from hark.api import operations
from hark.api.operations import Reach
from hark.api.types.delivery import NO_RESULT, AckAnswer, AckBatchBody, AckBody, PopReply, PushAnswer
from hark.api.types.messages import ExtendBody
from hark.batching import Answer, when_done
from hark.broker import Broker
from hark.errors import Overloaded
from hark.http import checks, items, routing
from hark.http.admission import settle, stamp
from hark.http.checks import check_name, check_nesting, check_text, decode_json, in_turns, many_values
from hark.http.exchange import Exchange
from hark.http.next import Next, NextBody
from hark.http.pops import Pop, named, parse_pop, pop_params, pop_reply, queue_in_path, received
from hark.http.responses import JSON_HEADERS, NO_STORE, UNCACHED_JSON, carry, encode, fail
from hark.http.routing import LARGE_BODY, LINES, MAINTENANCE, QUEUE_FULL, TOO_MANY, Bound, Table, bind, table
from hark.model import (
    QUEUE_MODE,
    NewMessage,
    PopRequest,
    PopResult,
    PushOutcome,
    Renewal,
    Settlement,
    SettleOutcome,
)
from hark.model.messages import DEFAULT_PARTITION
from hark.settings import Settings

A = TypeVar("A")

_POP_CACHE = 4096
"""Number of parsed pop requests to cache: consumers repeat the same request. Longer query strings are not cached."""
_KEPT_BYTES = 1024
_EMPTY = (NO_STORE,)


_ShortName = Annotated[str, msgspec.Meta(min_length=1, max_length=checks.MAX_NAME_BYTES // 4)]
"""A character has at most four bytes, so a name this short is within the limit."""


class PlainItem(msgspec.Struct, gc=False, rename="camel", forbid_unknown_fields=True):
    """A message without options, the common case. Decoding performs all checks."""

    queue: _ShortName
    partition: _ShortName = DEFAULT_PARTITION
    payload: msgspec.Raw = items.NO_PAYLOAD
    transaction_id: Annotated[str, msgspec.Meta(max_length=checks.MAX_NAME_BYTES // 4)] = ""


class PlainBody(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A push of messages without options."""

    items: list[PlainItem]


_decode_plain = msgspec.json.Decoder(PlainBody).decode


def _plain_messages(body: bytes) -> list[NewMessage] | None:
    """Return the messages of a body if all are valid and have no options; None: check the items one by one."""
    # Names must not contain NUL. (The search for a single byte is cheap.)
    if not body.isascii() or (b"\\" in body and b"\\u0000" in body):
        return None
    try:
        items = _decode_plain(body).items
    except (msgspec.MsgspecError, RecursionError):
        return None
    return [NewMessage(item.queue, item.partition, bytes(item.payload), item.transaction_id or None) for item in items]


def _has_unique(messages: Sequence[NewMessage]) -> bool:
    return any(message.unique_key is not None for message in messages)


_decode_ack = msgspec.json.Decoder(AckBody).decode
_decode_ack_batch = msgspec.json.Decoder(AckBatchBody).decode
_UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def _results(body: bytes) -> Iterator[msgspec.Raw]:
    """Return the results of tasks in a body of `ack_batch`, which are not decoded."""
    outline = checks.decode_unbounded(body, _outline(), "body", items.ACK_TEXTS)
    return (ack.task.result for ack in checks.elements(outline.acknowledgments) if ack.task is not None)


@cache
def _outline() -> Any:
    task = msgspec.defstruct("Task", [("result", msgspec.Raw, NO_RESULT)], gc=False)
    ack = msgspec.defstruct("Ack", [("task", task | None, None)], gc=False)
    return msgspec.defstruct("Outline", [("acknowledgments", checks.array_of(ack))])


class HotRoutes:
    """The hot routes, bound to a broker."""

    def __init__(self, broker: Broker, settings: Settings) -> None:
        self._broker = broker
        self._settings = settings
        self._max_batch = settings.limits.max_batch
        self._recall_pop = lru_cache(_POP_CACHE)(lambda target, query: parse_pop(target, query, settings))
        self._tasks: set[asyncio.Future[Any]] = set()

    def table(self) -> Table:
        """Return the table of these routes."""
        acks = {"answer": list[AckAnswer], "hot": True}
        return table(
            bind(
                operations.PUSH,
                self.push,
                body=items.PushBody,
                body_bytes=LARGE_BODY,
                answer={201: list[PushAnswer]},
                errors=(TOO_MANY, MAINTENANCE, QUEUE_FULL),
                hot=True,
            ),
            bind(operations.ACK, self.ack, body=AckBody, **acks),
            bind(
                operations.ACK_BATCH,
                self.ack_batch,
                body=AckBatchBody,
                body_bytes=LARGE_BODY,
                errors=(TOO_MANY,),
                **acks,
            ),
            bind(
                operations.NEXT,
                self.next,
                query=pop_params(self._settings, with_queue=True),
                body=NextBody,
                body_bytes=LARGE_BODY,
                body_optional=True,
                media=LINES,
                errors=(TOO_MANY, routing.NOT_SUPPORTED),
                hot=True,
            ),
            bind(operations.EXTEND, self.extend, body=ExtendBody, body_optional=True, hot=True),
            self._pop(operations.POP),
            self._pop(operations.POP_OF_QUEUE),
            self._pop(operations.POP_OF_QUEUE_PARTITION),
        )

    def _pop(self, operation: operations.Operation[PopReply]) -> Bound:
        return bind(
            operation,
            self.pop,
            query=pop_params(self._settings, with_queue=operation.reach is Reach.QUERY),
            answer={200: PopReply, 204: None},
            errors=(routing.NOT_SUPPORTED, routing.ANOTHER_MODE),
            hot=True,
        )

    # Push --------------------------------------------------------------------------------------------------

    def push(self, exchange: Exchange, messages: list[NewMessage] | None = None, unique: bool = False) -> None:
        """Push messages.

        Stores messages durably and creates missing queues and partitions. The response has one result for each item,
        in the order of the request, with the status `queued`, `duplicate` or `failed`.
        """
        body = exchange.body
        if messages is None:  # Else `_push_large` has decoded them.
            if len(body) > checks.AT_ONCE:
                self._keep(asyncio.ensure_future(self._push_large(exchange)))
                return
            if len(body) > 2 * checks.MAX_DEPTH:
                check_nesting(body)
            messages = _plain_messages(body)
            if messages is None:
                messages = [items.to_new_message(item, index) for index, item in enumerate(items.items_in(body))]
                unique = _has_unique(messages)
        if len(messages) > self._max_batch:
            raise items.too_many("items", self._max_batch, len(messages))
        if exchange.identity is not UNRESTRICTED:
            stamp(exchange.identity, messages)
        if exchange.trace_context is not None:
            carry(exchange, messages)
        if unique:
            exchange.body = b""
            task = asyncio.ensure_future(self._broker.push(messages))
            self._keep(task)
            task.add_done_callback(partial(self._pushed, exchange, messages))
        elif messages:
            exchange.body = b""
            when_done(self._broker.begin_push(messages), partial(self._pushed, exchange, messages))
        else:
            exchange.carrier.respond(exchange, 201, JSON_HEADERS, b"[]")

    async def _push_large(self, exchange: Exchange) -> None:
        try:
            body = exchange.body
            await checks.check_nesting_in_turns(body)
            number = many_values(body)
            if number:
                await asyncio.sleep(0)
                checks.check_values(number, items.payloads_in(body))
            await asyncio.sleep(0)
            messages, unique = None if number else _plain_messages(body), False
            if messages is None:
                found = items.items_in(body, many=number > 0)
                if len(found) > self._max_batch:
                    raise items.too_many("items", self._max_batch, len(found))
                messages = [items.to_new_message(item, index) async for index, item in in_turns(enumerate(found))]
                unique = _has_unique(messages)
            if not exchange.gone:
                self.push(exchange, messages, unique)
        except Exception as error:
            fail(exchange, error)

    def _pushed(
        self, exchange: Exchange, messages: list[NewMessage], future: asyncio.Future[list[PushOutcome]]
    ) -> None:
        try:
            outcomes = future.result()
            answers = []
            full = resealed = 0
            for index, outcome in enumerate(outcomes):
                message, code = messages[index], outcome.code
                if code is not None:
                    full += code == "queue_full"
                    resealed += code == "sealing_mismatch"
                answers.append(
                    PushAnswer(
                        index,
                        outcome.transaction_id,
                        outcome.status,
                        outcome.message_id,
                        outcome.partition_id,
                        message.trace_id,
                        message.queue,
                        code,
                        outcome.error,
                    )
                )
            if resealed:
                task = asyncio.ensure_future(self._broker.push_again(messages, outcomes))
                self._keep(task)
                task.add_done_callback(partial(self._pushed, exchange, messages))
            elif full == len(outcomes):
                text = outcomes[0].error or "the queue is full (option maxSize); retry later"
                raise Overloaded(text, code="queue_full")
            else:
                exchange.carrier.respond(exchange, 201, JSON_HEADERS, encode(answers))
        except Exception as error:
            fail(exchange, error)

    def _keep(self, task: asyncio.Future[Any]) -> None:
        """Keep a reference to a task until it is done: the event loop keeps none."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Pop ---------------------------------------------------------------------------------------------------

    def pop(self, exchange: Exchange) -> None:
        """Receive messages.

        Leases messages to a consumer, in a consumer group. With `wait=true` the request waits until a message is
        available or `timeout` is over. Returns 204 without a body if no message is available. Acknowledge each message
        with the `leaseId` before the lease expires.
        """
        pop = self._requested_pop(exchange)
        exchange.waits = pop.wait_seconds > 0
        request = named(pop.request, exchange)
        future = self._broker.begin_pop(request, pop.wait_seconds, pop.priority)
        exchange.on_left = future.cancel
        when_done(future, partial(self._popped, exchange, request))

    def _requested_pop(self, exchange: Exchange) -> Pop:
        target, query = queue_in_path(exchange.params), exchange.query
        if len(query) <= _KEPT_BYTES:
            return self._recall_pop(target, query)
        return parse_pop(target, query, self._settings)

    def _popped(self, exchange: Exchange, request: PopRequest, future: asyncio.Future[PopResult]) -> None:
        if future.cancelled():
            return  # The client has disconnected.
        try:
            result = received(self._broker, exchange, future)
            if result.messages:
                body = encode(pop_reply(request, result))
                # Only the lease is kept until the client has the messages. What was settled at once is not given back.
                lost = partial(self._broker.release, result.lease_id) if result.lease_id else None
                exchange.carrier.respond(exchange, 200, UNCACHED_JSON, body, lost)
            else:
                exchange.carrier.respond(exchange, 204, _EMPTY, b"")
        except Exception as error:
            fail(exchange, error)

    # Next --------------------------------------------------------------------------------------------------

    def next(self, exchange: Exchange) -> None:
        """Settle messages and receive the next ones.

        Does the work of `ack/batch` and of a pop in one request. The response has two lines of JSON. The first line has
        the results of the settlements. It is sent soon after they are committed, also while the pop waits. The second
        line is the response of the pop: its messages, `null` if no message is available, or an object with `error` and
        `code`. A client that disconnects does not undo the settlements.
        """
        batch = decode_json(exchange.body or b"{}", NextBody, "body", items.ACK_TEXTS)
        if len(batch.acknowledgments) > self._max_batch:
            raise items.too_many("acknowledgments", self._max_batch, len(batch.acknowledgments))
        pop = self._requested_pop(exchange)
        exchange.waits = pop.wait_seconds > 0
        settling = self._settle(exchange, batch.acknowledgments, batch.consumer_group, "acknowledgments")
        Next(self._broker, exchange, pop).start(settling)

    # Ack ---------------------------------------------------------------------------------------------------

    def ack(self, exchange: Exchange) -> None:
        """Acknowledge a message.

        Settles one message: `completed` acknowledges it, `failed` rejects it and uses an attempt, `retry` returns it
        without using an attempt, `dlq` dead-letters it. The response has one result. A refused acknowledgement, such as
        one under an expired lease, returns 200 with `success` false.
        """
        try:
            ack = _decode_ack(exchange.body)
        except _UNDECODABLE:
            ack = decode_json(exchange.body, AckBody, "body")
        when_done(self._settle(exchange, [ack], ack.consumer_group, ""), partial(_answer, exchange, items.ack_answers))

    def ack_batch(self, exchange: Exchange) -> None:
        """Acknowledge several messages.

        Settles messages of one consumer group. The response has one result for each acknowledgement, in the order of
        the request.
        """
        body = exchange.body
        try:
            if number := many_values(body):
                checks.check_values(number, _results(body))
            batch = _decode_ack_batch(body)
        except _UNDECODABLE:
            batch = decode_json(body, AckBatchBody, "body", items.ACK_TEXTS)
        if len(batch.acknowledgments) > self._max_batch:
            raise items.too_many("acknowledgments", self._max_batch, len(batch.acknowledgments))
        settling = self._settle(exchange, batch.acknowledgments, batch.consumer_group, "acknowledgments")
        when_done(settling, partial(_answer, exchange, items.ack_answers))

    def _settle(
        self, exchange: Exchange, acks: Sequence[AckBody], group: str | None, where: str
    ) -> asyncio.Future[list[SettleOutcome]]:
        """Settle messages. Errors name a field as `where[index].field`, or as `field` without `where`."""
        name = QUEUE_MODE if not group else check_name(group, "consumerGroup")
        settlements = []
        for index, ack in enumerate(acks):
            plain = ack.delay is None and ack.default_delay is None and not ack.task
            if ack.transaction_id and ack.partition_id and plain and ack.status in (None, "completed"):
                settlements.append(
                    Settlement(ack.transaction_id, ack.partition_id, "completed", ack.lease_id, group=name)
                )
            else:
                settlements.append(items.settlement_of(ack, name, f"{where}[{index}]." if where else ""))
        if not settlements:
            nothing: Answer[list[SettleOutcome]] = Answer()
            nothing.set_result([])
            return nothing
        identity = exchange.identity
        return settle(identity, self._broker, settlements) if identity.restricted else self._broker.settle(settlements)

    # Renewal -----------------------------------------------------------------------------------------------

    def extend(self, exchange: Exchange) -> None:
        """Renew a lease.

        Extends the lease until `seconds` from now, unless it already lasts longer. An expired or unknown lease returns
        200 with `success` false.
        """
        lease_id = check_text(str(exchange.params["lease_id"]), "lease_id")
        body = decode_json(exchange.body or b"{}", ExtendBody, "extend")
        future = self._broker.renew(Renewal(lease_id, items.renewal_seconds(body.value)))
        when_done(future, partial(_answer, exchange, partial(items.extended_lease, lease_id)))


def _answer(exchange: Exchange, shape: Callable[[A], object], future: asyncio.Future[A]) -> None:
    """Respond with a result in the form of the HTTP API."""
    try:
        exchange.carrier.respond(exchange, 200, JSON_HEADERS, encode(shape(future.result())))
    except Exception as error:
        fail(exchange, error)
