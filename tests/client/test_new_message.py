"""What a user gives is checked before it goes out, and written as the wire wants it."""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from hark.client.producing.pushing import NewMessage, new_message
from hark.errors import InvalidInput


def wire(message: NewMessage) -> object:
    return msgspec.json.decode(msgspec.json.encode(message))


def test_a_plain_message_has_nothing_but_its_place_its_payload_and_a_key() -> None:
    message = new_message("orders", {"id": 17}, partition="customer-4", make_key=lambda: "k1")
    assert wire(message) == {
        "queue": "orders",
        "partition": "customer-4",
        "payload": {"id": 17},
        "transactionId": "k1",
    }


def test_seconds_and_timedeltas_become_milliseconds() -> None:
    message = new_message("q", 1, key="k", delay=0.25, ttl=timedelta(minutes=1), retry_delays=[1, timedelta(seconds=2)])
    assert (message.delay, message.ttl, message.backoff_schedule) == (250, 60_000, (1000, 2000))


def test_all_options_are_written_in_the_words_of_the_wire() -> None:
    trace = uuid.uuid4()
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    message = new_message(
        "q", None, key="k", deliver_at=moment, priority=9, keys_if_undelivered=[["failed", 1]], trace_id=trace
    )
    assert wire(message) == {
        "queue": "q",
        "payload": None,
        "transactionId": "k",
        "deliverAt": "2026-01-02T03:04:05+00:00",
        "priority": 9,
        "keysIfUndelivered": [["failed", 1]],
        "traceId": str(trace),
    }


def test_raw_json_goes_out_byte_for_byte() -> None:
    assert bytes(new_message("q", msgspec.Raw(b'{"a":  1.50}'), key="k").payload) == b'{"a":  1.50}'


def test_null_is_a_value_like_any_other() -> None:
    assert bytes(new_message("q", {"a": None, "b": [1.5, "null"]}, key="k").payload) == b'{"a":null,"b":[1.5,"null"]}'


def test_raw_json_within_other_data_is_left_alone() -> None:
    assert bytes(new_message("q", {"a": msgspec.Raw(b"null")}, key="k").payload) == b'{"a":null}'


def test_every_message_has_a_key_of_its_own_and_later_ones_sort_behind() -> None:
    keys = [new_message("q", 1).transaction_id for _ in range(1000)]
    assert len(set(keys)) == 1000
    assert keys[0][:16] <= keys[-1][:16]


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("queue", {"queue": ""}),
        ("queue", {"queue": "a\0b"}),
        ("queue", {"queue": "x" * 256}),
        ("queue", {"queue": "ä" * 128}),
        ("queue", {"queue": 7}),
        ("partition", {"partition": ""}),
        ("key", {"key": ""}),
        ("data", {"data": object()}),
        ("data", {"data": "\ud800"}),
        ("data", {"data": {"a": [1, math.nan]}}),
        ("data", {"data": (None, -math.inf)}),
        ("delay", {"delay": -1}),
        ("delay", {"delay": math.nan}),
        ("delay", {"delay": True}),
        ("delay", {"delay": "5"}),
        ("delay", {"delay": 11 * 365 * 86_400}),
        ("deliver_at", {"deliver_at": datetime(2026, 1, 1)}),  # noqa: DTZ001  # That is what is refused.
        ("deliver_at", {"delay": 1, "deliver_at": datetime(2026, 1, 1, tzinfo=UTC)}),
        ("priority", {"priority": 10}),
        ("priority", {"priority": True}),
        ("ttl", {"ttl": 0}),
        ("retry_delays[1]", {"retry_delays": [1, -1]}),
        ("retry_delays", {"retry_delays": [1] * 101}),
        ("keys_if_undelivered", {"keys_if_undelivered": [[]]}),
        ("trace_id", {"trace_id": "not-a-uuid"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_wrong_is_named(field: str, options: Mapping[str, object]) -> None:
    arguments: dict[str, object] = {"queue": "q", "data": 1} | dict(options)
    with pytest.raises(InvalidInput) as refused:
        new_message(**arguments)  # type: ignore[arg-type]  # Wrong on purpose.
    assert refused.value.text.startswith(f"{field}: ")
