"""Traces: record events about messages, and read them by message and by name."""

from __future__ import annotations

from typing import Any

import pytest

from tests.http.api import Api, Json, read, refusal


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


def test_an_unknown_message_is_not_found(api: Api, message: Json) -> None:
    body = {"transactionId": "unknown", "partitionId": message["partitionId"], "data": 1}
    assert refusal(api.post("/traces", body), 404, "message_not_found") == "Message not found"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"transactionId": None}, "transactionId and partitionId are required"),
        ({"partitionId": ""}, "transactionId and partitionId are required"),
        ({"data": None}, "data is required"),
        ({"transactionId": 5}, "transactionId: expected a string, got an integer"),
        ({"eventType": 5}, "eventType: expected a string, got an integer"),
        ({"eventType": "x" * 256}, "eventType: at most 255 bytes of UTF-8, got 256"),
        ({"traceNames": 5}, "traceNames: expected a string or an array, got an integer"),
        ({"traceNames": ["ok", 5]}, "traceNames[1]: expected a string, got an integer"),
        ({"traceNames": ["ok", ""]}, "traceNames[1]: must not be empty"),
        ({"traceNames": ["x"] * 101}, "traceNames: at most 100 names, got 101"),
    ],
)
def test_a_wrong_event_is_refused_by_field(api: Api, message: Json, change: Json, text: str) -> None:
    body = {
        "transactionId": message["transactionId"],
        "partitionId": message["partitionId"],
        "data": {"n": 1},
    } | change
    assert refusal(api.post("/traces", body), 400, "invalid_input") == text
    path = f"/traces/{message['partitionId']}/{message['transactionId']}"
    assert read(api.get(path)) == {"traces": []}


def test_missing_data_is_refused(api: Api, message: Json) -> None:
    body = {"transactionId": message["transactionId"], "partitionId": message["partitionId"]}
    assert refusal(api.post("/traces", body), 400) == "data is required"
