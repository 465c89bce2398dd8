"""Many dead letters at a time over HTTP: found by their error, requeued and deleted, each answered on its own."""

from __future__ import annotations

from typing import Any

import pytest

from tests.http.api import Api, Json, data, read, refusal


def kill_with(api: Api, queue: str, payload: Json, error: str, partition: str = "Default") -> None:
    """Make a dead letter with an error of its own."""
    api.push(queue, payload, partition=partition)
    assert api.ack(api.pop_one(queue, partition), "dlq", error=error)["dlq"]


def drain(api: Api, queue: str) -> list[Json]:
    """All payloads that the default group can get now."""
    found: list[Json] = []
    while messages := api.pop(queue, batch=100, autoAck=True):
        found += data(messages)
    return found


def test_the_list_is_searched_by_what_errors_say(api: Api, queue: str) -> None:
    kill_with(api, queue, 1, "Timeout of the bank")
    kill_with(api, queue, 2, "no such account")
    assert data(api.dead_letters(queue, search="timeout")) == [1]
    assert data(api.dead_letters(queue, search="%")) == []
    assert read(api.delete("/dlq", queue=queue, search="account"))["deleted"] == 1
    assert data(api.dead_letters(queue)) == [1]


def test_the_list_leaves_payloads_out_when_nobody_wants_them(api: Api, queue: str) -> None:
    kill_with(api, queue, {"n": 1}, "boom")
    assert data(api.dead_letters(queue, payloads=False)) == [None]
    assert data(api.dead_letters(queue, payloads=True)) == [{"n": 1}]


def test_ids_are_requeued_in_their_order_and_each_is_answered(api: Api, queue: str) -> None:
    for number in range(3):
        kill_with(api, queue, number, "boom")
    newest, middle, oldest = api.dead_letters(queue)
    ids = [middle["deadLetterId"], "unknown", oldest["id"]]
    answer = read(api.post("/dlq/requeue", {"ids": ids}))
    assert (answer["requeued"], answer["remaining"]) == (2, 0)
    results = answer["results"]
    assert [result["id"] for result in results] == ids
    assert [result["success"] for result in results] == [True, False, True]
    assert results[1] == {
        "id": "unknown",
        "success": False,
        "error": "Dead letter not found",
        "code": "dead_letter_not_found",
    }
    got = api.pop(queue, batch=10)
    assert data(got) == [1, 0]
    assert [message["id"] for message in got] == [results[0]["messageId"], results[2]["messageId"]]
    assert api.dead_letters(queue) == [newest]


def test_an_id_that_is_given_twice_is_requeued_once(api: Api, queue: str) -> None:
    kill_with(api, queue, 1, "boom")
    [letter] = api.dead_letters(queue)
    answer = read(api.post("/dlq/requeue", {"ids": [letter["deadLetterId"]] * 2}))
    assert [result["success"] for result in answer["results"]] == [True, False]
    assert drain(api, queue) == [1]


def test_all_that_match_are_requeued_oldest_first(api: Api, queue: str) -> None:
    for number in range(4):
        kill_with(api, queue, number, "other" if number == 2 else "timeout")
    answer = read(api.post("/dlq/requeue", {"filter": {"queue": queue, "search": "timeout"}}))
    assert (answer["requeued"], answer["remaining"]) == (3, 0)
    assert drain(api, queue) == [0, 1, 3]
    assert data(api.dead_letters(queue)) == [2]


def test_a_bounded_requeue_begins_with_the_oldest_and_tells_what_is_left(api: Api, queue: str) -> None:
    for number in range(5):
        kill_with(api, queue, number, "boom")
    taken = []
    for left in (3, 1, 0):
        answer = read(api.post("/dlq/requeue", {"filter": {"queue": queue}, "limit": 2}))
        assert answer["remaining"] == left
        taken += drain(api, queue)
    assert taken == list(range(5))


@pytest.mark.parametrize(
    ("where", "requeued"),
    [
        ({"partition": "p1"}, 1),
        ({"consumerGroup": "nobody"}, 0),
        ({"from": "2999-01-01T00:00:00Z"}, 0),
        ({"to": "2020-01-01T00:00:00Z"}, 0),
        ({}, 2),
    ],
    ids=["partition", "group", "from", "to", "queue"],
)
def test_each_filter_of_a_requeue_counts(api: Api, queue: str, where: dict[str, Any], requeued: int) -> None:
    kill_with(api, queue, 1, "boom", partition="p1")
    kill_with(api, queue, 2, "boom", partition="p2")
    assert read(api.post("/dlq/requeue", {"filter": {"queue": queue, **where}}))["requeued"] == requeued


def test_a_message_that_died_in_several_groups_is_ambiguous_and_changes_nothing(api: Api, queue: str) -> None:
    api.push(queue, 1)
    for group in ("g1", "g2"):
        message = api.pop_one(queue, consumerGroup=group)
        api.ack(message, "dlq")
    for verb in ("requeue", "delete"):
        [result] = read(api.post(f"/dlq/{verb}", {"ids": [message["id"]]}))["results"]
        assert (result["success"], result["code"]) == (False, "ambiguous")
    assert len(api.dead_letters(queue)) == 2


def test_ids_are_deleted_and_each_is_answered(api: Api, queue: str) -> None:
    for number in range(3):
        kill_with(api, queue, number, "boom")
    newest, middle, oldest = api.dead_letters(queue)
    ids = [newest["deadLetterId"], "unknown", middle["id"]]
    answer = read(api.post("/dlq/delete", {"ids": ids}))
    assert answer["deleted"] == 2
    assert [(result["id"], result["success"]) for result in answer["results"]] == list(
        zip(ids, [True, False, True], strict=True)
    )
    assert api.dead_letters(queue) == [oldest]


@pytest.mark.parametrize(
    ("verb", "body", "text"),
    [
        ("requeue", {}, "send ids, or a filter"),
        ("requeue", {"ids": [], "filter": {}}, "send ids, or a filter"),
        ("requeue", {"ids": ["a"], "limit": 5}, "send ids, or a filter"),
        ("requeue", {"filter": {"queeu": "x"}}, "queeu"),
        ("requeue", {"filter": {"from": "yesterday"}}, "from: "),
        ("requeue", {"filter": {}, "limit": 0}, "limit: "),
        ("requeue", {"filter": {}, "limit": 1001}, "limit: "),
        ("requeue", {"ids": ["x"] * 1001}, "ids: at most 1000"),
        ("requeue", {"ids": ["x" * 256]}, "ids[0]: "),
        ("requeue", {"ids": "x"}, "ids: expected an array"),
        ("delete", {}, "ids: is required"),
        ("delete", {"ids": ["x"] * 1001}, "ids: at most 1000"),
        ("delete", {"filter": {}}, "filter"),
    ],
    ids=[f"{number}" for number in range(13)],
)
def test_what_is_wrong_is_said_and_nothing_happens(api: Api, queue: str, verb: str, body: Json, text: str) -> None:
    kill_with(api, queue, 1, "boom")
    assert text in refusal(api.post(f"/dlq/{verb}", body), 400)
    assert len(api.dead_letters(queue)) == 1
