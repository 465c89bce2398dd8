"""Messages as an administrator sees them: list, show, delete."""

from __future__ import annotations

from typing import Any

import pytest

from tests.http.api import Api, data, read, refusal


def listed(api: Api, queue: str, **query: Any) -> list[Any]:
    """The ids of listed messages."""
    return [message["id"] for message in read(api.get("/messages", queue=queue, **query))["messages"]]


def test_messages_are_listed_newest_first_without_payloads(api: Api, queue: str) -> None:
    name = f"{queue}.task.x"
    api.push(name, {"n": 1}, partition="p", transactionId="t1")
    [second] = api.push(name, {"n": 2}, partition="p")
    answer = read(api.get("/messages", queue=name))
    newest, oldest = answer["messages"]
    assert newest["id"] == second["message_id"]
    expected = {
        "transactionId": "t1",
        "partitionId": second["partition_id"],
        "queuePath": f"{name}/p",
        "queue": name,
        "partition": "p",
        "namespace": queue,
        "task": "task",
        "status": "pending",
        "busStatus": {"consumedBy": 0, "totalGroups": 0},
        "traceId": None,
        "producerSub": None,
        "queuePriority": 0,
        "leaseExpiresAt": None,
    }
    assert {field: oldest[field] for field in expected} == expected
    assert oldest["createdAt"].endswith("Z")
    assert "payload" not in oldest
    assert "data" not in oldest
    assert answer["mode"] == {"hasQueueMode": False, "busGroupsCount": 0, "type": "none"}


def test_the_list_can_be_filtered_by_state(api: Api, queue: str) -> None:
    ids = [result["message_id"] for result in api.push(queue, 1, 2, 3, 4)]
    first, second, _ = api.pop(queue, batch=3)
    api.ack(first)
    api.ack(second, "dlq")
    assert listed(api, queue, status="completed") == [ids[0]]
    assert listed(api, queue, status="dead_letter") == [ids[1]]
    assert listed(api, queue, status="processing") == [ids[2]]
    assert listed(api, queue, status="pending") == [ids[3]]
    assert listed(api, queue) == ids[::-1]


def test_the_list_can_be_filtered_by_place_and_time_and_paged(api: Api, queue: str) -> None:
    name = f"{queue}.task.x"
    ids = [api.push(name, number, partition=f"p{number % 2}")[0]["message_id"] for number in range(4)]
    assert listed(api, name, partition="p1") == [ids[3], ids[1]]
    by_label = read(api.get("/messages", ns=queue, task="task"))["messages"]
    assert [message["id"] for message in by_label] == ids[::-1]
    assert listed(api, name, limit=2, offset=1) == [ids[2], ids[1]]
    assert listed(api, name, to="2020-01-01T00:00:00Z") == []
    assert listed(api, name, from_="2999-01-01") == []
    assert len(listed(api, name, from_="2020-01-01", to="2999-01-01")) == 4


def test_one_message_is_shown_with_payload_and_groups(api: Api, queue: str) -> None:
    api.configure(queue, leaseTime=77)
    [pushed] = api.push(queue, {"n": 1}, transactionId="t")
    api.ack(api.pop_one(queue), "failed", error="boom")
    api.ack(api.pop_one(queue, consumerGroup="g"))
    shown = read(api.get(f"/messages/{pushed['partition_id']}/t"))
    assert (shown["id"], shown["payload"], shown["isEncrypted"]) == (pushed["message_id"], {"n": 1}, False)
    assert (shown["errorMessage"], shown["retryCount"]) == ("boom", 1)
    assert shown["queueConfig"] == {
        "leaseTime": 77,
        "retryLimit": 3,
        "retryDelay": 0,
        "ttl": 0,
        "priority": 0,
    }
    assert shown["mode"] == {
        "hasQueueMode": True,
        "busGroupsCount": 1,
        "type": "hybrid",
        "consumedByGroups": ["g"],
    }
    consumed = {group["name"]: group["consumed"] for group in shown["consumerGroups"]}
    assert consumed == {"__QUEUE_MODE__": False, "g": True}
    assert shown["queueStatus"] == "pending"
    assert shown["busStatus"] == {"consumedBy": 1, "totalGroups": 1}


def test_a_message_is_found_by_its_id_too(api: Api, queue: str) -> None:
    [pushed] = api.push(queue, 1, transactionId="t")
    shown = read(api.get(f"/messages/{pushed['partition_id']}/{pushed['message_id']}"))
    assert shown["transactionId"] == "t"


def test_an_unknown_message_is_not_found(api: Api, queue: str) -> None:
    [pushed] = api.push(queue, 1)
    for path in (f"{pushed['partition_id']}/unknown", "unknown/unknown"):
        assert refusal(api.get(f"/messages/{path}"), 404, "message_not_found") == "Message not found"


def test_deleting_by_address_answers_whether_there_was_one(api: Api, queue: str) -> None:
    [pushed, _] = api.push(queue, 1, 2)
    path = f"/messages/{pushed['partition_id']}/{pushed['transaction_id']}"
    answer = read(api.delete(path))
    assert answer.pop("message")
    assert answer == {
        "success": True,
        "partitionId": pushed["partition_id"],
        "transactionId": pushed["transaction_id"],
    }
    assert read(api.delete(path))["success"] is False
    assert data(api.pop(queue, batch=10)) == [2]


def test_deleting_by_id(api: Api, queue: str) -> None:
    [_, pushed, _] = api.push(queue, 1, 2, 3)
    path = f"/messages/{pushed['message_id']}"
    assert read(api.delete(path)) == {"success": True, "id": pushed["message_id"]}
    assert refusal(api.delete(path), 404) == "Message not found"
    assert refusal(api.delete("/messages/unknown"), 404) == "Message not found"
    assert data(api.pop(queue, batch=10)) == [1, 3]


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ({"limit": "0"}, "limit"),
        ({"limit": "1001"}, "limit"),
        ({"offset": "x"}, "offset"),
        ({"status": "lost"}, "status"),
        ({"from_": "x"}, "from"),
        ({"to": "x"}, "to"),
    ],
)
def test_wrong_parameters_are_refused_by_name(api: Api, query: dict[str, Any], name: str) -> None:
    assert refusal(api.get("/messages", **query), 400).startswith(f"{name}: ")
