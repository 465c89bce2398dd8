"""GET /queue/stats, GET and PUT /queue/settings, and the settings of the server."""

from __future__ import annotations

import pytest

from tests.http.api import Api, Json, read, refusal
from tests.http.keyval.work import Work


def test_the_numbers_follow_the_life_of_messages(work: Work) -> None:
    assert work.stats() == (0, 0, 0)
    for number in range(3):
        work.enqueue(number)
    work.enqueue("delayed", delay=60_000)
    assert work.stats() == (4, 0, 0)
    one, two = work.take(), work.take()
    assert work.stats() == (2, 2, 0)
    work.ack(one)
    assert work.stats() == (2, 1, 0)
    work.nack(two)
    assert work.stats() == (3, 0, 0)
    work.kill("dead", priority=9)
    assert work.stats() == (3, 0, 1)


def test_an_unknown_queue_has_nothing_and_is_not_made(work: Work, api: Api, queue: str) -> None:
    assert work.stats() == (0, 0, 0)
    assert work.dead() == []
    assert read(work.get("/settings"))["inherited"]
    refusal(api.get(f"/resources/queues/{queue}"), 404)


def test_settings_keep_the_other_options_of_a_queue(work: Work, api: Api, queue: str) -> None:
    api.configure(queue, retryLimit=7, leaseTime=11, dropSettled=True)
    read(work.put("/settings", {"lockDuration": 1234}))
    options = read(api.get(f"/resources/queues/{queue}"))["options"]
    assert (options["retryLimit"], options["leaseTime"], options["dropSettled"]) == (7, 11, True)
    assert options["lockDuration"] == 1234


def test_settings_make_a_queue_that_is_not_there(work: Work, api: Api, queue: str) -> None:
    read(work.put("/settings", {"lockDuration": 1234}))
    options = read(api.get(f"/resources/queues/{queue}"))["options"]
    assert (options["lockDuration"], options["dropSettled"]) == (1234, True)
    for value in (None, 0):
        read(work.put("/settings", {"lockDuration": 1234}))
        assert read(work.put("/settings", {"lockDuration": value}))["inherited"]


@pytest.mark.parametrize("body", [{}, {"cleanupInterval": 0}, {"lockduration": 5000}])
def test_settings_that_say_nothing_of_locks_take_nothing_away(work: Work, body: Json) -> None:
    read(work.put("/settings", {"lockDuration": 1234}))
    assert refusal(work.put("/settings", body), 400) == "lockDuration: is required"
    assert read(work.get("/settings"))["lockDuration"] == 1234


@pytest.mark.parametrize("value", [-1, "30s", 1.5, True, 10**15])
def test_a_wrong_lock_duration_is_a_400(work: Work, value: Json) -> None:
    assert refusal(work.put("/settings", {"lockDuration": value}), 400).startswith("lockDuration: expected")
    assert read(work.get("/settings"))["inherited"]
