"""Bounds on connections: their number, the time that a request takes to arrive, the size of its head and its pace."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import struct
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import Mock
from urllib.parse import urlsplit

import httpx
import pytest
from uvicorn.server import ServerState

from hark.http.edge.connections import (
    MAX_HEADER_BYTES,
    MAX_HEADERS,
    MAX_TARGET_BYTES,
    MIN_BODY_BYTES_PER_SECOND,
    GuardedProtocol,
)
from hark.http.stream.transport import OpenProtocol
from hark.serving.server import uvicorn_config
from hark.settings import Limits, Settings
from tests.http.streaming import PATIENCE, Inside, inside, websocket

REQUEST = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
HEALTH = REQUEST + b"\r\n"
PUSH = b'{"items": [{"queue": "q", "payload": 1}]}'


@contextmanager
def connected(url: str) -> Iterator[socket.socket]:
    """A connection that nothing was sent over."""
    where = urlsplit(url)
    assert where.hostname is not None
    with socket.create_connection((where.hostname, where.port), PATIENCE) as client:
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
    said = json.loads(body)
    assert said["error"]
    return int(head.split()[1]), said["code"]


def exchange(client: socket.socket, request: bytes) -> bytes:
    """Send a request and read its (short) answer."""
    client.sendall(request)
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += client.recv(65_536)
    head, _, body = answer.partition(b"\r\n\r\n")
    [length] = [int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")]
    while len(body) < length:
        body += client.recv(65_536)
    return head + b"\r\n\r\n" + body


@pytest.fixture(scope="module")
def usual() -> Iterator[Inside]:
    """A server with the usual patience."""
    with inside() as server:
        yield server


@pytest.fixture(scope="module")
def brief() -> Iterator[Inside]:
    """A server whose patience is over soon, but not before what is sent at once has arrived."""
    with inside(Settings(limits=Limits(header_timeout_seconds=0.4, body_timeout_seconds=0.4))) as server:
        yield server


def outlast_patience(server: Inside) -> None:
    """Return when a request that began now would have been given up."""
    with connected(server.url) as slow:
        slow.sendall(b"GET")
        assert refusal(everything(slow))[0] == 408


# Who -------------------------------------------------------------------------------------------------------


def test_an_address_is_that_of_the_connection_whatever_a_header_says(usual: Inside) -> None:
    said = {"x-forwarded-for": "192.0.2.7", "x-forwarded-proto": "https"}
    push = {"items": [{"queue": "addressed", "payload": 1}]}
    assert httpx.post(f"{usual.url}/api/v1/push", json=push, headers=said).status_code == 201
    assert httpx.get(f"{usual.url}/api/v1/pop/queue/addressed", headers=said).status_code == 200
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
        assert exchange(clients["the second"], HEALTH).startswith(b"HTTP/1.1 200")
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
            assert exchange(idle, HEALTH).startswith(b"HTTP/1.1 200")
            outlast_patience(brief)
        assert consumer.ask("ping") == {"type": "pong"}
        httpx.post(f"{brief.url}/api/v1/push", json={"items": [{"queue": "late", "payload": 1}]})
        assert waiting.recv(65_536).startswith(b"HTTP/1.1 200")


def test_a_body_in_many_parts_is_read_to_its_end(usual: Inside) -> None:
    with connected(usual.url) as client:
        client.sendall(b"POST /api/v1/push HTTP/1.1\r\nHost: localhost\r\nContent-Length: 41\r\n\r\n")
        for byte in PUSH[:-1]:
            client.sendall(bytes([byte]))
        assert exchange(client, PUSH[-1:]).startswith(b"HTTP/1.1 201")


# Number ----------------------------------------------------------------------------------------------------


def test_more_connections_than_allowed_are_refused_with_a_word() -> None:
    with inside(Settings(limits=Limits(max_connections=2))) as server, connected(server.url) as one:
        assert exchange(one, HEALTH).startswith(b"HTTP/1.1 200")
        with connected(server.url) as two:
            assert exchange(two, HEALTH).startswith(b"HTTP/1.1 200")
            with connected(server.url) as three:
                answer = everything(three)
            assert refusal(answer) == (503, "too_many_connections")
            assert b"retry-after: 1\r\n" in answer
        assert exchange(one, HEALTH).startswith(b"HTTP/1.1 200")


# What is kept ----------------------------------------------------------------------------------------------


def kept(server: Inside) -> int:
    """How many connections of a server are in memory."""
    gc.collect()
    protocols = [one for one in gc.get_objects() if isinstance(one, OpenProtocol)]
    return sum(one.config.app is server.app for one in protocols)


def test_a_connection_that_is_reset_is_let_go_of_long_before_its_idle_time_is_over() -> None:
    with inside() as server:
        with connected(server.url) as client:
            assert exchange(client, HEALTH).startswith(b"HTTP/1.1 200")
            assert server.look(lambda: kept(server)) == 1
            # Linger for no time at all: the end of the connection is a reset.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        until = time.monotonic() + PATIENCE
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


# Pace, with the clock in the hands of the test -------------------------------------------------------------

SLOW = Limits(header_timeout_seconds=10, body_timeout_seconds=30)
ENOUGH = 30 * MIN_BODY_BYTES_PER_SECOND
HEAD = b"POST /api/v1/push HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"


class Timer:
    """What will be called, unless it is cancelled first."""

    def __init__(self, seconds: float, callback: Callable[[], None]) -> None:
        self.seconds = seconds
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        """It won't."""
        self.cancelled = True


class Loop:
    """An event loop without time and without tasks."""

    def __init__(self) -> None:
        self.timers: list[Timer] = []

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Note what is to be called."""
        self.timers.append(Timer(seconds, callback))
        return self.timers[-1]

    def create_task(self, work: Coroutine[Any, Any, None]) -> Mock:
        """Do nothing of it."""
        work.close()
        return Mock()

    def waiting(self) -> list[float]:
        """The seconds of the timers that run."""
        return [timer.seconds for timer in self.timers if not timer.cancelled]

    def fire(self) -> None:
        """The one timer that runs is over."""
        [timer] = [timer for timer in self.timers if not timer.cancelled]
        timer.cancelled = True
        timer.callback()


@pytest.fixture
def loop() -> Loop:
    """The time of the test."""
    return Loop()


@pytest.fixture
def transport() -> Mock:
    """The other side."""
    transport = Mock(asyncio.Transport)
    transport.get_extra_info.return_value = None
    transport.is_closing.side_effect = lambda: transport.close.called
    return transport


@pytest.fixture
def connection(loop: Loop, transport: Mock) -> GuardedProtocol:
    """A connection that was just made."""
    guarded = GuardedProtocol(uvicorn_config(Mock(), "127.0.0.1", 0), ServerState(), {}, _loop=loop, limits=SLOW)
    guarded.connection_made(transport)
    return guarded


def test_the_head_has_its_time_and_then_the_body_has_its_own(connection: GuardedProtocol, loop: Loop) -> None:
    assert loop.waiting() == [10]
    connection.data_received(HEAD[:20])
    assert loop.waiting() == [10]
    connection.data_received(HEAD[20:])
    assert loop.waiting() == [30]
    connection.data_received(b"x" * 1_000_000)
    assert loop.waiting() == []


def test_a_body_that_brings_enough_in_its_time_gets_as_much_again(
    connection: GuardedProtocol, loop: Loop, transport: Mock
) -> None:
    connection.data_received(HEAD)
    for _ in range(3):
        connection.data_received(b"x" * ENOUGH)
        connection.cycle.body.clear()  # The application has read it.
        loop.fire()
        assert loop.waiting() == [30]
    connection.data_received(b"x" * (ENOUGH - 1))
    loop.fire()
    assert transport.write.call_args.args[0].startswith(b"HTTP/1.1 408 ")
    assert transport.is_closing()
    assert loop.waiting() == []


def test_one_that_the_server_does_not_read_is_not_the_clients_fault(
    connection: GuardedProtocol, loop: Loop, transport: Mock
) -> None:
    connection.data_received(HEAD + b"x" * 200_000)  # More than is kept unread.
    loop.fire()
    loop.fire()
    assert (transport.is_closing(), loop.waiting()) == (False, [30])
