"""GET /consume: frames and connections that are refused, and sockets that are kept to what their token may."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from hark.settings import Settings
from tests.http.api import Api, Json, data
from tests.http.edge.app_client import Tokens
from tests.http.streaming import Inside, Socket, inside, websocket

# Wrong frames ----------------------------------------------------------------------------------------------

ITEM = {"transactionId": "t", "partitionId": "p"}
WRONG: list[tuple[str, Json, str]] = [
    ("credit", {}, "n: is required"),
    ("credit", {"n": "many"}, "n: expected an integer, got a string"),
    ("credit", {"n": -1}, "n: expected an integer from 0 to 10000"),
    ("subscribe", {"queue": "q"}, "id: is required"),
    ("subscribe", {"id": "", "queue": "q"}, "id: must not be empty"),
    ("subscribe", {"id": "s"}, "queue, namespace or task is required"),
    ("subscribe", {"id": "s", "queue": "q", "batch": 0}, "batch: expected an integer"),
    ("subscribe", {"id": "s", "queue": "q", "batch": "1"}, "batch: expected an integer"),
    ("subscribe", {"id": "s", "queue": "q", "autoAck": 1}, "autoAck: expected true"),
    ("subscribe", {"id": "s", "queue": "q", "from": "head"}, "from: allowed only with browse"),
    ("subscribe", {"id": "s", "queue": "q", "leaseTime": 0}, "leaseTime: expected an int"),
    ("subscribe", {"id": "s", "queue": "q", "leaseTime": "1"}, "leaseTime: expected an int"),
    ("subscribe", {"id": "s", "task": "t", "browse": True}, "queue is required"),
    ("ack", {}, "items: is required"),
    ("ack", {"items": [{}]}, "items[0].transactionId:"),
    ("ack", {"items": [{"transactionId": "t"}]}, "items[0].partitionId:"),
    ("ack", {"items": [ITEM | {"status": "failed"}]}, "items[0].status: expected completed in an ack frame"),
    ("nack", {"items": [ITEM | {"status": "completed"}]}, "items[0].status: expected failed, retry or dlq"),
    (
        "nack",
        {"items": [ITEM | {"status": "dlq", "delay": 5}]},
        "items[0].delay: allowed only with status failed or retry",
    ),
    ("renew", {"leaseIds": ["l"], "seconds": 0}, "seconds: expected an integer from 1"),
    ("renew", {"leaseIds": ["l", "\0"]}, "leaseIds[1]: must not contain a NUL"),
    ("jump", {}, "type: expected subscribe, "),
]


@pytest.mark.parametrize(
    ("text", "code", "start"),
    [
        ("{", "invalid_json", "Invalid JSON"),
        ("", "invalid_input", "Empty"),
        ("[]", "invalid_input", "frame: expected an object, got an array"),
        ("{}", "invalid_input", "type: expected subscribe, "),
        ('{"type": "unsubscribe", "id": "nobody"}', "subscription_not_found", "id: the subscription"),
        *((json.dumps({"type": type} | fields), "invalid_input", start) for type, fields, start in WRONG),
    ],
)
def test_a_wrong_frame_is_answered_and_the_connection_goes_on(socket: Socket, text: str, code: str, start: str) -> None:
    socket.send_text(text)
    answer = socket.expect("error")
    assert answer["code"] == code, answer
    assert answer["error"].startswith(start), answer
    assert socket.ask("ping") == {"type": "pong"}


def test_an_error_has_the_labels_of_its_frame(socket: Socket, queue: str) -> None:
    assert socket.ask("renew", ref={"a": 1}, leaseIds=5)["ref"] == {"a": 1}
    assert "ref" not in socket.ask("jump")
    socket.subscribe("s", queue)
    answer = socket.ask("subscribe", id="s", queue=queue)
    assert (answer["type"], answer["id"], answer["code"]) == ("error", "s", "subscription_exists")


def test_a_long_label_is_refused_and_not_repeated(socket: Socket) -> None:
    long = "x" * 5000
    assert socket.ask("renew", ref=long, leaseIds=[]) == {
        "type": "error",
        "error": "ref: must be at most 4096 bytes",
        "code": "invalid_input",
    }
    assert "id" not in socket.ask("subscribe", id=long, queue="q")


def test_binary_and_large_frames_are_refused_and_pongs_ignored(socket: Socket) -> None:
    socket.connection.send(b'{"type": "ping"}')
    assert "binary" in socket.expect("error")["error"]
    socket.send("pong")
    assert socket.ask("ping") == {"type": "pong"}
    assert socket.ask("renew", leaseIds=["l"] * 10_001)["code"] == "batch_too_large"


def test_a_frame_over_the_limit_ends_the_connection_with_1009() -> None:
    with inside(Settings(max_body_bytes=1000)) as server, websocket(server.url) as socket:
        socket.send_text("x" * 1001)
        with pytest.raises(ConnectionClosed) as closed:
            socket.receive()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009


def test_a_subscription_that_can_not_be_served_ends_and_the_others_go_on(api: Api, socket: Socket, queue: str) -> None:
    socket.send("credit", n=5)
    socket.subscribe("good", queue)
    api.push(queue, 0)
    assert data(socket.messages()) == [0]
    api.pop_one(queue, consumerGroup="g", groupMode="ordered")
    socket.send("subscribe", id="bad", queue=queue, groupMode="shared", consumerGroup="g")
    frames = [socket.receive(), socket.receive()]
    [error] = [frame for frame in frames if frame["type"] == "error"]
    assert (error["id"], error["code"]) == ("bad", "group_mode_conflict")
    api.push(queue, 1, partition="free")
    assert data(socket.messages()) == [1]


# Connecting ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[Inside]:
    """A server that knows the tokens."""
    with inside(authenticator=Tokens()) as one:
        yield one


@contextmanager
def connected(server: Inside, path: str = "consume?credit=10", **headers: str) -> Iterator[Socket]:
    """A connection with these headers."""
    address = f"{server.url.replace('http', 'ws')}/api/v1/{path}"
    with connect(address, proxy=None, additional_headers=headers) as connection:
        yield Socket(connection)


def push(server: Inside, queue: str) -> Json:
    """Push a message."""
    items = {"items": [{"queue": queue, "payload": queue}]}
    answer = httpx.post(f"{server.url}/api/v1/push", json=items, headers={"Authorization": "Bearer writer"})
    assert answer.status_code == 201
    return answer.json()[0]


@pytest.mark.parametrize(
    ("path", "headers", "status", "code"),
    [
        ("consume", {}, 401, "unauthorized"),
        ("consume", {"Authorization": "Bearer nobody"}, 401, "unauthorized"),
        ("consume", {"Cookie": "hark_session=nobody"}, 401, "unauthorized"),
        ("consume", {"Authorization": "Bearer writer", "Origin": "https://evil.example"}, 403, "cross_origin"),
        ("consume", {"Authorization": "Bearer writer", "Origin": "http://["}, 403, "cross_origin"),
        ("consume", {"Cookie": "hark_session=writer", "Origin": "https://evil.example"}, 403, "cross_origin"),
        ("consume?credit=x", {"Authorization": "Bearer writer"}, 400, "invalid_input"),
        ("elsewhere", {"Authorization": "Bearer writer"}, 404, "route_not_found"),
    ],
    ids=str,
)
def test_who_may_not_connect_is_refused_before_the_upgrade(
    server: Inside, path: str, headers: dict[str, str], status: int, code: str
) -> None:
    with pytest.raises(InvalidStatus) as refused, connected(server, path, **headers):
        pass
    response = refused.value.response
    error = json.loads(response.body)
    assert (response.status_code, error["code"]) == (status, code)
    assert code != "invalid_input" or error["error"].startswith("credit:")
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]


def test_a_token_or_the_cookie_of_a_page_lets_in(server: Inside) -> None:
    by_token = {"Authorization": "Bearer writer"}
    by_cookie = {"Cookie": "hark_session=writer", "Origin": server.url}
    for queue, headers in (("by-token", by_token), ("by-cookie", by_cookie)):
        push(server, queue)
        with connected(server, **headers) as consumer:
            consumer.subscribe("s", queue)
            assert consumer.messages()[0]["data"] == queue


def test_who_only_reads_may_browse_and_nothing_else(server: Inside) -> None:
    message = push(server, "seen")
    with connected(server, Authorization="Bearer reader") as consumer:
        assert consumer.ask("subscribe", id="s", queue="seen")["code"] == "forbidden"
        item = {"transactionId": message["message_id"], "partitionId": message["partition_id"]}
        assert consumer.ask("ack", items=[item])["code"] == "forbidden"
        assert consumer.ask("nack", items=[item])["code"] == "forbidden"
        assert consumer.ask("renew", leaseIds=["x"])["code"] == "forbidden"
        consumer.send("subscribe", id="b", queue="seen", browse=True, from_="head")
        assert consumer.expect("subscribed")["id"] == "b"
        assert consumer.messages()[0]["data"] == "seen"


def test_other_queues_can_not_be_subscribed_to_nor_settled(server: Inside) -> None:
    theirs = push(server, "theirs")
    push(server, "mine")
    with connected(server, Authorization="Bearer mine-writer") as consumer:
        for params in (
            {"queue": "theirs"},
            {"namespace": "theirs"},
            {"task": "x"},
            {"queue": "theirs", "browse": True},
        ):
            assert consumer.ask("subscribe", id="s", **params)["code"] == "queue_not_allowed", params
        item = {"transactionId": theirs["message_id"], "partitionId": theirs["partition_id"], "leaseId": "x"}
        unknown = {"transactionId": theirs["message_id"], "partitionId": "nowhere", "leaseId": "x"}
        answers = [consumer.ask("ack", items=[one])["results"] for one in (item, unknown)]
        assert answers[0] == answers[1]
        assert not answers[0][0]["success"]
        consumer.subscribe("m", "mine")
        assert consumer.messages()[0]["data"] == "mine"
