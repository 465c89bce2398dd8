"""Connections: their number, the time that a request takes to arrive, its size, pace and framing, and its answer."""

from __future__ import annotations

import asyncio
import gc
import http.client
import json
import socket
import struct
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import cast
from unittest.mock import Mock
from urllib.parse import urlsplit

import httpx
import pytest
from websockets.exceptions import ConnectionClosed

from hark.http.app import App
from hark.http.exchange import Exchange
from hark.http.responses import Receive, Scope, Send
from hark.http.wire.asgi import (
    IDLE_SECONDS,
    LINGER_SECONDS,
    MAX_FRAMING_BYTES,
    MAX_HEADER_BYTES,
    MAX_HEADERS,
    MAX_PIPELINED,
    MAX_TARGET_BYTES,
    MIN_BODY_BYTES_PER_SECOND,
    SMALL,
)
from hark.http.wire.connection import Connection
from hark.http.wire.server import Server
from hark.serving import listening
from hark.settings import Limits, Settings
from tests.http.edge.app_client import Tokens
from tests.http.streaming import WAIT_SECONDS, Inside, deaf, inside, websocket

REQUEST = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
HEALTH = REQUEST + b"\r\n"
PUSH = b'{"items": [{"queue": "q", "payload": 1}]}'
POST = b"POST /api/v1/push HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n"


@contextmanager
def connected(url: str) -> Iterator[socket.socket]:
    """A connection that nothing was sent over."""
    where = urlsplit(url)
    assert where.hostname is not None
    with socket.create_connection((where.hostname, where.port), WAIT_SECONDS) as client:
        yield client


def everything(client: socket.socket) -> bytes:
    """What comes until the server hangs up."""
    parts = []
    while part := client.recv(65_536):
        parts.append(part)
    return b"".join(parts)


def refusal(answer: bytes) -> tuple[int, str]:
    """The status and the code of an answer that ends the connection."""
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.decode().lower().split("\r\n")
    assert "connection: close" in lines
    assert "content-type: application/json" in lines
    values = json.loads(body)
    assert values["error"]
    return int(head.split()[1]), values["code"]


class Reader:
    """Reads answers from a connection, one after the other."""

    def __init__(self, client: socket.socket) -> None:
        self._client = client
        self._rest = b""

    def answer(self, *, has_body: bool = True) -> tuple[int, dict[str, str], bytes]:
        """The status, the headers and the body of the next answer."""
        while b"\r\n\r\n" not in self._rest:
            self._more()
        head, _, self._rest = self._rest.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        length = int(headers.get("content-length", 0)) if has_body else 0
        while len(self._rest) < length:
            self._more()
        body, self._rest = self._rest[:length], self._rest[length:]
        return int(first.split()[1]), headers, body

    def _more(self) -> None:
        part = self._client.recv(65_536)
        assert part, "the connection ended within an answer"
        self._rest += part


def exchange(client: socket.socket, request: bytes) -> int:
    """Send a request and read its answer; its status."""
    client.sendall(request)
    return Reader(client).answer()[0]


@pytest.fixture(scope="module")
def usual() -> Iterator[Inside]:
    """A server with the usual patience."""
    with inside() as server:
        yield server


@pytest.fixture(scope="module")
def guarded() -> Iterator[Inside]:
    """A server that wants tokens."""
    with inside(authenticator=Tokens()) as server:
        yield server


@pytest.fixture(scope="module")
def brief() -> Iterator[Inside]:
    """A server whose patience is over soon, but not before what is sent at once has arrived."""
    limits = Limits(header_timeout_seconds=0.4, body_timeout_seconds=0.4, stalled_seconds=0.4)
    with inside(Settings(limits=limits)) as server:
        yield server


def outlast_timeout(server: Inside) -> None:
    """Return when a request that began now would have been given up."""
    with connected(server.url) as slow:
        slow.sendall(b"GET")
        assert refusal(everything(slow))[0] == 408


# Who -------------------------------------------------------------------------------------------------------


def test_an_address_is_that_of_the_connection_whatever_a_header_says(usual: Inside) -> None:
    values = {"x-forwarded-for": "192.0.2.7", "x-forwarded-proto": "https"}
    push = {"items": [{"queue": "addressed", "payload": 1}]}
    assert httpx.post(f"{usual.url}/api/v1/push", json=push, headers=values).status_code == 201
    assert httpx.get(f"{usual.url}/api/v1/pop/queue/addressed", headers=values).status_code == 200
    [lease] = httpx.get(f"{usual.url}/api/v1/leases", params={"queue": "addressed"}).json()["leases"]
    assert lease["consumer"].startswith("127.0.0.1:")


# Time ------------------------------------------------------------------------------------------------------


BEGUN = {
    "a word": b"G",
    "an empty line": b"\r\n",
    "a part of the first line": b"GET /health HT",
    "a part of a header": b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow",
    "a head": b"POST /api/v1/push HTTP/1.1\r\nHost: localhost\r\nContent-Length: 41\r\n\r\n",
    "a part of a body": b"POST /api/v1/push HTTP/1.1\r\nHost: localhost\r\nContent-Length: 41\r\n\r\n" + PUSH[:-1],
    "all but a byte": b"POST /api/v1/push HTTP/1.1\r\nHost: localhost\r\nContent-Length: 42\r\n\r\n" + PUSH,
    "a chunk": b"PUT /keyval/api/keys/a HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n[1\r\n",
    "a pop": b"GET /api/v1/pop/queue/q?wait=true HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n",
}


def test_a_request_that_does_not_arrive_is_given_up(brief: Inside) -> None:
    with ExitStack() as stack:
        clients = {what: stack.enter_context(connected(brief.url)) for what in (*BEGUN, "the second", "nothing")}
        assert exchange(clients["the second"], HEALTH) == 200
        for what, begun in (BEGUN | {"the second": b"GET /hea"}).items():
            clients[what].sendall(begun)
        assert everything(clients.pop("nothing")) == b"", "one that says nothing is closed without a word"
        for what, client in clients.items():
            assert refusal(everything(client)) == (408, "request_timeout"), what
    assert httpx.get(f"{brief.url}/api/v1/pop/queue/q").status_code == 204, "what was given up is not pushed"


def test_idle_connections_streams_and_those_who_wait_for_an_answer_have_all_the_time(brief: Inside) -> None:
    with connected(brief.url) as waiting, connected(brief.url) as idle, websocket(brief.url) as consumer:
        waiting.sendall(b"GET /api/v1/pop/queue/late?wait=true&timeout=20000 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        for _ in range(2):
            assert exchange(idle, HEALTH) == 200
            outlast_timeout(brief)
        assert consumer.ask("ping") == {"type": "pong"}
        httpx.post(f"{brief.url}/api/v1/push", json={"items": [{"queue": "late", "payload": 1}]})
        assert waiting.recv(65_536).startswith(b"HTTP/1.1 200")


def test_a_body_in_many_parts_is_read_to_its_end(usual: Inside) -> None:
    with connected(usual.url) as client:
        client.sendall(POST + b"Content-Length: 41\r\n\r\n")
        for byte in PUSH[:-1]:
            client.sendall(bytes([byte]))
        assert exchange(client, PUSH[-1:]) == 201


# Number ----------------------------------------------------------------------------------------------------


def test_more_connections_than_allowed_are_refused_with_a_word() -> None:
    with inside(Settings(limits=Limits(max_connections=2))) as server, connected(server.url) as one:
        assert exchange(one, HEALTH) == 200
        with connected(server.url) as two:
            assert exchange(two, HEALTH) == 200
            with connected(server.url) as three:
                answer = everything(three)
            assert refusal(answer) == (503, "too_many_connections")
            assert b"retry-after: 1\r\n" in answer
        assert exchange(one, HEALTH) == 200


# What is kept ----------------------------------------------------------------------------------------------


def kept(server: Inside) -> int:
    """How many connections of a server are in memory."""
    gc.collect()
    connections = [one for one in gc.get_objects() if isinstance(one, Connection)]
    return sum(one._server is server.server for one in connections)


def test_a_connection_that_is_reset_is_released_of_long_before_its_idle_time_is_over() -> None:
    with inside() as server:
        with connected(server.url) as client:
            assert exchange(client, HEALTH) == 200
            assert server.look(lambda: kept(server)) == 1
            # Linger for no time at all: the end of the connection is a reset.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        until = time.monotonic() + WAIT_SECONDS
        while server.look(lambda: kept(server)):
            assert time.monotonic() < until


# Size ------------------------------------------------------------------------------------------------------


LARGE = {
    "many": REQUEST + b"".join(b"X-%d: 1\r\n" % number for number in range(MAX_HEADERS)),
    "one-long": REQUEST + b"X: " + b"x" * MAX_HEADER_BYTES + b"\r\n",
    "long-together": REQUEST
    + b"".join(b"X-%d: %b\r\n" % (number, b"x" * 1000) for number in range(MAX_HEADER_BYTES // 1000 + 1)),
    "path": b"GET /health?" + b"x" * MAX_TARGET_BYTES + b" HTTP/1.1\r\nHost: localhost\r\n",
}


@pytest.mark.parametrize("head", LARGE.values(), ids=LARGE)
def test_a_large_head_is_a_431(usual: Inside, head: bytes) -> None:
    with connected(usual.url) as client:
        client.sendall(head + b"\r\n")
        assert refusal(everything(client)) == (431, "headers_too_large")


def test_a_head_that_never_ends_is_not_kept(usual: Inside) -> None:
    with connected(usual.url) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ")
        with pytest.raises(OSError):  # The server hangs up while we write.
            for _ in range(1000):
                client.sendall(b"x" * 65_536)


def test_what_is_not_http_is_answered_in_json(usual: Inside) -> None:
    for nonsense in (b"nonsense\r\n\r\n", b"GET /health HTTP/1.1\r\nno colon\r\n\r\n"):
        with connected(usual.url) as client:
            client.sendall(nonsense)
            assert refusal(everything(client)) == (400, "invalid_http")


# Bodies over the limit -------------------------------------------------------------------------------------

TOO_LARGE = b"x" * (2 * Settings().max_body_bytes)


def by_http_client(url: str) -> tuple[int, bytes]:
    """As the standard library writes it."""
    client = http.client.HTTPConnection(urlsplit(url).netloc, timeout=WAIT_SECONDS)
    try:
        client.request("POST", "/api/v1/push", TOO_LARGE)
        response = client.getresponse()
        return response.status, response.read()
    finally:
        client.close()


def by_http_client_in_chunks(url: str) -> tuple[int, bytes]:
    """Without a length."""
    client = http.client.HTTPConnection(urlsplit(url).netloc, timeout=WAIT_SECONDS)
    parts = [TOO_LARGE[start : start + 65_536] for start in range(0, len(TOO_LARGE), 65_536)]
    try:
        client.request("POST", "/api/v1/push", iter(parts), encode_chunked=True)
        response = client.getresponse()
        return response.status, response.read()
    finally:
        client.close()


def by_urllib(url: str) -> tuple[int, bytes]:
    """As most scripts do it."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with pytest.raises(urllib.error.HTTPError) as refused:
        opener.open(f"{url}/api/v1/push", TOO_LARGE, WAIT_SECONDS)
    with refused.value as response:
        return response.code, response.read()


def by_socket(url: str) -> tuple[int, bytes]:
    """First all of it is written, then it is read, on a connection that was used before."""
    with connected(url) as client:
        assert exchange(client, HEALTH) == 200
        client.sendall(POST + b"Content-Length: %d\r\n\r\n" % len(TOO_LARGE) + TOO_LARGE)
        answer = everything(client)
        assert refusal(answer) == (413, "body_too_large")
        return 413, answer.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize("send", [by_http_client, by_http_client_in_chunks, by_urllib, by_socket])
def test_clients_that_write_all_of_a_body_before_they_read_find_out_that_it_is_too_large(
    usual: Inside, send: Callable[[str], tuple[int, bytes]]
) -> None:
    status, body = send(usual.url)
    assert (status, json.loads(body)["code"]) == (413, "body_too_large")


# What belongs to the head, and what does not ---------------------------------------------------------------

DOUBTFUL = {
    "two hosts": HEALTH[:-2] + b"Host: evil.example\r\n\r\n",
    "the same host twice": HEALTH[:-2] + b"Host: localhost\r\n\r\n",
    "two tokens": HEALTH[:-2] + b"Authorization: Bearer reader\r\nAuthorization: Bearer admin\r\n\r\n",
    "two origins": HEALTH[:-2] + b"Origin: http://localhost\r\nOrigin: http://evil.example\r\n\r\n",
    "two lengths": POST + b"Content-Length: 41\r\nContent-Length: 41\r\n\r\n" + PUSH,
    "a length and chunks": CHUNKED + b"Content-Length: 41\r\n\r\n29\r\n" + PUSH + b"\r\n0\r\n\r\n",
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
}


@pytest.mark.parametrize("request_bytes", DOUBTFUL.values(), ids=DOUBTFUL)
def test_a_request_that_can_be_understood_in_two_ways_is_a_400(usual: Inside, request_bytes: bytes) -> None:
    with connected(usual.url) as client:
        client.sendall(request_bytes)
        assert refusal(everything(client)) == (400, "invalid_http")


def test_other_headers_may_come_more_than_once(guarded: Inside) -> None:
    session = b"Cookie: theme=dark\r\nCookie: hark_session=reader\r\nAccept: */*\r\nAccept: text/html\r\n\r\n"
    with connected(guarded.url) as client:
        assert exchange(client, b"GET /api/v1/resources/queues HTTP/1.1\r\nHost: localhost\r\n" + session) == 200


def chunked(trailers: bytes, headers: bytes = b"") -> bytes:
    """A push in one chunk, with something behind it."""
    return CHUNKED + headers + b"\r\n29\r\n" + PUSH + b"\r\n0\r\n" + trailers + b"\r\n"


def test_a_trailer_is_never_a_header(guarded: Inside) -> None:
    token = b"Authorization: Bearer %b\r\n"
    with connected(guarded.url) as client:
        assert exchange(client, chunked(token % b"writer")) == 401
        assert exchange(client, chunked(token % b"reader", token % b"writer")) == 201
        assert exchange(client, chunked(b"Origin: http://evil.example\r\n", token % b"writer")) == 201
        assert exchange(client, chunked(b"Host: a\r\nHost: b\r\n", token % b"writer")) == 201
        client.sendall(chunked(b"X-Request-Id: late\r\n", token % b"writer" + b"X-Request-Id: early\r\n"))
        status, headers, _ = Reader(client).answer()
        assert (status, headers["x-request-id"]) == (201, "early")
        assert exchange(client, HEALTH) == 200


ENDLESS = {
    "trailers": (b"0\r\n", b"X: y\r\n"),
    "one trailer": (b"0\r\nX: ", b"y"),
    "an extension": (b"29;x=", b"y"),
    "extensions": (b"29", b";x=y"),
    "small chunks": (b"", b"1\r\nx\r\n"),
    "zeros": (b"", b"0"),
}


@pytest.mark.parametrize(("begin", "again"), ENDLESS.values(), ids=ENDLESS)
def test_trailers_extensions_and_small_chunks_have_a_bound(usual: Inside, begin: bytes, again: bytes) -> None:
    with connected(usual.url) as client:
        client.sendall(CHUNKED + b"\r\n" + begin + again * (2 * MAX_FRAMING_BYTES // len(again)))
        assert refusal(everything(client)) == (400, "invalid_http")


def test_some_trailers_extensions_and_small_chunks_are_fine(usual: Inside) -> None:
    chunks = b"".join(b"1;a=b\r\n%c\r\n" % byte for byte in PUSH)
    with connected(usual.url) as client:
        assert exchange(client, CHUNKED + b"\r\n" + chunks + b"0;c\r\n" + b"X: y\r\n" * 50 + b"\r\n") == 201
        assert exchange(client, HEALTH) == 200


# Several requests on a connection --------------------------------------------------------------------------


def test_requests_that_are_sent_ahead_are_answered_in_order(usual: Inside) -> None:
    pop = b"GET /api/v1/pop/queue/ahead?wait=true&autoAck=true&timeout=20000 HTTP/1.1\r\nHost: localhost\r\n\r\n"
    push = {"items": [{"queue": "ahead", "payload": 1}]}
    with connected(usual.url) as client:
        for first, begins_alone in ((b"", False), (pop, False), (pop, True)):
            numbers = range(3 * MAX_PIPELINED)
            later = [b"GET /%d HTTP/1.1\r\nHost: localhost\r\n\r\n" % number for number in numbers]
            if begins_alone:
                client.sendall(first)
                while not usual.look(lambda: len(usual.broker.delivery.intentions)):
                    time.sleep(0.001)
                client.sendall(b"".join([*later, HEALTH]))
            else:
                client.sendall(b"".join([first, *later, HEALTH]))
            reader = Reader(client)
            if first:
                assert httpx.post(f"{usual.url}/api/v1/push", json=push).status_code == 201
                assert reader.answer()[0] == 200
            for number in numbers:
                status, _, body = reader.answer()
                assert (status, f" /{number};" in json.loads(body)["error"]) == (404, True)
            assert reader.answer()[0] == 200


def test_a_connection_with_many_requests_that_wait_is_not_read(usual: Inside) -> None:
    pop = b"GET /api/v1/pop/queue/never?wait=true&timeout=20000 HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with connected(usual.url) as client:
        client.sendall(pop)
        client.settimeout(0.5)
        with pytest.raises(TimeoutError):
            for _ in range(1000):
                client.sendall(HEALTH * 2000)
        assert httpx.get(f"{usual.url}/health").status_code == 200


def test_a_client_that_wants_to_continue_is_requested_its_body_if_it_is_admitted(guarded: Inside) -> None:
    expecting = POST + b"Expect: 100-continue\r\n"
    length = b"Content-Length: 41\r\n"
    with connected(guarded.url) as client:
        for framing, body in ((length, PUSH), (b"Transfer-Encoding: chunked\r\n", b"29\r\n" + PUSH + b"\r\n0\r\n\r\n")):
            client.sendall(expecting + framing + b"Authorization: Bearer writer\r\n\r\n")
            reader = Reader(client)
            assert reader.answer()[0] == 100
            client.sendall(body)
            assert reader.answer()[0] == 201
        client.sendall(expecting + length + b"\r\n")
        assert refusal(everything(client)) == (401, "unauthorized")
    with connected(guarded.url) as client:
        client.sendall(expecting + b"Authorization: Bearer writer\r\nContent-Length: %d\r\n\r\n" % len(TOO_LARGE))
        assert refusal(everything(client)) == (413, "body_too_large")


def test_head_is_answered_as_get_but_without_a_body(usual: Inside) -> None:
    with connected(usual.url) as client:
        for path in (b"/health", b"/openapi.json", b"/", b"/api/v1/resources/queues"):
            request = b" %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % path
            client.sendall(b"HEAD" + request + b"GET" + request)
            reader = Reader(client)
            head, get = reader.answer(has_body=False), reader.answer()
            assert (head[0], head[1]["content-length"], head[2]) == (get[0], str(len(get[2])), b"")
        client.sendall(b"HEAD /api/v1/pop/queue/q HTTP/1.1\r\nHost: localhost\r\n\r\n" + HEALTH)
        reader = Reader(client)
        assert reader.answer(has_body=False)[0] == 405
        assert reader.answer()[0] == 200


@pytest.mark.parametrize("path", [b"/health", b"/api/v1/pop/queue/q", b"/nothing"])
def test_http_1_0_ends_with_the_answer(usual: Inside, path: bytes) -> None:
    for header in (b"", b"Connection: keep-alive\r\n"):
        with connected(usual.url) as client:
            client.sendall(b"GET %b HTTP/1.0\r\n%b\r\n" % (path, header))
            answer = everything(client)
            assert answer.startswith(b"HTTP/1.1 ")
            assert b"\r\nconnection: close\r\n" in answer
            assert b"transfer-encoding" not in answer.lower()


def test_a_client_that_asks_for_the_end_gets_it(usual: Inside) -> None:
    with connected(usual.url) as client:
        client.sendall(REQUEST + b"Connection: close\r\n\r\n")
        answer = everything(client)
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"\r\nconnection: close\r\n" in answer


def test_an_unknown_upgrade_is_ignored_and_its_body_is_read(usual: Inside) -> None:
    upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n"
    chunks = b"29\r\n" + PUSH + b"\r\n0\r\n\r\n"
    with connected(usual.url) as client:
        for _ in range(2):
            assert exchange(client, REQUEST + upgrade + b"\r\n") == 200
            assert exchange(client, POST + upgrade + b"Content-Length: 41\r\n\r\n" + PUSH) == 201
            assert exchange(client, CHUNKED + upgrade + b"\r\n" + chunks) == 201
            client.sendall(POST + upgrade + b"Content-Length: 41\r\n\r\n" + PUSH[:-1])
            assert exchange(client, PUSH[-1:]) == 201
        client.sendall(CHUNKED + upgrade + b"\r\n" + chunks + HEALTH)
        reader = Reader(client)
        assert [reader.answer()[0] for _ in range(2)] == [201, 200]


# Clients that do not read ----------------------------------------------------------------------------------


def large(server: Inside, queue: str) -> str:
    """A message that no socket takes at once; its path."""
    push = {"items": [{"queue": queue, "payload": "x" * 9_000_000, "transactionId": queue}]}
    [pushed] = httpx.post(f"{server.url}/api/v1/push", json=push).json()
    return f"/api/v1/messages/{pushed['partition_id']}/{queue}"


def wait_for_one(server: Inside) -> None:
    """Wait until a server has no connections but the one that it is asked over."""
    until = time.monotonic() + WAIT_SECONDS
    while server.look(lambda: len(server.server.connections)):
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.parametrize("version", ["1.1", "1.0"])
@pytest.mark.parametrize("way", ["pop", "next", "message"])
def test_a_client_that_does_not_read_a_large_answer_is_hung_up_on(brief: Inside, way: str, version: str) -> None:
    queue = f"unread {way} {version}".replace(" ", "-")
    shown = large(brief, queue)
    request = {
        "pop": f"GET /api/v1/pop/queue/{queue} HTTP/{version}\nHost: localhost\n\n",
        "next": f"POST /api/v1/next?queue={queue} HTTP/{version}\nHost: localhost\nContent-Length: 0\n\n",
        "message": f"GET {shown} HTTP/{version}\nHost: localhost\n\n",
    }[way]
    with deaf(brief.url, request):
        wait_for_one(brief)
    again = httpx.get(f"{brief.url}/api/v1/pop/queue/{queue}").json()
    assert [len(message["data"]) for message in again["messages"]] == [9_000_000], "it was given back"
    assert again["messages"][0]["deliveryAttempt"] == 1


@pytest.mark.parametrize("end", ["HTTP/1.0\r\n", "HTTP/1.1\r\nConnection: close\r\n"])
def test_what_was_received_with_the_last_answer_of_a_connection_is_not_given_back(usual: Inside, end: str) -> None:
    push = {"items": [{"queue": "last", "payload": "x" * 200_000}]}
    assert httpx.post(f"{usual.url}/api/v1/push", json=push).status_code == 201
    with connected(usual.url) as client:
        client.sendall(f"GET /api/v1/pop/queue/last {end}Host: localhost\r\n\r\n".encode())
        [message] = json.loads(everything(client).partition(b"\r\n\r\n")[2])["messages"]
    ack = {name: message[name] for name in ("transactionId", "partitionId", "leaseId")} | {"status": "completed"}
    [settled] = httpx.post(f"{usual.url}/api/v1/ack", json=ack).json()
    assert settled["success"]


# Time, with the clock in the hands of the test -------------------------------------------------------------

SLOW = Limits(header_timeout_seconds=10, body_timeout_seconds=30, stalled_seconds=20)
ENOUGH = 30 * MIN_BODY_BYTES_PER_SECOND
HEAD = b"POST /api/v1/push HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"


class Timer:
    """What will be called, unless it is cancelled first."""

    def __init__(self, at: float, callback: Callable[[], None]) -> None:
        self.at = at
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        """It won't."""
        self.cancelled = True


class Loop:
    """An event loop whose time the test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[Timer] = []
        self.soon: list[Callable[[], None]] = []

    def time(self) -> float:
        """Seconds so far."""
        return self.now

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Note what is to be called."""
        self.timers.append(Timer(self.now + seconds, callback))
        return self.timers[-1]

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Note what is to be called in the next turn."""
        self.soon.append(callback)

    def turn(self) -> None:
        """Call what is due."""
        while self.soon:
            self.soon.pop(0)()

    def advance(self, seconds: float) -> None:
        """Call what falls due in this time."""
        end = self.now + seconds
        self.turn()
        while due := [timer for timer in self.timers if not timer.cancelled and timer.at <= end]:
            timer = min(due, key=lambda one: one.at)
            timer.cancelled = True
            self.now = timer.at
            timer.callback()
            self.turn()
        self.now = end


class BlockedApp:
    """An application that answers when the test says so."""

    begin = staticmethod(App.begin)

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []

    def is_revoked(self, exchange: Exchange) -> bool:
        """Never."""
        del exchange
        return False

    def admit(self, exchange: Exchange) -> None:
        """Let everything in."""

    def body_limit(self, exchange: Exchange) -> int:
        """Return the limit of every request."""
        del exchange
        return Settings().max_body_bytes

    def answer_now(self, exchange: Exchange) -> bool:
        """Note a request."""
        self.exchanges.append(exchange)
        return True

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[object]:
        """Nothing comes here."""
        raise AssertionError(scope, receive, send)

    def answer(self, body: bytes = b"x") -> None:
        """Answer the last request."""
        exchange = self.exchanges[-1]
        exchange.carrier.respond(exchange, 200, (), body)


@pytest.fixture
def loop() -> Loop:
    """The time of the test."""
    return Loop()


@pytest.fixture
def app() -> BlockedApp:
    """Who answers."""
    return BlockedApp()


@pytest.fixture
def transport() -> Mock:
    """The other side."""
    transport = Mock(asyncio.Transport)
    transport.get_extra_info.return_value = None
    transport.get_write_buffer_size.return_value = 0
    transport.is_closing.side_effect = lambda: transport.close.called or transport.abort.called
    return transport


@pytest.fixture
async def connection(loop: Loop, transport: Mock, app: BlockedApp) -> Connection:
    """A connection that was just made."""
    server = Server(app, limits=SLOW)
    server.loop = cast(asyncio.AbstractEventLoop, loop)
    made = Connection(server)
    made.connection_made(transport)
    return made


def written(transport: Mock) -> list[bytes]:
    """The first lines of what was written."""
    return [call.args[0].split(b"\r\n")[0] for call in transport.write.call_args_list]


LATE = b"HTTP/1.1 408 Request Timeout"


def test_the_head_has_its_time(connection: Connection, loop: Loop, transport: Mock) -> None:
    connection.data_received(HEAD[:20])
    loop.advance(5)
    connection.data_received(HEAD[20:40])
    loop.advance(4.9)
    assert written(transport) == []
    loop.advance(0.1)
    assert written(transport) == [LATE]
    assert transport.write_eof.called
    loop.advance(LINGER_SECONDS - 0.1)
    connection.data_received(HEAD[40:])
    assert not transport.is_closing()
    loop.advance(0.1)
    assert transport.abort.called
    assert written(transport) == [LATE]


def test_after_the_head_the_body_has_its_own_time_and_the_answer_all_of_it(
    connection: Connection, loop: Loop, transport: Mock, app: BlockedApp
) -> None:
    connection.data_received(HEAD[:20])
    loop.advance(9.9)
    connection.data_received(HEAD[20:])
    loop.advance(29.9)
    assert not app.exchanges
    connection.data_received(b"x" * 1_000_000)
    assert [len(exchanges.body) for exchanges in app.exchanges] == [1_000_000]
    loop.advance(10_000)
    assert not transport.is_closing()
    app.answer()
    assert written(transport) == [b"HTTP/1.1 200 OK"]


def test_a_body_that_brings_enough_in_its_time_gets_as_much_again(
    connection: Connection, loop: Loop, transport: Mock, app: BlockedApp
) -> None:
    connection.data_received(HEAD)
    for _ in range(3):
        connection.data_received(b"x" * ENOUGH)
        loop.advance(30)
        assert written(transport) == []
    connection.data_received(b"x" * (ENOUGH - 1))
    loop.advance(30)
    assert written(transport) == [LATE]
    loop.advance(LINGER_SECONDS)
    assert transport.abort.called
    assert not app.exchanges


def test_one_that_the_server_does_not_read_is_not_the_clients_fault(
    connection: Connection, loop: Loop, transport: Mock, app: BlockedApp
) -> None:
    connection.data_received(HEALTH * 1000 + HEAD[:20])  # More than are kept unread.
    assert transport.pause_reading.called
    loop.advance(10_000)
    assert not transport.is_closing()
    for _ in range(1000):
        app.answer()
        loop.turn()
    assert (len(app.exchanges), written(transport)) == (1000, [b"HTTP/1.1 200 OK"] * 1000)
    loop.advance(10)
    assert written(transport)[-1] == LATE


def test_an_idle_connection_is_closed_after_a_while(
    connection: Connection, loop: Loop, transport: Mock, app: BlockedApp
) -> None:
    for _ in range(3):
        connection.data_received(HEALTH)
        app.answer()
        loop.advance(IDLE_SECONDS - 1)
        assert not transport.is_closing()
    loop.advance(1)
    assert transport.close.called
    assert not transport.abort.called


# Requests that are sent ahead, step by step ----------------------------------------------------------------


def test_reading_stops_when_sixteen_requests_wait_and_goes_on_when_they_have_been_answered(
    connection: Connection, loop: Loop, transport: Mock, app: BlockedApp
) -> None:
    assert MAX_PIPELINED == 16
    for _ in range(1 + MAX_PIPELINED):  # One is being answered.
        connection.data_received(HEALTH)
        assert not transport.pause_reading.called
    connection.data_received(HEALTH)
    assert transport.pause_reading.called
    assert len(app.exchanges) == 1
    for number in range(1, 1 + MAX_PIPELINED):
        assert not transport.resume_reading.called
        app.answer()
        loop.turn()
        assert len(app.exchanges) == number + 1
    app.answer()
    loop.turn()
    assert transport.resume_reading.called
    assert len(app.exchanges) == 2 + MAX_PIPELINED


def test_a_large_body_is_not_received_while_another_request_is_served(
    connection: Connection, loop: Loop, transport: Mock, app: BlockedApp
) -> None:
    body = b"x" * 2**20
    connection.data_received(HEALTH)
    connection.data_received(b"POST /api/v1/push HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body))
    for start in range(0, len(body), SMALL):
        if transport.pause_reading.called:
            break
        connection.data_received(body[start : start + SMALL])
    assert start <= 3 * SMALL
    app.answer()
    loop.turn()
    assert transport.resume_reading.called
    connection.data_received(body[start:])
    assert [len(one.body) for one in app.exchanges] == [0, len(body)]


def test_a_connection_that_sends_much_is_read_once_in_a_turn_of_the_event_loop(
    connection: Connection, loop: Loop, transport: Mock
) -> None:
    connection.data_received(b"POST /api/v1/push HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % 2**22)
    for number in range(1, 4):
        connection.data_received(b"x" * (SMALL + 1))
        assert transport.pause_reading.call_count == number
        assert transport.resume_reading.call_count == number - 1
        loop.turn()
        assert transport.resume_reading.call_count == number


def test_the_next_request_is_served_when_the_answer_before_it_is_on_its_way(
    connection: Connection, loop: Loop, transport: Mock, app: BlockedApp
) -> None:
    connection.data_received(HEALTH * 3)
    transport.write.side_effect = lambda _data: connection.pause_writing()
    transport.get_write_buffer_size.return_value = 10_000_000
    app.answer(b"x" * 10_000_000)
    loop.turn()
    assert len(app.exchanges) == 1
    connection.data_received(HEALTH)
    assert len(app.exchanges) == 1
    transport.write.side_effect = None
    connection.resume_writing()
    loop.turn()
    assert len(app.exchanges) == 2


def test_a_client_that_reads_slowly_has_all_the_time_and_one_that_stops_does_not(
    connection: Connection, loop: Loop, transport: Mock, app: BlockedApp
) -> None:
    connection.data_received(HEALTH)
    transport.write.side_effect = lambda _data: connection.pause_writing()
    transport.get_write_buffer_size.return_value = left = 10_000_000
    app.answer(b"x" * left)
    for _ in range(100):
        loop.advance(19.9)
        left -= 1
        transport.get_write_buffer_size.return_value = left
    assert not transport.is_closing()
    connection.data_received(HEALTH[:10])
    loop.advance(40)
    assert transport.abort.called


def test_a_client_that_has_read_all_of_a_large_answer_may_be_idle_as_long_as_others(
    connection: Connection, loop: Loop, transport: Mock, app: BlockedApp
) -> None:
    connection.data_received(HEALTH)
    transport.write.side_effect = lambda _data: connection.pause_writing()
    transport.get_write_buffer_size.return_value = 10_000_000
    app.answer(b"x" * 10_000_000)
    loop.advance(19)
    transport.get_write_buffer_size.return_value = 0
    connection.resume_writing()
    loop.advance(IDLE_SECONDS - 1)
    assert not transport.is_closing()
    loop.advance(1)
    assert transport.close.called


@pytest.mark.parametrize("received", [False, True])
def test_what_a_client_did_not_receive_is_taken_back(
    connection: Connection, loop: Loop, transport: Mock, app: BlockedApp, received: bool
) -> None:
    lost = Mock()
    connection.data_received(HEALTH)
    transport.write.side_effect = lambda _data: connection.pause_writing()
    exchange = app.exchanges[-1]
    exchange.carrier.respond(exchange, 200, (), b"x" * 10_000_000, lost)
    loop.turn()
    if received:
        connection.resume_writing()
    connection.connection_lost(None)
    assert lost.called is not received


# The end ---------------------------------------------------------------------------------------------------


async def test_a_server_that_stops_gives_the_answers_that_it_owes_and_takes_no_more(app: BlockedApp) -> None:
    server = Server(app)
    with listening.bound("127.0.0.1", 0) as listener:
        await server.start(listener)
        address = listener.getsockname()
        waiting, idle = await asyncio.open_connection(*address), await asyncio.open_connection(*address)
        waiting[1].write(HEALTH * 2)
        while not (app.exchanges and len(server.connections) == 2):  # noqa: ASYNC110  # It is not told.
            await asyncio.sleep(0.001)
        stopping = asyncio.create_task(server.stop(WAIT_SECONDS))
        assert await idle[0].read() == b""
        with pytest.raises(OSError):
            await asyncio.open_connection(*address)
        assert not stopping.done()
        app.answer(b"owed")
        answer = await waiting[0].read()
        await stopping
        assert answer.endswith(b"owed")
        assert b"\r\nconnection: close\r\n" in answer
        assert (len(app.exchanges), server.load()) == (1, (0, 0))
        for _, writer in (waiting, idle):
            writer.close()


async def test_a_server_that_stops_does_not_wait_longer_than_it_should(app: BlockedApp) -> None:
    server = Server(app)
    left = Mock()
    with listening.bound("127.0.0.1", 0) as listener:
        await server.start(listener)
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(HEALTH)
        while not app.exchanges:  # noqa: ASYNC110  # It is not told.
            await asyncio.sleep(0.001)
        app.exchanges[0].on_left = left
        await server.stop(0.05)
        assert left.called
        assert (app.exchanges[0].gone, server.load()) == (True, (0, 0))
        assert await reader.read() == b""
        writer.close()


def test_a_stop_ends_waits_and_streams_with_a_word() -> None:
    pop = b"GET /api/v1/pop/queue/q?wait=true&timeout=20000 HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with (
        inside() as server,
        connected(server.url) as waiting,
        connected(server.url) as idle,
        websocket(server.url) as consumer,
    ):
        waiting.sendall(pop)
        assert exchange(idle, HEALTH) == 200
        until = time.monotonic() + WAIT_SECONDS
        while not server.look(lambda: len(server.broker.delivery.intentions)):
            assert time.monotonic() < until
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        answer = everything(waiting)
        assert answer.startswith(b"HTTP/1.1 204")
        assert b"\r\nconnection: close\r\n" in answer
        assert everything(idle) == b""
        with pytest.raises(ConnectionClosed) as closed:
            consumer.receive()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1012
        stopping.join()
