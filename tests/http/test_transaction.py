"""POST /transaction: both forms of operations, all or nothing, and refusals in the answer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.http.api import Api, Json, data, read, refusal


def ack(message: Json, status: str = "completed", **fields: Any) -> Json:
    """The operation that settles a message without naming its lease, as old clients send it."""
    return {
        "type": "ack",
        "transactionId": message["transactionId"],
        "partitionId": message["partitionId"],
        "status": status,
    } | fields


def push(queue: str, *payloads: Json, **fields: Any) -> Json:
    """The operation that pushes items."""
    return {"type": "push", "items": [{"queue": queue, "payload": payload} | fields for payload in payloads]}


def test_an_ack_and_pushes_happen_together(api: Api, queue: str) -> None:
    out = f"{queue}-out"
    api.push(queue, "in", transactionId="t1")
    message = api.pop_one(queue)
    answer = api.transact(ack(message, leaseId=message["leaseId"]), push(out, 1, 2, transactionId="t7"), push(out, 3))
    assert answer["success"] is True
    assert answer["transactionId"]
    assert "error" not in answer
    acked, first, duplicate, third = answer["results"]
    assert acked == {
        "index": 0,
        "type": "ack",
        "success": True,
        "transactionId": "t1",
        "error": None,
        "dlq": False,
    }
    assert first.pop("messageId") == duplicate["messageId"]
    assert first.pop("partitionId")
    assert first == {
        "index": 1,
        "type": "push",
        "success": True,
        "status": "queued",
        "transactionId": "t7",
        "queueName": out,
    }
    assert (duplicate["index"], duplicate["success"], duplicate["status"]) == (2, True, "duplicate")
    assert (third["index"], third["status"]) == (3, "queued")
    assert api.pop(queue) == []
    assert data(api.pop(out, batch=10)) == [1, 3]


def test_a_push_may_be_written_flat_and_its_missing_payload_is_an_object(api: Api, queue: str) -> None:
    answer = api.transact(
        {"type": "push", "queue": queue, "partition": "p", "payload": 1, "transactionId": "t"},
        {"type": "push", "queue": queue, "partition": "p"},
    )
    assert answer["success"]
    assert data(api.pop(queue, "p", batch=10)) == [1, {}]


def test_a_refused_ack_undoes_the_pushes_and_the_other_acks(api: Api, queue: str) -> None:
    api.push(queue, 1, 2)
    messages = api.pop(queue, batch=2)
    missing = ack(messages[1]) | {"transactionId": "unknown"}
    answer = api.transact(push(f"{queue}-out", 1), ack(messages[0]), missing)
    assert answer["success"] is False
    assert answer["error"] == "ACK operation failed: Message not found"
    assert answer["code"] == "not_found"
    assert answer["transactionId"]
    assert isinstance(answer["results"], list)
    refusal(api.get(f"/resources/queues/{queue}-out"), 404)
    assert api.ack(messages[0], "failed")["success"]
    assert data(api.pop(queue, batch=10)) == [1, 2]


def test_an_ack_under_a_foreign_lease_is_refused(api: Api, queue: str) -> None:
    api.push(queue, 1)
    message = api.pop_one(queue)
    lease = "0199aaaa-bbbb-7ccc-8ddd-eeeeffff0000"
    answer = api.transact(ack(message, leaseId=lease), push(queue, 2))
    assert (answer["success"], answer["code"]) == (False, "lease_invalid")
    assert api.ack(message)["success"]


def test_required_leases_are_honoured(api: Api, queue: str) -> None:
    api.push(queue, 1)
    message = api.pop_one(queue)
    other = "0199aaaa-bbbb-7ccc-8ddd-eeeeffff0000"
    assert not api.transact(ack(message), requiredLeases=[other])["success"]
    assert api.transact(ack(message), requiredLeases=[message["leaseId"]])["success"]
    assert api.pop(queue) == []


def test_without_any_lease_the_message_must_be_held(api: Api, queue: str) -> None:
    api.push(queue, 1)
    message = api.pop_one(queue)
    api.ack(message, "retry")
    assert not api.transact(ack(message))["success"]
    api.pop_one(queue)
    assert api.transact(ack(message))["success"]


def test_acks_of_other_groups_name_their_group(api: Api, queue: str) -> None:
    api.push(queue, 1)
    message = api.pop_one(queue, consumerGroup="g")
    assert not api.transact(ack(message))["success"]
    assert api.transact(ack(message, consumerGroup="g"))["success"]


def test_a_failed_ack_counts_an_attempt_as_elsewhere(api: Api, queue: str) -> None:
    api.push(queue, 1)
    message = api.pop_one(queue)
    assert api.transact(ack(message, "failed", error="boom"))["success"]
    assert api.dead_letters(queue) == []
    assert api.pop_one(queue)["deliveryAttempt"] == 2


def test_dlq_in_a_transaction_is_reported(api: Api, queue: str) -> None:
    api.push(queue, 1)
    [result] = api.transact(ack(api.pop_one(queue), "dlq", error="boom"))["results"]
    assert result["dlq"] is True
    assert [letter["errorMessage"] for letter in api.dead_letters(queue)] == ["boom"]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({}, "operations array required"),
        ({"operations": None}, "operations array required"),
        ({"operations": {}}, "operations array required"),
        ({"operations": []}, "operations array cannot be empty"),
        ({"operations": [{"type": "push", "items": []}]}, "operations array cannot be empty"),
        ({"operations": [{}]}, "operations[0].type: expected push or ack"),
        ({"operations": [{"type": "pull"}]}, "operations[0].type: expected push or ack"),
        ({"operations": [5]}, "operations[0]: expected an object, got an integer"),
        ({"operations": [{"type": "push"}]}, "operations[0].queue: must not be empty"),
        (
            {"operations": [{"type": "push", "items": [{"queue": "q"}, {"queue": "q", "priority": 10}]}]},
            "operations[0].items[1].priority: expected an integer from 0 to 9, got 10",
        ),
        (
            {"operations": [{"type": "push", "queue": "q", "partition": None}]},
            "operations[0].partition: Partition must be a string",
        ),
        (
            {"operations": [{"type": "ack", "partitionId": "p"}]},
            "operations[0].transactionId: Each acknowledgment must have a valid transactionId string",
        ),
        (
            {"operations": [{"type": "ack", "transactionId": "t"}]},
            "operations[0].partitionId: Each acknowledgment must have a valid partitionId string"
            " to ensure message uniqueness",
        ),
        (
            {"operations": [{"type": "ack", "transactionId": "t", "partitionId": "p", "status": "ok"}]},
            "operations[0].status: expected completed, failed, retry or dlq, got 'ok'",
        ),
        (
            {"operations": [{"type": "push", "queue": "q"}], "requiredLeases": "x"},
            "requiredLeases: expected an array, got a string",
        ),
    ],
)
def test_a_wrong_transaction_names_what_is_wrong(api: Api, body: Json, text: str) -> None:
    assert refusal(api.post("/transaction", body), 400, "invalid_input") == text


def test_nothing_of_a_wrong_transaction_is_stored(api: Api, queue: str) -> None:
    body = {"operations": [push(queue, 1), push(queue, 2, traceId="bad")]}
    refusal(api.post("/transaction", body), 400)
    refusal(api.get(f"/resources/queues/{queue}"), 404)


def test_too_many_operations_are_refused(api: Api, queue: str) -> None:
    body = {"operations": [push(queue, *range(10_001))]}
    refusal(api.post("/transaction", body), 400, "batch_too_large")
    assert read(api.get("/resources/queues", search=queue))["queues"] == []
