"""The work queues of the key-value API on PostgreSQL, through two servers."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.http.api import read, refusal
from tests.http.keyval.test_listen import listening
from tests.http.keyval.work import WAIT, Work
from tests.postgres.serving import serving

Pair = tuple[Work, Work]


@pytest.fixture
def works(postgres_url: str, tmp_path: Path, queue: str) -> Iterator[Pair]:
    """The same queue through two servers."""
    with serving(tmp_path, postgres_url) as one, serving(tmp_path, postgres_url) as other:
        yield Work(one.client, queue), Work(other.client, queue)


def test_what_one_server_was_told_the_other_knows(works: Pair) -> None:
    one, other = works
    one.enqueue("low")
    one.enqueue("high", priority=9, backoffSchedule=[0], keysIfUndelivered=[["failed", 1]])
    one.enqueue("late", delay=3_600_000)
    message = other.take()
    assert (message["value"], message["priority"], message["attempts"]) == ("high", 9, 1)
    assert one.stats() == other.stats() == (2, 1, 0)
    assert one.nack(message, receipt=False) == {"ok": True}
    again = other.take()
    assert again["attempts"] == 2
    refusal(one.post("/ack", {"id": message["id"], "receipt": message["receipt"]}), 409)
    assert other.nack(again, error="boom") == {"ok": True}
    [letter] = one.dead()
    assert (letter["value"], letter["attempts"], letter["errorMessage"]) == ("high", 2, "boom")
    assert read(other.client.get("/keyval/api/keys/failed/1"))["value"] == "high"
    new_id = read(other.post(f"/dlq/{letter['id']}/requeue"))["newId"]
    refusal(one.post(f"/dlq/{letter['id']}/requeue"), 404, "dead_letter_not_found")
    first = one.take()
    assert (first["id"], first["attempts"]) == (new_id, 1)
    for done in (first, other.take()):
        assert one.ack(done) == {"ok": True}
    assert one.poll() is None
    assert other.stats() == (1, 0, 0)


def test_an_unknown_id_or_receipt_is_no_failure_of_the_store(works: Pair) -> None:
    one, _ = works
    one.enqueue(1)
    message = one.take()
    for id in ("x", "\0", "é" * 300):
        assert read(one.post("/ack", {"id": id})) == {"ok": True, "found": False}
        assert read(one.post("/cancel", {"id": id}))["cancelled"] is False
    for receipt in ("x", "é" * 100):
        refusal(one.post("/nack", {"id": message["id"], "receipt": receipt}), 409)
    assert one.ack(message) == {"ok": True}
    assert one.ack(message) == {"ok": True}


def test_two_servers_never_give_out_the_same(works: Pair) -> None:
    ids = [works[number % 2].enqueue(number) for number in range(60)]

    def consume(work: Work) -> list[str]:
        taken = []
        while (message := work.poll()) is not None:
            taken.append(message["id"])
            assert work.ack(message) == {"ok": True}
        return taken

    with ThreadPoolExecutor(2) as pool:
        taken = [id for each in [pool.submit(consume, work) for work in works] for id in each.result()]
    assert sorted(taken) == sorted(ids)


def test_a_lock_of_one_server_ends_for_the_other(works: Pair) -> None:
    one, other = works
    read(one.put("/settings", {"lockDuration": 200}))
    one.enqueue(1)
    first = one.take()
    second = other.take(**WAIT)
    assert (second["id"], second["attempts"]) == (first["id"], 2)


def test_a_listener_hears_of_what_is_enqueued_through_the_other_server(works: Pair, queue: str) -> None:
    one, other = works
    with listening(str(one.client.base_url), queue, prefetch=1) as events:
        assert events.next()[0] == "ping"
        other.enqueue("first")
        first = events.message()
        other.enqueue("second")
        assert other.ack(first, receipt=False) == {"ok": True}
        assert events.message()["value"] == "second"
