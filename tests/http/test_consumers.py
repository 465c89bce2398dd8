"""GET /consumers: who waits on this server; and browsers over SSE and WebSocket, who see messages and take none."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.http.api import Api, Json, data, read
from tests.http.streaming import WAIT_SECONDS, listening, websocket


def consumers(api: Api, **query: Any) -> list[Json]:
    """The consumers on a page."""
    found: list[Json] = read(api.get("/consumers", **query))["consumers"]
    return found


def until_interested(api: Api, queue: str, number: int) -> list[Json]:
    """The consumers of a queue, as soon as there are that many and all of them wait."""
    until = time.monotonic() + WAIT_SECONDS
    while len(found := consumers(api, queue=queue)) != number or {one["state"] for one in found} - {"interested"}:
        assert time.monotonic() < until
    return found


def test_a_waiting_pop_is_listed(api: Api, queue: str) -> None:
    params = {"consumerGroup": "g", "batch": 3, "consumerPriority": 7, "consumer": "worker 7", "wait": True}
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(api.pop, queue, "p", timeout=20_000, **params)
        [shown] = until_interested(api, queue, 1)
        assert shown.pop("id").startswith("pop-")
        assert shown.pop("waitingSince") < shown.pop("deadline")
        assert shown == {
            "kind": "pop",
            "queue": queue,
            "partition": "p",
            "namespace": None,
            "task": None,
            "consumerGroup": "g",
            "batch": 3,
            "priority": 7,
            "consumer": "worker 7",
            "state": "interested",
        }
        api.push(queue, 1, partition="p")
        assert data(waiting.result()) == [1]
    assert consumers(api, queue=queue) == []


def test_streams_are_listed_with_their_credit_and_subscriptions(api: Api, server_url: str, queue: str) -> None:
    api.push(queue, 1)
    with websocket(server_url, credit=2) as socket:
        socket.subscribe("a", queue)
        socket.messages()
        socket.send("pause")
        socket.send("subscribe", id="b", task="t", consumerPriority=-5, batch=4)
        socket.expect("subscribed")
        [shown] = consumers(api, queue=queue)
        assert shown.pop("id").startswith("stream-")
        assert shown.pop("waitingSince")
        first, second = shown.pop("subscriptions")
        assert shown == {"kind": "stream", "credit": 2, "unsettled": 1, "paused": True, "draining": False}
        assert (first["id"], first["queue"], first["state"]) == ("a", queue, "not interested")
        assert (second["id"], second["task"], second["priority"], second["batch"]) == ("b", "t", -5, 4)


def test_an_event_stream_says_its_priority_batch_and_prefetch(api: Api, server_url: str, queue: str) -> None:
    query = {"consumerPriority": 5, "prefetch": 20}
    with listening(server_url, f"/queue/{queue}", **query), listening(server_url, f"/queue/{queue}", batch=2):
        first, second = consumers(api, queue=queue)
        assert (first["credit"], second["credit"]) == (20, 10)
        [shown] = first["subscriptions"]
        assert (shown["priority"], shown["batch"]) == (5, 20)
        assert second["subscriptions"][0]["batch"] == 2


def test_the_list_has_pages(api: Api, server_url: str, queue: str) -> None:
    browse = {"browse": True, "partition": "p", "from_": "2026-01-02T03:04:05Z"}
    with listening(server_url, f"/queue/{queue}"), listening(server_url, f"/queue/{queue}", **browse):
        answer = read(api.get("/consumers", queue=queue, limit=1, offset=1))
        assert answer["consumers"] == [
            {"kind": "browser", "queue": queue, "partition": "p", "from": "2026-01-02T03:04:05.000Z"}
        ]
        assert (answer["total"], answer["pagination"]) == (2, {"limit": 1, "offset": 1})


def test_metrics_report_those_who_wait(fresh_api: Api, fresh_server_url: str, queue: str) -> None:
    with listening(fresh_server_url, f"/queue/{queue}") as events:
        fresh_api.push(queue, 1)
        events.message()
        numbers = read(fresh_api.get("/system/metrics"))
        assert numbers["delivery"]["streams"] == 1
        assert numbers["delivery"]["deliveries"] >= 1
        assert numbers["batching"]["push"]["requests"] >= numbers["batching"]["push"]["calls"] >= 1
        assert "peers" not in numbers
        assert numbers["store"]["database_bytes"] > 0
        assert all(isinstance(number, int | float) for number in numbers["store"].values())


# Browsers -------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("partition", ["", "/partition/p"])
def test_a_browser_starts_at_the_tail_or_behind_a_time_and_may_name_a_partition(
    api: Api, server_url: str, queue: str, partition: str
) -> None:
    api.push(queue, 1, partition="p")
    api.let_pass(queue, 2)
    api.push(queue, 2, partition="p")
    api.push(queue, "elsewhere", partition="q")
    first = api.pop_one(queue, "p")
    path = f"/queue/{queue}{partition}"
    with (
        listening(server_url, path, browse=True) as untold,
        listening(server_url, path, browse=True, from_="tail") as tail,
        listening(server_url, path, browse=True, from_=first["createdAt"]) as behind,
    ):
        api.push(queue, 3, partition="p")
        assert [events.message()["data"] for events in (untold, tail)] == [3, 3]
        seen = data([behind.message() for _ in range(2 if partition else 3)])
        assert sorted(seen, key=str) == ([2, 3] if partition else [2, 3, "elsewhere"])


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
