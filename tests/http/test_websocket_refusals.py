"""GET /consume: frames and connections that are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from tests.conftest import running_server
from tests.http.api import Api, Json, data
from tests.http.streaming import Socket, websocket

# Wrong frames ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "code", "start"),
    [
        ("{", "invalid_json", "Invalid JSON"),
        ("", "invalid_input", "Empty"),
        ("[]", "invalid_input", "frame: expected an object, got an array"),
        ("{}", "invalid_input", "type: expected subscribe, "),
        ('{"type": "jump"}', "invalid_input", "type: expected subscribe, "),
        ('{"type": "credit"}', "invalid_input", "n: is required"),
        ('{"type": "credit", "n": "many"}', "invalid_input", "n: expected an integer, got a string"),
        ('{"type": "credit", "n": -1}', "invalid_input", "n: expected an integer from 0 to 10000"),
        ('{"type": "subscribe", "queue": "q"}', "invalid_input", "id: is required"),
        ('{"type": "subscribe", "id": "", "queue": "q"}', "invalid_input", "id: must not be empty"),
        ('{"type": "subscribe", "id": "s"}', "invalid_input", "queue, namespace or task is required"),
        ('{"type": "subscribe", "id": "s", "queue": "q", "batch": 0}', "invalid_input", "batch: expected an integer"),
        ('{"type": "subscribe", "id": "s", "queue": "q", "batch": "1"}', "invalid_input", "batch: expected an integer"),
        ('{"type": "subscribe", "id": "s", "queue": "q", "autoAck": 1}', "invalid_input", "autoAck: expected true"),
        ('{"type": "subscribe", "id": "s", "queue": "q", "from": "head"}', "invalid_input", "from: only with browse"),
        ('{"type": "subscribe", "id": "s", "task": "t", "browse": true}', "invalid_input", "queue is required"),
        ('{"type": "unsubscribe", "id": "nobody"}', "subscription_not_found", "id: there is no subscription"),
        ('{"type": "ack"}', "invalid_input", "items: is required"),
        ('{"type": "ack", "items": [{}]}', "invalid_input", "items[0].transactionId:"),
        ('{"type": "ack", "items": [{"transactionId": "t"}]}', "invalid_input", "items[0].partitionId:"),
        (
            '{"type": "ack", "items": [{"transactionId": "t", "partitionId": "p", "status": "failed"}]}',
            "invalid_input",
            "items[0].status: an ack completes",
        ),
        (
            '{"type": "nack", "items": [{"transactionId": "t", "partitionId": "p", "status": "completed"}]}',
            "invalid_input",
            "items[0].status: expected failed, retry or dlq",
        ),
        (
            '{"type": "nack", "items": [{"transactionId": "t", "partitionId": "p", "status": "dlq", "delay": 5}]}',
            "invalid_input",
            "items[0].delay: only with status failed or retry",
        ),
        ('{"type": "renew", "leaseIds": ["l"], "seconds": 0}', "invalid_input", "seconds: expected an integer from 1"),
        ('{"type": "renew", "leaseIds": ["l", "\\u0000"]}', "invalid_input", "leaseIds[1]: must not contain a NUL"),
        (
            '{"type": "subscribe", "id": "s", "queue": "q", "leaseTime": 0}',
            "invalid_input",
            "leaseTime: expected an int",
        ),
        (
            '{"type": "subscribe", "id": "s", "queue": "q", "leaseTime": "1"}',
            "invalid_input",
            "leaseTime: expected an int",
        ),
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


def test_binary_frames_are_refused_and_pongs_ignored(socket: Socket) -> None:
    socket.connection.send(b'{"type": "ping"}')
    assert "binary" in socket.expect("error")["error"]
    socket.send("pong")
    assert socket.ask("ping") == {"type": "pong"}


def test_too_many_items_in_one_frame_are_refused(socket: Socket) -> None:
    assert socket.ask("renew", leaseIds=["l"] * 10_001)["code"] == "batch_too_large"


def test_a_frame_over_the_limit_ends_the_connection_with_1009(tmp_path: Path) -> None:
    with running_server(tmp_path, settings={"HARK_MAX_BODY_BYTES": "1000"}) as url, websocket(url) as socket:
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


def refused(address: str, **headers: str) -> tuple[int, Json]:
    """The status and the body of a connection that is refused."""
    with pytest.raises(InvalidStatus) as refusal:
        connect(address.replace("http://", "ws://"), proxy=None, additional_headers=headers)
    response = refusal.value.response
    assert response.headers["content-type"] == "application/json"
    return response.status_code, json.loads(response.body)


def test_connections_are_refused_before_the_upgrade(api: Api, server_url: str) -> None:
    status, body = refused(f"{server_url}/api/v1/elsewhere")
    assert (status, body["code"]) == (404, "route_not_found")
    status, body = refused(f"{server_url}/api/v1/consume?credit=x")
    assert (status, body["error"][:7]) == (400, "credit:")
    answer = api.get("/consume")
    assert (answer.status_code, "ws://" in answer.json()["error"]) == (400, True)


def test_pages_of_other_sites_may_not_connect(server_url: str) -> None:
    status, body = refused(f"{server_url}/api/v1/consume", Origin="https://elsewhere.example")
    assert (status, body["code"]) == (403, "cross_origin")
    status, body = refused(f"{server_url}/api/v1/consume", Origin="http://[")
    assert (status, body["code"]) == (403, "cross_origin")
    address = f"{server_url.replace('http', 'ws')}/api/v1/consume"
    with connect(address, proxy=None, additional_headers={"Origin": server_url}) as connection:
        assert Socket(connection).ask("ping") == {"type": "pong"}


def test_too_many_connections_are_a_429(tmp_path: Path) -> None:
    with running_server(tmp_path, settings={"HARK_LIMITS_MAX_STREAMS": "1"}) as url, websocket(url):
        status, body = refused(f"{url}/api/v1/consume")
        assert (status, body["code"]) == (429, "too_many_streams")
