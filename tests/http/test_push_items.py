"""Pushed items: which are accepted, what becomes of them, and how a wrong one is named (rule 6)."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from hark.errors import HarkError, InvalidInput
from hark.http.push_items import MAX_DEPTH, PushItem, payload_too_deep, to_new_message
from hark.model import NewMessage

TRACE = "0199aaaa-bbbb-4ccc-8ddd-eeeeffff0000"


def convert(**fields: Any) -> NewMessage:
    """Send an item through the wire format and the checks, as the fourth of a request."""
    return to_new_message(msgspec.json.decode(json.dumps({"queue": "q"} | fields), type=PushItem), 3)


def test_a_plain_item_has_the_defaults() -> None:
    assert convert() == NewMessage("q", "Default", b"null", None)


def test_the_payload_is_kept_byte_for_byte() -> None:
    body = b'{"queue":"q","payload": { "b":1.00,  "a":"\\u00e9" } }'
    message = to_new_message(msgspec.json.decode(body, type=PushItem), 0)
    assert message.payload == b'{ "b":1.00,  "a":"\\u00e9" }'


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
        "q",
        "p",
        b"[1]",
        "t",
        TRACE,
        priority=9,
        deliver_at=1_767_323_045_000_000,
        backoff_ms=(0, 1000),
        ttl_ms=1,
    )
    assert convert(delay=5).delay_ms == 5
    assert convert(deliverAt=1_767_323_045_000).deliver_at == 1_767_323_045_000_000


def test_empty_ids_and_null_options_are_absent() -> None:
    message = convert(
        transactionId="",
        traceId="",
        priority=None,
        delay=None,
        deliverAt=None,
        backoffSchedule=None,
        ttl=None,
    )
    assert message == NewMessage("q", "Default", b"null", None)
    assert convert(keysIfUndelivered=None) == message


def test_an_empty_backoff_schedule_is_kept() -> None:
    assert convert(backoffSchedule=[]).backoff_ms == ()


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("queue", "", "items[3].queue: must not be empty"),
        ("queue", "a\0", "items[3].queue: must not contain a NUL character"),
        ("queue", "x" * 256, "items[3].queue: at most 255 bytes of UTF-8, got 256"),
        ("partition", "", "items[3].partition: must not be empty"),
        ("partition", "Ω" * 128, "items[3].partition: at most 255 bytes of UTF-8, got 256"),
        ("transactionId", "t\0", "items[3].transactionId: must not contain a NUL character"),
        ("transactionId", "t" * 256, "items[3].transactionId: at most 255 bytes"),
        ("traceId", "not-a-uuid", "items[3].traceId: expected a UUID, got 'not-a-uuid'"),
        ("traceId", TRACE + "0", "items[3].traceId: expected a UUID"),
        ("priority", 12, "items[3].priority: expected an integer from 0 to 9, got 12"),
        ("priority", -1, "items[3].priority: expected an integer from 0 to 9, got -1"),
        ("priority", 10**40, "items[3].priority: expected an integer from 0 to 9"),
        ("delay", -1, "items[3].delay: expected an integer from 0 to 315360000000, got -1"),
        ("delay", 315_360_000_001, "items[3].delay: expected"),
        ("deliverAt", "soon", "items[3].deliverAt: expected a time such as"),
        ("deliverAt", -1, "items[3].deliverAt: expected"),
        ("deliverAt", "", "items[3].deliverAt: expected a time such as"),
        ("backoffSchedule", [1, -1], "items[3].backoffSchedule[1]: expected an integer from 0"),
        ("backoffSchedule", [0] * 101, "items[3].backoffSchedule: at most 100 entries, got 101"),
        ("ttl", 0, "items[3].ttl: expected an integer from 1 to 3153600000000, got 0"),
        ("keysIfUndelivered", [], "items[3].keysIfUndelivered: Keys array cannot be empty."),
        ("keysIfUndelivered", {}, "items[3].keysIfUndelivered: Keys must be an array of key arrays"),
        ("keysIfUndelivered", "failed", "items[3].keysIfUndelivered: Keys must be an array of key arrays"),
        (
            "keysIfUndelivered",
            [["a"], "b"],
            "items[3].keysIfUndelivered: Invalid key at index 1: Key must be an array of",
        ),
        (
            "keysIfUndelivered",
            [["a"], []],
            "items[3].keysIfUndelivered: Invalid key at index 1: Key cannot be empty.",
        ),
        (
            "keysIfUndelivered",
            [["a", None]],
            "items[3].keysIfUndelivered: Invalid key at index 0: Invalid key part at index 1: expected",
        ),
        (
            "keysIfUndelivered",
            [["a"] * 21],
            "items[3].keysIfUndelivered: Invalid key at index 0: Key too deep: 21 parts (max 20).",
        ),
        (
            "keysIfUndelivered",
            [["x" * 1025]],
            "items[3].keysIfUndelivered: Invalid key at index 0: Key part at index 0 too long",
        ),
        ("keysIfUndelivered", [["a"]] * 1001, "items[3].keysIfUndelivered: Too many keys: 1001 (max 1000)."),
    ],
)
def test_a_wrong_value_is_refused_with_item_and_field(field: str, value: Any, text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        convert(**{field: value})
    assert text in refused.value.text


def test_delay_and_deliver_at_exclude_each_other() -> None:
    with pytest.raises(InvalidInput, match=r"items\[3\].deliverAt: give either delay or deliverAt"):
        convert(delay=1, deliverAt=1)


def test_keys_if_undelivered_keep_the_types_of_their_parts() -> None:
    message = convert(keysIfUndelivered=[["a", 1, True], ["b", 1.5, False, ""]])
    assert message.undelivered_keys == (("a", 1, True), ("b", 1.5, False, ""))
    assert [type(part) for part in message.undelivered_keys[0]] == [str, int, bool]


def nested(depth: int, opening: bytes = b"[", closing: bytes = b"]") -> bytes:
    """Brackets in brackets."""
    return opening * depth + b"1" + closing * depth


@pytest.mark.parametrize(
    "payload",
    [
        nested(MAX_DEPTH),
        nested(MAX_DEPTH, b'{"a":', b"}"),
        b'"' + b"[" * 1000 + b'"',
        b'["' + b'\\"[' * 1000 + b'"]',
        b'["' + b"[\\\\" * 1000 + b'",[],"\\\\",[]]',
        b"[" + b"[]," * 1000 + b"[]]",
        b'{"[[' + b"[" * 300 + b'":{}}',
    ],
)
def test_payloads_of_256_levels_are_not_too_deep(payload: bytes) -> None:
    json.loads(payload)
    assert not payload_too_deep(payload)


@pytest.mark.parametrize(
    "payload",
    [
        nested(MAX_DEPTH + 1),
        nested(MAX_DEPTH + 1, b'{"a":', b"}"),
        b'["\\"",' + nested(MAX_DEPTH) + b"]",
        b'{"\\\\":' + nested(MAX_DEPTH) + b"}",
    ],
)
def test_payloads_of_257_levels_are_too_deep(payload: bytes) -> None:
    json.loads(payload)
    assert payload_too_deep(payload)
    with pytest.raises(HarkError, match=r"items\[3\].payload: nested too deeply, at most 256 levels"):
        to_new_message(PushItem("q", payload=msgspec.Raw(payload)), 3)
