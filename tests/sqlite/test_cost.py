"""The cost of a push, a pop and a settlement depends on what they carry, not on what the store holds.

Cost is counted in steps of SQLite's machine, which do not depend on the time of day.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any

import apsw
import pytest

from hark.clock import FakeClock
from hark.engine.sqlite import SqliteEngine, loader, push, read, rows, transaction
from hark.model import NewMessage, PopRequest, PopResult, Read, ReadResult, Settlement

SPREAD = 20
FACTOR = 1.5
FRESH = count()
"""For transaction ids that were never used before."""


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[SqliteEngine]:
    engine = SqliteEngine(str(tmp_path / "hark.db"), clock=FakeClock())
    await engine.start(lambda _: None)
    yield engine
    await engine.close()


class Steps:
    """Counts the steps of the connections that serve requests."""

    def __init__(self) -> None:
        self.number = 0

    async def watch(self, engine: SqliteEngine) -> None:
        """Begin to count, from the threads that the connections belong to."""
        await engine._write(lambda transaction: self._trace(transaction.connection))
        await engine._look(lambda _state, _now: self._trace(engine._store.reader))

    def _trace(self, connection: apsw.Connection) -> None:
        connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, self._note)

    def _note(self, event: dict[str, Any]) -> None:
        self.number += event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]


async def push_to_all(engine: SqliteEngine, partitions: int) -> None:
    """One message for each partition."""
    for start in range(0, partitions, 1000):
        names = range(start, min(start + 1000, partitions))
        await engine.push([[NewMessage("orders", f"p{name}", b"1") for name in names]])


async def pop(engine: SqliteEngine, batch: int, *, auto_ack: bool = False) -> PopResult:
    """A pop over any partitions."""
    (answer,) = await engine.pop([PopRequest(queue="orders", batch=batch, partitions=batch, auto_ack=auto_ack)])
    assert isinstance(answer, PopResult)
    return answer


async def cost_of_a_round(engine: SqliteEngine) -> int:
    """Steps to push to some known partitions, pop and settle them."""
    steps = Steps()
    await steps.watch(engine)
    await engine.push([[NewMessage("orders", f"p{name}", b"2", f"{name} {next(FRESH)}") for name in range(SPREAD)]])
    got = await pop(engine, SPREAD)
    assert len(got.messages) == SPREAD
    items = [Settlement(m.transaction_id, m.partition_id, lease_id=got.lease_id) for m in got.messages]
    (settled,) = await engine.settle([items])
    assert isinstance(settled, list)
    assert all(item.success for item in settled)
    return steps.number


async def drained(engine: SqliteEngine, partitions: int) -> None:
    """A store with so many partitions whose messages are all settled."""
    await push_to_all(engine, partitions)
    while (await pop(engine, 1000, auto_ack=True)).messages:
        pass


async def test_the_cost_does_not_grow_with_settled_history(engine: SqliteEngine) -> None:
    await drained(engine, SPREAD)
    on_an_empty_store = await cost_of_a_round(engine)
    await drained(engine, 5000)
    assert await cost_of_a_round(engine) <= FACTOR * on_an_empty_store


async def test_the_cost_does_not_grow_with_a_backlog_in_other_partitions(engine: SqliteEngine) -> None:
    await drained(engine, SPREAD)
    with_nothing_else = await cost_of_a_round(engine)
    for start in range(0, 5000, 1000):
        await engine.push([[NewMessage("orders", f"other{start + n}", b"1") for n in range(1000)]])
    await pop(engine, 1)  # Meets the new partitions for the first time.
    steps = Steps()
    await steps.watch(engine)
    got = await pop(engine, SPREAD)
    assert len(got.messages) == SPREAD
    assert steps.number <= FACTOR * with_nothing_else


async def test_the_cost_does_not_grow_with_waiting_messages(engine: SqliteEngine) -> None:
    await drained(engine, SPREAD)
    with_nothing_else = await cost_of_a_round(engine)
    later = [NewMessage("orders", f"later{n % 500}", b"1", delay_ms=3_600_000) for n in range(5000)]
    await engine.push([later])
    while (await pop(engine, 1000)).messages:
        pass
    assert await cost_of_a_round(engine) <= FACTOR * with_nothing_else


async def test_the_cost_does_not_grow_with_the_length_of_the_partition(engine: SqliteEngine) -> None:
    await drained(engine, SPREAD)
    at_the_start = await cost_of_a_round(engine)
    for _ in range(10):
        await engine.push([[NewMessage("orders", f"p{n % SPREAD}", b"1") for n in range(1000)]])
        while (await pop(engine, 1000, auto_ack=True)).messages:
            pass
    assert await cost_of_a_round(engine) <= FACTOR * at_the_start


async def cost_of_reading(engine: SqliteEngine, partition: str, offset: int) -> int:
    """Steps to read some messages."""
    steps = Steps()
    await engine._look(lambda _state, _now: steps._trace(engine._store.reader))
    request = Read(queue="orders", partition=partition, offset=offset, limit=SPREAD)
    (answer,) = await engine._look(lambda state, _: read.read(engine._store.reader, state.codec, [request]))
    assert isinstance(answer, ReadResult)
    assert len(answer.messages) == SPREAD
    return steps.number


async def test_the_cost_of_reading_does_not_grow_with_what_is_before_behind_and_between(engine: SqliteEngine) -> None:
    await engine.push([[NewMessage("orders", "short", b"1") for _ in range(SPREAD)]])
    with_nothing_else = await cost_of_reading(engine, "short", 1)
    ids = []
    for _ in range(10):
        (pushed,) = await engine.push([[NewMessage("orders", "long", b"1") for _ in range(1000)]])
        assert isinstance(pushed, list)
        ids += [str(one.message_id) for one in pushed]
    await push_to_all(engine, 1000)
    await engine.delete_messages(ids[5000:7000])
    for offset in (1, 3000, 5001, 7001 - SPREAD // 2, 9000):
        assert await cost_of_reading(engine, "long", offset) <= FACTOR * with_nothing_else


async def test_the_cost_of_finding_a_time_grows_with_the_partitions_that_are_named(engine: SqliteEngine) -> None:
    async def cost() -> int:
        steps = Steps()
        await engine._look(lambda _state, _now: steps._trace(engine._store.reader))
        await engine._look(lambda _state, _now: read.positions(engine._store.reader, "orders", 1, "p1"))
        return steps.number

    await push_to_all(engine, SPREAD)
    alone = await cost()
    await push_to_all(engine, 5000)
    assert await cost() <= 2 * FACTOR * alone, "a second message is one more step of the search"
    for _ in range(5):
        await engine.push([[NewMessage("orders", "p1", b"1") for _ in range(1000)]])
    assert await cost() <= 2 * FACTOR * 13 * alone, "halving"


HOT = {
    "reading for browsers": (read.READ, ('[["orders","p1",1,10]]', 1000)),
    "reading messages": (rows.SELECT_MESSAGES, ("[[1,1,5]]",)),
    "finding transaction ids": (push._FIND_TRANSACTION_IDS, ('[[1,"t"]]',)),
    "loading partitions by name": (loader._PARTITIONS_BY_NAME, ('[[1,"p"]]',)),
    "loading partitions by number": (loader._PARTITIONS_BY_ID, ("[1]",)),
    "loading tracks": (loader._TRACKS, (1, "[1]")),
    "saving tracks": (transaction._SAVE_TRACKS, ("[]",)),
    "deleting ranges": (transaction._DELETE_RANGES, ("[]",)),
    "deleting retries": (transaction._DELETE_RETRIES, ("[]",)),
    "saving dead letters": (transaction._SAVE_DEAD_LETTERS, ("[]",)),
}
TABLES = (
    "messages",
    "message",
    "first",
    "next",
    "place",
    "queues",
    "partitions",
    "partition",
    "tracks",
    "ranges",
    "retries",
    "fronts",
    "dead_letters",
)


@pytest.mark.parametrize("statement", HOT)
async def test_no_hot_statement_scans_a_table(engine: SqliteEngine, statement: str) -> None:
    sql, parameters = HOT[statement]
    plan = [str(row[3]) for row in engine._store.reader.execute(f"explain query plan {sql}", parameters)]
    assert plan
    assert [line for line in plan if line.startswith("SCAN") and line.split()[1] in TABLES] == []
