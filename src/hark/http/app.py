"""The application: the table of all routes, the search for the operation of a request, and its answer."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import cached_property, lru_cache
from time import perf_counter
from typing import Any, NamedTuple, cast

from hark.access.authenticator import Authenticates, Open
from hark.api.operations import WEBSOCKET
from hark.broker import Broker
from hark.errors import HarkError, InvalidInput, MethodNotAllowed, NotFound
from hark.http import responses
from hark.http.admission import Edge
from hark.http.checks import path_segments
from hark.http.exchange import EXCHANGE, NO_HEADERS, Exchange, Header, Lost, Requests, current_exchange
from hark.http.hot import HotRoutes
from hark.http.keyval import keys, queue
from hark.http.keyval.queue import QueueRoutes
from hark.http.keyval.watch import KeyvalStreams
from hark.http.metrics import Metrics
from hark.http.openapi import document
from hark.http.responses import Event, Receive, Response, Scope, Send, encode
from hark.http.routes import dead_letters, groups, messages, queues, schedules, status, system, transactions
from hark.http.routes.status import SampleEvents
from hark.http.routes.tasks import TaskRoutes
from hark.http.routing import Call, Endpoint, Operation, PathParams, Table
from hark.http.sse import PING_SECONDS, EventStreams
from hark.http.websocket import WebSockets
from hark.settings import Settings

_TABLES = (
    system.TABLE,
    queues.TABLE,
    status.TABLE,
    messages.TABLE,
    groups.TABLE,
    schedules.TABLE,
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
    )
    tables = [*(routes.table() for routes in bound), *_TABLES]
    return {path: operations for table in tables for path, operations in table.items()}


# Paths -----------------------------------------------------------------------------------------------------

_REST = ":path}"
_KEPT_PATHS = 4096
_KEPT_BYTES = 512
"""Consumers repeat the same paths, so the results of short paths are cached."""


class Found(NamedTuple):
    """The operation of a request, the parameters in its path, and the matching route pattern."""

    operation: Operation
    params: PathParams
    route: str


class Router:
    """Finds the operation of a request in a table of routes."""

    def __init__(self, table: Table) -> None:
        self._patterns: dict[int, list[_Pattern]] = {}
        self._rests: list[_Pattern] = []
        for order, (path, methods) in enumerate(table.items()):
            pattern = _Pattern(order, path, methods)
            (self._rests if pattern.rest else self._patterns.setdefault(len(pattern.words), [])).append(pattern)
        exact = {path.encode(): self._search(path.encode()) for path in table if "{" not in path}
        self.exact = {(method, path): found for path, methods in exact.items() for method, found in methods.items()}
        """The operations of paths without parameters, by method and path."""
        self._recall = lru_cache(_KEPT_PATHS)(self._search)

    def find(self, exchange: Exchange) -> Found:
        """Return the operation of a request; raises `NotFound` or `MethodNotAllowed`."""
        path = exchange.raw_path
        methods = self._recall(path) if len(path) <= _KEPT_BYTES else self._search(path)
        found = methods.get(exchange.method)
        if found is None:
            raise _no_operation(exchange, methods)
        return found

    def _search(self, path: bytes) -> Mapping[str, Found]:
        """Return the operations of a path, by method."""
        segments = path_segments(path)
        longer = [one for one in self._rests if len(one.words) < len(segments)]
        methods: dict[str, Found] = {}
        for pattern in sorted([*self._patterns.get(len(segments), ()), *longer], key=lambda pattern: pattern.order):
            params = pattern.match(segments)
            if params is not None:
                for method, operation in pattern.operations.items():
                    methods.setdefault(method, Found(operation, params, pattern.path))
        return methods


class _Pattern:
    """One path of the table."""

    def __init__(self, order: int, path: str, operations: Mapping[str, Operation]) -> None:
        self.order = order
        self.path = path
        words = path.split("/")[1:]
        self.rest = words.pop()[1:].removesuffix(_REST) if path.endswith(_REST) else ""
        self.words = [(word[1:-1], True) if word.startswith("{") else (word, False) for word in words]
        self.operations = dict(operations)
        # A HEAD request must not receive messages, so raw and hot operations do not support it.
        if (get := self.operations.get("GET")) is not None and not (get.raw or get.hot):
            self.operations["HEAD"] = get

    def match(self, segments: list[str]) -> PathParams | None:
        """Return the parameters of a path of the right length, or None if it does not match."""
        params: dict[str, str | list[str]] = {}
        for segment, (word, is_name) in zip(segments, self.words, strict=False):
            if is_name:
                params[word] = segment
            elif segment != word:
                return None
        if self.rest:
            params[self.rest] = segments[len(self.words) :]
        return params


def _no_operation(exchange: Exchange, methods: Mapping[str, Found]) -> HarkError:
    path = exchange.path
    if exchange.method == WEBSOCKET:
        return NotFound(
            f"no such route: {path} does not accept WebSockets; connect to /api/v1/consume", code="route_not_found"
        )
    if not methods:
        return NotFound(
            f"no such route: {exchange.method} {path}; GET /openapi.json lists the routes", code="route_not_found"
        )
    if WEBSOCKET in methods:
        return InvalidInput(f"{path} accepts only WebSocket connections; connect with ws:// or wss://")
    allow = ", ".join(methods)
    return MethodNotAllowed(f"{path} does not support {exchange.method}; use {allow}", allow=allow)


# The application -------------------------------------------------------------------------------------------

# The wire calls `admit` when the head of a request has arrived, and `answer_now` when the request is complete. Hot
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
        self.requests = Requests()
        self.metrics = Metrics(broker, self.requests, settings.workers)
        self.table = all_routes(broker, settings, ping_seconds)
        self.edge = Edge(settings, authenticator or Open(), Router(self.table), self.requests)
        self.admit = self.edge.admit
        self.is_revoked = self.edge.is_revoked

    @cached_property
    def openapi(self) -> bytes:
        """The OpenAPI document as JSON."""
        return encode(document(self.table))

    # For the wire ------------------------------------------------------------------------------------------

    def body_limit(self, exchange: Exchange) -> int:
        """Return the maximum size of the body of a request, in bytes."""
        return (
            self.settings.max_body_bytes
            if exchange.refusal
            else responses.body_limit(exchange.operation, self.settings)
        )

    def answer_now(self, exchange: Exchange) -> bool:
        """Answer a complete request that is refused or hot; False if it is for `__call__`."""
        if exchange.refusal is None and not exchange.operation.hot:
            return False
        token = current_exchange.set(exchange)
        try:
            if exchange.refusal is not None:
                exchange.carrier.respond(exchange, *self.edge.refuse(exchange, exchange.refusal))
            else:
                headers, exchange.headers = exchange.headers, NO_HEADERS  # Many requests wait for long without them.
                exchange.operation.endpoint(exchange)
                if exchange.waits:
                    exchange.headers = self.edge.kept_headers(headers)
        except Exception as error:
            exchange.carrier.respond(exchange, *responses.error_response(error))
        finally:
            current_exchange.reset(token)
        return True

    @staticmethod
    def begin(exchange: Exchange, status: int, headers: Sequence[Header]) -> Sequence[Header]:
        """Count a response, and return its headers with those that the edge adds."""
        exchange.status = status
        answers = exchange.answers
        if answers is not None:
            seconds, took = answers.seconds, perf_counter() - exchange.started
            seconds.counts[bisect_left(seconds.bounds, took)] += 1  # As `Histogram.add` does.
            seconds.sum += took
            if status in answers.statuses or answers.requests.admits_status():
                answers.statuses[status] = answers.statuses.get(status, 0) + 1
        if exchange.note is not None:
            exchange.note(status)
        if exchange.extra:
            there = {name for name, _ in headers}
            return (*headers, *(header for header in exchange.extra if header[0] not in there))
        return headers

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
            return (
                responses.send_response(send, refusal)
                if scope["type"] == "http"
                else responses.refuse_websocket(receive, send, refusal)
            )
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
            event = {**event, "headers": list(App.begin(exchange, event["status"], event.get("headers", ())))}
        elif event["type"] == "websocket.accept":
            App.begin(exchange, 101, ())
        return send(event)

    return sending


class _Answered:
    """Carries the response of a hot operation to a coroutine, in one part or two."""

    def __init__(self) -> None:
        self.parts: asyncio.Queue[tuple[Response, Lost | None, bool]] = asyncio.Queue()

    def respond(
        self, exchange: Exchange, status: int, headers: tuple[Header, ...], body: bytes, lost: Lost | None = None
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
        exchange.body = await responses.read_whole(scope, receive, settings)
        cast(Callable[[Exchange], None], exchange.operation.endpoint)(exchange)
    except Exception as error:
        await responses.send_failure(send, error)
        return
    watch = asyncio.create_task(responses.wait_until_left(receive))
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
