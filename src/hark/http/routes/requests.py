"""Routing, and helpers of all endpoints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple, TypeVar, cast

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from hark.api.operations import WEBSOCKET
from hark.api.types.base import encode
from hark.broker import Broker
from hark.errors import HarkError, InvalidInput, MethodNotAllowed, NotFound
from hark.http.checks import check_name, check_nesting_in_turns, check_text, decode_json, path_segments, query_params
from hark.http.exchange import Exchange, exchange_of
from hark.http.responses import Payloads, body_limit, decode_in_turns, too_large
from hark.http.routes.table import Failure, Operation, Table
from hark.settings import Settings

T = TypeVar("T")

NO_QUEUE = Failure(404, "queue_not_found")
NO_GROUP = Failure(404, "group_not_found")
NO_MESSAGE = Failure(404, "message_not_found")
TOO_MANY = Failure(400, "batch_too_large")
NOT_SUPPORTED = Failure(501, "not_supported")
MAINTENANCE = Failure(503, "maintenance")
QUEUE_FULL = Failure(429, "queue_full")
ANOTHER_MODE = Failure(409, "group_mode_conflict")


def broker_of(request: Request) -> Broker:
    """Return the broker of this server."""
    return cast(Broker, request.app.broker)


def settings_of(request: Request) -> Settings:
    """Return the settings of this server."""
    return cast(Settings, request.app.settings)


def name_in_path(request: Request, name: str) -> str:
    """Return a checked name from the path."""
    return check_name(request.path_params[name], name)


def text_in_path(request: Request, name: str) -> str:
    """Return an id from the path. An unknown id is not an error of the request."""
    return check_text(request.path_params[name], name)


async def read_body(request: Request) -> bytes:
    """Return the whole body; raises an error if it is larger than its operation allows, or nested too deeply."""
    limit = body_limit(exchange_of(request).operation, settings_of(request))
    declared = request.headers.get("content-length", "")
    body = bytearray()
    if not (declared.isdecimal() and int(declared) > limit):
        try:
            async for chunk in request.stream():
                body += chunk
                if len(body) > limit:
                    break
            else:
                whole = bytes(body)
                await check_nesting_in_turns(whole)
                return whole
        except ClientDisconnect:
            raise InvalidInput("the client disconnected before the request body was complete") from None
    raise too_large(limit, settings_of(request).max_body_bytes)


async def read_json(
    request: Request,
    type: type[T],
    what: str,
    texts: Mapping[str, str] | None = None,
    payloads: Payloads | None = None,
) -> T:
    """Return the decoded body."""
    return await decode_in_turns(await read_body(request), type, what, texts, payloads)


async def read_optional_json(request: Request, type: type[T], what: str) -> T:
    """Return the decoded body; an empty body means all defaults."""
    return decode_json(await read_body(request) or b"{}", type, what)


def query_of(request: Request) -> dict[str, str]:
    """Return the query parameters. (starlette would use the last of repeated parameters, and accept invalid UTF-8.)"""
    return query_params(request.scope["query_string"])


def now(request: Request) -> int:
    """Return the current time for ages in responses. (Due times depend only on the clock of the engine.)"""
    return broker_of(request).delivery.timers.now()


def reply(content: object, status: int = 200) -> Response:
    """Return a JSON response. `msgspec.Raw` parts are sent byte for byte."""
    return Response(encode(content), status, media_type="application/json")


MAX_PAGE_BYTES = 64 * 2**20
"""Maximum size of all values in a page, in bytes: a page is encoded as a whole."""


def check_page(values: Iterable[msgspec.Raw | bytes | None]) -> None:
    """Reject a page whose values are too large to be sent together."""
    size = sum(memoryview(value).nbytes for value in values if value is not None)
    if size > MAX_PAGE_BYTES:
        raise InvalidInput(
            f"the values of this page have {size} bytes, over the limit of {MAX_PAGE_BYTES}; ask for fewer at once",
            code="batch_too_large",
        )


PathParams = Mapping[str, str | list[str]]

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
        for order, (path, operations) in enumerate(table.items()):
            pattern = _Pattern(order, path, operations)
            same = self._rests if pattern.rest else self._patterns.setdefault(len(pattern.words), [])
            same.append(pattern)
        self._exact = {path.encode(): self._search(path.encode()) for path in table if "{" not in path}
        self._recall = lru_cache(_KEPT_PATHS)(self._search)

    def find(self, exchange: Exchange) -> Found:
        """Return the operation of a request; raises `NotFound` or `MethodNotAllowed`."""
        path = exchange.raw_path
        methods = self._exact.get(path)
        if methods is None:
            methods = self._recall(path) if len(path) <= _KEPT_BYTES else self._search(path)
        found = methods.get(exchange.method)
        if found is None:
            raise _no_operation(exchange, methods)
        return found

    def _search(self, path: bytes) -> Mapping[str, Found]:
        """Return the operations of a path, by method."""
        segments = path_segments(path)
        methods: dict[str, Found] = {}
        for pattern in self._candidates(len(segments)):
            params = pattern.match(segments)
            if params is not None:
                for method, operation in pattern.operations.items():
                    methods.setdefault(method, Found(operation, params, pattern.path))
        return methods

    def _candidates(self, number: int) -> Iterator[_Pattern]:
        found = [*self._patterns.get(number, ()), *(one for one in self._rests if len(one.words) < number)]
        return iter(sorted(found, key=lambda pattern: pattern.order))


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
