"""Routes: operations and their endpoints, calls of endpoints, and the search for the operation of a path."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
from starlette.responses import Response

from hark.access.identity import Identity
from hark.api import operations
from hark.api.operations import WEBSOCKET, Reach, Role
from hark.errors import HarkError, InvalidInput, MethodNotAllowed, NotFound
from hark.http import responses
from hark.http.checks import Payloads, check_name, check_text, decode_json, path_segments, query_params
from hark.http.exchange import Exchange, Header, exchange_of
from hark.http.params import Param
from hark.http.responses import Receive, Scope, Send, decode_in_turns, encode

if TYPE_CHECKING:
    from hark.http.app import App

T = TypeVar("T")

SMALL_BODY = 2**20
"""Maximum size of a body without payloads, in bytes."""
LARGE_BODY = 2**31
"""More than `max_body_bytes` can be."""

JSON = "application/json"
EVENTS = "text/event-stream"
LINES = "application/x-ndjson"


class Failure(NamedTuple):
    """An error response of an operation, in addition to those of every operation."""

    status: int
    code: str


NO_QUEUE = Failure(404, "queue_not_found")
NO_GROUP = Failure(404, "group_not_found")
NO_MESSAGE = Failure(404, "message_not_found")
TOO_MANY = Failure(400, "batch_too_large")
NOT_SUPPORTED = Failure(501, "not_supported")
MAINTENANCE = Failure(503, "maintenance")
QUEUE_FULL = Failure(429, "queue_full")
ANOTHER_MODE = Failure(409, "group_mode_conflict")


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One method of one path."""

    endpoint: Callable[..., Awaitable[object] | None]
    """A function from a call to an answer; an ASGI application if `raw`; a function of an exchange if `hot`."""
    role: Role | None
    """The lowest role that may call the operation; None: public, no token required."""
    reach: Reach
    query: tuple[Param, ...] = ()
    body: Any = None
    """The type of the request body, if there is one."""
    body_optional: bool = False
    """Whether an empty body counts as an empty object."""
    body_bytes: int = SMALL_BODY
    """Maximum size of the body, in bytes, if the setting `max_body_bytes` is not lower."""
    answer: Any = None
    """The type of the response body, or types by status; None: no body."""
    media: str = JSON
    """The media type of successful responses."""
    errors: tuple[Failure, ...] = ()
    raw: bool = False
    hot: bool = False
    """Whether the endpoint answers by itself, without a task: `Carrier.respond`, now or later."""

    @property
    def answers(self) -> Mapping[int, Any]:
        """The types of response bodies, by status."""
        return self.answer if isinstance(self.answer, Mapping) else {200: self.answer}


Table = Mapping[str, Mapping[str, Operation]]
"""Path patterns, each with an operation per HTTP method.

`{name}` matches one segment before decoding, so %2F is part of a name. `{name:path}` at the end matches one or more
remaining segments as a list. If two patterns match a path, the first one with the method counts.
"""
Bound = tuple[str, str, Operation]
"""Path, method and operation."""


def bind(
    operation: operations.Operation[Any], endpoint: Callable[..., Awaitable[object] | None], **output: Any
) -> Bound:
    """Bind an endpoint to an operation of the API, with its parameters, body, errors and further answers."""
    output.setdefault("answer", operation.answer())
    bound = Operation(endpoint=endpoint, role=operation.role, reach=operation.reach, **output)
    return operation.path, operation.method, bound


def table(*bound: Bound) -> Table:
    """Return the table of bound operations, in this order."""
    paths: dict[str, dict[str, Operation]] = {}
    for path, method, operation in bound:
        paths.setdefault(path, {})[method] = operation
    return paths


# Calls -----------------------------------------------------------------------------------------------------

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


class Call:
    """A request to an endpoint, and the server that it reached."""

    def __init__(self, app: App, scope: Scope, receive: Receive) -> None:
        self.app = app
        self.broker = app.broker
        self.engine = app.broker.engine
        self.settings = app.settings
        self.exchange: Exchange = exchange_of(scope)
        self.status = 200
        """Status of the response; an endpoint can set another one."""
        self.headers: tuple[Header, ...] = ()
        """Further headers of the response."""
        self._scope = scope
        self._receive = receive

    @property
    def identity(self) -> Identity:
        """The identity of the token."""
        return self.exchange.identity

    @cached_property
    def query(self) -> dict[str, str]:
        """The query parameters."""
        return query_params(self.exchange.query)

    def now(self) -> int:
        """Return the current time for ages in responses. (Due times depend only on the clock of the engine.)"""
        return self.broker.delivery.timers.now()

    def name(self, name: str) -> str:
        """Return a checked name from the path."""
        return check_name(str(self.exchange.params[name]), name)

    def id(self, name: str) -> str:
        """Return an id from the path. An unknown id is not an error of the request."""
        return check_text(str(self.exchange.params[name]), name)

    async def body(self) -> bytes:
        """Return the whole body; raises an error if it is larger than its operation allows, or nested too deeply."""
        return await responses.read_whole(self._scope, self._receive, self.settings)

    async def json(
        self, type: type[T], what: str, texts: Mapping[str, str] | None = None, payloads: Payloads | None = None
    ) -> T:
        """Return the decoded body."""
        return await decode_in_turns(await self.body(), type, what, texts, payloads)

    async def optional_json(self, type: type[T], what: str) -> T:
        """Return the decoded body; an empty body means all defaults."""
        return decode_json(await self.body() or b"{}", type, what)

    async def answer(self, endpoint: Endpoint, send: Send) -> None:
        """Call an endpoint, and send its answer. `msgspec.Raw` parts are sent byte for byte."""
        try:
            answer = await endpoint(self)
            body = b"" if isinstance(answer, Response) else encode(answer)
        except Exception as error:
            await responses.send_failure(send, error)
        else:
            if isinstance(answer, Response):
                await answer(self._scope, self._receive, send)
            else:
                await responses.send_response(send, (self.status, (responses.JSON_HEADER, *self.headers), body))


Endpoint = Callable[[Call], Awaitable[object]]
"""A function from a call to an answer, or to a response that is not JSON."""


# Paths -----------------------------------------------------------------------------------------------------

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
        for order, (path, methods) in enumerate(table.items()):
            pattern = _Pattern(order, path, methods)
            (self._rests if pattern.rest else self._patterns.setdefault(len(pattern.words), [])).append(pattern)
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
