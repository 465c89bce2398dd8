"""The builder: what is said is checked at once, and a builder stays what it is."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from hark.client.choices import RENEWED_LEASE_SECONDS, Choices
from hark.client.client import Client
from hark.client.delivery.desk import wish_of
from hark.client.queue import Queue
from hark.client.transport.http import HttpTransport
from hark.errors import InvalidInput


@pytest.fixture
def builder() -> Queue:
    return Client(HttpTransport("http://127.0.0.1:1")).queue("orders")


WRONG: dict[str, tuple[Callable[[Queue], object], str]] = {
    "queue": (lambda queue: queue.queue(""), "queue: must not be empty"),
    "partition": (lambda queue: queue.partition("x" * 256), "partition: expected at most 255 bytes"),
    "partition-nul": (
        lambda queue: queue.partition("\0"),
        "partition: must not contain a NUL",
    ),
    "namespace": (lambda queue: queue.namespace(""), "namespace: must not be empty"),
    "task": (lambda queue: queue.task(""), "task: must not be empty"),
    "group": (lambda queue: queue.group(""), "group: must not be empty"),
    "group-mode": (lambda queue: queue.group("g", "broadcast"), "group mode: expected 'ordered'"),  # type: ignore[arg-type]  # On purpose.
    "batch": (lambda queue: queue.batch(0), "batch: expected an integer from 1 to 10000, got 0"),
    "batch-bool": (lambda queue: queue.batch(True), "batch: expected an integer"),
    "partitions": (lambda queue: queue.partitions(0), "partitions: expected an integer from 1"),
    "wait": (lambda queue: queue.wait(1), "wait: expected True or False, got 1"),  # type: ignore[arg-type]  # On purpose.
    "timeout": (lambda queue: queue.timeout(-1), "timeout: expected an integer from 0 to 600000, got -1"),
    "concurrency": (lambda queue: queue.concurrency(0), "concurrency: expected an integer from 1"),
    "limit": (lambda queue: queue.limit(0), "limit: expected an integer from 1"),
    "idle": (lambda queue: queue.idle(0), "idle: expected an integer from 1"),
    "lease": (lambda queue: queue.lease(0), "lease: expected an integer from 1"),
    "interval": (lambda queue: queue.renew_lease(interval_ms=0), "interval_ms: expected an integer from 1"),
    "interval-and-lease": (
        lambda queue: queue.lease(2).renew_lease(interval_ms=2000),
        "interval_ms: expected less than the lease of 2 s, got 2000",
    ),
    "poll-interval": (lambda queue: queue.poll_interval(0), "poll_interval: expected an integer from 1"),
    "subscription-mode": (lambda queue: queue.subscription_mode("old"), "subscription_mode: expected one of all"),
    "subscription-from": (
        lambda queue: queue.subscription_from(datetime(2026, 1, 1)),  # noqa: DTZ001  # Without a zone on purpose.
        "subscription_from: the time needs a time zone",
    ),
    "consumer-priority": (
        lambda queue: queue.consumer_priority(1001),
        "consumer_priority: expected an integer",
    ),
    "buffer-items": (lambda queue: queue.buffer(max_items=0), "max_items: expected an integer from 1"),
    "buffer-time": (lambda queue: queue.buffer(max_ms=0), "max_ms: expected an integer from 1"),
}


@pytest.mark.parametrize("name", sorted(WRONG))
def test_a_wrong_value_is_refused_where_it_is_said(builder: Queue, name: str) -> None:
    say, expected = WRONG[name]
    with pytest.raises(InvalidInput) as refused:
        say(builder)
    assert refused.value.text.startswith(expected)


def test_every_method_answers_a_copy(builder: Queue) -> None:
    before = repr(builder)
    other = builder.partition("p").group("g", "shared").batch(10).partitions(3).each().limit(5)
    assert repr(builder) == before == "Queue(queue='orders')"
    assert repr(other) == (
        "Queue(queue='orders', partition='p', group='g', group_mode='shared', batch=10, partitions=3, limit=5, "
        "each=True)"
    )


def test_all_that_is_said_reaches_the_pop(builder: Queue) -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    said = (
        builder.partition("p").group("g", "shared").batch(7).partitions(3).timeout(5).auto_ack()
        .subscription_mode("new").subscription_from(moment).consumer_priority(4).consumer("me")
    )  # fmt: skip
    wish = wish_of(said._choices, wait=True, lease_seconds=9)
    assert (wish.queue, wish.partition, wish.group, wish.group_mode) == ("orders", "p", "g", "shared")
    assert (wish.batch, wish.partitions, wish.timeout_ms, wish.auto_ack, wish.lease_seconds) == (7, 3, 5, True, 9)
    assert (wish.subscription_mode, wish.subscription_from) == ("new", "2026-01-01T00:00:00+00:00")
    assert (wish.consumer_priority, wish.consumer) == (4, "me")
    assert wish.parameters()["consumer"] == "me"


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


async def test_what_needs_a_queue_says_so() -> None:
    nameless = Client(HttpTransport("http://127.0.0.1:1")).queue()
    with pytest.raises(InvalidInput, match="name of a queue"):
        await nameless.push(1)
    with pytest.raises(InvalidInput, match="queue, namespace or task is required"):
        nameless.messages()
