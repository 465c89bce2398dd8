"""The hot routes: push, pop, ack, ack/batch, next and the renewal of a lease.

They go from the parsed request to the broker without a web framework and without a task: the future of the broker
answers by a callback. On a small request, a framework costs more time than all work of Hark.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache, partial
from typing import Any

import msgspec

from hark.access.identity import UNRESTRICTED
from hark.api import operations
from hark.api.operations import Reach
from hark.api.types.delivery import NO_RESULT, AckAnswer, AckBatchBody, AckBody, PopReply, PushAnswer
from hark.api.types.messages import ExtendBody
from hark.batching import when_done
from hark.broker import Broker
from hark.errors import HarkError, InvalidInput, Overloaded
from hark.http import routing
from hark.http.admission import settle, stamp
from hark.http.checks import (
    AT_ONCE,
    array_of,
    check_nesting,
    check_nesting_in_turns,
    check_text,
    check_values,
    decode_json,
    decode_unbounded,
    elements,
    in_turns,
    many_values,
    raw_default,
)
from hark.http.exchange import Exchange, current_exchange
from hark.http.items import (
    ACK_TEXTS,
    PushBody,
    ack_answers,
    extended_lease,
    items_in,
    payloads_in,
    plain_messages,
    renewal_seconds,
    settlements_of,
    to_new_message,
)
from hark.http.pops import Pop, named, parse_pop, pop_params, pop_reply, queue_in_path
from hark.http.responses import (
    JSON_HEADERS,
    NO_STORE,
    NOSNIFF,
    UNCACHED_JSON,
    carry,
    encode,
    error_body,
    error_response,
    known_error,
)
from hark.http.routing import LARGE_BODY, LINES, MAINTENANCE, QUEUE_FULL, TOO_MANY, Bound, Table, bind, table
from hark.model import NewMessage, PopRequest, PopResult, PushOutcome, Renewal, RenewOutcome, Settlement, SettleOutcome
from hark.settings import Settings

_POP_CACHE = 4096
"""Number of parsed pop requests to cache: consumers repeat the same request. Longer query strings are not cached."""
_KEPT_BYTES = 1024
_EMPTY = (NO_STORE,)
_FIRST_LINE_SECONDS = 0.05
"""How long the first line of `next` can wait for the second: most often both go out with one write."""
_LINES_HEADERS = ((b"content-type", LINES.encode()), NOSNIFF, NO_STORE)


class NextBody(AckBatchBody, gc=False, rename="camel"):
    """The messages to settle before the next ones are received. They can be left out."""

    acknowledgments: list[AckBody] = msgspec.field(default_factory=list)


_decode_ack = msgspec.json.Decoder(AckBody).decode
_decode_ack_batch = msgspec.json.Decoder(AckBatchBody).decode
_UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def _results(body: bytes) -> Iterator[msgspec.Raw]:
    """Return the results of tasks in a body of `ack_batch`, which are not decoded."""
    outline = decode_unbounded(body, _outline(), "body", ACK_TEXTS)
    return (ack.task.result for ack in elements(outline.acknowledgments) if ack.task is not None)


@cache
def _outline() -> Any:
    task = msgspec.defstruct("Task", [("result", msgspec.Raw, raw_default(NO_RESULT))], gc=False)
    ack = msgspec.defstruct("Ack", [("task", task | None, None)], gc=False)
    return msgspec.defstruct("Outline", [("acknowledgments", array_of(ack))])


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
                body=PushBody,
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

    def push(self, exchange: Exchange) -> None:
        """Push messages.

        Stores messages durably and creates missing queues and partitions. The response has one result for each item,
        in the order of the request, with the status `queued`, `duplicate` or `failed`.
        """
        body = exchange.body
        if len(body) > AT_ONCE:
            self._keep(asyncio.ensure_future(self._push_large(exchange)))
            return
        check_nesting(body)
        messages = plain_messages(body)
        unique = False
        if messages is None:
            messages = [to_new_message(item, index) for index, item in enumerate(items_in(body))]
            unique = _has_unique(messages)
        self._push(exchange, messages, unique)

    async def _push_large(self, exchange: Exchange) -> None:
        try:
            body = exchange.body
            await check_nesting_in_turns(body)
            number = many_values(body)
            if number:
                await asyncio.sleep(0)
                check_values(number, payloads_in(body))
            await asyncio.sleep(0)
            messages = None if number else plain_messages(body)
            unique = False
            if messages is None:
                items = items_in(body, many=number > 0)
                if len(items) > self._max_batch:
                    raise self._too_many("items", len(items))
                messages = [to_new_message(item, index) async for index, item in in_turns(enumerate(items))]
                unique = _has_unique(messages)
            if not exchange.gone:
                self._push(exchange, messages, unique)
        except Exception as error:
            _fail(exchange, error)

    def _push(self, exchange: Exchange, messages: list[NewMessage], unique: bool) -> None:
        if len(messages) > self._max_batch:
            raise self._too_many("items", len(messages))
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
            self._broker.begin_push(messages).then(partial(self._pushed, exchange, messages))
        else:
            exchange.respond(201, JSON_HEADERS, b"[]")

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
                exchange.respond(201, JSON_HEADERS, encode(answers))
        except Exception as error:
            _fail(exchange, error)

    def _keep(self, task: asyncio.Future[Any]) -> None:
        """Keep a reference to a task until it is done: the event loop keeps none."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _too_many(self, field: str, number: int) -> InvalidInput:
        return InvalidInput(
            f"{field}: at most {self._max_batch} in one request (setting limits.max_batch), got {number}; "
            "send smaller batches",
            code="batch_too_large",
        )

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
            result = _received(self._broker, exchange, future)
            if result.messages:
                body = encode(pop_reply(request, result))
                # Only the lease is kept until the client has the messages. What was settled at once is not given back.
                lost = partial(self._broker.release, result.lease_id) if result.lease_id else None
                exchange.respond(200, UNCACHED_JSON, body, lost)
            else:
                exchange.respond(204, _EMPTY, b"")
        except Exception as error:
            _fail(exchange, error)

    # Next --------------------------------------------------------------------------------------------------

    def next(self, exchange: Exchange) -> None:
        """Settle messages and receive the next ones.

        Does the work of `ack/batch` and of a pop in one request. The response has two lines of JSON. The first line has
        the results of the settlements. It is sent soon after they are committed, also while the pop waits. The second
        line is the response of the pop: its messages, `null` if no message is available, or an object with `error` and
        `code`. A client that disconnects does not undo the settlements.
        """
        batch = decode_json(exchange.body or b"{}", NextBody, "body", ACK_TEXTS)
        if len(batch.acknowledgments) > self._max_batch:
            raise self._too_many("acknowledgments", len(batch.acknowledgments))
        pop = self._requested_pop(exchange)
        exchange.waits = pop.wait_seconds > 0
        items = settlements_of(batch.acknowledgments, batch.consumer_group, "acknowledgments")
        settling = _settling(exchange, self._broker, items) if items else None
        _Next(self._broker, exchange, pop).start(settling)

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
        self._settle(exchange, [ack], ack.consumer_group, "")

    def ack_batch(self, exchange: Exchange) -> None:
        """Acknowledge several messages.

        Settles messages of one consumer group. The response has one result for each acknowledgement, in the order of
        the request.
        """
        body = exchange.body
        try:
            if number := many_values(body):
                check_values(number, _results(body))
            batch = _decode_ack_batch(body)
        except _UNDECODABLE:
            batch = decode_json(body, AckBatchBody, "body", ACK_TEXTS)
        if len(batch.acknowledgments) > self._max_batch:
            raise self._too_many("acknowledgments", len(batch.acknowledgments))
        self._settle(exchange, batch.acknowledgments, batch.consumer_group, "acknowledgments")

    def _settle(self, exchange: Exchange, acks: Sequence[AckBody], group: str | None, where: str) -> None:
        items = settlements_of(acks, group, where)
        if items:
            when_done(_settling(exchange, self._broker, items), partial(_settled, exchange))
        else:
            exchange.respond(200, JSON_HEADERS, b"[]")

    # Renewal -----------------------------------------------------------------------------------------------

    def extend(self, exchange: Exchange) -> None:
        """Renew a lease.

        Extends the lease until `seconds` from now, unless it already lasts longer. An expired or unknown lease returns
        200 with `success` false.
        """
        lease_id = check_text(str(exchange.params["lease_id"]), "lease_id")
        body = decode_json(exchange.body or b"{}", ExtendBody, "extend")
        future = self._broker.renew(Renewal(lease_id, renewal_seconds(body.seconds)))
        when_done(future, partial(_renewed, exchange, lease_id))


def _received(broker: Broker, exchange: Exchange, future: asyncio.Future[PopResult]) -> PopResult:
    """Return the result of a pop with readable payloads; it is empty if the client has disconnected."""
    result = future.result()
    if exchange.gone:  # It disconnected in the turn of the event loop in which the result arrived.
        broker.give_back(result)
        return PopResult()
    exchange.on_left = None
    broker.unseal(result)
    return result


class _Next:
    """Settlements and a pop that are under way for one request.

    A pop that waits begins beside the settlements, because neither depends on the other: if the settlements make a
    message available, the pop is notified. Without a wait, the pop begins when the settlements are committed. The
    response begins then, too.
    """

    __slots__ = (
        "_broker",
        "_exchange",
        "_line",
        "_popped",
        "_popping",
        "_request",
        "_requested_pop",
        "_settled",
        "_timer",
    )

    def __init__(self, broker: Broker, exchange: Exchange, pop: Pop) -> None:
        self._broker = broker
        self._exchange = exchange
        self._requested_pop = pop
        self._request = named(pop.request, exchange)
        self._popping: asyncio.Future[PopResult] | None = None
        self._settled = self._popped = False
        self._line = b""
        """The first line, until it is sent."""
        self._timer: asyncio.TimerHandle | None = None

    def start(self, settling: asyncio.Future[list[SettleOutcome]] | None) -> None:
        """Answer when both are done."""
        if settling is None:
            self._note_settled([])
            return
        when_done(settling, self._on_settled)
        if self._requested_pop.wait_seconds:
            self._pop()

    def _on_settled(self, settling: asyncio.Future[list[SettleOutcome]]) -> None:
        try:
            outcomes = settling.result()
        except Exception as error:
            self._exchange.on_left = None
            popping = self._popping
            if popping is not None and not popping.cancel() and not popping.cancelled() and not popping.exception():
                self._broker.give_back(popping.result())
            _fail(self._exchange, error)
        else:
            self._note_settled(outcomes)

    def _note_settled(self, outcomes: list[SettleOutcome]) -> None:
        self._settled = True
        self._line = encode(ack_answers(outcomes)) + b"\n"
        if self._popped:
            self._finish()
            return
        if self._exchange.gone:
            return
        if self._popping is None:
            self._pop()
        self._timer = asyncio.get_running_loop().call_later(_FIRST_LINE_SECONDS, self._send_first_line)

    def _send_first_line(self) -> None:
        if self._exchange.begin_response(200, _LINES_HEADERS, self._line):
            self._line = b""

    def _pop(self) -> None:
        pop = self._requested_pop
        try:
            popping = self._broker.begin_pop(self._request, pop.wait_seconds, pop.priority)
        except HarkError as error:
            popping = asyncio.get_running_loop().create_future()
            popping.set_exception(error)
        self._popping = popping
        self._exchange.on_left = popping.cancel
        when_done(popping, self._on_popped)

    def _on_popped(self, _popping: asyncio.Future[PopResult]) -> None:
        self._popped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._settled:
            self._finish()

    def _finish(self) -> None:
        """Send the second line, and the first one if it is not sent yet. Line breaks in payloads become spaces."""
        popping = self._popping
        if popping is None or popping.cancelled():
            return  # The client has disconnected.
        lost = None
        try:
            result = _received(self._broker, self._exchange, popping)
            line = encode(pop_reply(self._request, result) if result.messages else None)
            lost = partial(self._broker.release, result.lease_id) if result.lease_id else None
        except Exception as error:
            known = known_error(error)
            retry = {} if known.retry_after is None else {"retryAfter": known.retry_after}
            line = encode({**error_body(known), "status": known.status, **retry})
        if b"\n" in line or b"\r" in line:
            line = line.replace(b"\n", b" ").replace(b"\r", b" ")
        self._exchange.respond(200, _LINES_HEADERS, b"%b%b\n" % (self._line, line), lost)


def _fail(exchange: Exchange, error: Exception) -> None:
    """Respond with an error. Its headers and log lines name the request."""
    token = current_exchange.set(exchange)
    try:
        exchange.respond(*error_response(error))
    finally:
        current_exchange.reset(token)


def _settling(exchange: Exchange, broker: Broker, items: Sequence[Settlement]) -> asyncio.Future[list[SettleOutcome]]:
    identity = exchange.identity
    return settle(identity, broker, items) if identity.restricted else broker.settle(items)


def _has_unique(messages: Sequence[NewMessage]) -> bool:
    return any(message.unique_key is not None for message in messages)


def _settled(exchange: Exchange, future: asyncio.Future[list[SettleOutcome]]) -> None:
    try:
        exchange.respond(200, JSON_HEADERS, encode(ack_answers(future.result())))
    except Exception as error:
        _fail(exchange, error)


def _renewed(exchange: Exchange, lease_id: str, future: asyncio.Future[RenewOutcome]) -> None:
    try:
        exchange.respond(200, JSON_HEADERS, encode(extended_lease(lease_id, future.result())))
    except Exception as error:
        _fail(exchange, error)
