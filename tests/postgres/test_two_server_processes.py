"""Two server processes on one database, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.http.api import WAIT, Api, acknowledgment, data, read, refusal
from tests.postgres.serving import serving, wait_for_group


@pytest.fixture
def apis(postgres_url: str, tmp_path: Path) -> Iterator[tuple[Api, Api]]:
    """Two servers."""
    with serving(tmp_path, postgres_url) as one, serving(tmp_path, postgres_url) as other:
        yield one, other


def test_what_is_pushed_through_one_is_popped_from_the_other_at_once_and_settled_through_the_first(
    apis: tuple[Api, Api], queue: str
) -> None:
    one, other = apis
    for number in range(10):
        assert other.pop(queue) == []
        one.push(queue, number, partition=f"p{number % 3}")
        message = other.pop_one(queue)
        assert message["data"] == number
        assert one.pop(queue) == []
        assert one.ack(message)["success"]
    assert one.pop(queue) == other.pop(queue) == []


def test_a_pop_that_waits_on_one_gets_what_is_pushed_through_the_other(apis: tuple[Api, Api], queue: str) -> None:
    one, other = apis
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(one.pop, queue, consumerGroup="g", **WAIT)
        wait_for_group(other, queue, "g")
        other.push(queue, "at last")
        assert data(waiting.result()) == ["at last"]


def test_a_transaction_through_one_settles_what_the_other_delivered(apis: tuple[Api, Api], queue: str) -> None:
    one, other = apis
    one.push(queue, 1)
    message = other.pop_one(queue)
    settled = {"type": "ack"} | acknowledgment(message)
    pushed = {"type": "push", "items": [{"queue": f"{queue}-next", "payload": 2}]}
    assert one.transact(settled, pushed, requiredLeases=[message["leaseId"]])["success"]
    assert not other.transact(settled, pushed, requiredLeases=[message["leaseId"]])["success"]
    assert data(other.pop(f"{queue}-next", batch=10)) == [2]


def test_maintenance_set_through_one_holds_on_the_other(apis: tuple[Api, Api], queue: str) -> None:
    one, other = apis
    one.push(queue, 1)
    read(one.post("/system/maintenance/pop", {"enabled": True}))
    read(one.post("/system/maintenance", {"enabled": True}))
    while not read(other.get("/system/maintenance"))["maintenanceMode"]:
        pass
    refusal(other.post("/push", {"items": [{"queue": queue, "payload": 2}]}), 503, "maintenance")
    assert other.pop(queue, **WAIT) == []
