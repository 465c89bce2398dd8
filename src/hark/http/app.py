"""The table of all routes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import cached_property
from typing import Any, cast

from hark.access.authenticator import Authenticates, Open
from hark.broker import Broker
from hark.errors import HarkError
from hark.http.admission import Edge
from hark.http.exchange import EXCHANGE, NO_HEADERS, NO_ROUTE, Exchange, Header, Lost, Requests, current_exchange
from hark.http.hot import HotRoutes
from hark.http.keyval import keys, queue
from hark.http.keyval.queue import QueueRoutes
from hark.http.keyval.watch import KeyvalStreams
from hark.http.metrics import Metrics
from hark.http.openapi import document
from hark.http.responses import (
    Event,
    Receive,
    Response,
    Scope,
    Send,
    body_limit,
    encode,
    error_response,
    read_whole,
    refuse_websocket,
    send_failure,
    send_response,
    wait_until_left,
)
from hark.http.routes import dead_letters, groups, messages, queues, status, system, transactions
from hark.http.routes.flows import FlowRoutes
from hark.http.routes.status import SampleEvents
from hark.http.routes.tasks import TaskRoutes
from hark.http.routing import Call, Endpoint, Router, Table
from hark.http.sse import PING_SECONDS, EventStreams
from hark.http.websocket import WebSockets
from hark.settings import Settings

_TABLES = (
    system.TABLE,
    queues.TABLE,
    status.TABLE,
    messages.TABLE,
    groups.TABLE,
    dead_letters.TABLE,
    transactions.TABLE,
    queue.TABLE,
    keys.TABLE,
)


def all_routes(broker: Broker, settings: Settings, ping_seconds: float) -> Table:
    """Return all routes; the routes that are bound to a broker come first."""
    bound = (
        HotRoutes(broker, settings),
        EventStreams(broker, settings, ping_seconds),
        SampleEvents(broker, settings, ping_seconds),
        WebSockets(broker, settings, ping_seconds),
        QueueRoutes(broker, settings),
        KeyvalStreams(broker, settings),
        TaskRoutes(broker, settings),
        FlowRoutes(broker, settings),
    )
    tables = [*(routes.table() for routes in bound), *_TABLES]
    return {path: operations for table in tables for path, operations in table.items()}


# The wire calls `admit` when the head of a request has arrived, and `serve` when the request is complete. Hot
# operations answer by themselves. All others are ASGI applications, and so is `App` as a whole, for clients in the same
# process.


class App:
    """The HTTP application of a server. Endpoints find it as `call.app`."""

    def __init__(
        self,
        broker: Broker,
        settings: Settings,
        ping_seconds: float = PING_SECONDS,
        *,
        authenticator: Authenticates | None = None,
        number: int = 0,
    ) -> None:
        self.number = number
        """Which of several processes this is, from 0."""
        self.broker = broker
        self.settings = settings
        self.edge = Edge(settings, authenticator or Open())
        self.requests = Requests()
        self.metrics = Metrics(broker, self.requests, settings.workers)
        self.table = all_routes(broker, settings, ping_seconds)
        self._router = Router(self.table)

    @cached_property
    def openapi(self) -> bytes:
        """The OpenAPI document as JSON."""
        return encode(document(self.table))

    # For the wire ------------------------------------------------------------------------------------------

    def admit(self, exchange: Exchange) -> None:
        """Find the operation of a request and check that the caller may use it. Otherwise note the refusal."""
        try:
            exchange.route = NO_ROUTE
            exchange.operation, exchange.params, exchange.route = self._router.find(exchange)
            self.edge.admit(exchange)
        except HarkError as error:
            exchange.refusal = error
        route, method = exchange.route, exchange.method
        exchange.answers = self.requests.routes.get((route, method)) or self.requests.admit(route, method)

    def is_revoked(self, exchange: Exchange) -> bool:
        """Return whether the token of a stream is not valid any more."""
        return self.edge.is_revoked(exchange)

    def body_limit(self, exchange: Exchange) -> int:
        """Return the maximum size of the body of a request, in bytes."""
        return self.settings.max_body_bytes if exchange.refusal else body_limit(exchange.operation, self.settings)

    def answer_now(self, exchange: Exchange) -> bool:
        """Answer a complete request that is refused or hot; False if it is for `__call__`."""
        if exchange.refusal is None and not exchange.operation.hot:
            return False
        token = current_exchange.set(exchange)
        try:
            if exchange.refusal is not None:
                exchange.respond(*self.edge.refuse(exchange, exchange.refusal))
            else:
                headers, exchange.headers = exchange.headers, NO_HEADERS  # Many requests wait for long without them.
                exchange.operation.endpoint(exchange)
                if exchange.waits:
                    exchange.headers = self.edge.kept_headers(headers)
        except Exception as error:
            exchange.respond(*error_response(error))
        finally:
            current_exchange.reset(token)
        return True

    # ASGI --------------------------------------------------------------------------------------------------

    def admitted(self, scope: Scope) -> Exchange:
        """Return the exchange of a scope. If it does not come from the wire, it is made and admitted first."""
        exchange: Exchange | None = scope.get(EXCHANGE)
        if exchange is None:
            exchange = scope[EXCHANGE] = Exchange.of(scope)
            self.admit(exchange)
        return exchange

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[object]:
        """Serve one request. (It is not a coroutine itself, because each level of coroutines costs time.)"""
        exchange = self.admitted(scope)
        current_exchange.set(exchange)
        send = _beginning(exchange, send)
        if exchange.refusal is not None:
            refusal = self.edge.refuse(exchange, exchange.refusal)
            return send_response(send, refusal) if scope["type"] == "http" else refuse_websocket(receive, send, refusal)
        operation = exchange.operation
        if operation.hot:
            return _answer_hot(exchange, scope, receive, send, self.settings)
        scope["path_params"] = exchange.params
        if operation.raw:
            return cast(Awaitable[object], operation.endpoint(scope, receive, send))
        return Call(self, scope, receive).answer(cast(Endpoint, operation.endpoint), send)


def _beginning(exchange: Exchange, send: Send) -> Send:
    """Return a `send` that counts the response and completes its headers."""

    def sending(event: Event) -> Coroutine[Any, Any, None]:
        if "status" in event:  # Only the first event of a response has a status.
            event = {**event, "headers": list(exchange.begin(event["status"], event.get("headers", ())))}
        elif event["type"] == "websocket.accept":
            exchange.begin(101, ())
        return send(event)

    return sending


class _Answered:
    """Carries the response of a hot operation to a coroutine, in one part or two."""

    def __init__(self) -> None:
        self.parts: asyncio.Queue[tuple[Response, Lost | None, bool]] = asyncio.Queue()

    def respond(
        self, exchange: Exchange, status: int, headers: tuple[Header, ...], body: bytes, lost: Lost | None
    ) -> None:
        """Keep the response, if the client is there."""
        if not exchange.gone:
            self.parts.put_nowait(((status, headers, body), lost, False))
        elif lost is not None:
            lost()

    def begin_response(self, exchange: Exchange, status: int, headers: tuple[Header, ...], body: bytes) -> bool:
        """Keep the first part of the response."""
        if not exchange.gone:
            self.parts.put_nowait(((status, headers, body), None, True))
        return True


async def _answer_hot(exchange: Exchange, scope: Scope, receive: Receive, send: Send, settings: Settings) -> None:
    """Serve a hot operation over ASGI."""
    carrier = exchange.carrier = _Answered()
    try:
        exchange.body = await read_whole(scope, receive, settings)
        cast(Callable[[Exchange], None], exchange.operation.endpoint)(exchange)
    except Exception as error:
        await send_failure(send, error)
        return
    watch = asyncio.create_task(wait_until_left(receive))
    more = True
    try:
        while more:
            part = asyncio.ensure_future(carrier.parts.get())
            await asyncio.wait([watch, part], return_when=asyncio.FIRST_COMPLETED)
            if not part.done():
                part.cancel()
                return
            (status, headers, body), lost, more = part.result()
            if watch.done() and lost is not None:
                lost()
            if not exchange.status:
                length = () if more or status == 204 else ((b"content-length", b"%d" % len(body)),)
                await send({"type": "http.response.start", "status": status, "headers": [*headers, *length]})
            await send({"type": "http.response.body", "body": body, "more_body": more})
    finally:
        watch.cancel()
        if more:
            exchange.leave()
