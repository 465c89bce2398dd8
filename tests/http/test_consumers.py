"""GET /consumers: who waits on this server."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.http.api import Api, Json, data, read, refusal
from tests.http.streaming import PATIENCE, listening, websocket


def consumers(api: Api, **query: Any) -> list[Json]:
    """The consumers on a page."""
    found: list[Json] = read(api.get("/consumers", **query))["consumers"]
    return found


def listed(api: Api, queue: str) -> list[Json]:
    """The consumers of a queue, as soon as there are some that have looked for themselves."""
    until = time.monotonic() + PATIENCE
    while not (found := consumers(api, queue=queue)) or found[0]["state"] == "not interested":
        assert time.monotonic() < until
    return found


def test_a_waiting_pop_is_listed(api: Api, queue: str) -> None:
    wish = {"consumerGroup": "g", "batch": 3, "consumerPriority": 7, "consumer": "worker 7", "wait": True}
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(api.pop, queue, "p", timeout=20_000, **wish)
        [shown] = listed(api, queue)
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


def test_of_those_who_wait_the_one_with_the_highest_priority_gets_it(api: Api, queue: str) -> None:
    priorities = (0, 5, -5)
    with ThreadPoolExecutor(len(priorities)) as pool:
        pops = {}
        for number, priority in enumerate(priorities, 1):
            pops[priority] = pool.submit(api.pop, queue, consumerPriority=priority, wait=True, timeout=20_000)
            until_interested(api, queue, number)
        for left, priority in ((2, 5), (1, 0), (0, -5)):
            api.push(queue, priority, partition=f"p{priority}")
            assert data(pops[priority].result()) == [priority]
            until_interested(api, queue, left)


def until_interested(api: Api, queue: str, number: int) -> None:
    """Wait until so many pops are there and all of them wait."""
    until = time.monotonic() + PATIENCE
    while [one["state"] for one in consumers(api, queue=queue)] != ["interested"] * number:
        assert time.monotonic() < until


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


def test_browsers_are_listed(api: Api, server_url: str, queue: str) -> None:
    with listening(server_url, f"/queue/{queue}", browse=True, partition="p", from_="2026-01-02T03:04:05Z"):
        assert consumers(api, queue=queue) == [
            {"kind": "browser", "queue": queue, "partition": "p", "from": "2026-01-02T03:04:05.000Z"}
        ]


def test_the_list_has_pages(api: Api, server_url: str, queue: str) -> None:
    with listening(server_url, f"/queue/{queue}"), listening(server_url, f"/queue/{queue}", browse=True):
        answer = read(api.get("/consumers", queue=queue, limit=1, offset=1))
        assert [one["kind"] for one in answer["consumers"]] == ["browser"]
        assert (answer["total"], answer["pagination"]) == (2, {"limit": 1, "offset": 1})
    assert refusal(api.get("/consumers", limit=0), 400).startswith("limit:")


def test_metrics_tell_of_those_who_wait(api: Api, server_url: str, queue: str) -> None:
    with listening(server_url, f"/queue/{queue}") as events:
        api.push(queue, 1)
        events.message()
        numbers = read(api.get("/system/metrics"))
        assert numbers["delivery"]["streams"] == 1
        assert numbers["delivery"]["deliveries"] >= 1
        assert numbers["batching"]["push"]["requests"] >= numbers["batching"]["push"]["calls"] >= 1
        assert "peers" not in numbers
