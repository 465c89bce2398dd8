"""POST /ack and /ack/batch, POST /lease/{id}/extend and /lease/extend: answers, refusals in them, wrong requests."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from tests.http.api import Api, Json, acknowledgment, read

UNKNOWN_LEASE = "0199aaaa-bbbb-7ccc-8ddd-eeeeffff0000"


def ack_batch(api: Api, *items: Json, **fields: Any) -> list[Json]:
    """Settle many; the results."""
    results: list[Json] = read(api.post("/ack/batch", {"acknowledgments": list(items)} | fields))
    return results


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
    nulls = dict.fromkeys(("leaseId", "status", "consumerGroup", "error"))
    [result] = read(api.post("/ack", acknowledgment(message) | nulls))
    assert result["success"]
    assert api.pop(queue) == []


@pytest.mark.parametrize(
    ("status", "dlq", "attempt"),
    [
        ("completed", False, None),
        ("success", False, None),
        ("failed", False, 2),
        ("retry", False, 1),
        ("dlq", True, None),
    ],
)
def test_the_status_says_what_becomes_of_the_message(
    api: Api, queue: str, status: str, dlq: bool, attempt: int | None
) -> None:
    api.push(queue, 1)
    first = api.pop_one(queue)
    assert first["deliveryAttempt"] == 1
    result = api.ack(first, status, error="boom")
    assert (result["success"], result["dlq"], result["leaseReleased"]) == (True, dlq, True)
    again = [(message["id"], message["deliveryAttempt"]) for message in api.pop(queue)]
    assert again == ([] if attempt is None else [(first["id"], attempt)])
    assert [letter["errorMessage"] for letter in api.dead_letters(queue)] == (["boom"] if dlq else [])


def test_a_unrelated_lease_or_an_unknown_message_is_refused_in_the_answer(api: Api, queue: str) -> None:
    api.push(queue, 1)
    message = api.pop_one(queue)
    result = api.ack(message, leaseId=UNKNOWN_LEASE)
    assert (result["success"], result["leaseReleased"]) == (False, False)
    assert result["error"]
    for unknown in ({"transactionId": "unknown"}, {"partitionId": "unknown"}):
        [result] = read(api.post("/ack", acknowledgment(message) | unknown))
        assert (result["success"], result["error"]) == (False, "Message not found")
    [result] = read(api.post("/ack", {"transactionId": "00000000-0010-8000-8000-00005f254e7b"}))
    assert (result["success"], result["code"]) == (False, "not_found")
    assert api.ack(message)["success"]


def test_a_batch_is_answered_in_order_and_per_item(api: Api, queue: str) -> None:
    assert ack_batch(api) == []
    api.push(queue, 1, 2, 3)
    messages = api.pop(queue, batch=3, consumerGroup="g")
    unknown = acknowledgment(messages[1]) | {"transactionId": "unknown"}
    results = ack_batch(api, acknowledgment(messages[2]), acknowledgment(messages[0]), unknown, consumerGroup="g")
    assert [result["index"] for result in results] == [0, 1, 2]
    assert [result["success"] for result in results] == [True, True, False]
    assert results[2]["error"] == "Message not found"


def test_the_id_of_a_message_says_where_it_is(api: Api, queue: str) -> None:
    api.push(queue, 1, transactionId="t", partition="p")
    api.push(queue, 2, partition="q")
    first, second = api.pop(queue, batch=2, partitions=2)
    assert api.ack(first, partitionId=None, transactionId=first["id"])["success"]
    [result] = ack_batch(api, {"transactionId": second["id"]})
    assert (result["success"], result["partitionName"]) == (True, second["partition"])


# Leases ----------------------------------------------------------------------------------------------------


def extend(api: Api, lease: str, seconds: int | None = None) -> Json:
    """Extend one lease."""
    return read(api.post(f"/lease/{lease}/extend", {"seconds": seconds}))


def expiry(answer: Json) -> datetime:
    """The new end of a lease."""
    return datetime.fromisoformat(answer["expiresAt"])


def leased(api: Api, queue: str, *partitions: str) -> list[str]:
    """A lease of a second on a message of each partition."""
    api.configure(queue, leaseTime=1)
    for partition in partitions:
        api.push(queue, 1, partition=partition)
    return [api.pop_one(queue, partition)["leaseId"] for partition in partitions]


def test_a_lease_is_extended_and_never_shortened(api: Api, queue: str) -> None:
    [lease] = leased(api, queue, "p")
    answer = extend(api, lease, 1000)
    expires = answer["expiresAt"]
    assert answer == {
        "index": 0,
        "leaseId": lease,
        "success": True,
        "renewed": 1,
        "error": None,
        "expiresAt": expires,
        "newExpiresAt": expires,
        "lease_expires_at": expires,
    }
    assert extend(api, lease, 1)["expiresAt"] == expires


@pytest.mark.parametrize("body", [None, {}, {"seconds": None}], ids=str)
def test_without_seconds_it_is_a_minute(api: Api, queue: str, body: Json) -> None:
    [lease] = leased(api, queue, "p")
    one = read(api.post(f"/lease/{lease}/extend", body))
    [same] = read(api.post("/lease/extend", {"leaseIds": [lease]} | (body or {})))["results"]
    for minute in (one, same):
        assert 1 <= (expiry(extend(api, lease, 61)) - expiry(minute)).total_seconds() < 30


def test_a_lease_that_is_gone_is_an_answer(api: Api, queue: str) -> None:
    api.push(queue, 1)
    message = api.pop_one(queue)
    api.ack(message)
    for lease in (message["leaseId"], "unknown", "extend"):
        answer = extend(api, lease)
        assert (answer["success"], answer["renewed"], answer["expiresAt"]) == (False, 0, None)
        assert answer["leaseId"] == lease
        assert answer["error"]
        assert answer["code"]


def test_many_leases_are_answered_by_position(api: Api, queue: str) -> None:
    first, second = leased(api, queue, "p1", "p2")
    answer = read(api.post("/lease/extend", {"leaseIds": [second, "gone", first, first], "seconds": 1000}))
    assert set(answer) == {"results"}
    results = answer["results"]
    expected = [(second, True), ("gone", False), (first, True), (first, True)]
    assert [(result["leaseId"], result["success"]) for result in results] == expected
    assert set(results[0]) == {"leaseId", "success", "expiresAt"}
    assert (results[1]["expiresAt"], results[1]["code"]) == (None, "lease_not_found")
    assert results[1]["error"]
    for lease, result in ((second, results[0]), (first, results[2])):
        assert expiry(extend(api, lease, 1)) == expiry(result)


@pytest.mark.parametrize("number", [0, 10_000])
def test_as_many_leases_as_the_limit_share_a_request(api: Api, number: int) -> None:
    results = read(api.post("/lease/extend", {"leaseIds": ["x"] * number}))["results"]
    assert len(results) == number
