"""Limits of queues and groups: what they bound, how they are set and shown, and what is refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any

import pytest

from tests.http.api import WAIT, Api, Json, data, read, refusal

NONE = {"maxInFlight": 0, "rateLimit": 0, "rateBurst": 0}
MODES = ["ordered", "shared"]


def path(queue: str, group: str = "g") -> str:
    """The route of the limits of a group."""
    return f"/consumer-groups/{group}/queues/{queue}/limits"


def limit(api: Api, queue: str, **limits: Any) -> Json:
    """Set the limits of group g."""
    return read(api.put(path(queue), limits))


# Setting and showing ---------------------------------------------------------------------------------------


def test_limits_of_a_group_are_replaced_and_shown(api: Api, queue: str) -> None:
    api.push(queue, 1)
    api.pop(queue, consumerGroup="g")
    answer = {"success": True, "consumerGroup": "g", "queueName": queue}
    assert read(api.get(path(queue))) == answer | {"limits": NONE}
    limits = {"maxInFlight": 3, "rateLimit": 0.5, "rateBurst": 7}
    assert limit(api, queue, **limits) == answer | {"limits": limits}
    assert read(api.get(path(queue))) == answer | {"limits": limits}
    [listed] = read(api.get("/consumer-groups", queue=queue))
    assert listed["limits"] == limits
    assert limit(api, queue, rateLimit=2, maxInFlight=None)["limits"] == NONE | {"rateLimit": 2}
    assert limit(api, queue)["limits"] == NONE


def test_limits_of_what_is_not_there_are_not_found(api: Api, queue: str) -> None:
    for name in ("GET", "PUT"):
        response = api.get(path(queue)) if name == "GET" else api.put(path(queue), {"maxInFlight": 1})
        assert refusal(response, 404, "group_not_found") == "Consumer group not found"
    assert read(api.get("/consumer-groups", queue=queue)) == []


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"maxInFlight": -1}, "maxInFlight: expected an integer from 0 to 1000000000, got -1"),
        ({"maxInFlight": 1.5}, "maxInFlight: expected an integer, got a number"),
        ({"maxInFlight": "1"}, "maxInFlight: expected an integer, got a string"),
        ({"maxInFlight": True}, "maxInFlight: expected an integer"),
        ({"rateLimit": -1}, "rateLimit: expected 0 (no bound) or a number from 0.0001 to 1000000, got -1.0"),
        ({"rateLimit": 1e-9}, "rateLimit: expected 0 (no bound) or a number from 0.0001"),
        ({"rateLimit": 1e300}, "rateLimit: expected 0 (no bound) or a number from 0.0001"),
        ({"rateLimit": "fast"}, "rateLimit: expected a number, got a string"),
        ({"rateBurst": -1}, "rateBurst: expected an integer from 0 to 1000000000, got -1"),
        ({"rateBurst": []}, "rateBurst: expected an integer, got an array"),
        ({"maxInflight": 5}, "'maxInflight': no such limit; there are maxInFlight, rateLimit, rateBurst"),
        ({"rateBurst": 5}, "rateBurst: has no effect without rateLimit; give both"),
        ([], "limits: expected an object, got an array"),
    ],
)
def test_a_wrong_limit_is_refused_by_name_and_changes_nothing(api: Api, queue: str, body: Any, text: str) -> None:
    api.push(queue, 1)
    api.pop(queue, consumerGroup="g")
    limit(api, queue, maxInFlight=9)
    assert refusal(api.put(path(queue), body), 400, "invalid_input").startswith(text)
    assert read(api.get(path(queue)))["limits"] == NONE | {"maxInFlight": 9}


def test_a_body_is_required(api: Api, queue: str) -> None:
    assert refusal(api.put(path(queue), None), 400) == "Empty request body"


def test_other_methods_are_refused(api: Api, queue: str) -> None:
    assert api.post(path(queue), {}).status_code == 405
    assert api.delete(path(queue)).status_code == 405


# What they bound -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_a_group_never_holds_more_than_max_in_flight(api: Api, queue: str, mode: str) -> None:
    group = {"consumerGroup": "g", "groupMode": mode}
    api.push(queue, *range(5))
    api.pop(queue, autoAck=True, **group)
    limit(api, queue, maxInFlight=2)
    held = api.pop(queue, batch=10, **group)
    assert len(held) == 2
    assert api.pop(queue, batch=10, **group) == []
    assert data(api.pop(queue, batch=10, consumerGroup="other")) == [0, 1, 2, 3, 4], "it is the limit of one group"
    for message in held:
        api.ack(message)
    assert data(api.pop(queue, batch=10, **group)) == [3, 4]


def test_max_in_flight_of_a_queue_counts_all_its_groups(api: Api, queue: str) -> None:
    api.configure(queue, maxInFlight=3)
    api.push(queue, *range(5))
    held = api.pop(queue, batch=2, consumerGroup="a", groupMode="shared")
    assert len(api.pop(queue, batch=10, consumerGroup="b", groupMode="shared")) == 1
    assert api.pop(queue, consumerGroup="b") == []
    api.ack(held[0])
    assert len(api.pop(queue, batch=10, consumerGroup="b")) == 1


def test_room_that_a_settlement_makes_reaches_who_waits(api: Api, queue: str) -> None:
    api.configure(queue, maxInFlight=1)
    api.push(queue, 1, 2)
    held = api.pop_one(queue, groupMode="shared")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(api.pop_one, queue, groupMode="shared", **WAIT)
        api.ack(held)
        assert waiting.result()["data"] == 2


@pytest.mark.parametrize("mode", MODES)
def test_a_rate_is_not_passed_and_waiting_brings_the_next(api: Api, queue: str, mode: str) -> None:
    group: dict[str, Any] = {"consumerGroup": "g", "groupMode": mode, "autoAck": True}
    api.push(queue, *range(4))
    api.pop(queue, **group)
    limit(api, queue, rateLimit=4, rateBurst=1)
    start = monotonic()
    assert len(api.pop(queue, batch=10, **group)) == 1
    assert api.pop(queue, batch=10, **group) == []
    assert len(api.pop(queue, batch=10, **group, **WAIT)) == 1
    assert monotonic() - start >= 0.25


def test_a_burst_comes_at_once(api: Api, queue: str) -> None:
    api.configure(queue, rateLimit=0.001, rateBurst=3)
    api.push(queue, *range(5))
    assert len(api.pop(queue, batch=10)) == 3
    assert api.pop(queue, groupMode="shared", consumerGroup="other") == [], "all groups share the queue's rate"


def test_limits_that_are_lifted_let_those_go_on_who_wait(api: Api, queue: str) -> None:
    api.configure(queue, rateLimit=0.001, rateBurst=1)
    api.push(queue, 1, 2)
    api.pop_one(queue, groupMode="shared")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(api.pop_one, queue, groupMode="shared", **WAIT)
        api.configure(queue)
        assert waiting.result()["data"] == 2
