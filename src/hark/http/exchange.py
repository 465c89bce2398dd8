"""One HTTP request with its response: its parsed parts, its identity, its request id and its counters."""

from __future__ import annotations

import itertools
import logging
import os
import re
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import quote, unquote

import msgspec

from hark.access.tokens import ANONYMOUS, Identity
from hark.api.operations import WEBSOCKET
from hark.errors import HarkError
from hark.prometheus import CALL_SECONDS, Histogram

if TYPE_CHECKING:
    from hark.http.routing import Operation, PathParams

MOST_ROUTES = 100
"""Number of routes (with a method) that have separate counters; further routes are counted together as `other`."""
MOST_STATUSES = 400
"""Number of combinations of route, method and status with separate counters; further ones count as `other`."""
OTHER = "other"
NO_ROUTE = "none"
"""The route label of requests that match no route."""
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "WEBSOCKET"))


class Answers:
    """Counters of one route and method."""

    __slots__ = ("requests", "seconds", "statuses")

    def __init__(self, requests: Requests) -> None:
        self.requests = requests
        self.seconds = Histogram(CALL_SECONDS)
        self.statuses: dict[int, int] = {}


class Requests:
    """Request counters of one server process."""

    def __init__(self) -> None:
        self.routes: dict[tuple[str, str], Answers] = {}
        """Counters by route and method."""
        self.odd = 0
        """Responses beyond the number of separate status counters."""
        self._statuses = 0

    def admit(self, route: str, method: str) -> Answers:
        """Return the counters of a route that may be new. Unknown methods share one counter."""
        key = (route, method if method in _METHODS else OTHER)
        if key not in self.routes and len(self.routes) >= MOST_ROUTES:
            key = (OTHER, OTHER)
        return self.routes.setdefault(key, Answers(self))

    def admits_status(self) -> bool:
        """Return whether one more status of a route gets a counter of its own; otherwise count it as odd."""
        if self._statuses < MOST_STATUSES:
            self._statuses += 1
            return True
        self.odd += 1
        return False


Header = tuple[bytes, bytes]
Lost = Callable[[], object]
NO_HEADERS: Mapping[bytes, bytes] = {}
EXCHANGE = "hark.exchange"
"""Key of the exchange in the scope of an ASGI request."""


class Carrier(Protocol):
    """Carries a complete response to the client."""

    def respond(
        self, exchange: Exchange, status: int, headers: tuple[Header, ...], body: bytes, lost: Lost | None = None
    ) -> None:
        """Send a response, or the rest of it after `begin_response`.

        `lost` is called if the client disconnects before it has received the whole response.
        """

    def begin_response(self, exchange: Exchange, status: int, headers: tuple[Header, ...], body: bytes) -> bool:
        """Send the first part of a response; False if the client can only receive a response as a whole.

        `respond` sends the rest; its status and headers do not matter then.
        """


class _Ended:
    """The carrier of an exchange that has ended."""

    def respond(
        self, exchange: Exchange, status: int, headers: tuple[Header, ...], body: bytes, lost: Lost | None = None
    ) -> None:
        """Drop the response."""
        del exchange, status, headers, body
        if lost is not None:
            lost()

    def begin_response(self, exchange: Exchange, status: int, headers: tuple[Header, ...], body: bytes) -> bool:
        """Drop the first part of a response."""
        del exchange, status, headers, body
        return True


ENDED = _Ended()


class Exchange(msgspec.Struct, eq=False):
    """A request and its response. It is made for each request, so it has only what every request needs."""

    method: str
    raw_path: bytes
    query: bytes
    headers: Mapping[bytes, bytes]
    """Headers by lower-case name."""
    client: tuple[str, int] | None
    secure: bool
    version: str = "1.1"
    body: bytes = b""
    reserved_bytes: int = 0
    """Bytes of the body that count as bytes in flight until the request has ended."""
    keep_alive: bool = True
    waits: bool = False
    """Whether the request waits for messages, so that its response can take long."""
    started: float = msgspec.field(default_factory=perf_counter)
    # What the edge finds out.
    operation: Operation = cast(Any, None)
    """It is there, like `params`, unless the request is refused."""
    params: PathParams = cast(Any, None)
    route: str = NO_ROUTE
    identity: Identity = ANONYMOUS
    trace_context: str | None = None
    given_id: str | None = None
    """The request id, once it is known."""
    audit_target: dict[str, object] | None = None
    """Details of the target of an action that only the body names."""
    refusal: HarkError | None = None
    """Why the request is not admitted."""
    # The response.
    carrier: Carrier = ENDED
    answers: Answers | None = None
    note: Callable[[int], None] | None = None
    """Called with the status when the response begins."""
    extra: tuple[Header, ...] = ()
    """Headers that the edge adds."""
    status: int = 0
    """0: the response has not begun."""
    size: int = 0
    gone: bool = False
    """Whether the client has disconnected."""
    on_left: Callable[[], object] | None = None
    """Called when the client disconnects before the response."""

    @classmethod
    def of(cls, scope: Mapping[str, Any]) -> Exchange:
        """Return the exchange of an ASGI scope that does not come from the wire."""
        raw_path = scope.get("raw_path") or quote(scope["path"]).encode()
        method = scope["method"] if scope["type"] == "http" else WEBSOCKET
        secure = scope.get("scheme") in ("https", "wss")
        headers = dict(scope["headers"])
        return cls(method, raw_path, scope["query_string"], headers, scope.get("client"), secure=secure)

    @property
    def path(self) -> str:
        """The path, percent-decoded."""
        return unquote(self.raw_path.decode("latin-1"))

    def note_target(self, **target: object) -> None:
        """Add details of the target of an action, for the audit log."""
        self.audit_target = {**(self.audit_target or {}), **target}

    def leave(self) -> None:
        """Note that the client has disconnected."""
        self.gone = True
        self.carrier = ENDED
        callback, self.on_left = self.on_left, None
        if callback is not None:
            callback()


def exchange_of(scope: Mapping[str, Any]) -> Exchange:
    """Return the exchange of an ASGI scope."""
    return cast(Exchange, scope[EXCHANGE])


HEADER = b"x-request-id"

_GIVEN = re.compile(rb"[A-Za-z0-9._-]{1,128}")
_numbers = itertools.count(1)
_process = os.urandom(6).hex()
"""Prefix of the ids of this process, so that ids of several servers differ."""

current_exchange: ContextVar[Exchange | None] = ContextVar("hark_request", default=None)
"""The current request. (Its id is generated only when it is needed.)"""


def request_id_of(exchange: Exchange) -> str:
    """Return the id of a request: that of the client if it is 1 to 128 of `A-Z a-z 0-9 . _ -`, else a new one."""
    if exchange.given_id is None:
        given = exchange.headers.get(HEADER, b"")
        exchange.given_id = given.decode() if _GIVEN.fullmatch(given) else _new()
    return exchange.given_id


def current_request_id() -> str | None:
    """Return the id of the current request, or None."""
    exchange = current_exchange.get()
    return None if exchange is None else request_id_of(exchange)


def _new() -> str:
    # Hark does not use os.fork, so each process has its own prefix.
    return f"{_process}-{next(_numbers):x}"


class RequestIds(logging.Filter):
    """Adds the id of the current request to each log record as `request_id`; empty if there is none."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Accept every record."""
        record.request_id = current_request_id() or ""
        return True
