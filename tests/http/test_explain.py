"""GET /explain/{id} and GET /leases: why a message is where it is, and who holds what."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from tests.http.api import Api, Json, read, refusal
from tests.http.streaming import listening, websocket

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def pushed(api: Api, queue: str, payload: Json = 1, **fields: Any) -> str:
    """Push one message; its id."""
    [answer] = api.push(queue, payload, **fields)
    return str(answer["message_id"])


def explained(api: Api, message_id: str, **query: Any) -> Json:
    """All that is said of a message."""
    return read(api.get(f"/explain/{message_id}", **query))


def reason(api: Api, message_id: str, group: str = "g") -> Json:
    """What is said of a message for one group."""
    [told] = explained(api, message_id, consumerGroup=group)["explanations"]
    assert told["consumerGroup"] == group
    return told


def leases(api: Api, **query: Any) -> list[Json]:
    """The leases on a page."""
    found: list[Json] = read(api.get("/leases", **query))["leases"]
    return found


def test_a_message_is_explained_for_each_group(api: Api, queue: str) -> None:
    [stored] = api.push(queue, 1, partition="p", transactionId="key")
    message = api.pop_one(queue, "p", consumerGroup="holds", consumer="worker 7")
    api.pop_one(queue, "p", consumerGroup="done", autoAck=True)
    found = explained(api, stored["message_id"])
    assert [(one["consumerGroup"], one["reason"]) for one in found.pop("explanations")] == [
        ("done", "done"),
        ("holds", "leased"),
    ]
    assert found == {
        "messageId": stored["message_id"],
        "queue": queue,
        "partition": "p",
        "partitionId": stored["partition_id"],
        "offset": 1,
        "transactionId": "key",
        "createdAt": message["createdAt"],
    }


def test_a_reason_is_a_sentence_and_data(api: Api, queue: str) -> None:
    api.pop(queue, consumerGroup="g")
    told = reason(api, pushed(api, queue, delay=3_600_000))
    assert set(told) == {"consumerGroup", "reason", "text", "deliverAt"}
    assert told["reason"] == "delayed"
    assert TIME.fullmatch(told["deliverAt"])
    assert told["text"].startswith(f"Delayed until {told['deliverAt']} (in 59 min")


def test_what_is_behind_says_what_it_waits_for(api: Api, queue: str) -> None:
    first, second = (pushed(api, queue, number) for number in (1, 2))
    api.pop_one(queue, consumerGroup="g", consumer="worker 7")
    told = reason(api, second)
    assert (told["reason"], told["aheadMessages"]) == ("behind", 1)
    ahead = told["ahead"]
    assert (ahead["messageId"], ahead["reason"], ahead["consumer"]) == (first, "leased", "worker 7")
    assert "leaseId" not in ahead


def test_deliveries_stopped_for_maintenance_are_the_reason(fresh_api: Api) -> None:
    fresh_api.pop("orders", consumerGroup="g")
    message_id = pushed(fresh_api, "orders")
    read(fresh_api.post("/system/maintenance/pop", {"enabled": True}))
    assert reason(fresh_api, message_id)["reason"] == "pop_maintenance"


def test_ready_just_after_a_consumer_asked(api: Api, queue: str) -> None:
    api.pop(queue, consumerGroup="g")
    message_id = pushed(api, queue, partition="p")
    told = reason(api, message_id)
    assert (told["reason"], told["waiting"]) == ("ready", 0)


def test_no_group_has_ever_asked(api: Api, queue: str) -> None:
    message_id = pushed(api, queue)
    [told] = explained(api, message_id)["explanations"]
    assert (told["consumerGroup"], told["reason"]) == (None, "no_group")
    assert reason(api, message_id, "g")["reason"] == "no_group"


@pytest.mark.parametrize("message_id", ["nothing", "01890000-0000-7000-8000-000000000000"])
def test_an_unknown_id_is_not_found(api: Api, message_id: str) -> None:
    refusal(api.get(f"/explain/{message_id}"), 404, "message_not_found")


def test_a_removed_message_is_explained_as_far_as_it_is_known(api: Api, queue: str) -> None:
    [stored] = api.push(queue, 1)
    api.pop(queue, "elsewhere", consumerGroup="g")
    read(api.delete(f"/messages/{stored['partition_id']}/{stored['transaction_id']}"))
    found = explained(api, stored["message_id"])
    assert (found["transactionId"], found["createdAt"]) == (None, None)
    assert [one["reason"] for one in found["explanations"]] == ["removed"]


# Leases ----------------------------------------------------------------------------------------------------


def test_a_lease_is_listed_with_who_holds_what(api: Api, queue: str) -> None:
    api.push(queue, 1, 2, partition="p")
    got = api.pop(queue, "p", consumerGroup="g", batch=2, consumer="worker 7")
    page = read(api.get("/leases", queue=queue, partition="p", consumerGroup="g"))
    assert (page["total"], page["pagination"]) == (1, {"limit": 100, "offset": 0})
    [lease] = page["leases"]
    assert TIME.fullmatch(lease.pop("since"))
    assert TIME.fullmatch(lease.pop("until"))
    assert lease == {
        "leaseId": got[0]["leaseId"],
        "queue": queue,
        "partition": "p",
        "partitionId": got[0]["partitionId"],
        "consumerGroup": "g",
        "mode": "ordered",
        "consumer": "worker 7",
        "messages": 2,
        "firstMessageId": got[0]["id"],
    }
    assert leases(api, queue=queue, consumerGroup="other") == []
    assert leases(api, queue=queue, offset=1) == []


def test_a_consumer_without_a_name_is_known_by_its_address(server_url: str, queue: str) -> None:
    with httpx.Client(base_url=server_url) as client:
        api = Api(client)
        api.push(queue, 1)
        api.pop(queue)
        [lease] = leases(api, queue=queue)
    assert re.fullmatch(r"127\.0\.0\.1:\d+", lease["consumer"])


@pytest.mark.parametrize("name", ["x" * 256, "a\0b"], ids=["too long", "with NUL"])
def test_a_bad_name_of_a_consumer_is_refused(api: Api, queue: str, name: str) -> None:
    assert "consumer" in refusal(api.try_pop(queue, consumer=name), 400)


def test_streams_name_their_consumers_too(api: Api, server_url: str, queue: str) -> None:
    api.push(queue, 1, partition="p1")
    with listening(server_url, f"/queue/{queue}", consumer="by events") as events:
        events.message()
        assert [one["consumer"] for one in leases(api, queue=queue)] == ["by events"]
    api.push(f"{queue}-2", 2)
    with websocket(server_url, credit=1) as socket:
        socket.subscribe("s", f"{queue}-2", consumer="by frames")
        socket.take(1)
        assert [one["consumer"] for one in leases(api, queue=f"{queue}-2")] == ["by frames"]


def test_consumers_of_the_key_value_api_are_named(api: Api, queue: str) -> None:
    api.client.post("/keyval/api/queue/enqueue", params={"queue": queue}, json={"value": 1})
    read(api.client.get("/keyval/api/queue/poll", params={"queue": queue, "consumer": "kv 1"}))
    assert [(one["consumer"], one["mode"]) for one in leases(api, queue=queue)] == [("kv 1", "shared")]
