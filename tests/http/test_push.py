"""POST /push: the answer's shape, duplicates, and that a refused request stores nothing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.http.api import Api, data, read, refusal

TRACE = "0199aaaa-bbbb-4ccc-8ddd-eeeeffff0000"


def test_each_item_is_answered_in_order(api: Api, queue: str) -> None:
    items = [
        {"queue": queue, "payload": {"n": 1}, "transactionId": "t1", "traceId": TRACE},
        {"queue": queue, "payload": {"n": 2}, "partition": "p2"},
        {"queue": queue, "payload": {"n": 3}, "transactionId": "t1"},
    ]
    first, second, third = read(api.post("/push", {"items": items}), 201)
    message_id, partition_id = first.pop("message_id"), first.pop("partition_id")
    assert message_id and partition_id
    assert first == {
        "index": 0,
        "transaction_id": "t1",
        "status": "queued",
        "trace_id": TRACE,
        "queueName": queue,
    }
    assert (second["index"], second["status"], second["trace_id"]) == (1, "queued", None)
    assert second["partition_id"] != partition_id
    assert second["transaction_id"]
    assert (third["index"], third["status"], third["message_id"]) == (2, "duplicate", message_id)
    assert (third["transaction_id"], third["queueName"]) == ("t1", queue)


def test_no_items_are_answered_with_nothing(api: Api) -> None:
    assert read(api.post("/push", {"items": []}), 201) == []


def test_a_missing_payload_is_null(api: Api, queue: str) -> None:
    read(api.post("/push", {"items": [{"queue": queue}]}), 201)
    assert api.pop_one(queue)["data"] is None


def test_a_transaction_id_counts_once_per_partition(api: Api, queue: str) -> None:
    [first] = api.push(queue, 1, transactionId="t")
    [again] = api.push(queue, 2, transactionId="t")
    [other] = api.push(queue, 3, transactionId="t", partition="other")
    assert (again["status"], again["message_id"]) == ("duplicate", first["message_id"])
    assert other["status"] == "queued"
    assert data(api.pop(queue, "Default", batch=10)) == [1]


def test_the_queue_is_made_with_labels_from_its_name(api: Api, queue: str) -> None:
    name = f"{queue}.billing.daily"
    api.push(name, 1)
    shown = read(api.get(f"/resources/queues/{name}"))
    assert (shown["namespace"], shown["task"]) == (queue, "billing")


def test_payloads_come_back_byte_for_byte(api: Api, queue: str) -> None:
    payload = b'{ "b" : 1.00, "a":"\\u00e9\xc3\xa9" ,"big":123456789012345678901234567890}'
    body = b'{"items":[{"queue":"' + queue.encode() + b'","payload":' + payload + b"}]}"
    read(api.post("/push", content=body), 201)
    assert payload in api.try_pop(queue).content


def test_unknown_fields_are_ignored(api: Api, queue: str) -> None:
    body = {"items": [{"queue": queue, "payload": 1, "producerSub": "x", "whatever": [1]}], "bufferMs": 5}
    [result] = read(api.post("/push", body), 201)
    assert result["status"] == "queued"
    assert api.pop_one(queue)["producerSub"] is None


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"partition": None}, "items[1].partition: Partition must be a string"),
        ({"partition": 5}, "items[1].partition: Partition must be a string"),
        ({"transactionId": 5}, "items[1].transactionId: TransactionId must be a string"),
        ({"traceId": []}, "items[1].traceId: TraceId must be a string"),
        ({"traceId": "nope"}, "items[1].traceId: expected a UUID, got 'nope'"),
        ({"queue": 1}, "items[1].queue: Queue must be a string"),
        ({"queue": ""}, "items[1].queue: must not be empty"),
        ({"queue": "a\0b"}, "items[1].queue: must not contain a NUL character"),
        ({"queue": "x" * 256}, "items[1].queue: at most 255 bytes of UTF-8, got 256"),
        ({"partition": "a\0b"}, "items[1].partition: must not contain a NUL character"),
        ({"transactionId": "é" * 128}, "items[1].transactionId: at most 255 bytes of UTF-8, got 256"),
        ({"priority": 12}, "items[1].priority: expected an integer from 0 to 9, got 12"),
        ({"priority": "1"}, "items[1].priority: expected an integer, got a string"),
        ({"delay": -5}, "items[1].delay: expected an integer from 0 to 315360000000, got -5"),
        ({"deliverAt": "tomorrow"}, "items[1].deliverAt: expected a time such as"),
        ({"backoffSchedule": [1, "x"]}, "items[1].backoffSchedule[1]: expected an integer, got a string"),
        ({"backoffSchedule": 5}, "items[1].backoffSchedule: expected an array, got an integer"),
        ({"ttl": 0}, "items[1].ttl: expected an integer from 1 to"),
        ({"keysIfUndelivered": []}, "items[1].keysIfUndelivered: Keys array cannot be empty"),
        ({"keysIfUndelivered": [["a", {}]]}, "items[1].keysIfUndelivered: Invalid key at index 0: "),
    ],
)
def test_a_wrong_item_is_named_and_nothing_of_its_request_is_stored(
    api: Api, queue: str, fields: dict[str, Any], text: str
) -> None:
    items = [{"queue": queue, "payload": "before"}, {"queue": queue, "payload": 1} | fields]
    assert refusal(api.post("/push", {"items": items}), 400, "invalid_input").startswith(text)
    refusal(api.get(f"/resources/queues/{queue}"), 404)


@pytest.mark.parametrize("body", [{}, {"items": None}, {"items": {}}, {"items": "x"}])
def test_items_must_be_an_array(api: Api, body: Any) -> None:
    assert refusal(api.post("/push", body), 400) == "items array is required"


def test_a_payload_of_256_levels_is_accepted_and_of_257_refused(api: Api, queue: str) -> None:
    def nested(depth: int) -> bytes:
        return b'{"items":[{"queue":"%s","payload":%s1%s}]}' % (queue.encode(), b"[" * depth, b"]" * depth)

    read(api.post("/push", content=nested(256)), 201)
    assert "items[0].payload: nested too deeply" in refusal(api.post("/push", content=nested(257)), 400)
    assert len(api.pop(queue, batch=10)) == 1


def test_too_many_items_are_refused(api: Api, queue: str) -> None:
    items = [{"queue": queue}] * 10_001
    assert "10000" in refusal(api.post("/push", {"items": items}), 400).replace(",", "")
    refusal(api.get(f"/resources/queues/{queue}"), 404)


def test_a_refused_request_leaves_its_neighbours_alone(api: Api, queue: str) -> None:
    api.push(queue, "first")
    refusal(api.post("/push", {"items": [{"queue": queue, "traceId": "bad"}]}), 400)
    api.push(queue, "second")
    assert data(api.pop(queue, batch=10)) == ["first", "second"]


def test_of_racing_producers_with_one_transaction_id_exactly_one_wins(api: Api, queue: str) -> None:
    def push(number: int) -> Any:
        return api.push(queue, number, transactionId="once")[0]

    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(push, range(64)))
    assert sorted(result["status"] for result in results) == ["duplicate"] * 63 + ["queued"]
    assert len({result["message_id"] for result in results}) == 1
    assert len(api.pop(queue, batch=100)) == 1


def test_a_full_queue_refuses_with_429_and_says_when_to_come_back(api: Api, queue: str) -> None:
    api.configure(queue, maxSize=2)
    api.push(queue, 1)
    [fits, not_] = read(api.post("/push", {"items": [{"queue": queue}, {"queue": queue}]}), 201)
    assert (fits["status"], not_["status"], not_["code"]) == ("queued", "failed", "queue_full")
    response = api.post("/push", {"items": [{"queue": queue}]})
    assert response.status_code == 429
    assert int(response.headers["retry-after"]) >= 1
    assert response.json()["code"] == "queue_full"
