"""The builder stays what it is, and a message is written as the wire wants it."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from hark.client.builder import RENEWED_LEASE_SECONDS, Choices
from hark.client.client import Client
from hark.client.http import HttpTransport
from hark.client.pushing import NewMessage, new_message
from hark.client.queue import Queue


@pytest.fixture
def builder() -> Queue:
    return Client(HttpTransport("http://127.0.0.1:1")).queue("orders")


def test_every_method_answers_a_copy(builder: Queue) -> None:
    before = repr(builder)
    other = builder.partition("p").group("g", "shared").batch(10).partitions(3).each().limit(5)
    assert repr(builder) == before == "Queue(queue='orders')"
    assert repr(other) == (
        "Queue(queue='orders', partition='p', group='g', group_mode='shared', batch=10, partitions=3, limit=5, "
        "each=True)"
    )


@pytest.mark.parametrize(
    ("choices", "seconds"),
    [
        pytest.param(Choices(), RENEWED_LEASE_SECONDS, id="unsaid"),
        pytest.param(Choices(lease_seconds=90), 90, id="lease"),
        pytest.param(Choices(renew_ms=500), 2, id="interval"),
        pytest.param(Choices(renew=False), None, id="off"),
        pytest.param(Choices(auto_ack=True), None, id="auto-ack"),
    ],
)
def test_renewed_leases_are_short_so_that_the_dead_are_replaced_soon(choices: Choices, seconds: int | None) -> None:
    assert choices.renewed_seconds == seconds


def wire(message: NewMessage) -> object:
    return msgspec.json.decode(msgspec.json.encode(message))


def test_options_are_written_in_the_words_of_the_wire_and_nothing_else_is() -> None:
    message = new_message("orders", {"id": 17}, partition="customer-4", key="k1")
    assert wire(message) == {"queue": "orders", "partition": "customer-4", "payload": {"id": 17}, "transactionId": "k1"}
    message = new_message("q", 1, key="k", delay=0.25, ttl=timedelta(minutes=1), retry_delays=[1, timedelta(seconds=2)])
    assert (message.delay, message.ttl, message.backoff_schedule) == (250, 60_000, (1000, 2000))
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


@pytest.mark.parametrize(
    ("data", "payload"),
    [
        (msgspec.Raw(b'{"a":  1.50}'), b'{"a":  1.50}'),
        ({"a": None, "b": [1.5, "null"]}, b'{"a":null,"b":[1.5,"null"]}'),
        ({"a": msgspec.Raw(b"null")}, b'{"a":null}'),
    ],
)
def test_raw_json_goes_out_byte_for_byte(data: object, payload: bytes) -> None:
    assert bytes(new_message("q", data, key="k").payload) == payload


def test_every_message_has_a_key_of_its_own_and_later_ones_sort_behind() -> None:
    keys = [new_message("q", 1).transaction_id for _ in range(1000)]
    assert len(set(keys)) == 1000
    assert keys[0][:16] <= keys[-1][:16]
