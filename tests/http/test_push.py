"""POST /push: the answer's shape, that a refused request stores nothing, and each field of an item (rule 6)."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import Any

import msgspec
import pytest

from hark.api.types.delivery import PushItem
from hark.errors import HarkError, InvalidInput
from hark.http.checks import MAX_DEPTH, Scan, check_nesting
from hark.http.items import to_new_message
from hark.model import NewMessage
from tests.http.api import Api, read

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
    assert first == {"index": 0, "transaction_id": "t1", "status": "queued", "trace_id": TRACE, "queueName": queue}
    assert (second["index"], second["status"], second["trace_id"]) == (1, "queued", None)
    assert second["partition_id"] != partition_id
    assert second["transaction_id"]
    assert (third["index"], third["status"], third["message_id"]) == (2, "duplicate", message_id)
    assert (third["transaction_id"], third["queueName"]) == ("t1", queue)
    assert read(api.post("/push", {"items": []}), 201) == []


def test_payloads_come_back_byte_for_byte(api: Api, queue: str) -> None:
    payload = b'{ "b" : 1.00, "a":"\\u00e9\xc3\xa9" ,"big":123456789012345678901234567890}'
    body = b'{"items":[{"queue":"' + queue.encode() + b'","payload":' + payload + b"}]}"
    read(api.post("/push", content=body), 201)
    assert payload in api.try_pop(queue).content


def test_unknown_fields_are_ignored(api: Api, queue: str) -> None:
    body = {"items": [{"queue": queue, "producerSub": "x", "whatever": [1]}], "bufferMs": 5}
    [result] = read(api.post("/push", body), 201)
    assert result["status"] == "queued"
    message = api.pop_one(queue)
    assert (message["producerSub"], message["data"]) == (None, None)


def test_a_message_id_serves_as_the_transaction_id_of_an_item_that_has_none(api: Api, queue: str) -> None:
    item = {"queue": queue, "messageId": TRACE}
    first, second, third = read(
        api.post("/push", {"items": [item, item | {"payload": 1}, item | {"transactionId": "t"}]}), 201
    )
    assert (first["transaction_id"], first["status"], second["status"]) == (TRACE, "queued", "duplicate")
    assert first["message_id"] == second["message_id"] != TRACE
    assert (third["transaction_id"], third["status"]) == ("t", "queued")
    operations = [{"type": "push", "items": [item]}]
    [again] = read(api.post("/transaction", {"operations": operations}))["results"]
    assert again["messageId"] == first["message_id"]


@pytest.mark.parametrize(
    ("given", "labels"),
    [
        ({}, ("a", "b")),
        ({"namespace": None, "task": None}, ("a", "b")),
        ({"namespace": "n", "task": "t"}, ("n", "t")),
        ({"namespace": "n"}, ("n", "b")),
        ({"task": "t"}, ("a", "t")),
        ({"namespace": "", "task": ""}, ("", "")),
    ],
    ids=str,
)
@pytest.mark.parametrize("route", ["push", "transaction"])
def test_rule_2_an_item_may_label_the_queue_that_it_makes(
    api: Api, queue: str, given: dict[str, str | None], labels: tuple[str, str], route: str
) -> None:
    name = f"a.b.{queue}"
    for item in ({"queue": name, **given}, {"queue": name, "namespace": "too", "task": "late"}):
        body = {"items": [item]} if route == "push" else {"operations": [{"type": "push", "items": [item]}]}
        read(api.post(f"/{route}", body), 201 if route == "push" else 200)
    shown = read(api.get(f"/resources/queues/{name}"))
    assert (shown["namespace"], shown["task"]) == labels


# Items ---------------------------------------------------------------------------------------------------


def convert(**fields: Any) -> NewMessage:
    """Send an item through the wire format and the checks, as the fourth of a request."""
    return to_new_message(msgspec.json.decode(json.dumps({"queue": "q"} | fields), type=PushItem), 3)


def test_all_options_arrive() -> None:
    message = convert(
        partition="p",
        payload=[1],
        transactionId="t",
        traceId=TRACE,
        priority=9,
        deliverAt="2026-01-02T03:04:05Z",
        backoffSchedule=[0, 1000],
        ttl=1,
    )
    assert message == NewMessage(
        "q", "p", b"[1]", "t", TRACE, priority=9, deliver_at=1_767_323_045_000_000, backoff_ms=(0, 1000), ttl_ms=1
    )
    assert convert() == NewMessage("q", "Default", b"null", None)
    assert convert(delay=5).delay_ms == 5
    assert convert(backoffSchedule=[]).backoff_ms == ()
    assert convert(deliverAt=1_767_323_045_000).deliver_at == 1_767_323_045_000_000
    keys = convert(keysIfUndelivered=[["a", 1, True], ["b", 1.5, False, ""]]).undelivered_keys
    assert keys == (("a", 1, True), ("b", 1.5, False, ""))
    assert [type(part) for part in keys[0]] == [str, int, bool]


def test_empty_ids_and_null_options_are_absent() -> None:
    nulls = dict.fromkeys(("priority", "delay", "deliverAt", "backoffSchedule", "ttl", "keysIfUndelivered"))
    assert convert(transactionId="", traceId="", **nulls) == NewMessage("q", "Default", b"null", None)


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("queue", "", ": must not be empty"),
        ("queue", "a\0", ": must not contain a NUL character"),
        ("queue", "x" * 256, ": must be at most 255 bytes of UTF-8, got 256"),
        ("partition", "", ": must not be empty"),
        ("partition", "Ω" * 128, ": must be at most 255 bytes of UTF-8, got 256"),
        ("transactionId", "t\0", ": must not contain a NUL character"),
        ("messageId", "t\0", ": must not contain a NUL character"),
        ("namespace", "n\0", ": must not contain a NUL character"),
        ("task", "t" * 256, ": must be at most 255 bytes"),
        ("messageId", "t" * 256, ": must be at most 255 bytes"),
        ("transactionId", "t" * 256, ": must be at most 255 bytes"),
        ("traceId", "not-a-uuid", ": expected a UUID, got 'not-a-uuid'"),
        ("traceId", TRACE + "0", ": expected a UUID"),
        ("priority", 12, ": expected an integer from 0 to 9, got 12"),
        ("priority", -1, ": expected an integer from 0 to 9, got -1"),
        ("priority", 10**40, ": expected an integer from 0 to 9"),
        ("delay", -1, ": expected an integer from 0 to 315360000000, got -1"),
        ("delay", 315_360_000_001, ": expected"),
        ("deliverAt", "soon", ": expected a time such as"),
        ("deliverAt", -1, ": expected"),
        ("deliverAt", "", ": expected a time such as"),
        ("backoffSchedule", [1, -1], "[1]: expected an integer from 0"),
        ("backoffSchedule", [0] * 101, ": at most 100 entries, got 101"),
        ("ttl", 0, ": expected an integer from 1 to 3153600000000, got 0"),
        ("keysIfUndelivered", [], ": Keys array cannot be empty."),
        ("keysIfUndelivered", [["a", None]], ": Invalid key at index 0: Invalid key part at index 1: expected"),
    ],
)
def test_a_wrong_value_is_refused_with_item_and_field(field: str, value: Any, text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        convert(**{field: value})
    assert f"items[3].{field}{text}" in refused.value.text


def test_delay_and_deliver_at_exclude_each_other() -> None:
    with pytest.raises(InvalidInput, match=r"items\[3\].deliverAt: give either delay or deliverAt"):
        convert(delay=1, deliverAt=1)


def nested(depth: int, opening: bytes = b"[", closing: bytes = b"]") -> bytes:
    """Brackets in brackets."""
    return opening * depth + b"1" + closing * depth


@pytest.mark.parametrize(
    ("payload", "too_deep"),
    [
        (nested(MAX_DEPTH), False),
        (nested(MAX_DEPTH, b'{"a":', b"}"), False),
        (b'"' + b"[" * 1000 + b'"', False),
        (b'["' + b'\\"[' * 1000 + b'"]', False),
        (b'["' + b"[\\\\" * 1000 + b'",[],"\\\\",[]]', False),
        (b"[" + b"[]," * 1000 + b"[]]", False),
        (b'{"[[' + b"[" * 300 + b'":{}}', False),
        (nested(MAX_DEPTH + 1), True),
        (nested(MAX_DEPTH + 1, b'{"a":', b"}"), True),
        (b'["\\"",' + nested(MAX_DEPTH) + b"]", True),
        (b'{"\\\\":' + nested(MAX_DEPTH) + b"}", True),
    ],
)
def test_bodies_of_more_than_256_levels_are_too_deep(payload: bytes, too_deep: bool) -> None:
    json.loads(payload)
    with pytest.raises(HarkError, match="must be nested at most 256 levels deep") if too_deep else nullcontext():
        check_nesting(payload)


@pytest.mark.parametrize("size", range(1, 30))
@pytest.mark.parametrize("inner", [b'"\\\\\\"["', b'"[\\\\","]"', b'{"[":"\\u005b"}'])
def test_nesting_is_the_same_wherever_a_large_body_is_cut(inner: bytes, size: int) -> None:
    fits = nested(MAX_DEPTH - 1, b"[%b," % inner, b",%b]" % inner)
    for body, too_deep in ((fits, False), (b"[[%b]]" % fits, True)):
        json.loads(body)
        scan = Scan()
        with pytest.raises(HarkError) if too_deep else nullcontext():
            for start in range(0, len(body), size):
                scan.read(body[start : start + size])


def test_a_unique_key_is_held_by_one_message_whatever_its_partition(api: Api, queue: str) -> None:
    items = [
        {"queue": queue, "payload": 1, "uniqueKey": "k"},
        {"queue": queue, "payload": 2},
        {"queue": queue, "payload": 3, "uniqueKey": "k", "uniqueUntil": "started", "partition": "p"},
    ]
    first, plain, second = read(api.post("/push", {"items": items}), 201)
    assert [one["status"] for one in (first, plain, second)] == ["queued", "queued", "duplicate"]
    assert {name: second[name] for name in ("message_id", "partition_id", "transaction_id")} == {
        name: first[name] for name in ("message_id", "partition_id", "transaction_id")
    }
    message = api.pop_one(queue)
    assert (message["data"], message["transactionId"]) == (1, first["transaction_id"])
    api.ack(message)
    [again] = read(api.post("/push", {"items": [{"queue": queue, "uniqueKey": "k"}]}), 201)
    assert again["status"] == "queued"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"uniqueKey": ""}, "items[0].uniqueKey"),
        ({"uniqueKey": "x" * 256}, "items[0].uniqueKey"),
        ({"uniqueKey": 17}, "uniqueKey"),
        ({"uniqueUntil": "done"}, "items[0].uniqueUntil: is allowed only together with uniqueKey"),
        ({"uniqueKey": "k", "uniqueUntil": "ever"}, "items[0].uniqueUntil: expected done or started or retained, got"),
    ],
)
def test_a_wrong_unique_key_is_refused_and_stores_nothing(
    api: Api, queue: str, fields: dict[str, object], text: str
) -> None:
    answer = api.post("/push", {"items": [{"queue": queue} | fields, {"queue": queue}]})
    assert text in read(answer, 400)["error"]
    assert api.try_pop(queue).status_code == 204


def test_a_unique_key_is_refused_in_a_transaction_and_with_keys(api: Api, queue: str) -> None:
    push = {"type": "push", "queue": queue, "uniqueKey": "k"}
    for operation in (push, {"type": "push", "items": [{"queue": queue, "uniqueKey": "k"}]}):
        answer = api.post("/transaction", {"operations": [operation]})
        assert "uniqueKey: is not supported here; push the message by itself" in read(answer, 400)["error"]
    assert api.try_pop(queue).status_code == 204


def test_two_thousand_unique_messages_and_a_large_body_are_one_request(api: Api, queue: str) -> None:
    items = [{"queue": queue, "payload": "x" * 1000, "uniqueKey": f"k{number % 1500}"} for number in range(2000)]
    statuses = [one["status"] for one in read(api.post("/push", {"items": items}), 201)]
    assert statuses == ["queued"] * 1500 + ["duplicate"] * 500
