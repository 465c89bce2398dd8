"""POST /lease/{id}/extend: one object that every official client can read."""

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
