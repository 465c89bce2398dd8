"""POST /ack and /ack/batch: the answer's shape, refusals in the answer, and wrong requests."""

from __future__ import annotations

from typing import Any

import pytest

from tests.http.api import Api, acknowledgment, data, read, refusal


def test_one_ack_is_answered_with_a_list_of_one(api: Api, queue: str) -> None:
    api.push(queue, 1, partition="p", transactionId="t")
    message = api.pop_one(queue)
    [result] = read(api.post("/ack", acknowledgment(message)))
    expected = {
        "index": 0,
        "transactionId": "t",
        "success": True,
        "error": None,
        "queueName": queue,
        "partitionName": "p",
        "leaseReleased": True,
        "dlq": False,
    }
    assert {name: result[name] for name in expected} == expected
    assert api.pop(queue) == []


def test_absent_and_null_fields_have_their_defaults(api: Api, queue: str) -> None:
    api.push(queue, 1)
    message = api.pop_one(queue)
    body = {
        "transactionId": message["transactionId"],
        "partitionId": message["partitionId"],
        "leaseId": None,
        "status": None,
        "consumerGroup": None,
        "error": None,
    }
    [result] = read(api.post("/ack", body))
    assert result["success"]


def test_success_is_another_word_for_completed(api: Api, queue: str) -> None:
    api.push(queue, 1)
    assert api.ack(api.pop_one(queue), "success")["success"]
    assert api.pop(queue) == []


def test_a_failed_message_comes_again_with_its_attempt_counted(api: Api, queue: str) -> None:
    api.push(queue, 1)
    first = api.pop_one(queue)
    assert first["deliveryAttempt"] == 1
    result = api.ack(first, "failed", error="boom")
    assert (result["success"], result["dlq"], result["leaseReleased"]) == (True, False, True)
    again = api.pop_one(queue)
    assert (again["id"], again["deliveryAttempt"]) == (first["id"], 2)


def test_retry_uses_no_attempt(api: Api, queue: str) -> None:
    api.push(queue, 1)
    api.ack(api.pop_one(queue), "retry")
    assert api.pop_one(queue)["deliveryAttempt"] == 1


def test_dlq_makes_a_dead_letter_at_once(api: Api, queue: str) -> None:
    api.push(queue, 1)
    assert api.ack(api.pop_one(queue), "dlq", error="poison")["dlq"]
    [letter] = api.dead_letters(queue)
    assert letter["errorMessage"] == "poison"


def test_a_foreign_lease_is_refused_in_the_answer(api: Api, queue: str) -> None:
    api.push(queue, 1)
    message = api.pop_one(queue)
    result = api.ack(message, leaseId="0199aaaa-bbbb-7ccc-8ddd-eeeeffff0000")
    assert (result["success"], result["leaseReleased"]) == (False, False)
    assert result["error"]
    assert api.ack(message)["success"]


def test_an_unknown_message_is_refused_in_the_answer(api: Api, queue: str) -> None:
    api.push(queue, 1)
    message = api.pop_one(queue)
    [result] = read(api.post("/ack", acknowledgment(message) | {"transactionId": "unknown"}))
    assert (result["success"], result["error"]) == (False, "Message not found")
    [result] = read(api.post("/ack", acknowledgment(message) | {"partitionId": "unknown"}))
    assert (result["success"], result["error"]) == (False, "Message not found")


def test_a_batch_is_answered_in_order_and_per_item(api: Api, queue: str) -> None:
    api.push(queue, 1, 2, 3)
    messages = api.pop(queue, batch=3)
    items = [
        acknowledgment(messages[2]),
        acknowledgment(messages[0]),
        acknowledgment(messages[1]) | {"transactionId": "unknown"},
    ]
    results = read(api.post("/ack/batch", {"acknowledgments": items}))
    assert [result["index"] for result in results] == [0, 1, 2]
    assert [result["success"] for result in results] == [True, True, False]
    assert results[2]["error"] == "Message not found"


def test_a_failure_in_the_middle_of_a_batch_is_not_lost(api: Api, queue: str) -> None:
    api.push(queue, 1, 2, 3)
    messages = api.pop(queue, batch=3)
    statuses = ("completed", "failed", "completed")
    items = [acknowledgment(message, status) for message, status in zip(messages, statuses, strict=True)]
    results = read(api.post("/ack/batch", {"acknowledgments": items, "consumerGroup": None}))
    assert all(result["success"] for result in results)
    assert data(api.pop(queue, batch=10)) == [2]


def test_an_empty_batch_is_answered_with_nothing(api: Api) -> None:
    assert read(api.post("/ack/batch", {"acknowledgments": []})) == []


def test_a_batch_is_for_one_group(api: Api, queue: str) -> None:
    api.push(queue, 1)
    message = api.pop_one(queue, consumerGroup="g")
    body = {"acknowledgments": [acknowledgment(message)], "consumerGroup": "g"}
    [result] = read(api.post("/ack/batch", body))
    assert result["success"]


def test_the_id_of_a_message_says_where_it_is(api: Api, queue: str) -> None:
    api.push(queue, 1, transactionId="t", partition="p")
    api.push(queue, 2, partition="q")
    first, second = api.pop(queue, batch=2, partitions=2)
    assert api.ack(first, partitionId=None, transactionId=first["id"])["success"]
    [result] = read(api.post("/ack/batch", {"acknowledgments": [{"transactionId": second["id"]}]}))
    assert (result["success"], result["partitionName"]) == (True, second["partition"])


def test_an_id_that_is_none_of_ours_is_refused_in_the_answer(api: Api) -> None:
    [result] = read(api.post("/ack", {"transactionId": "00000000-0010-8000-8000-00005f254e7b"}))
    assert (result["success"], result["code"]) == (False, "not_found")


@pytest.mark.parametrize("status", ["completed", "dlq"])
def test_a_delay_is_for_what_comes_again(api: Api, queue: str, status: str) -> None:
    api.push(queue, 1)
    message = api.pop_one(queue)
    text = refusal(api.post("/ack", acknowledgment(message, status, delay=5)), 400)
    assert text == f"delay: only with status failed or retry, got {status}"
    text = refusal(api.post("/ack", acknowledgment(message, "failed", delay=-1)), 400)
    assert text.startswith("delay: expected an integer from 0 to")
    assert api.ack(message)["success"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"transactionId": None}, "transactionId is required"),
        ({"transactionId": ""}, "transactionId is required"),
        ({"partitionId": None, "transactionId": "t"}, "partitionId is required to ensure message uniqueness"),
        ({"transactionId": 5}, "transactionId"),
        ({"partitionId": 5}, "partitionId"),
        ({"status": "done"}, "status: expected completed, failed, retry or dlq, got 'done'"),
        ({"status": 5}, "status"),
        ({"leaseId": 5}, "leaseId"),
        ({"error": 5}, "error"),
        ({"consumerGroup": 5}, "consumerGroup"),
        ({"consumerGroup": "x" * 256}, "consumerGroup"),
    ],
)
def test_a_wrong_ack_names_its_field_and_changes_nothing(
    api: Api, queue: str, change: dict[str, Any], text: str
) -> None:
    api.push(queue, 1)
    message = api.pop_one(queue)
    assert text in refusal(api.post("/ack", acknowledgment(message) | change), 400, "invalid_input")
    assert api.ack(message)["success"]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({}, "acknowledgments array is required"),
        ({"acknowledgments": None}, "acknowledgments array is required"),
        ({"acknowledgments": {}}, "acknowledgments array is required"),
        (
            {"acknowledgments": [{"partitionId": "p"}]},
            "acknowledgments[0].transactionId: Each acknowledgment must have a valid transactionId string",
        ),
        (
            {"acknowledgments": [{"transactionId": 5, "partitionId": "p"}]},
            "acknowledgments[0].transactionId: ",
        ),
        ({"acknowledgments": [{"transactionId": "t"}]}, "valid partitionId string"),
        ({"acknowledgments": ["t"]}, "acknowledgments[0]"),
        (
            {"acknowledgments": [{"transactionId": "t", "partitionId": "p", "status": "x"}]},
            "acknowledgments[0].status: expected completed, failed, retry or dlq, got 'x'",
        ),
    ],
)
def test_a_wrong_batch_names_what_is_wrong(api: Api, body: Any, text: str) -> None:
    assert text in refusal(api.post("/ack/batch", body), 400, "invalid_input")


def test_a_wrong_item_refuses_the_whole_batch(api: Api, queue: str) -> None:
    api.push(queue, 1)
    message = api.pop_one(queue)
    items = [acknowledgment(message), acknowledgment(message, "nonsense")]
    refusal(api.post("/ack/batch", {"acknowledgments": items}), 400)
    assert api.ack(message, "failed")["success"]
    assert len(api.pop(queue)) == 1


def test_too_large_batches_are_refused(api: Api) -> None:
    items = [{"transactionId": "t", "partitionId": "p"}] * 10_001
    assert "10000" in refusal(api.post("/ack/batch", {"acknowledgments": items}), 400).replace(",", "")
