"""POST /lease/{id}/extend: one object that every official client can read; POST /lease/extend: many at once."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from tests.http.api import Api, read, refusal


def expiry(answer: Any) -> datetime:
    """The new end of a lease."""
    return datetime.fromisoformat(answer["expiresAt"])


def test_a_lease_is_extended(api: Api, queue: str) -> None:
    api.configure(queue, leaseTime=5)
    api.push(queue, 1)
    lease = api.pop_one(queue)["leaseId"]
    answer = read(api.post(f"/lease/{lease}/extend", {"seconds": 1000}))
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


@pytest.mark.parametrize("content", [b"", b"{}", b'{"seconds":null}'])
def test_without_seconds_it_is_a_minute(api: Api, queue: str, content: bytes) -> None:
    api.configure(queue, leaseTime=1)
    api.push(queue, 1)
    lease = api.pop_one(queue)["leaseId"]
    longer = expiry(read(api.post(f"/lease/{lease}/extend", {"seconds": 120})))
    same = expiry(read(api.post(f"/lease/{lease}/extend", content=content)))
    assert same == longer, "a renewal never shortens a lease"


def test_extending_never_shortens(api: Api, queue: str) -> None:
    api.push(queue, 1)
    lease = api.pop_one(queue)["leaseId"]
    first = expiry(read(api.post(f"/lease/{lease}/extend", {"seconds": 1000})))
    assert expiry(read(api.post(f"/lease/{lease}/extend", {"seconds": 1}))) == first


def test_one_lease_over_many_partitions_is_extended_whole(api: Api, queue: str) -> None:
    api.configure(queue, leaseTime=5)
    for name in ("p1", "p2"):
        api.push(queue, name, partition=name)
    messages = api.pop(queue, batch=10, partitions=2)
    assert read(api.post(f"/lease/{messages[0]['leaseId']}/extend", {"seconds": 1000}))["success"]
    details = [read(api.get(f"/messages/{message['partitionId']}/{message['transactionId']}")) for message in messages]
    ends = {detail["leaseExpiresAt"] for detail in details}
    assert len(details) == 2
    assert len(ends) == 1


def test_a_lease_that_is_gone_is_an_answer(api: Api, queue: str) -> None:
    api.push(queue, 1)
    message = api.pop_one(queue)
    api.ack(message)
    for lease in (message["leaseId"], "unknown"):
        answer = read(api.post(f"/lease/{lease}/extend"))
        assert (answer["success"], answer["renewed"], answer["expiresAt"]) == (False, 0, None)
        assert answer["leaseId"] == lease
        assert answer["error"]
        assert answer["code"]


@pytest.mark.parametrize("seconds", [0, -1, "60", 1.5, True, 10**12])
def test_wrong_seconds_are_refused(api: Api, seconds: Any) -> None:
    assert refusal(api.post("/lease/x/extend", {"seconds": seconds}), 400).startswith("seconds: expected an")


def test_a_malformed_body_is_refused(api: Api) -> None:
    assert refusal(api.post("/lease/x/extend", content=b"{"), 400).startswith("Invalid JSON")


# Many at once ----------------------------------------------------------------------------------------------


def test_many_leases_are_answered_by_position(api: Api, queue: str) -> None:
    api.configure(queue, leaseTime=5)
    leases = []
    for name in ("p1", "p2"):
        api.push(queue, 1, partition=name)
        leases.append(api.pop_one(queue, name)["leaseId"])
    first, second = leases
    answer = read(api.post("/lease/extend", {"leaseIds": [second, "gone", first], "seconds": 1000}))
    assert set(answer) == {"results"}
    results = answer["results"]
    assert [(result["leaseId"], result["success"]) for result in results] == [
        (second, True),
        ("gone", False),
        (first, True),
    ]
    assert set(results[0]) == {"leaseId", "success", "expiresAt"}
    assert (results[1]["expiresAt"], results[1]["code"]) == (None, "lease_not_found")
    assert results[1]["error"]
    for lease, result in ((second, results[0]), (first, results[2])):
        assert expiry(read(api.post(f"/lease/{lease}/extend", {"seconds": 1}))) == expiry(result)


@pytest.mark.parametrize("body", [{}, {"seconds": None}])
def test_without_seconds_many_are_held_for_a_minute(api: Api, queue: str, body: dict[str, Any]) -> None:
    api.configure(queue, leaseTime=1)
    api.push(queue, 1)
    lease = api.pop_one(queue)["leaseId"]
    [result] = read(api.post("/lease/extend", {"leaseIds": [lease]} | body))["results"]
    longer = expiry(read(api.post(f"/lease/{lease}/extend", {"seconds": 61})))
    assert 1 <= (longer - expiry(result)).total_seconds() < 30


def test_a_lease_that_is_named_twice_is_answered_twice(api: Api, queue: str) -> None:
    api.push(queue, 1)
    lease = api.pop_one(queue)["leaseId"]
    results = read(api.post("/lease/extend", {"leaseIds": [lease, lease]}))["results"]
    assert [result["success"] for result in results] == [True, True]


def test_no_leases_are_no_results(api: Api) -> None:
    assert read(api.post("/lease/extend", {"leaseIds": []})) == {"results": []}


def test_a_lease_named_extend_can_still_be_extended(api: Api) -> None:
    assert read(api.post("/lease/extend/extend"))["leaseId"] == "extend"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({}, "leaseIds: is required"),
        ({"leaseIds": "x"}, "leaseIds: expected an array, got a string"),
        ({"leaseIds": [1]}, "leaseIds[0]: expected a string, got an integer"),
        ({"leaseIds": ["x", "a\0b"]}, "leaseIds[1]: must not contain a NUL character"),
        ({"leaseIds": ["x" * 256]}, "leaseIds[0]: at most 255 bytes of UTF-8, got 256"),
        ({"leaseIds": ["x"], "seconds": 0}, "seconds: expected an integer from 1 to 315360000, got 0"),
        ({"leaseIds": ["x"], "seconds": "60"}, "seconds: expected an integer, got a string"),
    ],
)
def test_what_is_wrong_with_many_is_said_by_field(api: Api, body: dict[str, Any], text: str) -> None:
    assert refusal(api.post("/lease/extend", body), 400) == text


def test_too_many_leases_at_once_are_refused(api: Api) -> None:
    text = refusal(api.post("/lease/extend", {"leaseIds": ["x"] * 10_001}), 400, "batch_too_large")
    assert text == "leaseIds: at most 10000 at once (limits.max_batch), got 10001"


def test_as_many_leases_as_the_limit_share_a_request(api: Api) -> None:
    results = read(api.post("/lease/extend", {"leaseIds": ["x"] * 10_000}))["results"]
    assert len(results) == 10_000


@pytest.mark.parametrize("content", [b"", b"{"])
def test_a_body_that_is_not_json_is_refused_for_many(api: Api, content: bytes) -> None:
    refusal(api.post("/lease/extend", content=content), 400)
