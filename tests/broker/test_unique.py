"""Unique keys of messages, on every engine: who wins, how long a key is held, and what is a duplicate of what."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

import msgspec
import pytest

from hark.broker import Broker, unique
from hark.clock import FakeClock, SystemClock
from hark.engine.sqlite import SqliteEngine
from hark.model import (
    OWN,
    QUEUE_MODE,
    DeadLetterFilter,
    KeyRange,
    MessageView,
    NewMessage,
    PopRequest,
    PopResult,
    PushOutcome,
    QueueOptions,
    QueueSpec,
    Seek,
    Settlement,
    Status,
)
from hark.model.messages import UniqueUntil
from hark.settings import Encryption, Settings
from hark.settings.tree import Retention
from hark.testing.server import FakeTimers
from tests.engine.engines import ENGINES, EngineKind

pytestmark = pytest.mark.timeout(300)
SETTINGS = Settings(encryption=Encryption(key="ab" * 32))
ORDERS = PopRequest(queue="orders", group_mode="shared", lease_ms=30_000)


class Servers(NamedTuple):
    """Brokers on one store, and their clock."""

    brokers: Sequence[Broker]
    clock: FakeClock


@asynccontextmanager
async def running(kind: EngineKind, request: pytest.FixtureRequest, number: int) -> AsyncIterator[Servers]:
    """Brokers on one store; one, if it is for one server."""
    clock = FakeClock()
    async with AsyncExitStack() as stack:
        open_engine = stack.enter_context(kind.store(request))
        brokers = []
        for _ in range(1 if kind.exclusive else number):
            broker = Broker(open_engine(clock), SETTINGS, clock, timers=FakeTimers(clock))
            await broker.start()
            stack.push_async_callback(broker.close)
            brokers.append(broker)
        yield Servers(brokers, clock)


@pytest.fixture(params=ENGINES, ids=lambda kind: kind.name)
async def servers(request: pytest.FixtureRequest) -> AsyncIterator[Servers]:
    """Three brokers on one store of each kind."""
    async with running(request.param, request, 3) as servers:
        yield servers


@pytest.fixture
def broker(servers: Servers) -> Broker:
    """One of the brokers."""
    return servers.brokers[0]


def order(key: str | None, until: UniqueUntil = "done", **fields: object) -> NewMessage:
    """A message with a unique key."""
    message = NewMessage("orders", unique_key=key, unique_until=until)
    for name, value in fields.items():
        setattr(message, name, value)
    return message


async def push_one(broker: Broker, message: NewMessage) -> PushOutcome:
    """Push one message."""
    [outcome] = await broker.push([message])
    return outcome


async def settle_all(broker: Broker, popped: PopResult, status: Status = "completed") -> None:
    """Settle all messages of a pop."""
    outcomes = await broker.settle(
        [Settlement(one.transaction_id, one.partition_id, status, popped.lease_id) for one in popped.messages]
    )
    assert all(outcome.success for outcome in outcomes)


async def records(broker: Broker) -> int:
    """How many records of unique keys are stored."""
    [entries] = await broker.engine.list_keys([KeyRange(prefix=(OWN, "unique"), limit=1000)])
    return len(entries)


async def test_a_second_push_with_a_key_is_a_duplicate_of_the_first_message(servers: Servers) -> None:
    first = await push_one(servers.brokers[0], order("k", transaction_id="t1"))
    assert (first.status, first.transaction_id) == ("queued", "t1")
    for broker in servers.brokers:
        again = await push_one(broker, order("k", partition="elsewhere", transaction_id="t2"))
        same = (again.status, again.transaction_id, again.message_id, again.partition_id)
        assert same == ("duplicate", "t1", first.message_id, first.partition_id)
    assert (await push_one(servers.brokers[-1], order("other"))).status == "queued"
    assert (await push_one(servers.brokers[-1], NewMessage("more", unique_key="k"))).status == "queued"
    assert len((await servers.brokers[0].pop(several(10))).messages) == 2


def several(batch: int) -> PopRequest:
    """A pop of several messages, of any partition."""
    return PopRequest(queue="orders", group_mode="shared", lease_ms=30_000, batch=batch, partitions=10)


@pytest.mark.parametrize("status", ["completed", "dlq"])
async def test_a_key_is_free_again_once_its_message_is_done_or_dead(broker: Broker, status: Status) -> None:
    await push_one(broker, order("k"))
    popped = await broker.pop(ORDERS)
    assert (await push_one(broker, order("k"))).status == "duplicate"
    await settle_all(broker, popped, "failed")
    assert (await push_one(broker, order("k"))).status == "duplicate"
    await settle_all(broker, await broker.pop(ORDERS), status)
    second = await push_one(broker, order("k"))
    assert second.status == "queued"
    again = await push_one(broker, order("k"))
    assert (again.status, again.message_id) == ("duplicate", second.message_id)


async def test_a_key_is_held_until_every_group_has_settled_its_message(broker: Broker) -> None:
    await push_one(broker, order("k"))
    pops = [await broker.pop(PopRequest(queue="orders", group=group)) for group in ("a", "b")]
    for popped, expected in zip(pops, ("duplicate", "queued"), strict=True):
        await broker.settle(
            [
                Settlement(
                    one.transaction_id, one.partition_id, lease_id=popped.lease_id, group="ab"[popped is pops[1]]
                )
                for one in popped.messages
            ]
        )
        assert (await push_one(broker, order("k"))).status == expected


async def test_a_key_until_started_is_free_once_a_consumer_has_its_message(broker: Broker) -> None:
    await push_one(broker, order("k", "started"))
    assert (await push_one(broker, order("k", "started"))).status == "duplicate"
    await broker.pop(ORDERS)
    assert (await push_one(broker, order("k", "started"))).status == "queued"
    assert (await push_one(broker, order("k", "started"))).status == "duplicate"


async def test_an_ordered_lease_starts_only_the_messages_that_it_delivered(broker: Broker) -> None:
    await broker.push([order("a", "started"), order("b", "started")])
    assert len((await broker.pop(PopRequest(queue="orders"))).messages) == 1
    outcomes = await broker.push([order("a", "started"), order("b", "started")])
    assert [one.status for one in outcomes] == ["queued", "duplicate"]


async def test_a_key_until_retained_is_held_as_long_as_its_message_is_stored(broker: Broker) -> None:
    first = await push_one(broker, order("k", "retained"))
    await settle_all(broker, await broker.pop(ORDERS))
    assert (await push_one(broker, order("k"))).status == "duplicate"
    assert await broker.engine.delete_messages([first.message_id or ""]) == [True]
    assert (await push_one(broker, order("k"))).status == "queued"


async def test_a_removed_or_expired_message_holds_no_key(servers: Servers) -> None:
    broker = servers.brokers[0]
    first = await push_one(broker, order("k"))
    assert await broker.engine.cancel([first.message_id or ""]) == ["cancelled"]
    assert (await push_one(broker, order("k", ttl_ms=5_000))).status == "queued"
    servers.clock.advance(4)
    assert (await push_one(broker, order("k"))).status == "duplicate"
    servers.clock.advance(2)
    assert (await push_one(broker, order("k"))).status == "queued"
    await broker.delete_queues(["orders"])
    assert (await push_one(broker, order("k"))).status == "queued"
    await broker.delete_queues(["orders"])
    assert (await broker.unique.clean(), await records(broker)) == (1, 0)


async def test_a_repeated_push_is_the_same_message_even_after_its_end(broker: Broker) -> None:
    first = await push_one(broker, order("k", transaction_id="t"))
    await settle_all(broker, await broker.pop(ORDERS))
    again = await push_one(broker, order("k", transaction_id="t"))
    assert (again.status, again.message_id) == ("duplicate", first.message_id)
    assert not (await broker.pop(ORDERS)).messages


async def test_one_request_keeps_its_order_and_has_each_key_once(broker: Broker) -> None:
    held = await push_one(broker, order("held"))
    plain = order(None, payload=b"1")
    items = [
        plain,
        order("a", payload=b"2"),
        order("held"),
        order(None, payload=b"3"),
        order("a"),
        order("b", payload=b"4"),
    ]
    outcomes = await broker.push(items)
    assert [one.status for one in outcomes] == ["queued", "queued", "duplicate", "queued", "duplicate", "queued"]
    assert outcomes[2].message_id == held.message_id
    assert (outcomes[4].message_id, outcomes[4].transaction_id) == (outcomes[1].message_id, outcomes[1].transaction_id)
    popped = await broker.pop(PopRequest(queue="orders", batch=10))
    assert [bytes(one.payload) for one in popped.messages] == [b"null", b"1", b"2", b"3", b"4"]


async def test_a_full_queue_refuses_its_messages_and_stores_the_others(broker: Broker) -> None:
    await broker.configure(QueueSpec(name="orders", options=QueueOptions(max_size=2)))
    items = [order("a"), NewMessage("more", unique_key="x"), order("b"), order("c"), order("c"), order("a")]
    items += [NewMessage("more"), order("d")]
    outcomes = await broker.push(items)
    statuses = [one.status for one in outcomes]
    assert statuses == ["queued", "queued", "queued", "failed", "failed", "duplicate", "queued", "failed"]
    assert {one.code for one in outcomes if one.status == "failed"} == {"queue_full"}
    await settle_all(broker, await broker.pop(ORDERS))
    assert (await push_one(broker, order("c"))).status == "queued", "a refused push took no key"


async def test_the_payload_of_a_unique_message_is_encrypted(broker: Broker) -> None:
    await broker.configure(QueueSpec(name="orders", options=QueueOptions(encryption_enabled=True)))
    first = await push_one(broker, order("k", payload=b'"secret"'))
    stored = await broker.engine.message(first.partition_id or "", first.transaction_id or "")
    assert stored is not None and stored.sealed
    [message] = (await broker.pop(ORDERS)).messages
    assert bytes(message.payload) == b'"secret"'


async def test_the_cleanup_removes_records_of_messages_that_are_over_and_no_others(broker: Broker) -> None:
    await broker.push([order(f"done-{number}") for number in range(150)])
    while (popped := await broker.pop(several(50))).messages:
        await settle_all(broker, popped)
    await broker.push([order("waits"), order("also waits")])
    assert await records(broker) == 152
    removed = await broker.unique.clean()
    assert (removed, await records(broker)) == (150, 2)
    assert await broker.unique.clean() == 0
    assert (await push_one(broker, order("waits"))).status == "duplicate"


async def test_exactly_one_of_racing_producers_wins_each_key(servers: Servers) -> None:
    """Consumers settle at the same time, so that keys become free and are taken again."""
    keys = [f"k{number}" for number in range(4)]
    running: dict[str, str] = {}
    queued = settled = 0

    async def produce(broker: Broker, seed: int) -> None:
        nonlocal queued
        choice = random.Random(seed)
        for _ in range(8):
            wanted = choice.sample(keys, 2)
            items = [order(key, payload=f'"{key}"'.encode()) for key in wanted]
            outcomes = await broker.push(items)
            queued += sum(one.status == "queued" for one in outcomes)
            assert {one.status for one in outcomes} <= {"queued", "duplicate"}

    async def consume(broker: Broker, producers: Sequence[asyncio.Task[None]]) -> None:
        nonlocal settled
        while True:
            over = all(producer.done() for producer in producers)
            popped = await broker.pop(several(3))
            for message in popped.messages:
                key = bytes(message.payload).decode()
                assert key not in running, f"{message.id} and {running[key]} hold {key} at the same time"
                running[key] = message.id
            await asyncio.sleep(0)
            for message in popped.messages:
                del running[bytes(message.payload).decode()]
            await settle_all(broker, popped)
            settled += len(popped.messages)
            if over and not popped.messages:
                return

    producers = [
        asyncio.create_task(produce(broker, seed)) for seed, broker in enumerate([*servers.brokers, *servers.brokers])
    ]
    await asyncio.gather(*producers, *(consume(broker, producers) for broker in servers.brokers))
    assert queued == settled >= len(keys)


async def test_racing_pushes_of_one_key_store_one_message(servers: Servers) -> None:
    for number in range(5):
        outcomes = await asyncio.gather(
            *(
                push_one(broker, order(f"k{number}", partition=f"p{index}"))
                for index, broker in enumerate([*servers.brokers] * 3)
            )
        )
        assert [one.status for one in outcomes].count("queued") == 1
        assert len({one.message_id for one in outcomes}) == 1


@pytest.mark.parametrize("seed", range(3))
async def test_keys_are_held_as_a_simple_model_says(servers: Servers, seed: int) -> None:
    choice = random.Random(seed)
    holders: dict[str, tuple[str, UniqueUntil]] = {}
    states: dict[str, str] = {}
    leases: dict[str, str] = {}
    untils: tuple[UniqueUntil, ...] = ("done", "started", "retained")
    free = {"done": {"over", "removed"}, "started": {"running", "tried", "over", "removed"}, "retained": {"removed"}}

    def expected(key: str) -> str | None:
        """The transaction id of the message that holds a key."""
        held = holders.get(key)
        return None if held is None or states[held[0]] in free[held[1]] else held[0]

    for step in range(60):
        broker = choice.choice(servers.brokers)
        match choice.choice(["push", "push", "push", "pop", "settle", "settle", "delete", "wait", "clean"]):
            case "push":
                key, until, name = choice.choice("ab"), choice.choice(untils), f"t{step}"
                outcome = await push_one(broker, order(key, until, transaction_id=name))
                holder = expected(key)
                assert (outcome.status, outcome.transaction_id) == (
                    ("queued", name) if holder is None else ("duplicate", holder)
                ), f"step {step}"
                if holder is None:
                    holders[key], states[name] = (name, until), "waiting"
            case "pop":
                popped = await broker.pop(ORDERS)
                for message in popped.messages:
                    states[message.transaction_id] = "running"
                    leases[message.transaction_id] = popped.lease_id
                    partition = message.partition_id
            case "settle" if leases:
                name = choice.choice(sorted(leases))
                status: Status = choice.choice(("completed", "failed", "dlq"))
                [done] = await broker.settle([Settlement(name, partition, status, leases.pop(name))])
                states[name] = "over" if done.dead_lettered or status != "failed" else "tried"
                assert done.success
            case "delete" if states:
                name = choice.choice(sorted(states))
                view = None if not leases and "partition" not in locals() else await broker.message(partition, name)
                if view is not None:
                    await broker.engine.delete_messages([view.id])
                    states[name] = "removed"
                    leases.pop(name, None)
            case "wait":
                servers.clock.advance(31)
                for name in leases:
                    states[name] = "tried"
                leases.clear()
                await broker.engine.expire()
                for letter in (await broker.dead_letters(DeadLetterFilter(queue="orders"))).items:
                    if states[letter.transaction_id] != "removed":
                        states[letter.transaction_id] = "over"
            case "clean":
                await broker.unique.clean()


async def test_the_cleanup_goes_on_behind_records_that_stay(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unique, "STEPS", 1)
    await broker.push([order(f"k{number}") for number in range(110)])
    await broker.push([NewMessage("zoo", unique_key="k")])
    await settle_all(broker, await broker.pop(PopRequest(queue="zoo")))
    assert [await broker.unique.clean() for _ in range(3)] == [0, 1, 0]
    assert await records(broker) == 110


async def test_one_cleanup_removes_all_records_of_free_keys_however_many(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unique, "STEPS", 1)
    await broker.push([order(f"k{number}") for number in range(250)])
    while (popped := await broker.pop(several(250))).messages:
        await settle_all(broker, popped)
    assert await broker.unique.clean() == 250


@pytest.mark.parametrize("way", ["discarded", "group purged", "queue purged", "queue deleted", "superseded"])
async def test_a_key_is_free_whatever_ended_its_message(broker: Broker, way: str) -> None:
    engine = broker.engine
    await broker.configure(QueueSpec(name="orders", options=QueueOptions(dead_letter_queue=False, retry_limit=0)))
    first = await push_one(broker, order("k"))
    match way:
        case "discarded":
            await settle_all(broker, await broker.pop(ORDERS), "failed")
            assert (await broker.dead_letters(DeadLetterFilter(queue="orders"))).items == []
        case "group purged":
            popped = await broker.pop(ORDERS)
            assert popped.messages
            assert await engine.purge("orders", QUEUE_MODE) == 1
        case "queue purged":
            await engine.purge("orders")
        case "queue deleted":
            await broker.delete_queues(["orders"])
        case _:
            await broker.pop(ORDERS)
            await engine.seek([Seek(queue="orders", group=QUEUE_MODE, to_end=True)])
    second = await push_one(broker, order("k"))
    assert second.status == "queued"
    assert second.message_id != first.message_id
    assert (await push_one(broker, order("k"))).status == "duplicate"


async def test_a_message_that_waits_again_holds_its_key_again_unless_another_one_has_it(broker: Broker) -> None:
    back = Seek(queue="orders", group=QUEUE_MODE, offset=1)
    await push_one(broker, order("k"))
    await settle_all(broker, await broker.pop(ORDERS))
    await broker.engine.seek([back])
    assert (await push_one(broker, order("k"))).status == "duplicate"
    await settle_all(broker, await broker.pop(ORDERS))
    await broker.engine.delete_group(QUEUE_MODE, "orders", forget_subscription=True)
    assert (await push_one(broker, order("k"))).status == "duplicate", "a group that comes will receive it"
    await settle_all(broker, await broker.pop(ORDERS))
    second = await push_one(broker, order("k"))
    await broker.engine.seek([back])
    assert (await push_one(broker, order("k"))).message_id == second.message_id


async def test_a_requeued_dead_letter_does_not_take_its_key_again(broker: Broker) -> None:
    await push_one(broker, order("k"))
    await settle_all(broker, await broker.pop(ORDERS), "dlq")
    second = await push_one(broker, order("k"))
    [letter] = (await broker.dead_letters(DeadLetterFilter(queue="orders"))).items
    assert len(await broker.engine.requeue([letter.id])) == 1
    again = await push_one(broker, order("k"))
    assert (again.status, again.message_id) == ("duplicate", second.message_id)
    assert len((await broker.pop(several(5))).messages) == 2


async def test_messages_that_hold_keys_are_looked_up_together_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = SqliteEngine(":memory:", clock=SystemClock())
    broker = Broker(engine, SETTINGS, SystemClock())
    await broker.start()
    try:
        items = [order(f"k{number}") for number in range(250)]
        await broker.push(items)
        broker.unique._ids.clear()  # As of another server.
        looked_up = running = most = 0
        message = engine.message

        async def counted(partition_id: str, transaction_id: str) -> MessageView | None:
            nonlocal looked_up, running, most
            looked_up, running = looked_up + 1, running + 1
            most = max(most, running)
            found = await message(partition_id, transaction_id)
            running -= 1
            return found

        monkeypatch.setattr(engine, "message", counted)
        for _ in range(2):
            assert {outcome.status for outcome in await broker.push(items)} == {"duplicate"}
        assert looked_up == 250
        assert 10 < most <= unique.STEP
    finally:
        await broker.close()


async def test_a_running_server_removes_records_of_free_keys() -> None:
    settings = msgspec.structs.replace(SETTINGS, retention=Retention(interval_ms=1))
    broker = Broker(SqliteEngine(":memory:", clock=SystemClock()), settings, SystemClock())
    await broker.start()
    try:
        await broker.push([order(f"k{number}") for number in range(30)])
        await settle_all(broker, await broker.pop(several(30)))
        async with asyncio.timeout(60):
            while await records(broker):
                pass
    finally:
        await broker.close()
