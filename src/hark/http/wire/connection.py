"""One HTTP connection: bytes in, exchanges to the application, responses out.

A connection serves its requests one after the other. Requests that a client sends ahead (pipelining) wait, and beyond a
small number the connection is not read. Limits count as the bytes arrive. A timer runs only while a part of a request
is missing or the connection is idle, so requests that arrive in one piece cost nothing extra.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from time import time
from typing import TYPE_CHECKING, cast

import httptools

from hark.api.operations import WEBSOCKET
from hark.errors import HarkError
from hark.http.exchange import ENDED, Exchange, Header, Lost
from hark.http.responses import JSON_HEADERS, encode, error_response, too_large
from hark.http.wire import asgi
from hark.http.wire.asgi import MAX_HEADER_BYTES, MAX_HEADERS, SMALL, AsgiRun, Problem, Writing

if TYPE_CHECKING:
    from hark.http.wire.server import Server

_CHUNK = 4 * 1024
"""The parser gets heads in pieces of this size, so that few pipelined requests are parsed at a time."""
_PART = 256 * 1024
"""Large responses over TLS are written in parts of this size."""
_SINGLE = frozenset((b"host", b"authorization", b"origin", b"content-length", b"transfer-encoding"))
"""Headers that a request may have only once."""

_NO_CONTENT = 204
# What the next bytes are.
_HEAD, _BODY, _REPEATED, _DROPPED = range(4)


class _Rejected(Exception):
    """Stops the parser; the reason is in `Connection._problem`."""


class Connection(Writing):
    """The protocol of one connection."""

    __slots__ = (
        "_body",
        "_body_bytes",
        "_client",
        "_current",
        "_deadline",
        "_exchange",
        "_fields",
        "_fires_at",
        "_framed_bytes",
        "_head_bytes",
        "_header_bytes",
        "_headers",
        "_late",
        "_left",
        "_loop",
        "_parser",
        "_problem",
        "_ready",
        "_rest",
        "_rests",
        "_secure",
        "_seen_bytes",
        "_server",
        "_state",
        "_target",
        "_timer",
        "_unread",
        "_unread_bytes",
        "_unsent",
    )

    def __init__(self, server: Server) -> None:
        super().__init__()
        self._server = server
        self._loop = server.loop
        self._parser = httptools.HttpRequestParser(self)
        self._rests = False
        """Whether the parser and the timer were released, because the current request waits for messages."""
        # The request that is being received.
        self._state = _HEAD
        self._target = b""
        self._headers: dict[bytes, bytes] = {}
        self._fields = self._header_bytes = self._head_bytes = 0
        self._exchange: Exchange | None = None
        self._body: bytes | bytearray = b""
        self._body_bytes = self._framed_bytes = 0
        self._seen_bytes = 0
        """Number of bytes at the last look at the pace of the body."""
        self._left = 0
        """Number of bytes to the end of the body; 0 in a chunked body."""
        self._rest = b""
        """What was received but not parsed, because too many requests wait."""
        # The requests that have been received.
        self._current: Exchange | None = None
        self._ready: list[Exchange] = []
        self._problem: Problem | None = None
        """The error to send after the responses to the requests before it."""
        # The response.
        self._unsent: Lost | None = None
        """What to call if the connection is lost before the socket has accepted the response."""
        self._unread: tuple[str, int] | None = None
        """Whose bytes the client has not read, and how many, if they count as bytes in flight."""
        self._unread_bytes = 0
        """Size of the buffer at the last look at a client that does not read."""
        # The timer.
        self._timer: asyncio.TimerHandle | None = None
        self._fires_at = 0.0
        self._deadline: float | None = None
        self._late: Callable[[], None] = self._late_head

    # The life of a connection ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection, unless there are too many."""
        self.transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self._client: tuple[str, int] | None = (str(peer[0]), int(peer[1])) if isinstance(peer, tuple) else None
        self._secure = transport.get_extra_info("sslcontext") is not None
        connections, limits = self._server.connections, self._server.limits
        connections.add(self)
        if len(connections) > limits.max_connections:
            self._reject(asgi.TOO_MANY)
        else:
            self._wait(limits.header_timeout_seconds, self._late_head)

    def connection_lost(self, exc: Exception | None) -> None:
        """Release everything at once: requests that wait are dropped, and the current one is notified."""
        del exc
        self._server.closed(self)
        self._state = _DROPPED
        self._deadline = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._release_waiting()
        self._rest = b""
        if self._unread:
            self._server.budget.remove(*self._unread)
            self._unread = None
        current, self._current = self._current, None
        unsent, self._unsent = self._unsent, None
        if unsent is not None:
            unsent()
        self._end_drain()
        if current is not None:
            current.leave()
            end_exchange(self._server, current)

    @property
    def exchange(self) -> Exchange | None:
        """The request that is being answered."""
        return self._current

    def _release_waiting(self) -> None:
        """Forget the requests that were not served."""
        for exchange in (*self._ready, *([self._exchange] if self._exchange is not None else [])):
            if exchange.reserved_bytes:
                self._server.release(exchange)
        self._ready.clear()

    def shut_down(self) -> None:
        """Close the connection now if it is idle, else after the current response. (The server stops.)"""
        if self._current is None:
            self.transport.close()

    # Bytes in ----------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Parse the data, serve the first complete request, and start the timer if a part is missing."""
        if len(data) > SMALL:  # Others come first: the event loop would read many such pieces in this turn.
            self.transport.pause_reading()
            self._loop.call_soon(self._read_on)
        if self._state == _DROPPED:
            self._left -= len(data)
            if self._left < 0:
                self.transport.abort()
            return
        if self._rest:
            self._rest += data
            return
        if self._rests:
            self._rests = False
            self._parser = httptools.HttpRequestParser(self)
        start, size = 0, len(data)
        while start < size and self._state != _DROPPED:
            if len(self._ready) >= asgi.MAX_PIPELINED or (self._body_bytes > SMALL and (self._current or self._ready)):
                # A large body is not received while another request is served, so a connection holds one.
                self._rest = data[start:]
                self.transport.pause_reading()
                break
            room = self._left or _CHUNK
            chunk = data if not start and size <= room else data[start : start + room]
            start += len(chunk)
            if self._state == _HEAD:
                self._head_bytes += len(chunk)
            else:
                self._framed_bytes += len(chunk)
            try:
                self._parser.feed_data(chunk)
            except httptools.HttpParserUpgrade as upgrade:
                if self._start_websocket(data[start - len(chunk) + upgrade.args[0] :]):
                    break
                start += upgrade.args[0] - len(chunk)
            except httptools.HttpParserError:
                self._reject(self._problem or asgi.MALFORMED)
                break
            if self._state == _HEAD:
                if self._target and not self._head_bytes:  # It began in the same piece as the end of another request.
                    self._head_bytes = len(self._target)
                if self._head_bytes > MAX_HEADER_BYTES + len(self._target) + 2 * _CHUNK:
                    self._reject(asgi.HEAD_TOO_LARGE)
            elif self._framed_bytes - 2 * self._body_bytes > asgi.MAX_FRAMING_BYTES and not self._left:
                self._reject(asgi.FRAMING_TOO_LARGE)
        self._serve_next()

    def _read_on(self) -> None:
        if not self._rest and not self.transport.is_closing():
            self.transport.resume_reading()

    # Calls of the parser -----------------------------------------------------------------------------------

    def on_url(self, url: bytes) -> None:
        """Receive a part of the request target."""
        if self._state == _HEAD:
            self._target += url
            if len(self._target) > asgi.MAX_TARGET_BYTES:
                self._stop_parsing(asgi.HEAD_TOO_LARGE)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Receive a header. Trailers of a chunked body are ignored."""
        if self._state != _HEAD:
            return
        self._fields += 1
        self._header_bytes += len(name) + len(value) + 4
        if self._fields > MAX_HEADERS or self._header_bytes > MAX_HEADER_BYTES:
            self._stop_parsing(asgi.HEAD_TOO_LARGE)
        name = name.lower()
        headers = self._headers
        if name in headers:
            if name in _SINGLE:
                self._stop_parsing(Problem(400, "invalid_http", f"the header {name.decode()} must not be repeated"))
            value = headers[name] + (b"; " if name == b"cookie" else b", ") + value
        headers[name] = value

    def on_headers_complete(self) -> None:
        """Let the application admit the request, before its body is read."""
        if self._state != _HEAD:
            if self._state == _REPEATED:
                self._state = _BODY
            return
        parser, headers, server = self._parser, self._headers, self._server
        method, version = _method(parser.get_method()), parser.get_http_version()
        if version not in ("1.1", "1.0") or method == "CONNECT" or (b"host" not in headers and version == "1.1"):
            self._stop_parsing(asgi.MALFORMED)
        length, coding = headers.get(b"content-length"), headers.get(b"transfer-encoding")
        if coding is not None and (coding.lower() != b"chunked" or version == "1.0"):
            self._stop_parsing(asgi.UNKNOWN_CODING)
        if length is not None and len(length) > asgi.MAX_LENGTH_DIGITS:
            self._stop_parsing(asgi.MALFORMED)
        if parser.should_upgrade() and method == "GET" and _opens_websocket(headers, version):
            method = WEBSOCKET
        target = self._target
        if target.startswith(b"/") and b"#" not in target:
            path, _, query = target.partition(b"?")
        else:
            path, query = _parse_target(target)
        exchange = Exchange(
            method,
            path,
            query,
            headers,
            self._client,
            secure=self._secure,
            version=version,
        )
        exchange.keep_alive = version == "1.1" and parser.should_keep_alive()
        self._exchange = exchange
        self._state = _BODY
        server.app.admit(exchange)
        if length is not None:
            self._left = int(length)
            if self._left > server.small_body and self._left > server.app.body_limit(exchange):
                self._refuse_body(exchange)
                return
        if b"expect" in headers and version == "1.1" and (coding is not None or self._left):
            if exchange.refusal is not None:  # The client need not send the body, so it is not known what comes next.
                self._give_up_body(exchange)
            elif headers[b"expect"].lower() == b"100-continue" and self._current is None and not self._ready:
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        """Receive a part of the body. The body of a refused request is not kept."""
        exchange = self._exchange
        if exchange is None:
            return
        self._body_bytes += len(data)
        if self._left:
            self._left -= len(data)
        elif self._body_bytes > self._server.small_body and self._body_bytes > self._server.app.body_limit(exchange):
            self._refuse_body(exchange)
            return
        if self._body_bytes > SMALL and exchange.refusal is None:
            budget, subject = self._server.budget, exchange.identity.subject
            try:
                exchange.reserved_bytes = budget.reserve(subject, exchange.reserved_bytes, self._body_bytes)
            except HarkError as refusal:
                exchange.refusal = refusal
                self._body = b""
                self._give_up_body(exchange)
                return
        if exchange.refusal is None:
            if not self._body:
                self._body = data
            else:
                if isinstance(self._body, bytes):
                    self._body = bytearray(self._body)
                self._body += data

    def on_message_complete(self) -> None:
        """Queue the request."""
        exchange = self._exchange
        if exchange is None or self._state == _DROPPED:
            return
        if self._parser.should_upgrade() and (exchange.method == WEBSOCKET or self._left or self._is_chunked()):
            return  # `_start_websocket` goes on.
        exchange.body = bytes(self._body)
        self._queue(exchange)
        self._state = _HEAD

    def _queue(self, exchange: Exchange) -> None:
        """Add a request to those that wait, and forget what belongs to receiving it."""
        self._ready.append(exchange)
        self._exchange = None
        self._target, self._headers, self._body = b"", {}, b""
        self._fields = self._header_bytes = self._head_bytes = self._body_bytes = self._framed_bytes = self._left = 0

    def _stop_parsing(self, problem: Problem) -> None:
        self._problem = problem
        raise _Rejected

    def _is_chunked(self) -> bool:
        return b"transfer-encoding" in self._headers

    # Bodies that are not read ------------------------------------------------------------------------------

    def _refuse_body(self, exchange: Exchange) -> None:
        server = self._server
        exchange.refusal = exchange.refusal or too_large(server.app.body_limit(exchange), server.max_body_bytes)
        self._give_up_body(exchange)

    def _give_up_body(self, exchange: Exchange) -> None:
        """Answer before the body has arrived, and drop the rest."""
        exchange.keep_alive = False
        self._queue(exchange)
        self._drop()

    def _drop(self) -> None:
        """From now on, drop what the client sends."""
        self._state = _DROPPED
        self._left = asgi.LINGER_BODIES * self._server.max_body_bytes

    def _linger(self) -> None:
        """Close the connection when the client has closed it, or after a short time.

        To close it at once, with unread bytes, would reset it: an ordinary client, which writes its whole request
        before it reads, would report the reset and not the response.
        """
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._wait(asgi.LINGER_SECONDS, self.transport.abort)

    # Requests ----------------------------------------------------------------------------------------------

    def _serve_next(self) -> None:
        """Serve the next request or wait for it, unless the client does not read the response to the one before."""
        if self._current is not None or self._paused:
            return
        if self._ready:
            exchange = self._current = self._ready.pop(0)
            exchange.carrier = self
            self._deadline = None
            server = self._server
            server.begun += 1
            if server.only_asgi or not server.app.answer_now(exchange):
                AsgiRun(self, exchange, server).start()
            elif exchange.waits and self._current is exchange:
                self._release_parser()
        elif self._problem is not None:
            self._reject(self._problem)
        elif self._rest:
            rest, self._rest = self._rest, b""
            self.transport.resume_reading()
            self.data_received(rest)
        elif self._state == _DROPPED or self.transport.is_closing():
            pass  # No further request is read.
        elif self._exchange is not None:
            if self._deadline is None or self._late != self._late_body:
                self._wait_for_body()
        elif self._head_bytes:
            if self._deadline is None or self._late != self._late_head:
                self._wait(self._server.limits.header_timeout_seconds, self._late_head)
        else:
            self._wait(asgi.IDLE_SECONDS, self._close)

    def _release_parser(self) -> None:
        """Release what only receiving needs, unless a part of the next request is there: many clients wait for long."""
        if self._state == _HEAD and not (self._head_bytes or self._target or self._ready or self._rest):
            self._rests = True
            del self._parser
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _start_websocket(self, rest: bytes) -> bool:
        """Hand the connection over to a WebSocket; False if the request is an ordinary one.

        httptools skips the body of a request with any `Upgrade`. Hark ignores unknown upgrades, as HTTP allows, so
        another parser reads the body.
        """
        exchange = self._exchange
        if exchange is None:
            return False
        if exchange.method != WEBSOCKET:
            framing = b"transfer-encoding: chunked" if self._is_chunked() else b"content-length: %d" % self._left
            self._state = _REPEATED
            self._parser = httptools.HttpRequestParser(self)
            self._parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n\r\n" % framing)
            return False
        exchange.keep_alive = False
        if exchange.refusal is not None:
            self._queue(exchange)
            self._drop()
        elif self._current is not None or self._ready:
            self._reject(asgi.MALFORMED)
        else:
            self._state = _DROPPED
            self._deadline = None
            self._server.open_websocket(self, exchange, rest)
        return True

    # Responses ---------------------------------------------------------------------------------------------

    def respond(
        self, exchange: Exchange, status: int, headers: tuple[Header, ...], body: bytes, lost: Lost | None = None
    ) -> None:
        """Send a complete response, or the rest of it, with one write.

        What the socket does not accept at once can still be lost.
        """
        server, transport = self._server, self.transport
        if exchange.gone or transport.is_closing():
            if lost is not None:
                lost()
            if not exchange.gone:
                self.finish(exchange)
            return
        if exchange.status:
            exchange.size += len(body)
            data = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        else:
            if lost is not None and len(body) > SMALL:
                refusal = server.budget.refusal(exchange.identity.subject, len(body))
                if refusal is not None:  # The messages are given back: there is no memory to keep them for the client.
                    lost()
                    lost = None
                    status, headers, body = error_response(refusal)
            shown = server.app.begin(exchange, status, headers)
            exchange.size = len(body)
            fixed = (_fixed_head if shown is headers else make_head)(status, shown, int(time()))
            end = b"\r\n" if exchange.keep_alive and not server.stopping else b"connection: close\r\n\r\n"
            if status == _NO_CONTENT:
                data = b"%b%b" % (fixed, end)
            else:
                content = b"" if exchange.method == "HEAD" else body
                data = b"%bcontent-length: %d\r\n%b%b" % (fixed, len(body), end, content)
        if self._secure and len(data) > _PART:
            server.run(self._send_parts(exchange, data, lost))
            return
        transport.write(data)
        if self._paused or transport.is_closing():
            self._unsent = lost
            self.count_unread(exchange)
        self.finish(exchange)

    def begin_response(self, exchange: Exchange, status: int, headers: tuple[Header, ...], body: bytes) -> bool:
        """Send the first part of a response, if the client can receive it in parts."""
        if exchange.version != "1.1":
            return False
        if not exchange.gone and not self.transport.is_closing():
            shown = (*self._server.app.begin(exchange, status, headers), (b"transfer-encoding", b"chunked"))
            exchange.size = len(body)
            self.transport.write(b"%b%x\r\n%b\r\n" % (self.head(exchange, status, shown), len(body), body))
        return True

    def count_unread(self, exchange: Exchange) -> None:
        """Count what the socket has not accepted among the bytes in flight, until the client has read it."""
        size = self.transport.get_write_buffer_size()
        if self._paused and size > SMALL and self._unread is None:
            self._unread = exchange.identity.subject, size
            self._server.budget.add(*self._unread)

    async def _send_parts(self, exchange: Exchange, data: bytes, lost: Lost | None) -> None:
        """Send a large response over TLS in parts.

        The buffer of a TLS transport is full only if the client does not read and the buffer below is full already, so
        it would take any response at once.
        """
        usage = exchange.identity.subject, len(data)
        self._server.budget.add(*usage)
        try:
            for start in range(0, len(data), _PART):
                self.transport.write(data[start : start + _PART])
                await asyncio.sleep(0)  # The event loop reports a failed write in its next turn.
                await self.drain()
                if exchange.gone:
                    return
            lost = None
            self.finish(exchange)
        finally:
            self._server.budget.remove(*usage)
            if lost is not None:
                lost()

    def head(self, exchange: Exchange, status: int, headers: Iterable[Header]) -> bytes:
        """Return the head of a response whose body the caller writes."""
        end = b"\r\n" if exchange.keep_alive and not self._server.stopping else b"connection: close\r\n\r\n"
        return make_head(status, headers, int(time())) + end

    def finish(self, exchange: Exchange) -> None:
        """Note that a response is complete, and go on with the next request."""
        end_exchange(self._server, exchange)
        self._current = None
        if self.transport.is_closing():
            return
        if not exchange.keep_alive or self._server.stopping:
            self._release_waiting()
            self._problem = None
            if self._state == _DROPPED:
                self._linger()
            else:
                self._close()
        elif self._ready or self._rest or self._problem is not None:
            # In a later turn of the event loop: other connections come first.
            self._loop.call_soon(self._serve_next)
        else:
            self._serve_next()

    def _close(self) -> None:
        """Close the connection when the client has the response, if the client reads it."""
        self._state = _DROPPED
        self.transport.close()
        if self.transport.get_write_buffer_size():
            self._watch_reader()

    def _reject(self, problem: Problem) -> None:
        """Send an error after the responses to earlier requests, and close the connection."""
        self._problem = problem
        if self._state != _DROPPED:
            self._drop()
        if self._current is not None or self._ready or self.transport.is_closing():
            return
        self._problem = None
        body = encode({"error": problem.text, "code": problem.code})
        headers = [*JSON_HEADERS, (b"connection", b"close"), (b"content-length", b"%d" % len(body))]
        if problem.retry_after is not None:
            headers.append((b"retry-after", b"%d" % problem.retry_after))
        self.transport.write(b"%b\r\n%b" % (make_head(problem.status, headers, int(time())), body))
        self._linger()

    # Back-pressure -----------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        """Serve no further request while the buffer of the transport is full, and abort if the client does not read."""
        self._paused = True
        self._watch_reader()

    def resume_writing(self) -> None:
        """Go on: the buffer has room again."""
        self._unsent = None
        if self._unread is not None:
            self._server.budget.remove(*self._unread)
            self._unread = None
        self._end_drain()
        if self.transport.is_closing():
            return  # The client does not have the rest yet.
        if self._late == self._late_reader:
            self._deadline = None
        if self._current is None:
            self._loop.call_soon(self._serve_next)

    def _watch_reader(self) -> None:
        self._unread_bytes = self.transport.get_write_buffer_size()
        self._wait(self._server.limits.stalled_seconds, self._late_reader)

    def _late_reader(self) -> None:
        if self.transport.get_write_buffer_size() < self._unread_bytes:
            self._watch_reader()
        else:
            self.transport.abort()

    # Time --------------------------------------------------------------------------------------------------

    def _wait_for_body(self) -> None:
        self._seen_bytes = self._framed_bytes
        self._wait(self._server.limits.body_timeout_seconds, self._late_body)

    def _wait(self, seconds: float, late: Callable[[], None]) -> None:
        """Call `late` after some seconds, unless the deadline is moved or removed meanwhile."""
        self._late = late
        deadline = self._deadline = self._loop.time() + seconds
        if self._timer is None or self._fires_at > deadline:
            self._start_timer(deadline, seconds)

    def _start_timer(self, deadline: float, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._fires_at = deadline
        self._timer = self._loop.call_later(seconds, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._deadline is None:
            return
        left = self._deadline - self._loop.time()
        if left > 0:
            self._start_timer(self._deadline, left)
        else:
            self._deadline = None
            self._late()

    def _late_head(self) -> None:
        if self._head_bytes:
            self._reject(asgi.SLOW)
        else:
            self.transport.close()

    def _late_body(self) -> None:
        enough = asgi.MIN_BODY_BYTES_PER_SECOND * self._server.limits.body_timeout_seconds
        if self._framed_bytes - self._seen_bytes >= enough:
            self._wait_for_body()
        else:
            if self._exchange is not None and self._exchange.reserved_bytes:
                self._server.release(self._exchange)
            self._exchange = None
            self._reject(asgi.SLOW)


def _opens_websocket(headers: dict[bytes, bytes], version: str) -> bool:
    """Return whether a GET asks for a WebSocket. One with a body does not: its body would be read as frames."""
    return (
        version == "1.1"
        and headers.get(b"upgrade", b"").lower() == b"websocket"
        and b"transfer-encoding" not in headers
        and headers.get(b"content-length", b"0") == b"0"
    )


def _parse_target(target: bytes) -> tuple[bytes, bytes]:
    """Return the path and query of a target that is not an ordinary path. An error stops the parser."""
    if target == b"*":
        return target, b""
    url = httptools.parse_url(target)
    return url.path or b"/", url.query or b""


@lru_cache(64)
def _method(name: bytes) -> str:
    return name.decode()


def end_exchange(server: Server, exchange: Exchange) -> None:
    """Note the end of a request. (Tasks that it has started keep the exchange in their context.)"""
    server.begun -= 1
    exchange.on_left, exchange.carrier = None, ENDED
    if exchange.reserved_bytes:
        server.release(exchange)
    if server.on_end is not None:
        server.on_end(exchange)


def make_head(status: int, headers: Iterable[Header], second: int) -> bytes:
    """Return the status line and the headers with the date, without the empty line behind them."""
    phrase = HTTPStatus(status).phrase.encode()
    lines = [b"%b: %b\r\n" % header for header in (*headers, (b"date", _date(second)))]
    return b"".join([b"HTTP/1.1 %d %b\r\n" % (status, phrase), *lines])


@lru_cache(1)
def _date(second: int) -> bytes:
    return formatdate(second, usegmt=True).encode()


_fixed_head = lru_cache(256)(make_head)
"""The heads of most responses differ only in their length."""
