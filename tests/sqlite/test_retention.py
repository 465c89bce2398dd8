"""The search of retention finds all that is over, beside the writer, and costs what it finds (rule 23)."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from random import Random

import apsw
import msgspec
import pytest

from hark.clock import FakeClock
from hark.engine.core.collect import BEGUN_BEFORE, BETWEEN, NOTHING, OWN_TTL, Collector, Overdue
from hark.engine.core.explain import LeaseView
from hark.engine.core.store import rows_of
from hark.engine.core.transaction import WriteTransaction
from hark.engine.sqlite import SqliteEngine
from hark.model import GroupMode, NewMessage, QueueOptions, QueueSpec
from tests.engine.driver import Driver, message
from tests.sqlite.test_cost import FACTOR, Steps

MODES: tuple[GroupMode, ...] = ("ordered", "shared")
OPTIONS = [
    QueueOptions(),
    QueueOptions(ttl=50),
    QueueOptions(max_wait_time_seconds=60),
    QueueOptions(max_wait_time_seconds=60, ttl=90),
    QueueOptions(retention_enabled=True, completed_retention_seconds=30),
    QueueOptions(retention_enabled=True, completed_retention_seconds=30, max_wait_time_seconds=80),
    QueueOptions(retention_enabled=True, retention_seconds=100, completed_retention_seconds=20),
    QueueOptions(drop_settled=True),
]


async def some_time(q: Driver, chance: Random, groups: list[tuple[str, GroupMode]]) -> None:
    """What producers, consumers and administrators do in some seconds."""
    for _ in range(chance.randrange(4)):
        await q.push_messages(
            message(
                "orders",
                chance.choice("ab"),
                0,
                priority=chance.choice((0, 0, 0, 5, 9)),
                delay_ms=chance.choice((0, 0, 3000, 40_000)),
                ttl_ms=chance.choice((None, None, None, 20_000, 200_000)),
            )
        )
    for group, mode in groups:
        got = await q.pop("orders", group=group, group_mode=mode, batch=chance.randrange(1, 5), lease_ms=15_000)
        for leased in got:
            settle = chance.choice((q.ack, q.ack, q.ack, q.kill, q.fail, None))
            if settle is not None:
                await settle(leased)
    letters = await q.dead_letters()
    if letters and not chance.randrange(3):
        await q.requeue(letters[0])
    q.clock.advance(chance.randrange(10))


async def left_over(engine: SqliteEngine) -> int:
    """How many messages that the check under the lock would remove were not found."""

    def remove_all(transaction: WriteTransaction) -> int:
        everything = [seq for (seq,) in rows_of(transaction.connection, "select seq from messages")]
        return engine._collector.remove(transaction, NOTHING._replace(messages=everything))

    return await engine._write(remove_all)


@pytest.mark.parametrize("options", OPTIONS, ids=range(len(OPTIONS)))
@pytest.mark.parametrize("modes", [(), MODES[:1], MODES[1:], MODES, (*MODES, *MODES)], ids="-".join)
async def test_rule_23_the_search_finds_all_that_is_over(
    clock: FakeClock, options: QueueOptions, modes: tuple[GroupMode, ...]
) -> None:
    chance = Random(1)
    q = Driver(lambda time: SqliteEngine(":memory:", clock=time, completed_retention_seconds=70), clock)
    await q.start()
    assert isinstance(q.engine, SqliteEngine)
    await q.configure_spec(QueueSpec(name="orders", options=options))
    groups = [(f"g{number}", mode) for number, mode in enumerate(modes)]
    removed = 0
    for _ in range(12):
        for _ in range(5):
            await some_time(q, chance, groups)
        removed += await q.collect()
        assert await left_over(q.engine) == 0
    assert removed or (not modes and options in OPTIONS[:1] + OPTIONS[4:5] + OPTIONS[7:])
    await q.engine.close()


async def test_a_search_delays_no_push_and_what_is_leased_meanwhile_stays(
    engine: SqliteEngine, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, go = asyncio.Event(), threading.Event()
    loop, search = asyncio.get_running_loop(), Collector.search

    def slow(collector: Collector, connection: apsw.Connection, leased: LeaseView) -> Overdue:
        overdue = search(collector, connection, leased)
        loop.call_soon_threadsafe(found.set)
        assert go.wait(100)
        return overdue

    monkeypatch.setattr(Collector, "search", slow)
    q = Driver(lambda _: engine, clock)
    await q.configure("orders", ttl=10)
    await q.push("orders", "p", 1, 2)
    clock.advance(10)
    collecting = asyncio.ensure_future(engine.collect())
    try:
        await found.wait()
        await q.configure("orders", ttl=20)
        await q.push("orders", "p", 3)
        assert len(await q.pop("orders", "p")) == 1
        await q.configure("orders", ttl=10)
    finally:
        go.set()
    collected = await collecting
    assert (collected.examined, collected.removed) == (2, 1)


# Cost ------------------------------------------------------------------------------------------------------


async def cost_of_collecting(engine: SqliteEngine, clock: FakeClock) -> int:
    """Steps of a round that removes two messages, one by the ttl of its queue, one by its own."""
    await engine.push([[NewMessage("short", "p", b"1"), NewMessage("orders", "p", b"1", ttl_ms=10_000)]])
    clock.advance(10)
    steps = Steps()
    await steps.watch(engine)
    await engine._read_committed(steps._trace)
    assert (await engine.collect()).removed == 2
    return steps.number


@pytest.mark.parametrize("option", ["ttl", "max_wait_time_seconds", None])
@pytest.mark.parametrize("mode", MODES)
async def test_rule_23_the_cost_of_a_round_does_not_grow_with_the_backlog(
    engine: SqliteEngine, clock: FakeClock, mode: GroupMode, option: str | None
) -> None:
    engine._readers._pool.shutdown()
    engine._readers._pool = ThreadPoolExecutor(1)
    q = Driver(lambda _: engine, clock)
    await q.configure("short", ttl=10)
    options = QueueOptions() if option is None else msgspec.structs.replace(QueueOptions(), **{option: 10**6})
    await q.configure_spec(QueueSpec(name="orders", options=options))
    await q.push("orders", "p", *range(700))  # More than a shared group reads ahead after a removal.
    settled = await q.pop("orders", group="a", group_mode=mode, batch=100)
    await q.ack_all(settled)
    clock.advance(8 * 86400)
    assert await q.collect() == 100
    alone = await cost_of_collecting(engine, clock)
    for _ in range(30):
        await engine.push([[NewMessage("orders", "p", b"1") for _ in range(1000)]])
    clock.advance(8 * 86400 if option is None else 20)
    await q.pop("short", group="a", group_mode=mode)
    assert await cost_of_collecting(engine, clock) <= FACTOR * alone


@pytest.mark.parametrize(
    ("sql", "values"), [(OWN_TTL, (1,)), (BEGUN_BEFORE, (1, "", 1)), (BETWEEN, (1, 1, 2))], ids=["own", "first", "some"]
)
async def test_the_searches_use_an_index_and_sort_nothing(
    engine: SqliteEngine, sql: str, values: tuple[int | str, ...]
) -> None:
    plan = await engine._read_committed(lambda connection: rows_of(connection, f"explain query plan {sql}", *values))
    assert [row[3] for row in plan if "SCAN" in row[3] or "TEMP B-TREE" in row[3]] == []
