"""GET, POST and DELETE below /queue/dlq."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.http.api import Api, Json, read, refusal
from tests.http.keyval.work import Work


def test_a_dead_letter_has_all_that_the_document_shows(work: Work) -> None:
    before = int(time.time() * 1000)
    id = work.enqueue({"task": "webhook"}, backoffSchedule=[0, 0])
    for _ in range(2):
        work.nack(work.take(), error="not the last one")
    work.nack(work.take(), error="Connection timeout")
    after = int(time.time() * 1000) + 1
    [letter] = work.dead()
    assert set(letter) == {
        "id",
        "originalId",
        "value",
        "attempts",
        "errorMessage",
        "originalCreatedAt",
        "failedAt",
    }
    assert (letter["originalId"], letter["value"], letter["attempts"]) == (id, {"task": "webhook"}, 3)
    assert letter["errorMessage"] == "Connection timeout"
    assert letter["id"] != id
    assert before - 1 <= letter["originalCreatedAt"] <= letter["failedAt"] <= after
    assert read(work.get(f"/dlq/{letter['id']}")) == letter
    assert work.stats() == (0, 0, 1)


def test_a_failure_without_a_text_says_that_the_attempts_are_used_up(work: Work) -> None:
    assert work.kill(1)["errorMessage"] == "Max attempts exceeded"


def test_a_long_text_is_cut(work: Work) -> None:
    work.enqueue(1, backoffSchedule=[])
    work.nack(work.take(), error="x" * 1_000_000)
    assert work.dead()[0]["errorMessage"] == "x" * 10_000


def test_without_retries_the_first_nack_is_the_last(work: Work) -> None:
    assert work.kill(1, backoffSchedule=[])["attempts"] == 1


def test_the_newest_failure_comes_first_page_by_page(work: Work) -> None:
    for number in range(5):
        work.kill(number)
    assert [letter["value"] for letter in work.dead()] == [4, 3, 2, 1, 0]
    assert [letter["value"] for letter in work.dead(limit=2, offset=1)] == [3, 2]
    assert [letter["value"] for letter in work.dead(limit=5000)] == [4, 3, 2, 1, 0]
    assert [letter["value"] for letter in work.dead(limit="9" * 30, offset=4)] == [0]
    assert work.dead(offset=5) == []


@pytest.mark.parametrize("limit", ["", "0", "-1", "abc", "5abc", "1.5"])
def test_a_limit_that_is_no_positive_number_is_a_400(work: Work, limit: str) -> None:
    assert refusal(work.get("/dlq", limit=limit), 400).startswith("limit must be a positive number")


@pytest.mark.parametrize("offset", ["", "-1", "abc", "1.5"])
def test_an_offset_that_is_no_number_is_a_400(work: Work, offset: str) -> None:
    assert refusal(work.get("/dlq", offset=offset), 400).startswith("offset:")


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


def test_dead_letters_of_other_groups_are_not_of_this_api(work: Work, api: Api, queue: str) -> None:
    api.kill(queue, 1, group="other")
    assert work.dead() == []
    assert read(work.delete("/dlq")) == {"deletedCount": 0}
    assert len(api.dead_letters(queue)) == 1


# Requeue ---------------------------------------------------------------------------------------------------


def test_a_requeued_message_comes_first_with_all_its_attempts(work: Work) -> None:
    letter = work.kill({"n": 1})
    work.enqueue("behind", priority=9)
    answer = read(work.post(f"/dlq/{letter['id']}/requeue"))
    assert answer == {"ok": True, "newId": answer["newId"], "id": answer["newId"]}
    assert answer["newId"] not in (letter["id"], letter["originalId"])
    message = work.take()
    assert (message["id"], message["value"], message["attempts"]) == (answer["newId"], {"n": 1}, 1)
    assert work.dead() == []


def test_a_requeue_keeps_schedule_and_priority(work: Work) -> None:
    work.enqueue("kept", backoffSchedule=[0, 0], priority=7)
    for _ in range(3):
        work.nack(work.take())
    [letter] = work.dead()
    read(work.post(f"/dlq/{letter['id']}/requeue"))
    for attempt in (1, 2, 3):
        message = work.take()
        assert (message["attempts"], message["priority"]) == (attempt, 7)
        work.nack(message)
    [again] = work.dead()
    assert (again["originalId"], again["attempts"]) == (message["id"], 3)


def test_a_requeue_keeps_the_keys_for_when_it_fails_again(work: Work, http: httpx.Client, queue: str) -> None:
    letter = work.kill("v", keysIfUndelivered=[[queue, "a"]])
    path = f"/keyval/api/keys/{queue}/a"
    assert read(http.get(path))["value"] == "v"
    read(http.delete(path))
    read(work.post(f"/dlq/{letter['id']}/requeue"))
    work.nack(work.take())
    assert read(http.get(path))["value"] == "v"


def test_of_many_who_requeue_one_wins(work: Work, server_url: str, queue: str) -> None:
    letter = work.kill(1)

    def requeue() -> int:
        with httpx.Client(base_url=server_url, timeout=30) as client:
            return Work(client, queue).post(f"/dlq/{letter['id']}/requeue").status_code

    with ThreadPoolExecutor(8) as pool:
        statuses = sorted(answer.result() for answer in [pool.submit(requeue) for _ in range(8)])
    assert statuses == [200] + [404] * 7
    assert work.stats() == (1, 0, 0)


# Delete and purge ------------------------------------------------------------------------------------------


def test_a_dead_letter_is_deleted(work: Work) -> None:
    letter: Json = work.kill(1)
    assert read(work.delete(f"/dlq/{letter['id']}")) == {"ok": True}
    assert read(work.delete(f"/dlq/{letter['id']}")) == {"ok": True}
    refusal(work.get(f"/dlq/{letter['id']}"), 404)
    assert work.stats() == (0, 0, 0)


def test_a_purge_says_how_many_it_removed_and_keeps_to_its_queue(work: Work, http: httpx.Client, queue: str) -> None:
    other = Work(http, f"{queue}-other")
    other.kill("other")
    for number in range(3):
        work.kill(number)
    assert read(work.delete("/dlq")) == {"deletedCount": 3}
    assert read(work.delete("/dlq")) == {"deletedCount": 0}
    assert len(other.dead()) == 1


# Keys ------------------------------------------------------------------------------------------------------


def test_what_could_not_be_delivered_is_under_its_keys(work: Work, http: httpx.Client, queue: str) -> None:
    value = {"orderId": "ord-123", "amount": 99.99}
    work.kill(value, keysIfUndelivered=[[queue, "failed", "ord-123"], [queue, "alerts", 7, True]])
    entries = read(http.get("/keyval/api/keys", params={"prefix": queue}))
    assert [(entry["key"], entry["value"]) for entry in entries] == [
        ([queue, "alerts", 7, True], value),
        ([queue, "failed", "ord-123"], value),
    ]
