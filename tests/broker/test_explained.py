"""What the broker adds to an explanation: who waits and who asked on this server and when, and maintenance."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from hark.broker import Broker
from hark.broker.broker import POP_MAINTENANCE
from hark.broker.engine_calls import LastPolls
from hark.broker.explain import moment
from hark.clock import FakeClock
from hark.engine.sqlite import SqliteEngine
from hark.errors import NotFound
from hark.model import MessageFacts, NewMessage, PopRequest, QueueOptions, QueueSpec
from hark.settings import Settings


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def broker(clock: FakeClock) -> AsyncIterator[Broker]:
    broker = Broker(SqliteEngine(":memory:", clock=clock), Settings(), clock)
    await broker.start()
    yield broker
    await broker.close()


async def pushed(broker: Broker, queue: str = "shop.pay.orders") -> str:
    """Push a message; its id."""
    [outcome] = await broker.push([NewMessage(queue, "p1", b"1")])
    assert outcome.message_id is not None
    return outcome.message_id


async def explained(broker: Broker, message_id: str, group: str | None = "g") -> tuple[str, dict[str, object]]:
    """The reason for one group, and the data."""
    [found] = (await broker.explain(message_id, group)).explanations
    return found.reason, dict(found.data)


async def test_who_requested_last_is_known_to_the_moment_and_so_are_stopped_deliveries_and_what_never_was(
    broker: Broker, clock: FakeClock
) -> None:
    message_id = await pushed(broker)
    assert await explained(broker, message_id, None) == ("no_group", {})
    await broker.pop(PopRequest(queue="shop.pay.orders", partition="other", group="g"))
    last_polled = clock.now()
    assert (await explained(broker, message_id))[0] == "ready"
    clock.advance(60)
    reason, data = await explained(broker, message_id)
    assert (reason, data["askedAt"], data["askedHereOnly"]) == ("not_asked", moment(last_polled), False)
    await broker.set_maintenance(POP_MAINTENANCE, True)
    assert (await explained(broker, message_id))[0] == "pop_maintenance"
    with pytest.raises(NotFound):
        await broker.explain("nothing")


async def test_who_asks_by_namespace_or_task_asks_for_its_queues_too(broker: Broker, clock: FakeClock) -> None:
    message_id = await pushed(broker)
    await broker.pop(PopRequest(queue="shop.pay.orders", partition="none", group="g"))
    clock.advance(60)
    await broker.pop(PopRequest(namespace="shop", task="other", group="g"))
    assert (await explained(broker, message_id))[0] == "not_asked"
    await broker.engine.pause("shop.pay.orders", "g", True)
    await broker.pop(PopRequest(namespace="shop", group="g"))
    await broker.engine.pause("shop.pay.orders", "g", False)
    assert (await explained(broker, message_id))[0] == "ready"


@pytest.mark.parametrize(
    ("labels", "number"),
    [
        (PopRequest(queue="shop.pay.orders", group="g"), 1),
        (PopRequest(queue="shop.pay.orders", partition="p1", group="g"), 1),
        (PopRequest(namespace="shop", group="g"), 1),
        (PopRequest(task="pay", group="g"), 1),
        (PopRequest(queue="shop.pay.orders", partition="p2", group="g"), 0),
        (PopRequest(queue="shop.pay.orders", group="h"), 0),
        (PopRequest(namespace="other", group="g"), 0),
    ],
    ids=["queue", "partition", "namespace", "task", "other partition", "other group", "other namespace"],
)
async def test_who_waits_and_could_get_it_is_counted(broker: Broker, labels: PopRequest, number: int) -> None:
    """A message that a limit keeps back can be looked at while somebody waits for it."""
    spec = QueueSpec(name="shop.pay.orders", namespace="shop", task="pay", options=QueueOptions(max_in_flight=1))
    await broker.configure(spec)
    await broker.push([NewMessage("shop.pay.orders", "p0", b"0")])
    await broker.pop(PopRequest(queue="shop.pay.orders", partition="p0", group="g"))
    message_id = await pushed(broker)
    waiting = asyncio.create_task(broker.pop(labels, 60))
    while not any(one.parked for one in broker.delivery.intentions):  # noqa: ASYNC110  # the loop is waited for
        await asyncio.sleep(0)
    explained = await broker.explain(message_id, "g")
    assert broker.delivery.count_waiting(explained.message, "g") == number
    assert explained.explanations[0].reason == "max_in_flight"
    waiting.cancel()
    await asyncio.wait([waiting])


MESSAGE = MessageFacts(id="m", queue="orders", partition="p", partition_id="p", offset=1, namespace="shop", task="pay")


def noted(last_polls: LastPolls, **labels: Any) -> None:
    """A consumer of g asks for something."""
    last_polls.note(PopRequest(group="g", **labels))


def test_the_last_time_of_those_who_could_get_the_message_and_others_do_not_count(clock: FakeClock) -> None:
    last_polls = LastPolls(clock)
    for other in ({"queue": "mails"}, {"namespace": "other"}, {"namespace": "shop", "task": "other"}):
        noted(last_polls, **other)
    assert last_polls.last(MESSAGE, "g") is None
    for labels in (
        {"queue": "orders"},
        {"namespace": "shop"},
        {"task": "pay"},
        {"namespace": "shop", "task": "pay"},
        {"queue": "orders", "partition": "other"},
    ):
        clock.advance(1)
        noted(last_polls, **labels)
        assert last_polls.last(MESSAGE, "g") == clock.now()
    assert last_polls.last(MESSAGE, "h") is None


def test_who_was_forgotten_has_not_requested_since(clock: FakeClock) -> None:
    last_polls = LastPolls(clock, most=2)
    start = clock.now()
    assert last_polls.since == start
    for name in ("orders", "mails", "orders", "third"):
        clock.advance(1)
        noted(last_polls, queue=name)
    assert last_polls.last(MESSAGE, "g") is None
    assert last_polls.since == start + 3_000_000
    assert last_polls.last(replace(MESSAGE, queue="mails"), "g") == start + 2_000_000
