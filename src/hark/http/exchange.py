"""One HTTP request with its response: what the wire has parsed, what the edge knows of it, and the way to answer it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import quote, unquote

from hark.access.identity import NOBODY, Identity
from hark.errors import HarkError
from hark.http.measuring import Answers
from hark.http.routes.table import WEBSOCKET, Operation

if TYPE_CHECKING:
    from hark.http.routes.router import PathParams

Header = tuple[bytes, bytes]
Lost = Callable[[], None]
NO_HEADERS: Mapping[bytes, bytes] = {}
EXCHANGE = "hark.exchange"
"""Key of the exchange in the scope of an ASGI request."""


class Carrier(Protocol):
    """Carries a complete response to the client."""

    def respond(
        self, exchange: Exchange, status: int, headers: tuple[Header, ...], body: bytes, lost: Lost | None
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
        self, exchange: Exchange, status: int, headers: tuple[Header, ...], body: bytes, lost: Lost | None
    ) -> None:
        """Drop the response."""
        del exchange, status, headers, body
        if lost is not None:
            lost()

    def begin_response(self, exchange: Exchange, status: int, headers: tuple[Header, ...], body: bytes) -> bool:
        """Drop the first part of a response."""
        del exchange, status, headers, body
        return True


_ENDED = _Ended()


class Exchange:
    """A request and its response. It is made for each request, so it has only what every request needs."""

    __slots__ = (
        "answers",
        "audit_target",
        "body",
        "carrier",
        "client",
        "extra",
        "given_id",
        "gone",
        "headers",
        "identity",
        "keep_alive",
        "method",
        "note",
        "on_left",
        "operation",
        "params",
        "query",
        "raw_path",
        "refusal",
        "route",
        "secure",
        "size",
        "started",
        "status",
        "trace_context",
        "version",
    )

    carrier: Carrier
    operation: Operation
    params: PathParams

    def __init__(
        self,
        method: str,
        raw_path: bytes,
        query: bytes,
        headers: Mapping[bytes, bytes],
        client: tuple[str, int] | None,
        *,
        secure: bool,
        version: str = "1.1",
    ) -> None:
        self.method = method
        self.raw_path = raw_path
        self.query = query
        self.headers = headers
        """Headers by lower-case name."""
        self.client = client
        self.secure = secure
        self.version = version
        self.body = b""
        self.keep_alive = True
        self.started = perf_counter()
        # What the edge finds out.
        self.route = ""
        self.identity: Identity = NOBODY
        self.trace_context: str | None = None
        self.given_id: str | None = None
        """The request id, once it is known."""
        self.audit_target: dict[str, object] | None = None
        """Details of the target of an action that only the body names."""
        self.refusal: HarkError | None = None
        """Why the request is not admitted."""
        # The response.
        self.answers: Answers | None = None
        self.note: Callable[[int], None] | None = None
        """Called with the status when the response begins."""
        self.extra: tuple[Header, ...] = ()
        """Headers that the edge adds."""
        self.status = 0
        """0: the response has not begun."""
        self.size = 0
        self.gone = False
        """Whether the client has disconnected."""
        self.on_left: Callable[[], object] | None = None
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

    def begin(self, status: int, headers: Sequence[Header]) -> Sequence[Header]:
        """Count the response, and return its headers with those that the edge adds."""
        self.status = status
        if self.answers is not None:
            self.answers.add(status, perf_counter() - self.started)
        if self.note is not None:
            self.note(status)
        if self.extra:
            there = {name for name, _ in headers}
            return (*headers, *(header for header in self.extra if header[0] not in there))
        return headers

    def respond(self, status: int, headers: tuple[Header, ...], body: bytes, lost: Lost | None = None) -> None:
        """Send a response. `lost` is called if the client does not receive it."""
        self.carrier.respond(self, status, headers, body, lost)

    def begin_response(self, status: int, headers: tuple[Header, ...], body: bytes) -> bool:
        """Send the first part of a response; `respond` sends the rest. False: send it as a whole."""
        return self.carrier.begin_response(self, status, headers, body)

    def note_target(self, **said: object) -> None:
        """Add details of the target of an action, for the audit log."""
        self.audit_target = {**(self.audit_target or {}), **said}

    def leave(self) -> None:
        """Note that the client has disconnected."""
        self.gone = True
        callback = self.on_left
        self.end()
        if callback is not None:
            callback()

    def end(self) -> None:
        """Release the connection. (Tasks that a request has started keep its exchange in their context.)"""
        self.on_left = None
        self.carrier = _ENDED


def exchange_of(asked: Mapping[str, Any]) -> Exchange:
    """Return the exchange of an ASGI scope or of a starlette request."""
    return cast(Exchange, asked[EXCHANGE])
