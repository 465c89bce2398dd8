"""Looking after work queues: GET /queue/stats, /queue/settings, what is below /queue/dlq, and what outlives a kill."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import httpx
import pytest

from tests.crash.server import Server, running
from tests.http.api import Api, read, refusal
from tests.http.keyval.work import WAIT, Work

# Stats and settings ----------------------------------------------------------------------------------------


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


def test_requesting_makes_no_queue_but_settings_do_and_keep_other_options(work: Work, api: Api, queue: str) -> None:
    assert (work.stats(), work.dead()) == ((0, 0, 0), [])
    assert read(work.get("/settings"))["inherited"]
    refusal(api.get(f"/resources/queues/{queue}"), 404)
    read(work.put("/settings", {"lockDuration": 1234}))
    options = read(api.get(f"/resources/queues/{queue}"))["options"]
    assert (options["lockDuration"], options["dropSettled"]) == (1234, True)
    api.configure(queue, retryLimit=7, leaseTime=11, dropSettled=True)
    for value in (None, 0):
        assert not read(work.put("/settings", {"lockDuration": 1234}))["inherited"]
        assert read(work.put("/settings", {"lockDuration": value}))["inherited"]
    read(work.put("/settings", {"lockDuration": 1234}))
    options = read(api.get(f"/resources/queues/{queue}"))["options"]
    expected = {"retryLimit": 7, "leaseTime": 11, "dropSettled": True, "lockDuration": 1234}
    assert options | expected == options


# Dead letters ----------------------------------------------------------------------------------------------


def test_a_dead_letter_has_all_that_the_document_shows(work: Work) -> None:
    before = int(time.time() * 1000)
    id = work.enqueue({"task": "webhook"}, backoffSchedule=[0, 0])
    for error in ("not the last one", "nor this", "x" * 1_000_000):
        work.nack(work.take(), error=error)
    after = int(time.time() * 1000) + 1
    [letter] = work.dead()
    names = ("id", "originalId", "value", "attempts", "errorMessage", "originalCreatedAt", "failedAt")
    assert set(letter) == set(names)
    assert (letter["originalId"], letter["value"], letter["attempts"]) == (id, {"task": "webhook"}, 3)
    assert letter["errorMessage"] == "x" * 10_000, "a long text is cut"
    assert letter["id"] != id
    assert before - 1 <= letter["originalCreatedAt"] <= letter["failedAt"] <= after
    assert read(work.get(f"/dlq/{letter['id']}")) == letter
    assert work.stats() == (0, 0, 1)
    assert work.kill(1)["errorMessage"] == "Max attempts exceeded"


def test_the_newest_failure_comes_first_page_by_page(work: Work) -> None:
    for number in range(5):
        work.kill(number)
    assert [letter["value"] for letter in work.dead()] == [4, 3, 2, 1, 0]
    assert [letter["value"] for letter in work.dead(limit=2, offset=1)] == [3, 2]
    assert [letter["value"] for letter in work.dead(limit=5000)] == [4, 3, 2, 1, 0]
    assert [letter["value"] for letter in work.dead(limit="9" * 30, offset=4)] == [0]
    assert work.dead(offset=5) == []


@pytest.mark.parametrize("id", ["dlq-001", "00000000-0000-4000-8000-00000000abcd", "%2F", "é"])
def test_a_dead_letter_that_is_not_there_is_a_404_but_deleting_it_is_none(work: Work, id: str) -> None:
    for answer in (work.get(f"/dlq/{id}"), work.post(f"/dlq/{id}/requeue")):
        assert refusal(answer, 404, "dead_letter_not_found") == "Message not found in DLQ"
    assert read(work.delete(f"/dlq/{id}")) == {"ok": True}


def test_an_id_finds_its_dead_letter_alone_but_not_in_another_queue(work: Work, http: httpx.Client, queue: str) -> None:
    letter = work.kill(1)
    path = f"/dlq/{letter['id']}"
    assert read(Work(http).get(path)) == letter
    refusal(Work(http, f"{queue}-other").get(path), 404)
    assert read(Work(http, f"{queue}-other").delete(path)) == {"ok": True}
    assert work.dead() == [letter]
    assert read(work.delete(path)) == {"ok": True}
    assert work.dead() == []


def test_dead_letters_of_other_groups_are_not_of_this_api(work: Work, api: Api, queue: str) -> None:
    api.kill(queue, 1, group="other")
    assert work.dead() == []
    assert read(work.delete("/dlq")) == {"deletedCount": 0}
    assert len(api.dead_letters(queue)) == 1


# Requeue ---------------------------------------------------------------------------------------------------


def test_a_requeued_message_comes_first_with_its_schedule_its_priority_and_all_its_attempts(work: Work) -> None:
    work.enqueue("kept", backoffSchedule=[0, 0], priority=7)
    for _ in range(3):
        work.nack(work.take())
    [letter] = work.dead()
    work.enqueue("behind", priority=9)
    answer = read(work.post(f"/dlq/{letter['id']}/requeue"))
    assert answer == {"ok": True, "newId": answer["newId"], "id": answer["newId"]}
    assert answer["newId"] not in (letter["id"], letter["originalId"])
    assert work.dead() == []
    refusal(work.post(f"/dlq/{letter['id']}/requeue"), 404, "dead_letter_not_found")
    first, behind = work.take(), work.take()
    assert (first["id"], first["value"], first["attempts"]) == (answer["newId"], "kept", 1)
    assert (first["priority"], behind["value"]) == (7, "behind")
    message = first
    for attempt in (2, 3):
        work.nack(message)
        message = work.take()
        assert (message["attempts"], message["priority"]) == (attempt, 7)
    work.nack(message)
    [again] = work.dead()
    assert (again["originalId"], again["attempts"]) == (first["id"], 3)


# Delete and purge ------------------------------------------------------------------------------------------


def test_a_purge_says_how_many_it_removed_and_keeps_to_its_queue(work: Work, http: httpx.Client, queue: str) -> None:
    other = Work(http, f"{queue}-other")
    other.kill("other")
    for number in range(3):
        work.kill(number)
    assert read(work.delete("/dlq")) == {"deletedCount": 3}
    assert read(work.delete("/dlq")) == {"deletedCount": 0}
    assert len(other.dead()) == 1


# Restart ---------------------------------------------------------------------------------------------------


async def test_a_server_that_is_killed_keeps_everything_it_answered(tmp_path: Path) -> None:
    server = Server("--data", str(tmp_path / "data"))
    async with running(server):
        with httpx.Client(base_url=server.url, timeout=30) as client:
            work = Work(client)
            work.enqueue("dead", backoffSchedule=[], priority=9)
            work.nack(work.take(), error="boom")
            work.enqueue("retried", backoffSchedule=[0, 0, 0], priority=8)
            work.nack(work.take())
            work.nack(work.take())
            work.enqueue("acked", priority=9)
            work.ack(work.take())
            work.enqueue("locked", priority=9)
            locked = work.take()
            work.enqueue("delayed", delay=3_600_000)
            work.enqueue("plain")
            read(work.put("/settings", {"lockDuration": 77_000}))
            [letter] = work.dead()

        await server.end(signal.SIGKILL)
        await server.start()

        with httpx.Client(base_url=server.url, timeout=30) as client:
            work = Work(client)
            assert work.dead() == [letter]
            assert read(work.get("/settings"))["lockDuration"] == 77_000
            # A lock need not survive: then the message comes again, as it was.
            taken = [work.take(**WAIT) for _ in range(3)]
            assert [message["value"] for message in taken] == ["locked", "retried", "plain"]
            assert taken[0]["id"] == locked["id"]
            assert taken[1]["attempts"] == 3
            assert work.poll() is None
            assert work.stats() == (1, 3, 1)
            read(work.post(f"/dlq/{letter['id']}/requeue"))
            assert work.take()["value"] == "dead"
            for message in taken:
                work.ack(message)
            assert work.stats() == (1, 1, 0)
