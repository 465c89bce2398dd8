"""The hot routes: push, pop, ack, ack/batch, next and the renewal of a lease.

They go from the parsed request to the broker without a web framework and without a task: the future of the broker
answers by a callback. On a small request, a framework costs more time than all work of Hark.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import msgspec

from hark.broker import Broker
from hark.errors import HarkError, InvalidInput, Overloaded
from hark.http.acks import ACK_TEXTS, AckAnswer, AckBatchBody, AckBody, ack_answers, settlements_of
from hark.http.answers.messages import ExtendedLease
from hark.http.callers import named
from hark.http.checks import check_text, decode_json
from hark.http.edge.reaching import settle, stamp
from hark.http.edge.trace_contexts import carry
from hark.http.exchange import Exchange
from hark.http.pops import Pop, PopReply, parse_pop, place_in_path, pop_params, pop_reply
from hark.http.push_items import ITEM_TEXTS, PushBody, plain_messages, to_new_message
from hark.http.renewals import ExtendBody, extended_lease, renewal_seconds
from hark.http.responses import (
    JSON_HEADERS,
    NO_STORE,
    NOSNIFF,
    UNCACHED_JSON,
    encode,
    error_body,
    error_response,
    known_error,
)
from hark.http.routes.requests import ANOTHER_MODE, MAINTENANCE, NOT_SUPPORTED, QUEUE_FULL, TOO_MANY
from hark.http.routes.table import LINES, Operation, Reach, Table, write
from hark.model import NewMessage, PopRequest, PopResult, PushOutcome, Renewal, RenewOutcome, SettleOutcome
from hark.settings import Settings

_POP_CACHE = 4096
"""Number of parsed pop requests to cache: consumers repeat the same request. Longer query strings are not cached."""
_KEPT_BYTES = 1024
_EMPTY = (NO_STORE,)
_FIRST_LINE_SECONDS = 0.05
"""How long the first line of `next` can wait for the second: most often both go out with one write."""
_LINES_HEADERS = ((b"content-type", LINES.encode()), NOSNIFF, NO_STORE)


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


class NextBody(AckBatchBody, gc=False, rename="camel"):
    """The messages to settle before the next ones are received. They can be left out."""

    acknowledgments: list[AckBody] = msgspec.field(default_factory=list)


_decode_ack = msgspec.json.Decoder(AckBody).decode
_decode_ack_batch = msgspec.json.Decoder(AckBatchBody).decode
_UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class HotRoutes:
    """The hot routes, bound to a broker."""

    def __init__(self, broker: Broker, settings: Settings) -> None:
        self._broker = broker
        self._settings = settings
        self._max_batch = settings.limits.max_batch
        self._recall_pop = lru_cache(_POP_CACHE)(lambda place, query: parse_pop(place, query, settings))
        self._tasks: set[asyncio.Future[Any]] = set()

    def table(self) -> Table:
        """Return the table of these routes."""
        acks = {"answer": list[AckAnswer], "hot": True}
        return {
            "/api/v1/push": {
                "POST": write(
                    self.push,
                    Reach.ITEMS,
                    body=PushBody,
                    answer={201: list[PushAnswer]},
                    errors=(TOO_MANY, MAINTENANCE, QUEUE_FULL),
                    hot=True,
                )
            },
            "/api/v1/ack": {"POST": write(self.ack, Reach.ITEMS, body=AckBody, **acks)},
            "/api/v1/ack/batch": {
                "POST": write(self.ack_batch, Reach.ITEMS, body=AckBatchBody, errors=(TOO_MANY,), **acks)
            },
            "/api/v1/next": {
                "POST": write(
                    self.next,
                    Reach.QUERY,
                    query=pop_params(self._settings, place=True),
                    body=NextBody,
                    body_optional=True,
                    answer=str,
                    media=LINES,
                    errors=(TOO_MANY, NOT_SUPPORTED),
                    hot=True,
                )
            },
            "/api/v1/lease/{lease_id}/extend": {
                "POST": write(
                    self.extend, Reach.ITEMS, body=ExtendBody, body_optional=True, answer=ExtendedLease, hot=True
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
            hot=True,
        )

    # Push --------------------------------------------------------------------------------------------------

    def push(self, exchange: Exchange) -> None:
        """Push messages.

        Stores messages durably and creates missing queues and partitions. The response has one result for each item,
        in the order of the request, with the status `queued`, `duplicate` or `failed`.
        """
        messages = self._messages(exchange.body)
        stamp(exchange.identity, messages)
        if exchange.trace_context is not None:
            carry(exchange, messages)
        if messages:
            exchange.body = b""
            _answer(exchange, self._broker.begin_push(messages), partial(self._pushed, exchange, messages))
        else:
            exchange.respond(201, JSON_HEADERS, b"[]")

    def _pushed(self, exchange: Exchange, messages: list[NewMessage], outcomes: list[PushOutcome]) -> None:
        left = self._broker.finish_push(messages, outcomes)
        if left is not None:
            task = asyncio.ensure_future(left)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            _answer(exchange, task, partial(_respond_pushed, exchange, messages))
        else:
            _respond_pushed(exchange, messages, outcomes)

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

    def pop(self, exchange: Exchange) -> None:
        """Receive messages.

        Leases messages to a consumer, in a consumer group. With `wait=true` the request waits until a message is
        available or `timeout` is over. Returns 204 without a body if no message is available. Acknowledge each message
        with the `leaseId` before the lease expires.
        """
        asked = self._asked(exchange)
        request = named(asked.request, exchange)
        future = self._broker.begin_pop(request, asked.wait_seconds, asked.priority)
        exchange.on_left = future.cancel
        future.add_done_callback(partial(self._popped, exchange, request))

    def _asked(self, exchange: Exchange) -> Pop:
        place, query = place_in_path(exchange.params), exchange.query
        if len(query) <= _KEPT_BYTES:
            return self._recall_pop(place, query)
        return parse_pop(place, query, self._settings)

    def _popped(self, exchange: Exchange, request: PopRequest, future: asyncio.Future[PopResult]) -> None:
        if future.cancelled():
            return  # The client has disconnected.
        try:
            result = _received(self._broker, exchange, future)
            if result.messages:
                body = encode(pop_reply(request, result))
                exchange.respond(200, UNCACHED_JSON, body, partial(self._broker.give_back, result))
            else:
                exchange.respond(204, _EMPTY, b"")
        except Exception as error:
            exchange.respond(*error_response(error))

    # Next --------------------------------------------------------------------------------------------------

    def next(self, exchange: Exchange) -> None:
        """Settle messages and receive the next ones.

        Does the work of `ack/batch` and of a pop in one request. The response has two lines of JSON. The first line has
        the results of the settlements. It is sent soon after they are committed, also while the pop waits. The second
        line is the response of the pop: its messages, `null` if no message is available, or an object with `error` and
        `code`. A client that disconnects does not undo the settlements.
        """
        batch = decode_json(exchange.body or b"{}", NextBody, "body", ACK_TEXTS)
        self._check_number("acknowledgments", len(batch.acknowledgments))
        asked = self._asked(exchange)
        items = settlements_of(batch.acknowledgments, batch.consumer_group, "acknowledgments")
        settling = settle(exchange.identity, self._broker, items) if items else None
        _Next(self._broker, exchange, asked).start(settling)

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
        try:
            batch = _decode_ack_batch(exchange.body)
        except _UNDECODABLE:
            batch = decode_json(exchange.body, AckBatchBody, "body", ACK_TEXTS)
        self._check_number("acknowledgments", len(batch.acknowledgments))
        self._settle(exchange, batch.acknowledgments, batch.consumer_group, "acknowledgments")

    def _settle(self, exchange: Exchange, acks: Sequence[AckBody], group: str | None, where: str) -> None:
        items = settlements_of(acks, group, where)
        if items:
            _answer(exchange, settle(exchange.identity, self._broker, items), partial(_respond_settled, exchange))
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
        _answer(exchange, future, partial(_respond_renewed, exchange, lease_id))


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

    __slots__ = ("_asked", "_broker", "_exchange", "_line", "_popped", "_popping", "_request", "_settled", "_timer")

    def __init__(self, broker: Broker, exchange: Exchange, asked: Pop) -> None:
        self._broker = broker
        self._exchange = exchange
        self._asked = asked
        self._request = named(asked.request, exchange)
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
        settling.add_done_callback(self._on_settled)
        if self._asked.wait_seconds:
            self._pop()

    def _on_settled(self, settling: asyncio.Future[list[SettleOutcome]]) -> None:
        try:
            outcomes = settling.result()
        except Exception as error:
            self._exchange.on_left = None
            popping = self._popping
            if popping is not None and not popping.cancel() and not popping.cancelled() and not popping.exception():
                self._broker.give_back(popping.result())
            self._exchange.respond(*error_response(error))
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
        asked = self._asked
        try:
            popping = self._broker.begin_pop(self._request, asked.wait_seconds, asked.priority)
        except HarkError as error:
            popping = asyncio.get_running_loop().create_future()
            popping.set_exception(error)
        self._popping = popping
        self._exchange.on_left = popping.cancel
        popping.add_done_callback(self._on_popped)

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
            lost = partial(self._broker.give_back, result)
        except Exception as error:
            known = known_error(error)
            retry = {} if known.retry_after is None else {"retryAfter": known.retry_after}
            line = encode({**error_body(known), "status": known.status, **retry})
        if b"\n" in line or b"\r" in line:
            line = line.replace(b"\n", b" ").replace(b"\r", b" ")
        self._exchange.respond(200, _LINES_HEADERS, b"%b%b\n" % (self._line, line), lost)


def _answer(exchange: Exchange, future: asyncio.Future[Any], respond: Callable[[Any], None]) -> None:
    """Respond to a request when a future is done: by `respond` with its result, or with its error."""

    def done(future: asyncio.Future[Any]) -> None:
        try:
            respond(future.result())
        except Exception as error:
            exchange.respond(*error_response(error))

    future.add_done_callback(done)


def _respond_pushed(exchange: Exchange, messages: list[NewMessage], outcomes: list[PushOutcome]) -> None:
    if outcomes[0].code == "queue_full" and all(one.code == "queue_full" for one in outcomes):
        raise Overloaded(outcomes[0].error or "the queue is full (option maxSize); retry later", code="queue_full")
    answers = [
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
    exchange.respond(201, JSON_HEADERS, encode(answers))


def _respond_settled(exchange: Exchange, outcomes: list[SettleOutcome]) -> None:
    exchange.respond(200, JSON_HEADERS, encode(ack_answers(outcomes)))


def _respond_renewed(exchange: Exchange, lease_id: str, outcome: RenewOutcome) -> None:
    exchange.respond(200, JSON_HEADERS, encode(extended_lease(lease_id, outcome)))
