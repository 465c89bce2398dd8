"""The request `next`: settlements and a pop, answered with two lines."""

from __future__ import annotations

import asyncio
from functools import partial

import msgspec

from hark.api.types.delivery import AckBatchBody, AckBody
from hark.batching import when_done
from hark.broker import Broker
from hark.errors import HarkError
from hark.http.exchange import Exchange
from hark.http.items import ack_answers
from hark.http.pops import Pop, named, pop_reply, received
from hark.http.responses import NO_STORE, NOSNIFF, encode, error_body, fail, known_error
from hark.http.routing import LINES
from hark.model import PopResult, SettleOutcome

_FIRST_LINE_SECONDS = 0.05
"""How long the first line can wait for the second: most often both go out with one write."""
_LINES_HEADERS = ((b"content-type", LINES.encode()), NOSNIFF, NO_STORE)


class NextBody(AckBatchBody, gc=False, rename="camel"):
    """The messages to settle before the next ones are received. They can be left out."""

    acknowledgments: list[AckBody] = msgspec.field(default_factory=list)


class Next:
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

    def start(self, settling: asyncio.Future[list[SettleOutcome]]) -> None:
        """Answer when both are done."""
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
            fail(self._exchange, error)
            return
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
        if self._exchange.carrier.begin_response(self._exchange, 200, _LINES_HEADERS, self._line):
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
            result = received(self._broker, self._exchange, popping)
            line = encode(pop_reply(self._request, result) if result.messages else None)
            lost = partial(self._broker.release, result.lease_id) if result.lease_id else None
        except Exception as error:
            known = known_error(error)
            retry = {} if known.retry_after is None else {"retryAfter": known.retry_after}
            line = encode({**error_body(known), "status": known.status, **retry})
        if b"\n" in line or b"\r" in line:
            line = line.replace(b"\n", b" ").replace(b"\r", b" ")
        self._exchange.carrier.respond(self._exchange, 200, _LINES_HEADERS, b"%b%b\n" % (self._line, line), lost)
