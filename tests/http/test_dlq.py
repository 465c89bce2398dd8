"""Dead letters over HTTP: list with every filter, requeue once, delete."""

from __future__ import annotations

from typing import Any

import pytest

from tests.http.api import Api, data, read, refusal


def test_a_dead_letter_has_the_contracts_shape(api: Api, queue: str) -> None:
    api.configure(queue, retryLimit=1)
    trace = "0199aaaa-bbbb-4ccc-8ddd-eeeeffff0000"
    [pushed] = api.push(queue, {"n": 1}, partition="p", transactionId="t", traceId=trace)
    for error in ("first", "second"):
        result = api.ack(api.pop_one(queue), "failed", error=error)
    assert result["dlq"] is True
    answer = read(api.get("/dlq", queue=queue))
    [letter] = answer["messages"]
    assert (answer["total"], answer["pagination"]) == (1, {"limit": 100, "offset": 0})
    assert letter.pop("deadLetterId")
    created, failed = letter.pop("createdAt"), letter.pop("failedAt")
    assert created <= failed
    assert len(created) == len(failed) == len("2026-01-02T03:04:05.678Z")
    assert letter == {
        "id": pushed["message_id"],
        "transactionId": "t",
        "partitionId": pushed["partition_id"],
        "traceId": trace,
        "queue": queue,
        "partition": "p",
        "consumerGroup": "__QUEUE_MODE__",
        "errorMessage": "second",
        "retryCount": 1,
        "attempts": 2,
        "data": {"n": 1},
        "producerSub": None,
    }


def test_the_list_can_be_filtered_and_paged(api: Api, queue: str) -> None:
    for number in range(3):
        api.kill(queue, number, partition=f"p{number}")
    api.push(queue, "g", partition="pg")
    message = api.pop_one(queue, "pg", consumerGroup="g")
    api.ack(message, "dlq")
    letters = api.dead_letters(queue)
    assert [letter["data"] for letter in letters] == ["g", 2, 1, 0]
    assert [letter["data"] for letter in api.dead_letters(queue, limit=2, offset=1)] == [2, 1]
    assert read(api.get("/dlq", queue=queue, limit=1, offset=3))["total"] == 4
    assert [letter["data"] for letter in api.dead_letters(queue, consumerGroup="g")] == ["g"]
    assert [letter["data"] for letter in api.dead_letters(queue, partition="p1")] == [1]
    assert [letter["data"] for letter in api.dead_letters(queue, id=letters[1]["id"])] == [2]
    assert [letter["data"] for letter in api.dead_letters(queue, id=letters[2]["deadLetterId"])] == [1]
    assert api.dead_letters(queue, id="unknown") == []
    assert api.dead_letters(queue, to="2020-01-01T00:00:00Z") == []
    assert len(api.dead_letters(queue, from_="2020-01-01T00:00:00Z", to="2999-01-01")) == 4
    assert api.dead_letters(queue, from_="2999-01-01T00:00:00Z") == []
    assert api.dead_letters(f"{queue}-unknown") == []


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ({"limit": "0"}, "limit"),
        ({"limit": "1001"}, "limit"),
        ({"limit": "x"}, "limit"),
        ({"offset": "-1"}, "offset"),
        ({"from_": "yesterday"}, "from"),
        ({"to": "x"}, "to"),
        ({"queue": "x" * 256}, "queue"),
        ({"partition": "a\0"}, "partition"),
    ],
)
def test_wrong_filters_are_refused_by_name(api: Api, query: dict[str, Any], name: str) -> None:
    assert refusal(api.get("/dlq", **query), 400).startswith(f"{name}: ")


def test_requeue_puts_it_back_in_front_with_fresh_attempts_and_once(api: Api, queue: str) -> None:
    dead = api.kill(queue, "dead")
    api.push(queue, "next")
    [letter] = api.dead_letters(queue)
    answer = read(api.post(f"/dlq/{letter['deadLetterId']}/requeue"))
    new_id = answer.pop("messageId")
    assert new_id != dead["id"]
    assert answer == {
        "success": True,
        "deadLetterId": letter["deadLetterId"],
        "queue": queue,
        "partition": "Default",
        "consumerGroup": "__QUEUE_MODE__",
    }
    refusal(api.post(f"/dlq/{letter['deadLetterId']}/requeue"), 404, "dead_letter_not_found")
    assert api.dead_letters(queue) == []
    messages = api.pop(queue, batch=10)
    while len(messages) < 2:
        messages += api.pop(queue, batch=10)
    assert data(messages) == ["dead", "next"]
    assert (messages[0]["id"], messages[0]["deliveryAttempt"]) == (new_id, 1)


def test_requeue_by_message_id_needs_the_group_when_it_died_in_several(api: Api, queue: str) -> None:
    api.push(queue, 1)
    for group in ("g1", "g2"):
        message = api.pop_one(queue, consumerGroup=group)
        api.ack(message, "dlq")
    path = f"/dlq/{message['id']}"
    refusal(api.post(f"{path}/requeue"), 409, "ambiguous")
    refusal(api.delete(path), 409, "ambiguous")
    assert len(api.dead_letters(queue)) == 2
    assert read(api.post(f"{path}/requeue", consumerGroup="g1"))["consumerGroup"] == "g1"
    assert data(api.pop(queue, consumerGroup="g1")) == [1]
    assert api.pop(queue, consumerGroup="g2") == []
    assert read(api.delete(path))["deleted"] == 1
    assert api.dead_letters(queue) == []


def test_one_dead_letter_can_be_deleted(api: Api, queue: str) -> None:
    for number in range(2):
        api.kill(queue, number)
    newest, oldest = api.dead_letters(queue)
    answer = read(api.delete(f"/dlq/{newest['deadLetterId']}"))
    assert answer == {"success": True, "deadLetterId": newest["deadLetterId"], "deleted": 1}
    refusal(api.delete(f"/dlq/{newest['deadLetterId']}"), 404, "dead_letter_not_found")
    assert api.dead_letters(queue) == [oldest]


def test_the_dead_letters_of_a_queue_can_be_deleted(api: Api, queue: str) -> None:
    other = f"{queue}-other"
    api.kill(other, "kept")
    for number in range(3):
        api.kill(queue, number, partition=f"p{number}")
    assert read(api.delete("/dlq", queue=queue, partition="p1"))["deleted"] == 1
    assert read(api.delete("/dlq", queue=queue)) == {"success": True, "queue": queue, "deleted": 2}
    assert api.dead_letters(queue) == []
    assert data(api.dead_letters(other)) == ["kept"]


def test_deleting_dead_letters_needs_a_queue(api: Api, queue: str) -> None:
    api.kill(queue, 1)
    assert refusal(api.delete("/dlq"), 400) == "queue is required"
    refusal(api.delete("/dlq", queue=queue, from_="x"), 400)
    assert len(api.dead_letters(queue)) == 1


def test_unknown_ids_are_not_found(api: Api) -> None:
    for identifier in ("unknown", "0199aaaa-bbbb-7ccc-8ddd-eeeeffff0000"):
        assert refusal(api.post(f"/dlq/{identifier}/requeue"), 404) == "Dead letter not found"
        assert refusal(api.delete(f"/dlq/{identifier}"), 404) == "Dead letter not found"
