"""Bounds on connections: their number, the time that a request takes to arrive, the size of its head."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit

import httpx
import pytest

from hark.http.edge.connections import MAX_HEADER_BYTES, MAX_HEADERS, MAX_TARGET_BYTES
from hark.settings import Limits, Settings
from tests.http.streaming import PATIENCE, Inside, inside, websocket

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
    "a chunk": b"PUT /keyval/api/keys/a HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n[1\r\n",
    "a pop": b"GET /api/v1/pop/queue/q?wait=true HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n",
}


def test_a_request_that_does_not_arrive_is_given_up(brief: Inside) -> None:
    with ExitStack() as stack:
        clients = {what: stack.enter_context(connected(brief.url)) for what in BEGUN}
        for what, client in clients.items():
            client.sendall(BEGUN[what])
        for what, client in clients.items():
            assert refusal(everything(client)) == (408, "request_timeout"), what


def test_a_connection_that_says_nothing_is_closed_without_a_word(brief: Inside) -> None:
    with connected(brief.url) as client:
        assert everything(client) == b""


def test_the_second_request_of_a_connection_has_to_arrive_as_well(brief: Inside) -> None:
    with connected(brief.url) as client:
        assert exchange(client, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").startswith(b"HTTP/1.1 200")
        client.sendall(b"GET /hea")
        assert refusal(everything(client)) == (408, "request_timeout")


def test_a_push_that_was_given_up_is_not_pushed(brief: Inside) -> None:
    with connected(brief.url) as client:
        client.sendall(b"POST /api/v1/push HTTP/1.1\r\nHost: localhost\r\nContent-Length: 42\r\n\r\n" + PUSH)
        assert refusal(everything(client)) == (408, "request_timeout")
    assert httpx.get(f"{brief.url}/api/v1/pop/queue/q").status_code == 204


def test_those_who_wait_for_an_answer_have_all_the_time(brief: Inside) -> None:
    with connected(brief.url) as client:
        pop = b"GET /api/v1/pop/queue/late?wait=true&timeout=20000 HTTP/1.1\r\nHost: localhost\r\n\r\n"
        client.sendall(pop)
        outlast_patience(brief)
        httpx.post(f"{brief.url}/api/v1/push", json={"items": [{"queue": "late", "payload": 1}]})
        assert client.recv(65_536).startswith(b"HTTP/1.1 200")


def test_an_idle_connection_is_kept_for_the_next_request(brief: Inside) -> None:
    with connected(brief.url) as client:
        for _ in range(2):
            answer = exchange(client, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200")
            outlast_patience(brief)


def test_streams_outlive_the_patience_for_requests(brief: Inside) -> None:
    with websocket(brief.url) as consumer:
        outlast_patience(brief)
        assert consumer.ask("ping") == {"type": "pong"}


def test_a_body_in_many_parts_is_read_to_its_end(usual: Inside) -> None:
    with connected(usual.url) as client:
        client.sendall(b"POST /api/v1/push HTTP/1.1\r\nHost: localhost\r\nContent-Length: 41\r\n\r\n")
        for byte in PUSH[:-1]:
            client.sendall(bytes([byte]))
        assert exchange(client, PUSH[-1:]).startswith(b"HTTP/1.1 201")


# Number ----------------------------------------------------------------------------------------------------


def test_more_connections_than_allowed_are_refused_with_a_word() -> None:
    with inside(Settings(limits=Limits(max_connections=2))) as server:
        health = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with connected(server.url) as one:
            assert exchange(one, health).startswith(b"HTTP/1.1 200")
            with connected(server.url) as two:
                assert exchange(two, health).startswith(b"HTTP/1.1 200")
                with connected(server.url) as three:
                    answer = everything(three)
                assert refusal(answer) == (503, "too_many_connections")
                assert b"retry-after: 1\r\n" in answer
            assert exchange(one, health).startswith(b"HTTP/1.1 200")


# Size ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "head",
    [
        b"".join(b"X-%d: 1\r\n" % number for number in range(MAX_HEADERS)),
        b"X: " + b"x" * MAX_HEADER_BYTES + b"\r\n",
        b"".join(b"X-%d: %b\r\n" % (number, b"x" * 1000) for number in range(MAX_HEADER_BYTES // 1000 + 1)),
    ],
    ids=["many", "one-long", "long-together"],
)
def test_a_large_head_is_a_431(usual: Inside, head: bytes) -> None:
    with connected(usual.url) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + head + b"\r\n")
        assert refusal(everything(client)) == (431, "headers_too_large")


def test_a_long_path_is_a_431(usual: Inside) -> None:
    with connected(usual.url) as client:
        client.sendall(b"GET /health?" + b"x" * MAX_TARGET_BYTES + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
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
