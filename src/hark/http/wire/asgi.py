"""ASGI on a connection; the limits of a connection, and the bytes in flight of one server process."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple, cast

from hark.errors import HarkError, Overloaded, Unavailable
from hark.http.exchange import EXCHANGE, Exchange, Header
from hark.http.responses import Event, Scope, error_response
from hark.settings import Limits

if TYPE_CHECKING:
    from hark.http.wire.connection import Connection
    from hark.http.wire.server import Server

MAX_HEADERS = 100
MAX_HEADER_BYTES = 64 * 1024
"""Size limit of all headers of a request together."""
MAX_TARGET_BYTES = 256 * 1024
"""Size limit of path and query: a prefix poll sends the versions of up to a thousand keys."""
MAX_FRAMING_BYTES = 64 * 1024
"""Size limit of chunk sizes, chunk extensions and trailers beyond the size of the body itself."""
MIN_BODY_BYTES_PER_SECOND = 1024
"""The server rejects a body that arrives more slowly than this, averaged over `limits.body_timeout_seconds`."""
MAX_PIPELINED = 16
"""Number of complete requests that wait on a connection before the server stops reading from it."""
IDLE_SECONDS = 75.0
"""A connection without a request is closed after this time."""
MAX_LENGTH_DIGITS = 20
"""More digits than this in a Content-Length are leading zeros."""
LINGER_SECONDS = 5.0
"""After an early error response, the server reads and drops what the client still sends for this time."""
LINGER_BODIES = 4
"""It drops at most this many bodies of the largest size."""


class Problem(NamedTuple):
    """The reason to reject a request before it is read completely."""

    status: int
    code: str
    text: str
    retry_after: int | None = None


MALFORMED = Problem(400, "invalid_http", "the request is not valid HTTP/1.1")
HEAD_TOO_LARGE = Problem(
    431,
    "headers_too_large",
    f"the headers or the URL are too large: at most {MAX_HEADERS} headers with {MAX_HEADER_BYTES} bytes in total, and "
    f"{MAX_TARGET_BYTES} bytes of path and query",
)
FRAMING_TOO_LARGE = Problem(
    400, "invalid_http", "the chunk extensions and trailers of the request are too large; send larger chunks"
)
UNKNOWN_CODING = Problem(501, "not_supported", "the only supported transfer encoding is chunked")
SLOW = Problem(
    408,
    "request_timeout",
    "the request did not arrive in time (settings limits.header_timeout_seconds and limits.body_timeout_seconds); "
    "send it again",
)
TOO_MANY = Problem(
    503,
    "too_many_connections",
    "the server has too many connections (setting limits.max_connections); retry later, or reuse connections",
    1,
)


CODE = "too_many_bytes"
STEP = 256 * 1024
"""What is being received is counted in steps of this size."""
SMALL = 64 * 1024
"""Bodies and answers up to this size are not counted: there are at most `limits.max_connections` of them."""


class Budget:
    """Counts bytes in all and by subject. Requests without a subject have only the limit of the process."""

    def __init__(self, limits: Limits) -> None:
        self._most = limits.max_bytes_in_flight
        self._most_of_subject = limits.max_bytes_in_flight_per_identity
        self.used = 0
        self._by_subject: defaultdict[str, int] = defaultdict(int)

    def refusal(self, subject: str, size: int) -> HarkError | None:
        """Return the refusal if this number of further bytes is too large, else None."""
        if subject and self._by_subject.get(subject, 0) + size > self._most_of_subject:
            return Overloaded(
                "too many bytes of this token are in flight (setting limits.max_bytes_in_flight_per_identity); read "
                "the answers, send smaller requests, or retry later",
                code=CODE,
            )
        if self.used + size > self._most:
            return Unavailable(
                "too many bytes are in flight in this server process (setting limits.max_bytes_in_flight); retry later",
                code=CODE,
            )
        return None

    def add(self, subject: str, size: int) -> None:
        """Count bytes, also beyond the limits."""
        self.used += size
        if subject:
            self._by_subject[subject] += size

    def reserve(self, subject: str, reserved: int, size: int) -> int:
        """Count what is being received, in steps, and return the counted bytes. Raises if they are too many."""
        if size <= reserved:
            return reserved
        more = max(size - reserved, STEP)
        refusal = self.refusal(subject, more)
        if refusal is not None:
            raise refusal
        self.add(subject, more)
        return reserved + more

    def remove(self, subject: str, size: int) -> None:
        """Count bytes no longer."""
        self.used -= size
        if subject:
            self._by_subject[subject] -= size
            if not self._by_subject[subject]:
                del self._by_subject[subject]


class Writing(asyncio.Protocol):
    """The side of a connection that writes."""

    __slots__ = ("_drained", "_paused", "transport")

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._paused = False
        """Whether the buffer of the transport is full."""
        self._drained: asyncio.Future[None] | None = None

    async def drain(self) -> None:
        """Wait until the buffer has room or the connection is lost."""
        if self._paused and not self.transport.is_closing():
            if self._drained is None:
                self._drained = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._drained)

    def _end_drain(self) -> None:
        self._paused = False
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._drained = None


TRANSPORT = "hark.transport"
"""Key of the transport in the scope of a request, for streams that must know whether their client reads."""
_VERSION = {"version": "3.0", "spec_version": "2.4"}


def scope_of(exchange: Exchange, transport: asyncio.Transport, kind: str = "http") -> Scope:
    """Return the ASGI scope of a request."""
    secure = ("https", "wss") if exchange.secure else ("http", "ws")
    return {
        "type": kind,
        "asgi": _VERSION,
        "http_version": exchange.version,
        "method": exchange.method,
        "scheme": secure[kind == "websocket"],
        "path": exchange.path,
        "raw_path": exchange.raw_path,
        "query_string": exchange.query,
        "root_path": "",
        "headers": list(exchange.headers.items()),
        "client": exchange.client,
        "server": None,
        EXCHANGE: exchange,
        TRANSPORT: transport,
    }


class AsgiRun:
    """One request that an ASGI application serves."""

    def __init__(self, connection: Connection, exchange: Exchange, server: Server) -> None:
        self._connection = connection
        self._exchange = exchange
        self._server = server
        self._head: tuple[int, list[Header]] | None = None
        """The status and the headers, until the first part of the body."""
        self._chunked = self._complete = False
        self._read = False
        self._left: asyncio.Future[None] = server.loop.create_future()
        """Done when the client has disconnected or has the whole response."""

    def start(self) -> None:
        """Start the task that serves the request."""
        self._exchange.on_left = self._leave
        self._server.run(self._serve())

    async def _serve(self) -> None:
        exchange, connection = self._exchange, self._connection
        scope = scope_of(exchange, connection.transport)
        try:
            await self._server.asgi(scope, self.receive, self.send)
        except Exception as error:
            response = error_response(error)  # It logs the error.
            if not exchange.status and not exchange.gone:
                exchange.carrier.respond(exchange, *response)
                self._complete = True
        finally:
            if not self._complete and not exchange.gone:
                # What was sent is not a whole response, and only the end of the connection can say so.
                connection.transport.abort()
            self._leave()

    def _leave(self) -> None:
        if not self._left.done():
            self._left.set_result(None)

    async def receive(self) -> Event:
        """Return the body; after it, wait until the client disconnects or has the whole response."""
        if not self._read:
            self._read = True
            body, self._exchange.body = self._exchange.body, b""
            return {"type": "http.request", "body": body, "more_body": False}
        await asyncio.shield(self._left)
        return {"type": "http.disconnect"}

    async def send(self, event: Event) -> None:
        """Send a part of the response, after the buffer of the connection has room."""
        connection, exchange = self._connection, self._exchange
        if exchange.gone or self._complete:
            return
        if event["type"] == "http.response.start":
            self._head = event["status"], list(event.get("headers", ()))
            return
        body, more = event.get("body", b""), event.get("more_body", False)
        await connection.drain()
        if exchange.gone:
            return
        if len(body) > SMALL and self._chunked and exchange.operation.raw:
            refusal = self._server.budget.refusal(exchange.identity.subject, len(body))
            if refusal is not None:  # A stream ends; its messages are given back.
                raise refusal
        head = b"" if self._head is None else self._begin(len(body), more)
        if exchange.method == "HEAD":
            body = b""
        exchange.size += len(body)
        if self._chunked:
            body = (b"%x\r\n%b\r\n" % (len(body), body) if body else b"") + (b"" if more else b"0\r\n\r\n")
        if head or body:
            connection.transport.write(head + body if head else body)
            if len(body) > SMALL:
                connection.count_unread(exchange)
        if not more:
            self._complete = True
            self._leave()
            connection.finish(exchange)

    def _begin(self, size: int, more: bool) -> bytes:
        status, headers = cast(tuple[int, list[Header]], self._head)
        self._head = None
        exchange = self._exchange
        if all(name != b"content-length" for name, _ in headers) and status not in (204, 304):
            if not more:
                headers.append((b"content-length", b"%d" % size))
            elif exchange.version == "1.1":
                headers.append((b"transfer-encoding", b"chunked"))
                self._chunked = exchange.method != "HEAD"
            else:
                exchange.keep_alive = False  # The end of the connection is the end of the body.
        return self._connection.head(exchange, status, headers)
