"""Every error is JSON with a text and a code, on every route, and leaves the server serving."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import httpx
import pytest

from tests.conftest import running_server
from tests.http.api import Api, data, read, refusal

BODY_ROUTES = [
    "/push",
    "/ack",
    "/ack/batch",
    "/transaction",
    "/configure",
    "/traces",
    "/consumer-groups/g/subscription",
    "/system/maintenance",
    "/system/maintenance/pop",
]
OPTIONAL_BODY_ROUTES = [
    "/lease/x/extend",
    "/consumer-groups/g/queues/q/seek",
    "/consumer-groups/g/queues/q/partitions/p/seek",
]
MALFORMED = [
    b"{",
    b"not json",
    b'{"a":1,}',
    b"[1",
    b"{'a':1}",
    b"\xff\xfe",
    b'{"a":"\xff"}',
    b"\x00",
    b"NaN",
    b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b"[" * 100_000,
]


@pytest.mark.parametrize("path", BODY_ROUTES)
def test_an_empty_body_is_refused(api: Api, path: str) -> None:
    assert refusal(api.post(path), 400, "invalid_input") == "Empty request body"


@pytest.mark.parametrize("path", BODY_ROUTES + OPTIONAL_BODY_ROUTES)
@pytest.mark.parametrize("body", MALFORMED, ids=lambda body: repr(body[:12]))
def test_malformed_json_is_refused(api: Api, path: str, body: bytes) -> None:
    text = refusal(api.post(path, content=body), 400)
    assert len(text) < 500


@pytest.mark.parametrize("path", BODY_ROUTES + OPTIONAL_BODY_ROUTES)
@pytest.mark.parametrize("body", [b"[]", b"5", b'"x"', b"null", b"true"])
def test_a_body_that_is_no_object_is_refused(api: Api, path: str, body: bytes) -> None:
    refusal(api.post(path, content=body), 400, "invalid_input")


@pytest.mark.parametrize("path", ["/nothing", "/api", "/api/v1", "/api/v1/nothing", "/api/v1/push/x", "/favicon.ico"])
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_an_unknown_route_is_404_in_json(http: httpx.Client, method: str, path: str) -> None:
    refusal(http.request(method, path), 404, "route_not_found")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/push"),
        ("PUT", "/push"),
        ("DELETE", "/push"),
        ("POST", "/pop/queue/q"),
        ("DELETE", "/pop/queue/q/partition/p"),
        ("POST", "/pop"),
        ("GET", "/ack"),
        ("GET", "/ack/batch"),
        ("GET", "/transaction"),
        ("GET", "/configure"),
        ("POST", "/resources/queues"),
        ("PUT", "/resources/queues/q"),
        ("GET", "/resources/queues/q/purge"),
        ("POST", "/dlq"),
        ("GET", "/lease/x/extend"),
        ("POST", "/listen/queue/q"),
        ("POST", "/consumers"),
        ("PATCH", "/consumer-groups/g"),
    ],
)
def test_another_method_is_405_and_says_which_are_allowed(http: httpx.Client, method: str, path: str) -> None:
    response = http.request(method, f"/api/v1{path}")
    refusal(response, 405, "method_not_allowed")
    allowed = {name.strip() for name in response.headers["allow"].split(",")}
    assert allowed
    assert method not in allowed


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A server that takes bodies of up to 1000 bytes."""
    settings = {"HARK_MAX_BODY_BYTES": "1000"}
    with (
        running_server(tmp_path_factory.mktemp("narrow"), settings=settings) as url,
        httpx.Client(base_url=url, timeout=30) as client,
    ):
        yield Api(client)


@pytest.mark.parametrize("path", ["/push", "/ack", "/ack/batch", "/transaction", "/configure", "/lease/x/extend"])
def test_a_body_over_the_limit_is_413(narrow: Api, path: str) -> None:
    text = refusal(narrow.post(path, content=b"x" * 1001), 413, "body_too_large")
    assert "1000" in text
    chunks = (b"x" * 100 for _ in range(11))
    refusal(narrow.client.post(f"/api/v1{path}", content=chunks), 413, "body_too_large")
    refusal(narrow.post(path, content=b"x" * 1000), 400)


def test_ten_megabytes_is_the_limit_by_default(api: Api, queue: str) -> None:
    head, tail = b'{"items":[{"queue":"' + queue.encode() + b'","payload":"', b'"}]}'
    room = 10 * 1024 * 1024 - len(head) - len(tail)
    refusal(api.post("/push", content=head + b"x" * (room + 1) + tail), 413, "body_too_large")
    read(api.post("/push", content=head + b"x" * room + tail), 201)
    assert len(api.pop_one(queue)["data"]) == room


@pytest.mark.parametrize("path", ["/pop/queue/q", "/pop", "/dlq", "/messages", "/resources/queues"])
def test_a_query_that_is_not_utf_8_is_refused(http: httpx.Client, path: str) -> None:
    text = refusal(http.get(f"/api/v1{path}?queue=%FF&batch=1"), 400, "invalid_input")
    assert text == "the query string is not valid UTF-8"


def test_of_a_parameter_given_twice_the_first_counts(http: httpx.Client, queue: str) -> None:
    api = Api(http)
    api.kill(queue, 1)
    assert read(http.get(f"/api/v1/dlq?queue={queue}&queue=other"))["total"] == 1


def test_a_client_that_vanishes_in_the_middle_of_a_body_disturbs_nobody(api: Api, server_url: str, queue: str) -> None:
    address = urlsplit(server_url)
    assert address.hostname is not None
    assert address.port is not None
    for path in ("/api/v1/push", "/api/v1/transaction"):
        with socket.create_connection((address.hostname, address.port)) as connection:
            head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"
            connection.sendall(head.encode() + b'{"items":[')
    api.push(queue, 1)
    assert data(api.pop(queue)) == [1]


def test_many_wrong_requests_at_once_leave_the_right_ones_alone(api: Api, queue: str) -> None:
    def push(number: int) -> int:
        item = {"queue": queue, "payload": number, "partition": f"p{number}"}
        if number % 2:
            item["traceId"] = "poison"
        return api.post("/push", {"items": [item]}).status_code

    with ThreadPoolExecutor(16) as pool:
        statuses = list(pool.map(push, range(100)))
    assert statuses == [400 if number % 2 else 201 for number in range(100)]
    messages = api.pop(queue, batch=1000, partitions=1000)
    assert sorted(data(messages)) == list(range(0, 100, 2))
