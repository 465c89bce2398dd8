"""Messages as an administrator sees them: list, show, delete, cancel, explain, the leases on them and their traces."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.http.api import WAIT, Api, Json, data, read, refusal
from tests.http.streaming import listening, websocket

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def pushed(api: Api, queue: str, payload: Json = 1, **fields: Any) -> str:
    """Push one message; its id."""
    [answer] = api.push(queue, payload, **fields)
    return str(answer["message_id"])


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
    first, second = api.pop(queue, batch=2)
    api.ack(first)
    api.ack(second, "dlq")
    api.pop_one(queue)
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
    [stored] = api.push(queue, {"n": 1}, transactionId="t")
    api.ack(api.pop_one(queue), "failed", error="boom")
    api.ack(api.pop_one(queue, consumerGroup="g"))
    shown = read(api.get(f"/messages/{stored['partition_id']}/t"))
    assert read(api.get(f"/messages/{stored['partition_id']}/{stored['message_id']}")) == shown
    for path in (f"{stored['partition_id']}/unknown", "unknown/unknown"):
        assert refusal(api.get(f"/messages/{path}"), 404, "message_not_found") == "Message not found"
    assert (shown["id"], shown["payload"], shown["isEncrypted"]) == (stored["message_id"], {"n": 1}, False)
    assert (shown["errorMessage"], shown["retryCount"]) == ("boom", 1)
    assert shown["queueConfig"] == {"leaseTime": 77, "retryLimit": 3, "retryDelay": 0, "ttl": 0, "priority": 0}
    assert shown["mode"] == {"hasQueueMode": True, "busGroupsCount": 1, "type": "hybrid", "consumedByGroups": ["g"]}
    consumed = {group["name"]: group["consumed"] for group in shown["consumerGroups"]}
    assert consumed == {"__QUEUE_MODE__": False, "g": True}
    assert shown["queueStatus"] == "pending"
    assert shown["busStatus"] == {"consumedBy": 1, "totalGroups": 1}


def test_deleting_by_address_answers_whether_there_was_one_and_by_id_that_there_was_none(api: Api, queue: str) -> None:
    [stored, other, _] = api.push(queue, 1, 2, 3)
    path = f"/messages/{stored['partition_id']}/{stored['transaction_id']}"
    answer = read(api.delete(path))
    assert answer.pop("message")
    assert answer == {"success": True, "partitionId": stored["partition_id"], "transactionId": stored["transaction_id"]}
    assert read(api.delete(path))["success"] is False
    path = f"/messages/{other['message_id']}"
    assert read(api.delete(path)) == {"success": True, "id": other["message_id"]}
    for unknown in (path, "/messages/unknown"):
        assert refusal(api.delete(unknown), 404) == "Message not found"
    assert data(api.pop(queue, batch=10)) == [3]


# Cancelling -----------------------------------------------------------------------------------------------


def cancel(message_id: str) -> str:
    """The route."""
    return f"/messages/{message_id}/cancel"


@pytest.mark.parametrize("fields", [{}, {"delay": 3_600_000}], ids=["ready", "delayed"])
def test_a_message_is_cancelled_once(api: Api, queue: str, fields: Json) -> None:
    message = pushed(api, queue, **fields)
    api.push(queue, "next")
    assert read(api.post(cancel(message))) == {"success": True, "id": message, "cancelled": True}
    assert data(api.pop(queue, batch=10)) == ["next"]
    for unknown in (message, "unknown", "00000000-0010-8000-8000-00005f254e7b", "%20", "a%2Fb"):
        text = refusal(api.post(cancel(unknown)), 404, "message_not_found")
        assert text == "Message not found; it was removed, or this is not its message id"


@pytest.mark.parametrize("mode", ["ordered", "shared"])
def test_what_someone_holds_or_tried_is_not_cancelled(api: Api, queue: str, mode: str) -> None:
    message = pushed(api, queue)
    leased = api.pop_one(queue, consumerGroup="g", groupMode=mode)
    assert refusal(api.post(cancel(message)), 409, "message_leased").startswith("the message cannot be cancelled")
    api.ack(leased, "failed", delay=100)
    refusal(api.post(cancel(message)), 409, "message_leased")
    again = api.pop_one(queue, consumerGroup="g", **WAIT)
    api.ack(again)
    refusal(api.post(cancel(message)), 409, "message_settled")


def test_a_message_with_the_transaction_id_cancel_is_still_shown(api: Api, queue: str) -> None:
    [stored] = api.push(queue, 1, transactionId="cancel")
    assert read(api.get(f"/messages/{stored['partition_id']}/cancel"))["payload"] == 1
    assert read(api.delete(f"/messages/{stored['partition_id']}/cancel"))["success"] is True


# Explaining -----------------------------------------------------------------------------------------------


def explained(api: Api, message_id: str, **query: Any) -> Json:
    """All that is said of a message."""
    return read(api.get(f"/explain/{message_id}", **query))


def reason(api: Api, message_id: str, group: str = "g") -> Json:
    """What is said of a message for one group."""
    [shown] = explained(api, message_id, consumerGroup=group)["explanations"]
    assert shown["consumerGroup"] == group
    return shown


def test_a_message_is_explained_for_each_group(api: Api, queue: str) -> None:
    for unknown in ("nothing", "01890000-0000-7000-8000-000000000000"):
        refusal(api.get(f"/explain/{unknown}"), 404, "message_not_found")
    [stored] = api.push(queue, 1, partition="p", transactionId="key")
    [shown] = explained(api, stored["message_id"])["explanations"]
    assert (shown["consumerGroup"], shown["reason"]) == (None, "no_group")
    assert reason(api, stored["message_id"], "g")["reason"] == "no_group"
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
    shown = reason(api, pushed(api, queue, delay=3_600_000))
    assert set(shown) == {"consumerGroup", "reason", "text", "deliverAt"}
    assert shown["reason"] == "delayed"
    assert TIME.fullmatch(shown["deliverAt"])
    assert shown["text"].startswith(f"Delayed until {shown['deliverAt']} (in 59 min")
    shown = reason(api, pushed(api, queue, partition="p"))
    assert (shown["reason"], shown["waiting"]) == ("ready", 0)


def test_what_is_behind_says_what_it_waits_for(api: Api, queue: str) -> None:
    first, second = (pushed(api, queue, number) for number in (1, 2))
    api.pop_one(queue, consumerGroup="g", consumer="worker 7")
    shown = reason(api, second)
    assert (shown["reason"], shown["aheadMessages"]) == ("behind", 1)
    ahead = shown["ahead"]
    assert (ahead["messageId"], ahead["reason"], ahead["consumer"]) == (first, "leased", "worker 7")
    assert "leaseId" not in ahead


def test_a_removed_message_is_explained_as_far_as_it_is_known(api: Api, queue: str) -> None:
    [stored] = api.push(queue, 1)
    api.pop(queue, "elsewhere", consumerGroup="g")
    read(api.delete(f"/messages/{stored['partition_id']}/{stored['transaction_id']}"))
    found = explained(api, stored["message_id"])
    assert (found["transactionId"], found["createdAt"]) == (None, None)
    assert [one["reason"] for one in found["explanations"]] == ["removed"]


# Leases ---------------------------------------------------------------------------------------------------


def leases(api: Api, **query: Any) -> list[Json]:
    """The leases on a page."""
    found: list[Json] = read(api.get("/leases", **query))["leases"]
    return found


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


def test_a_consumer_is_known_by_its_name_in_every_way_and_without_one_by_its_address(
    api: Api, server_url: str, queue: str
) -> None:
    def consumer(group: str) -> tuple[str, str]:
        [lease] = leases(api, queue=queue, consumerGroup=group)
        return lease["consumer"], lease["mode"]

    api.push(queue, 1)
    api.pop_one(queue, consumerGroup="alone")
    assert re.fullmatch(r"127\.0\.0\.1:\d+", consumer("alone")[0])
    with listening(server_url, f"/queue/{queue}", consumerGroup="a", consumer="by events") as events:
        events.message()
        assert consumer("a") == ("by events", "ordered")
    with websocket(server_url, credit=1) as socket:
        socket.subscribe("s", queue, consumerGroup="b", consumer="by frames")
        socket.take(1)
        assert consumer("b") == ("by frames", "ordered")
    read(api.client.get("/keyval/api/queue/poll", params={"queue": queue, "consumer": "kv 1"}))
    assert consumer("__QUEUE_MODE__") == ("kv 1", "shared")


# Traces ---------------------------------------------------------------------------------------------------


def record(api: Api, message: Json, **fields: Any) -> str:
    """Record an event; its id."""
    body = {"transactionId": message["transactionId"], "partitionId": message["partitionId"]} | fields
    answer = read(api.post("/traces", body), 201)
    assert answer["success"] is True
    return str(answer["traceId"])


@pytest.fixture
def message(api: Api, queue: str) -> Json:
    """A delivered message."""
    api.push(queue, {"n": 1}, partition="p")
    return api.pop_one(queue)


def test_events_of_a_message_are_listed_oldest_first(api: Api, message: Json) -> None:
    first = record(api, message, data={"step": 1}, eventType="start", consumerGroup="g", traceNames="a")
    record(api, message, data=[2])
    path = f"/traces/{message['partitionId']}/{message['transactionId']}"
    oldest, newest = read(api.get(path))["traces"]
    assert oldest.pop("created_at").endswith("Z")
    assert oldest == {
        "id": first,
        "event_type": "start",
        "data": {"step": 1},
        "consumer_group": "g",
        "worker_id": None,
        "trace_names": ["a"],
    }
    assert (newest["event_type"], newest["data"], newest["trace_names"]) == ("info", [2], [])
    assert newest["consumer_group"] == "__QUEUE_MODE__"
    assert len(read(api.get(path, limit=1))["traces"]) == 1
    assert read(api.get("/traces/unknown/unknown")) == {"traces": []}


def test_events_of_a_name_are_listed_newest_first_with_their_message(api: Api, queue: str, message: Json) -> None:
    name = f"{queue} é/x"
    record(api, message, data=1, traceNames=[name, "other", name])
    record(api, message, data=2, traceNames=[name])
    record(api, message, data=3)
    answer = read(api.get(f"/traces/by-name/{queue}%20%C3%A9%2Fx"))
    assert (answer["total"], answer["pagination"]) == (2, {"limit": 100, "offset": 0})
    newest, oldest = answer["traces"]
    assert (newest["data"], oldest["data"]) == (2, 1)
    expected = {
        "transaction_id": message["transactionId"],
        "partition_id": message["partitionId"],
        "queue_name": queue,
        "partition_name": "p",
        "message_payload": {"n": 1},
    }
    assert {field: newest[field] for field in expected} == expected
    page = read(api.get(f"/traces/by-name/{queue}%20%C3%A9%2Fx", limit=1, offset=1))
    assert [trace["data"] for trace in page["traces"]] == [1]


def test_names_are_listed_with_their_counts(fresh_api: Api, queue: str) -> None:
    fresh_api.push(queue, 1, 2)
    one, two = fresh_api.pop(queue, batch=2)
    record(fresh_api, one, data=1, traceNames=["a", "b"])
    record(fresh_api, two, data=1, traceNames=["a"])
    record(fresh_api, two, data=1, traceNames=["a"])
    answer = read(fresh_api.get("/traces/names"))
    assert (answer["total"], answer["pagination"]) == (2, {"limit": 50, "offset": 0})
    counts = {item["trace_name"]: (item["trace_count"], item["message_count"]) for item in answer["trace_names"]}
    assert counts == {"a": (3, 2), "b": (1, 1)}
    assert all(item["last_seen"].endswith("Z") for item in answer["trace_names"])
