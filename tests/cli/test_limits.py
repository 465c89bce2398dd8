"""`hark queue limits` and `hark group limits`: what they send and what they print."""

from __future__ import annotations

import pytest

from .conftest import Run
from .stub import Stub

QUEUE = {
    "id": "q1",
    "name": "orders",
    "namespace": "shop",
    "task": "",
    "options": {"leaseTime": 60, "maxInFlight": 5, "rateLimit": 0.0, "rateBurst": 0},
}
GROUP = {"success": True, "limits": {"maxInFlight": 0, "rateLimit": 0.5, "rateBurst": 7}}


def lines(output: str) -> list[list[str]]:
    """The words of each line."""
    return [line.split() for line in output.splitlines()]


def test_queue_limits_are_shown_for_people(hark: Run, stub: Stub) -> None:
    stub.answer(200, QUEUE)
    result = hark("queue", "limits", "orders")
    assert lines(result.stdout) == [["maxInFlight", "5"], ["rateLimit", "no", "bound"]]
    assert [seen.target for seen in stub.seen] == ["/api/v1/resources/queues/orders?limit=1"]


def test_queue_limits_change_what_is_given_and_keep_all_other_options(hark: Run, stub: Stub) -> None:
    stub.answer(200, QUEUE)
    stub.answer(200, {"queue": "orders", "options": {"maxInFlight": 0, "rateLimit": 2.5, "rateBurst": 0}})
    result = hark("queue", "limits", "orders", "--max-in-flight", "0", "--rate-limit", "2.5")
    assert (stub.last.method, stub.last.target) == ("POST", "/api/v1/configure")
    assert stub.last.json == {
        "queue": "orders",
        "namespace": "shop",
        "task": "",
        "options": {"leaseTime": 60, "maxInFlight": 0, "rateLimit": 2.5, "rateBurst": 0},
    }
    assert lines(result.stdout) == [
        ["maxInFlight", "no", "bound"],
        ["rateLimit", "2.5", "per", "second"],
        ["rateBurst", "a", "second's"],
    ]


def test_group_limits_are_shown(hark: Run, stub: Stub) -> None:
    stub.answer(200, GROUP)
    result = hark("group", "limits", "g/1", "orders")
    assert (stub.last.method, stub.last.target) == ("GET", "/api/v1/consumer-groups/g%2F1/queues/orders/limits")
    assert ["rateBurst", "7"] in lines(result.stdout)


def test_group_limits_change_what_is_given(hark: Run, stub: Stub) -> None:
    stub.answer(200, GROUP)
    stub.answer(200, GROUP)
    hark("group", "limits", "g", "orders", "--max-in-flight", "3", "--rate-burst", "0")
    assert (stub.last.method, stub.last.target) == ("PUT", "/api/v1/consumer-groups/g/queues/orders/limits")
    assert stub.last.json == {"maxInFlight": 3, "rateLimit": 0.5, "rateBurst": 0}


def test_a_rate_that_is_taken_away_takes_its_burst_with_it(hark: Run, stub: Stub) -> None:
    stub.answer(200, GROUP)
    stub.answer(200, GROUP)
    hark("group", "limits", "g", "orders", "--rate-limit", "0")
    assert stub.last.json == {"maxInFlight": 0, "rateLimit": 0.0, "rateBurst": 0}
    stub.answer(200, QUEUE | {"options": {"maxInFlight": 0, "rateLimit": 0.5, "rateBurst": 7}})
    stub.answer(200, {"queue": "orders", "options": {}})
    hark("queue", "limits", "orders", "--rate-limit", "0")
    assert stub.last.json["options"] == {"maxInFlight": 0, "rateLimit": 0.0, "rateBurst": 0}


@pytest.mark.parametrize("args", [("queue", "limits", "orders"), ("group", "limits", "g", "orders")])
def test_what_is_not_there_exits_with_1_and_changes_nothing(hark: Run, stub: Stub, args: tuple[str, ...]) -> None:
    stub.answer(404, {"error": "not found", "code": "queue_not_found"})
    result = hark(*args, "--max-in-flight", "3")
    assert (result.exit_code, result.stderr) == (1, "hark: not found (queue_not_found)\n")
    assert len(stub.seen) == 1


@pytest.mark.parametrize("flags", [("--max-in-flight", "-1"), ("--rate-limit", "fast"), ("--rate-burst", "1.5")])
def test_wrong_limits_exit_with_2_and_send_nothing(hark: Run, stub: Stub, flags: tuple[str, ...]) -> None:
    assert hark("queue", "limits", "orders", *flags).exit_code == 2
    assert hark("group", "limits", "g", "orders", *flags).exit_code == 2
    assert stub.seen == []


def test_json_is_the_servers(hark: Run, stub: Stub) -> None:
    body = b'{"limits": {"rateLimit": 1.50}}'
    stub.answer(200, body)
    assert hark("group", "limits", "g", "orders", "--json").stdout_bytes == body + b"\n"
