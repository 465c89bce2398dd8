"""The wire and h11 read the same requests out of the same bytes, or the wire rejects them.

Streams of requests are generated, most of them broken in some place, and fed to a connection in pieces of random size.
Whatever the wire serves, h11 reads with the same method, target, headers and body, in the same order: so no request
hides behind another. The wire may be stricter than h11, never laxer. There are exactly three exceptions, which change
how a request is spelled but not what it says (see `_canonical` and `wide_chunk_sizes`):

- empty lines before a request line (RFC 9112, 2.2, recommends to ignore them);
- more than one space between the parts of a request line (RFC 9112, 3, allows it), and the protocol names RTSP and ICE
  in place of HTTP: llhttp accepts both and does not tell;
- chunk sizes with more than 20 digits, most of them leading zeros.

`scripts/fuzz` runs the same with as many new streams as one likes.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple, cast

import h11
import pytest

from hark.api.operations import WEBSOCKET
from hark.errors import Forbidden
from hark.http.app import App
from hark.http.exchange import Exchange
from hark.http.responses import Receive, Scope, Send
from hark.http.wire.asgi import MAX_HEADER_BYTES, MAX_HEADERS, MAX_PIPELINED, MAX_TARGET_BYTES
from hark.http.wire.connection import _CHUNK, Connection
from hark.http.wire.server import Server
from tests.http.wire.streams import HIDDEN, MAX_BODY_BYTES, Generator

STREAMS = int(os.environ.get("HARK_TEST_FUZZ_STREAMS", "2000"))
SEED = 18 if "HARK_TEST_FUZZ_STREAMS" not in os.environ else Random().getrandbits(32)
"""The suite generates the same streams each time; `scripts/fuzz` generates new ones."""
SHARES = 4
"""Number of tests that the streams are divided among, because tests run in parallel."""
SMALLEST_REQUEST = b"GET / HTTP/1.0\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


# The requests that h11 reads ---------------------------------------------------------------------------------


class Request(NamedTuple):
    """A request as one of the two parsers has read it."""

    method: str
    path: bytes
    query: bytes
    headers: dict[bytes, bytes]
    body: bytes | None
    """None: the body was not read."""


class Reading(NamedTuple):
    """What h11 reads out of a stream."""

    requests: list[Request]
    begun: Request | None
    """The request whose body has not ended."""
    end: str
    """`waiting` for more bytes, `closed` after a request, or `invalid`."""
    rests: list[bytes]
    """What is behind each of the requests."""


_LINE = re.compile(rb"[\r\n]*([^\r\n ]+) +([^\r\n ]+) +(?:HTTP|RTSP|ICE)/([0-9]\.[0-9])\r\n")
_EMPTY_LINES = re.compile(rb"[\r\n]+")
_ABSOLUTE = re.compile(rb"[a-z]+://[^/?#]*([^?#]*)(?:\?([^#]*))?(?:#.*)?", re.IGNORECASE | re.DOTALL)


def _canonical(stream: bytes) -> bytes:
    """Return the stream without empty lines at its start, and with its request line in the usual spelling."""
    match = _LINE.match(stream)
    if match is None:
        empty = _EMPTY_LINES.match(stream)
        return stream if empty is None else stream[empty.end() :]
    return b"%b %b HTTP/%b\r\n" % match.groups() + stream[match.end() :]


@pytest.fixture(autouse=True)
def wide_chunk_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let h11 accept chunk sizes with many digits. Its limit of 20 is its own; a size may have leading zeros."""
    pattern = rb"(?P<chunk_size>0*[0-9A-Fa-f]{1,20})(?P<chunk_ext>;.*)?[ \t]*\r\n"
    monkeypatch.setattr("h11._readers.chunk_header_re", re.compile(pattern))


def read_with_h11(stream: bytes) -> Reading:
    """Read all requests of a stream. Each gets a new h11 connection, which starts where the one before has ended."""
    requests: list[Request] = []
    rests: list[bytes] = []
    while True:
        stream = _canonical(stream)
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=2**30)
        if stream:
            connection.receive_data(stream)
        begun: Request | None = None
        body = b""
        try:
            while not isinstance(event := connection.next_event(), h11.EndOfMessage):
                if event is h11.NEED_DATA:
                    return Reading(requests, begun, "waiting", rests)
                if isinstance(event, h11.Request):
                    begun = _request_of(event)
                else:
                    body += cast(h11.Data, event).data
        except h11.RemoteProtocolError:
            return Reading(requests, begun, "invalid", rests)
        assert begun is not None
        requests.append(begun._replace(body=body))
        stream = connection.trailing_data[0]
        rests.append(stream)
        if connection.their_state is h11.MUST_CLOSE:
            return Reading(requests, None, "closed", rests)


def _request_of(event: h11.Request) -> Request:
    headers: dict[bytes, bytes] = {}
    for name, value in event.headers:
        between = b"; " if name == b"cookie" else b", "
        headers[name] = headers[name] + between + value if name in headers else value
    target = event.target
    absolute = _ABSOLUTE.fullmatch(target)
    if absolute is not None:
        path, query = absolute[1] or b"/", absolute[2] or b""
    else:
        path, _, query = target.partition(b"#")[0].partition(b"?")
    return Request(event.method.decode(), path, query, _plain(headers), None)


def _plain(headers: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Return headers in one spelling: the wire leaves spaces at the end of a value, and h11 changes `Chunked`."""
    plain = {name: value.translate(None, b" \t") for name, value in headers.items()}
    if b"transfer-encoding" in plain:
        plain[b"transfer-encoding"] = plain[b"transfer-encoding"].lower()
    return plain


# The requests that the wire serves ---------------------------------------------------------------------------


@dataclass
class Served:
    """What the wire did with a stream."""

    requests: list[Request] = field(default_factory=list)
    admitted: list[Request] = field(default_factory=list)
    """The requests whose heads the application has seen."""
    frames: bytes | None = None
    """What was received behind the request for a WebSocket."""
    sent: bytes = b""
    end: str = ""
    """`waiting` for more bytes, `closed` after a request, `rejected`, or `websocket`."""
    errors: list[str] = field(default_factory=list)
    """What must not happen, whatever is received."""


class Transport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder
        self.sent = bytearray()
        self.closing = self.ended = self.paused = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.ended:
            raise RuntimeError("written after the end")
        if data == CONTINUE and self.sent.count(b"HTTP/1.1 ") != self.sent.count(CONTINUE) + self.recorder.behind():
            raise RuntimeError("continued before the responses to earlier requests")
        if not self.closing:
            self.sent += data

    def write_eof(self) -> None:
        self.ended = True

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = True

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def get_write_buffer_size(self) -> int:
        return 0


class Recorder:
    """An application that records its requests and answers them now, later or in a task, as their path says."""

    begin = staticmethod(App.begin)

    def __init__(self) -> None:
        self.served = Served()

    def is_revoked(self, exchange: Exchange) -> bool:
        """Never."""
        del exchange
        return False

    def admit(self, exchange: Exchange) -> None:
        self.served.admitted.append(_request(exchange, None))
        if exchange.raw_path == b"/refused":
            exchange.refusal = Forbidden("no")

    def body_limit(self, exchange: Exchange) -> int:
        """Return the limit of every request."""
        del exchange
        return MAX_BODY_BYTES

    def answer_now(self, exchange: Exchange) -> bool:
        if exchange.raw_path == b"/task":
            return False
        self._note(exchange)
        if exchange.raw_path == b"/later":
            asyncio.get_running_loop().call_soon(self._answer, exchange)
        else:
            self._answer(exchange)
        return True

    def _answer(self, exchange: Exchange) -> None:
        if not exchange.gone:
            exchange.carrier.respond(exchange, 200 if exchange.refusal is None else 403, (), exchange.raw_path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = cast(Exchange, scope["hark.exchange"])
        exchange.body = (await receive())["body"]
        self._note(exchange)
        await asyncio.sleep(0)
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        await send({"type": "http.response.body", "body": b"b"})

    def behind(self) -> int:
        """Return the number of requests behind the one whose head has arrived last."""
        return len(self.served.admitted) - 1

    def _note(self, exchange: Exchange) -> None:
        self.served.requests.append(_request(exchange, None if exchange.refusal is not None else exchange.body))


def _request(exchange: Exchange, body: bytes | None) -> Request:
    method = "GET" if exchange.method == WEBSOCKET else exchange.method
    return Request(method, exchange.raw_path, exchange.query, _plain(dict(exchange.headers)), body)


class RecordingServer(Server):
    """A server whose WebSockets are only recorded."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder, max_body_bytes=MAX_BODY_BYTES)
        self.served = recorder.served

    def open_websocket(self, connection: Connection, exchange: Exchange, rest: bytes) -> None:
        self.served.requests.append(_request(exchange, b""))
        self.served.frames = rest
        connection.transport.close()


@pytest.fixture(autouse=True)
def _time_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal responses have equal dates."""
    monkeypatch.setattr("hark.http.wire.connection.time", lambda: 0.0)


Kind = Callable[[Server], Connection]


async def serve(chunks: list[bytes], random: Random | None, kind: Kind = Connection) -> Served:
    """Feed pieces to a connection, with turns of the event loop between some of them."""
    loop = asyncio.get_running_loop()
    recorder = Recorder()
    server, served, transport = RecordingServer(recorder), recorder.served, Transport(recorder)
    loop.set_exception_handler(lambda _, context: served.errors.append(f"in a callback: {context}"))
    connection = kind(server)
    connection.connection_made(transport)
    for number, chunk in enumerate(chunks, 1):
        for _ in range(1000):
            if not transport.paused or transport.closing:
                break
            await asyncio.sleep(0)
        if transport.closing:
            break
        try:
            connection.data_received(chunk)
        except Exception as error:
            served.errors.append(f"data_received raised {error!r}")
            break
        served.errors.extend(_grown(connection, len(chunk)))
        if served.frames is not None:
            served.frames += b"".join(chunks[number:])
            break
        if random is not None and random.random() < 0.3:
            await asyncio.sleep(0)
    for _ in range(1000):
        if not server.begun and not connection._ready and not connection._rest:
            break
        if transport.closing and not server.begun:
            break
        await asyncio.sleep(0)
    else:
        served.errors.append("requests never end")
    for _ in range(3):
        await asyncio.sleep(0)
    served.sent = bytes(transport.sent)
    if served.frames is not None:
        served.end = "websocket"
    elif transport.closing or transport.ended:
        served.end = "rejected" if b'"code":' in served.sent else "closed"
    else:
        served.end = "waiting"
        if connection._deadline is None:
            served.errors.append("the connection waits without a deadline")
    connection.connection_lost(None)
    if connection._timer is not None or server.connections or server._tasks or server.begun:
        served.errors.append("a lost connection is not forgotten")
    return served


def _grown(connection: Connection, size: int) -> Iterator[str]:
    """Yield what is larger than a connection may be."""
    for name, value, most in (
        ("requests", len(connection._ready), MAX_PIPELINED + _CHUNK // len(SMALLEST_REQUEST)),
        ("rest", len(connection._rest), size),
        ("body", len(connection._body), MAX_BODY_BYTES),
        ("headers", len(connection._headers), MAX_HEADERS),
        ("bytes of headers", connection._header_bytes, MAX_HEADER_BYTES),
        ("target", len(connection._target), MAX_TARGET_BYTES + _CHUNK),
    ):
        if value > most:
            yield f"{name}: {value} is more than {most}"


# The comparison ----------------------------------------------------------------------------------------------


def differences(served: Served, reading: Reading) -> Iterator[str]:
    """Yield each point in which the wire is laxer than h11."""
    yield from served.errors
    # The wire may answer before the end of a body that it refuses.
    there = [*reading.requests, *([] if reading.begun is None else [reading.begun])]
    for number, request in enumerate(served.requests):
        if number >= len(there) or (request.body is not None and number >= len(reading.requests)):
            yield f"request {number} is not there: {request}"
        elif request != (there[number] if request.body is not None else there[number]._replace(body=None)):
            yield f"request {number} is not {there[number]} but {request}"
    for number, request in enumerate(served.admitted):
        if reading.end != "closed" and (number >= len(there) or request != there[number]._replace(body=None)):
            # h11 reads a trailer or a chunk of a request before the wire: so it may reject what the wire has admitted.
            yield f"the head of request {number} is not there: {request}"
    number = len(served.requests)
    if served.end == "waiting" and (reading.end != "waiting" or number != len(reading.requests)):
        yield f"the wire waits after {number} requests, h11 is {reading.end} after {len(reading.requests)}"
    if served.end == "closed" and reading.end == "waiting" and number > len(there):
        yield f"the wire closes after {number} requests, h11 waits after {len(there)}"
    if served.end == "websocket" and (number > len(reading.rests) or reading.rests[number - 1] != served.frames):
        yield f"the WebSocket receives {served.frames!r}"


async def compare(stream: bytes, random: Random, kind: Kind = Connection) -> tuple[list[str], Served]:
    """Return how the wire differs from h11 and from itself with other pieces, and what it served."""
    chunks = Generator(random).chunks(stream)
    whole = await serve([stream], None, kind)
    parts = await serve(chunks, random, kind)
    found = [*differences(whole, reading := read_with_h11(stream)), *differences(parts, reading)]
    # A WebSocket that is asked for behind requests without a response is rejected.
    if {whole.end, parts.end} != {"websocket", "rejected"}:
        if whole.requests != parts.requests or whole.frames != parts.frames or whole.end != parts.end:
            found.append(f"in pieces: {parts}")
        if _responses(whole) != _responses(parts):
            found.append(f"sent in pieces: {parts.sent!r}")
    if found:
        found.append(f"stream: {stream!r}\npieces: {[len(chunk) for chunk in chunks]}\nh11: {reading}\nwire: {whole}")
    return found, whole


def _responses(served: Served) -> bytes:
    """Return what was sent, except for what depends on time: interim responses, and the first error of several."""
    sent = served.sent.replace(CONTINUE, b"")
    return sent[: sent.rindex(b"HTTP/1.1 ")] if served.end == "rejected" else sent


@pytest.mark.parametrize("share", range(SHARES))
async def test_the_wire_is_never_laxer_than_h11(share: int) -> None:
    """Compare many streams. Enough of them must be served, and enough rejected, that the comparison means something."""
    ends: dict[str, int] = {}
    requests = 0
    for number in range(share, STREAMS, SHARES):
        random = Random(f"{SEED}/{number}")
        stream = Generator(random).stream()
        found, served = await compare(stream, random)
        assert not found, f"stream {number} of seed {SEED}: " + "\n".join(found)
        requests += len(served.requests)
        ends[served.end] = ends.get(served.end, 0) + 1
    total = len(range(share, STREAMS, SHARES))
    print(f"{total} streams: {requests} requests served, ends {ends}")
    assert requests > total / 2
    assert all(ends.get(end, 0) > total / 200 for end in ("waiting", "closed", "rejected"))


# Connections that are too lax --------------------------------------------------------------------------------


class TrailersAreHeaders(Connection):
    """Takes trailers for headers."""

    def on_header(self, name: bytes, value: bytes) -> None:
        state, self._state = self._state, 0
        super().on_header(name, value)
        self._state = state


class AnyCoding(Connection):
    """Accepts transfer codings that it does not know."""

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, b"chunked" if name.lower() == b"transfer-encoding" else value)


class RepeatedHost(Connection):
    """Accepts a second Host."""

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"host":
            self._headers.pop(b"host", None)
        super().on_header(name, value)


class NoCoding(Connection):
    """Ignores Transfer-Encoding."""

    def data_received(self, data: bytes) -> None:
        super().data_received(re.sub(rb"(?i)transfer-encoding", b"x", data))


class NoLength(Connection):
    """Ignores Content-Length."""

    def data_received(self, data: bytes) -> None:
        super().data_received(re.sub(rb"(?i)content-length", b"x", data))


class RepeatedLength(Connection):
    """Accepts a second Content-Length, and ignores the first."""

    def data_received(self, data: bytes) -> None:
        super().data_received(
            re.sub(rb"(?is)content-length(?=:[^\r]*\r\n(?:\S+:[^\r]*\r\n)*content-length:)", b"x", data)
        )


class WebSocketWithBody(Connection):
    """Opens a WebSocket for a request with a body."""

    def on_headers_complete(self) -> None:
        length = self._headers.pop(b"content-length", None)
        super().on_headers_complete()
        if length is not None:
            self._headers[b"content-length"] = length


class LenientChunks(Connection):
    """Accepts chunks without a line end behind them."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self._parser.set_dangerous_leniencies(lenient_optional_crlf_after_chunk=True)


class NeverCloses(Connection):
    """Reads on after `Connection: close`."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self._parser.set_dangerous_leniencies(lenient_keep_alive=True)

    def on_message_complete(self) -> None:
        if self._exchange is not None:
            self._exchange.keep_alive = True
        super().on_message_complete()


class OneChunk(Connection):
    """Expects each target in one piece."""

    def on_url(self, url: bytes) -> None:
        self._target = b""
        super().on_url(url)


class Endless(Connection):
    """Waits without a time limit."""

    def _wait(self, seconds: float, late: Callable[[], None]) -> None:
        """Do not wait."""


class Fragile(Connection):
    """Fails at bytes that are not text."""

    def data_received(self, data: bytes) -> None:
        data.decode("ascii")
        super().data_received(data)


LAX = [
    *(
        TrailersAreHeaders,
        AnyCoding,
        RepeatedHost,
        NoCoding,
        NoLength,
        RepeatedLength,
        WebSocketWithBody,
        LenientChunks,
    ),
    *(NeverCloses, OneChunk, Endless, Fragile),
]


@pytest.mark.parametrize("kind", LAX)
async def test_the_comparison_finds_connections_that_are_too_lax(kind: type[Connection]) -> None:
    """Each kind of laxity is found among the streams of the suite."""
    for number in range(2000):
        random = Random(f"18/{number}")
        stream = Generator(random).stream()
        if (await compare(stream, random, kind))[0]:
            return
    pytest.fail("not found")


# Known attacks -------------------------------------------------------------------------------------------------

POST = b"POST /a HTTP/1.1\r\nHost: h\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
LENGTH = b"Content-Length: %d\r\n" % len(HIDDEN)
ATTACKS = {
    "CL.TE": POST + b"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "TE.CL": POST + b"Transfer-Encoding: chunked\r\n" + LENGTH + b"\r\n0\r\n\r\n" + HIDDEN,
    "CL.CL": POST + b"Content-Length: 0\r\n" + LENGTH + b"\r\n" + HIDDEN,
    "CL list": POST + b"Content-Length: 0, %d\r\n\r\n" % len(HIDDEN) + HIDDEN,
    "CL with a sign": POST + b"Content-Length: +0\r\n\r\n" + HIDDEN,
    "CL with a space before the colon": POST + b"Content-Length : %d\r\n\r\n" % len(HIDDEN) + HIDDEN,
    "CL on a folded line": POST + b"X: y\r\n " + LENGTH + b"\r\n" + HIDDEN,
    "CL behind a bare CR": POST + b"X: y\r" + LENGTH + b"\r\n" + HIDDEN,
    "CL behind a NUL": POST + b"X: y\0\r\n" + LENGTH + b"\r\n" + HIDDEN,
    "CL of GET": b"GET /a HTTP/1.1\r\nHost: h\r\n" + LENGTH + b"\r\n" + HIDDEN,
    "CL of HEAD": b"HEAD /a HTTP/1.1\r\nHost: h\r\n" + LENGTH + b"\r\n" + HIDDEN,
    "CL and an upgrade": POST + b"Connection: upgrade\r\nUpgrade: h2c\r\n" + LENGTH + b"\r\n" + HIDDEN,
    "CL and a WebSocket": b"GET /a HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"
    + LENGTH
    + b"\r\n"
    + HIDDEN,
    "CL and Expect, refused": b"POST /refused HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\n"
    + LENGTH
    + b"\r\n"
    + HIDDEN,
    "CL over the limit": POST + b"Content-Length: 50001\r\n\r\n" + HIDDEN * 2000,
    "CL over the limit and Expect": POST + b"Expect: 100-continue\r\nContent-Length: 50001\r\n\r\n" + HIDDEN,
    "TE.TE": POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\n" + HIDDEN,
    "TE unknown": POST + b"Transfer-Encoding: xchunked\r\n\r\n" + HIDDEN,
    "TE with a tab": POST + b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "TE with a space before the colon": POST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "TE folded": POST + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "TE list": POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + HIDDEN,
    "TE of HTTP/1.0": b"POST /a HTTP/1.0\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    + HIDDEN,
    "chunk size overflow": CHUNKED + b"10000000000000000\r\n\r\n" + HIDDEN,
    "chunk size with 0x": CHUNKED + b"0x0\r\n\r\n" + HIDDEN,
    "chunk size with LF": CHUNKED + b"0\n\n" + HIDDEN,
    "chunk extension with LF": CHUNKED + b"2;\nxx\r\n%x\r\n0\r\n\r\n" % len(HIDDEN) + HIDDEN,
    "chunk extension with CR": CHUNKED + b"2;\rxx\r\n%x\r\n0\r\n\r\n" % len(HIDDEN) + HIDDEN,
    "chunk longer than its size": CHUNKED + b"2\r\nxx0\r\n\r\n" + HIDDEN,
    "trailers with framing": CHUNKED + b"0\r\n" + LENGTH + b"\r\n" + HIDDEN,
    "HTTP/0.9": b"GET /a\r\n\r\n" + HIDDEN,
    "HTTP/1.0 kept alive": b"GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" + HIDDEN,
    "after close": b"GET /a HTTP/1.1\r\nHost: h\r\nConnection: x, close\r\n\r\n" + HIDDEN,
    "after close and an upgrade": POST
    + b"Connection: close, upgrade\r\nUpgrade: h2c\r\nContent-Length: 1\r\n\r\nx"
    + HIDDEN,
    "two hosts": b"GET /a HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n" + HIDDEN,
    "no host": b"GET /a HTTP/1.1\r\n\r\n" + HIDDEN,
    "a space in the target": b"GET /a /hidden HTTP/1.1\r\nHost: h\r\n\r\n",
    "CONNECT": b"CONNECT h:80 HTTP/1.1\r\nHost: h\r\n\r\n" + HIDDEN,
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + HIDDEN,
    "TLS": b"\x16\x03\x01\x02\0" + HIDDEN,
}


@pytest.mark.parametrize("name", ATTACKS)
async def test_known_attacks_hide_no_request(name: str) -> None:
    """The request that each of these streams tries to hide is never served, however the stream is cut."""
    for seed in range(20):
        found, served = await compare(ATTACKS[name], Random(seed))
        assert not found, "\n".join(found)
        assert all(request.path != b"/hidden" for request in served.requests)


async def test_the_client_can_send_the_rest_of_a_refused_request() -> None:
    """After an early response the connection is half open, whatever has arrived in the same piece."""
    for framing in (b"Expect: 100-continue\r\nContent-Length: 1\r\n\r\nx", b"Content-Length: 50001\r\n\r\nx"):
        recorder = Recorder()
        transport = Transport(recorder)
        connection = Connection(RecordingServer(recorder))
        connection.connection_made(transport)
        connection.data_received(b"POST /refused HTTP/1.1\r\nHost: h\r\n" + framing + HIDDEN * 3)
        connection.data_received(HIDDEN * 3)
        assert [request.path for request in recorder.served.admitted] == [b"/refused"]
        assert transport.sent.count(b"HTTP/1.1 403") == 1
        assert transport.ended
        assert not transport.closing
        connection.connection_lost(None)


ENDLESS = {
    "headers": (b"GET / HTTP/1.1\r\n", b"a:\r\n"),
    "header": (b"GET / HTTP/1.1\r\na:", b"b"),
    "header name": (b"GET / HTTP/1.1\r\n", b"a"),
    "spaces before a value": (b"GET / HTTP/1.1\r\na:", b" "),
    "target": (b"GET /", b"x"),
    "spaces before the target": (b"GET", b" "),
    "spaces behind the target": (b"GET /", b" "),
    "empty lines": (b"", b"\r\n"),
    "content length": (POST + b"Content-Length: ", b"0"),
    "chunks": (CHUNKED, b"1\r\nx\r\n"),
    "chunk size": (CHUNKED, b"0"),
    "chunk extension": (CHUNKED + b"1;", b"a"),
    "chunk extensions": (CHUNKED, b"1;aaaa=bbbb\r\nx\r\n"),
    "large chunks": (CHUNKED, b"400\r\n" + b"x" * 1024 + b"\r\n"),
    "trailers": (CHUNKED + b"0\r\n", b"a:\r\n"),
    "trailer": (CHUNKED + b"0\r\na:", b"b"),
    "trailers behind an upgrade": (
        POST + b"Connection: upgrade\r\nUpgrade: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
        b"a:\r\n",
    ),
}


@pytest.mark.parametrize("size", [1000, 100_000])
@pytest.mark.parametrize("name", ENDLESS)
async def test_streams_without_an_end_are_rejected(name: str, size: int) -> None:
    """The connection reads no more than its limits, and keeps no more either."""
    start, more = ENDLESS[name]
    stream = start + more * (2**20 // len(more))
    recorder = Recorder()
    transport = Transport(recorder)
    connection = Connection(RecordingServer(recorder))
    connection.connection_made(transport)
    read = 0
    for at in range(0, len(stream), size):
        connection.data_received(stream[at : at + size])
        assert not list(_grown(connection, size))
        if transport.ended or transport.closing:
            break
        read += size
    assert read <= MAX_TARGET_BYTES + MAX_HEADER_BYTES
    assert transport.sent.count(b"HTTP/1.1 4") == 1
    connection.connection_lost(None)
