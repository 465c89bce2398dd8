"""POST /next: settles messages and receives the next ones, each part answered by itself."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock
from urllib.parse import urlsplit

import httpx
import pytest

from hark.access.tokens import UNRESTRICTED
from hark.broker import Broker
from hark.http.exchange import Exchange, Header, Lost
from hark.http.hot import HotRoutes
from hark.model import PopResult, SettleOutcome
from hark.settings import Limits, Settings
from tests.http.api import Api, Json, acknowledgment, data, refusal, texts
from tests.http.streaming import WAIT_SECONDS, inside


def connected(url: str) -> socket.socket:
    """A connection that nothing was sent over."""
    where = urlsplit(url)
    return socket.create_connection((where.hostname, where.port), WAIT_SECONDS)


def next_of(api: Api, queue: str, *done: Json, group: str = "", **query: Any) -> tuple[list[Json], Json]:
    """Settle messages and pop; both lines of the answer."""
    body: Json = {"acknowledgments": [acknowledgment(message, "completed") for message in done]}
    if group:
        body["consumerGroup"] = group
        query["consumerGroup"] = group
    answer = api.post("/next", body, queue=queue, **query)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    settled, popped = (json.loads(line) for line in answer.text.splitlines())
    return settled, popped


def test_it_settles_what_is_done_and_receives_what_is_next(api: Api, queue: str) -> None:
    api.push(queue, 1, 2)
    settled, popped = next_of(api, queue, group="g")
    assert settled == []
    [first] = popped["messages"]
    settled, popped = next_of(api, queue, first, group="g")
    assert [(one["success"], one["transactionId"]) for one in settled] == [(True, first["transactionId"])]
    [second] = popped["messages"]
    assert (first["data"], second["data"]) == (1, 2), "an ordered partition is free before the pop"
    settled, popped = next_of(api, queue, second, group="g")
    assert ([one["success"] for one in settled], popped) == ([True], None)


def test_payloads_with_line_breaks_stay_on_one_line(api: Api, queue: str) -> None:
    body = b'{"items": [{"queue": "%b", "payload": {"a":\n\n1,\r\n"b": "x\\ny"}}]}' % queue.encode()
    assert api.post("/push", content=body).status_code == 201
    _, popped = next_of(api, queue)
    assert data(popped["messages"]) == [{"a": 1, "b": "x\ny"}]


def test_a_refused_settlement_and_an_empty_queue_are_answered_each_by_itself(api: Api, queue: str) -> None:
    api.push(queue, 1)
    gone = {"transactionId": "t", "partitionId": "p", "leaseId": "l"}
    settled, popped = next_of(api, queue, gone)
    assert [(one["success"], one["code"]) for one in settled] == [(False, "not_found")]
    assert data(popped["messages"]) == [1]


def test_a_pop_that_fails_does_not_hide_the_settlements(api: Api, queue: str) -> None:
    api.push(queue, 1, 2)
    [message] = api.pop(queue, consumerGroup="g", groupMode="ordered")
    settled, problem = next_of(api, queue, message, group="g", groupMode="shared")
    assert [one["success"] for one in settled] == [True]
    assert (problem["code"], problem["status"]) == ("group_mode_conflict", 409)
    assert data(api.pop(queue, consumerGroup="g")) == [2]


WRONG: list[tuple[Json, dict[str, Any], str]] = [
    ({"acknowledgments": [{}]}, {}, "acknowledgments[0].transactionId:"),
    ({"acknowledgments": 5}, {}, "acknowledgments array is required"),
    ({}, {"batch": 0}, "batch: expected an integer"),
    ({}, {"queue": ""}, "queue"),
]


@pytest.mark.parametrize(("body", "query", "text"), WRONG)
def test_a_wrong_part_fails_the_whole_request_before_anything_is_done(
    api: Api, queue: str, body: Json, query: dict[str, Any], text: str
) -> None:
    api.push(queue, 1)
    assert text in refusal(api.post("/next", body, **({"queue": queue} | query)), 400)
    assert data(api.pop(queue)) == [1], "nothing was leased"


def test_the_settlements_are_answered_before_the_wait(api: Api, queue: str) -> None:
    api.push(queue, 1)
    [message] = api.pop(queue)
    body = {"acknowledgments": [acknowledgment(message, "completed")]}
    query = texts({"queue": queue, "wait": True, "timeout": 20_000})
    with api.client.stream("POST", "/api/v1/next", json=body, params=query) as response:
        lines = response.iter_lines()
        assert json.loads(next(lines))[0]["success"]
        api.push(queue, 2)
        assert data(json.loads(next(lines))["messages"]) == [2]
        assert next(lines, None) is None


def test_a_client_that_leaves_during_the_wait_undoes_nothing_and_takes_nothing() -> None:
    with inside(Settings(limits=Limits(max_waiting=1))) as server:
        api = Api(httpx.Client(base_url=server.url, timeout=WAIT_SECONDS))
        api.push("q", 1)
        [message] = api.pop("q")
        body = json.dumps({"acknowledgments": [acknowledgment(message, "completed")]}).encode()
        with connected(server.url) as client:
            head = b"POST /api/v1/next?queue=q&wait=true&timeout=20000 HTTP/1.1\r\nHost: localhost\r\n"
            client.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            assert b'"success":true' in _until(client, b"\n\r\n")
        api.push("q", 2)
        while api.post("/next", {}, queue="q", wait=True, timeout=1).status_code == 429:
            pass  # The server has not noticed yet that the only waiting client is gone.
        assert api.ack(message)["success"], "a repetition of the acknowledgement succeeds"
        api.client.close()


def _until(client: socket.socket, end: bytes) -> bytes:
    got = b""
    while not got.endswith(end):
        part = client.recv(65_536)
        assert part, got
        got += part
    return got


def test_a_client_of_http_1_0_gets_both_lines_at_the_end(api: Api, server_url: str, queue: str) -> None:
    with connected(server_url) as client:
        request = f"POST /api/v1/next?queue={queue}&wait=true&timeout=20000 HTTP/1.0\r\nHost: localhost\r\n\r\n"
        client.sendall(request.encode())
        push = threading.Timer(0.05, api.push, (queue, 1))
        push.start()
        answer = b""
        while part := client.recv(65_536):
            answer += part
        push.join()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"chunked" not in head
    first, second = body.splitlines()
    assert (json.loads(first), data(json.loads(second)["messages"])) == ([], [1])


# Both parts are done in the same turn of the event loop ---------------------------------------------------


class OneAnswer:
    """A connection that notes what it is to send."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def respond(
        self, exchange: Exchange, status: int, headers: tuple[Header, ...], body: bytes, lost: Lost | None = None
    ) -> None:
        """Note the response."""
        del status, headers, lost
        self.sent.append(body)
        exchange.on_left = None

    def begin_response(self, exchange: Exchange, status: int, headers: tuple[Header, ...], body: bytes) -> bool:
        """Nothing is sent early."""
        raise AssertionError((exchange, status, headers, body))


@pytest.mark.parametrize("first", ["settle", "pop"])
async def test_messages_that_arrive_with_the_settlements_are_sent_once_and_stay_leased(first: str) -> None:
    loop = asyncio.get_running_loop()
    settling: asyncio.Future[list[SettleOutcome]] = loop.create_future()
    popping: asyncio.Future[PopResult] = loop.create_future()
    broker = Mock(Broker)
    broker.settle.return_value, broker.begin_pop.return_value = settling, popping
    exchange = Exchange("POST", b"/api/v1/next", b"queue=q&wait=true", {}, None, secure=False)
    exchange.identity, exchange.params = UNRESTRICTED, {}
    exchange.body = json.dumps({"acknowledgments": [{"transactionId": "t", "partitionId": "p"}]}).encode()
    carrier = exchange.carrier = OneAnswer()
    HotRoutes(broker, Settings()).next(exchange)
    results: list[Callable[[], None]] = [
        lambda: settling.set_result([SettleOutcome("t", True)]),
        lambda: popping.set_result(PopResult(lease_id="l")),
    ]
    for result in results if first == "settle" else reversed(results):
        result()
    for _ in range(3):
        await asyncio.sleep(0)
    [body] = carrier.sent
    assert json.loads(body.splitlines()[0])[0]["success"]
    broker.give_back.assert_not_called()
