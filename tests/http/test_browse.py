"""Browsers over SSE and WebSocket: they see every message and take none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import running_server
from tests.http.api import Api, data
from tests.http.streaming import listening, websocket

KEY = "42" * 32


def test_a_browser_from_the_head_sees_what_is_there_and_what_comes(api: Api, server_url: str, queue: str) -> None:
    api.push(queue, 1, 2)
    api.ack(api.pop_one(queue))
    with listening(server_url, f"/queue/{queue}", browse=True, from_="head") as events:
        seen = [events.message(), events.message()]
        api.push(queue, 3)
        seen.append(events.message())
    assert data(seen) == [1, 2, 3]
    assert {(message["leaseId"], message["consumerGroup"], message["deliveryAttempt"]) for message in seen} == {
        ("", "", 0)
    }
    assert data(api.pop(queue, batch=10)) == [2, 3]


@pytest.mark.parametrize("query", [{}, {"from_": "tail"}])
def test_a_browser_from_the_tail_sees_what_comes(api: Api, server_url: str, queue: str, query: dict[str, Any]) -> None:
    api.push(queue, 1)
    with listening(server_url, f"/queue/{queue}", browse=True, **query) as events:
        api.push(queue, 2)
        assert events.message()["data"] == 2


def test_a_browser_from_a_time_sees_what_came_after_it(api: Api, server_url: str, queue: str) -> None:
    api.push(queue, 1)
    api.let_pass(queue, 2)
    api.push(queue, 2)
    first = api.pop_one(queue)
    with listening(server_url, f"/queue/{queue}", browse=True, from_=first["createdAt"]) as events:
        assert events.message()["data"] == 2


def test_a_browser_sees_the_partition_that_it_named(api: Api, server_url: str, queue: str) -> None:
    api.push(queue, 1, partition="p")
    api.push(queue, 2, partition="q")
    api.push(queue, 3, partition="p")
    path = f"/queue/{queue}/partition/p"
    with listening(server_url, path, browse=True, from_="head") as events:
        assert data([events.message(), events.message()]) == [1, 3]


def test_every_browser_and_one_consumer_see_a_message(api: Api, server_url: str, queue: str) -> None:
    with (
        listening(server_url, f"/queue/{queue}", browse=True) as first,
        listening(server_url, f"/queue/{queue}", browse=True) as second,
        listening(server_url, f"/queue/{queue}") as consumer,
    ):
        api.push(queue, 1)
        assert [events.message()["data"] for events in (first, second, consumer)] == [1, 1, 1]


def test_a_socket_browses_several_queues_without_credit(api: Api, server_url: str, queue: str) -> None:
    other = f"{queue}-other"
    api.push(queue, 1)
    api.push(other, 2)
    with websocket(server_url) as socket:
        socket.send("subscribe", id="a", queue=queue, browse=True, from_="head")
        socket.send("subscribe", id="b", queue=other, browse=True, from_="head")
        frames = [socket.receive() for _ in range(4)]
        shown = {frame["id"]: frame for frame in frames if frame["type"] == "messages"}
        assert {name: data(frame["messages"]) for name, frame in shown.items()} == {"a": [1], "b": [2]}
        assert {frame["leaseId"] for frame in shown.values()} == {""}
        assert socket.ask("unsubscribe", id="a") == {"type": "unsubscribed", "id": "a"}
        api.push(queue, 3)
        api.push(other, 4)
        assert data(socket.messages()) == [4]
        socket.subscribe("a", queue, browse=True)
        assert socket.ask("subscribe", id="b", queue=queue)["code"] == "subscription_exists"


def test_a_browser_reads_encrypted_queues(tmp_path: Path, queue: str) -> None:
    with running_server(tmp_path, settings={"HARK_ENCRYPTION_KEY": KEY}) as url, httpx.Client(base_url=url) as client:
        api = Api(client)
        api.configure(queue, encryptionEnabled=True)
        api.push(queue, {"secret": 1})
        with listening(url, f"/queue/{queue}", browse=True, from_="head") as events:
            assert events.message()["data"] == {"secret": 1}


def test_a_long_history_comes_in_order_and_once(api: Api, server_url: str, queue: str) -> None:
    items = [{"queue": queue, "payload": n, "partition": str(n % 30)} for n in range(3000)]
    assert api.post("/push", {"items": items}).status_code == 201
    with listening(server_url, f"/queue/{queue}", browse=True, from_="head") as events:
        seen = [events.message() for _ in range(3000)]
    assert sorted(data(seen)) == list(range(3000))
    for partition in range(30):
        numbers = [message["data"] for message in seen if message["partition"] == str(partition)]
        assert numbers == sorted(numbers)
