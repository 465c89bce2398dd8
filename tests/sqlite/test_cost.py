"""The cost of a call depends on what it carries and answers, not on what the store holds.

Cost is counted in steps of SQLite's machine, which do not depend on the time of day.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from typing import Any

import apsw
import pytest

from hark.engine.core import browse, keyvalue, loader, ordered, position, push, shared, store, transaction
from hark.engine.core.groups import conditions
from hark.engine.core.ordered import OrderedPosition
from hark.engine.core.state import State
from hark.engine.sqlite import SqliteEngine
from hark.ids import IdCodec
from hark.model import (
    DeadLetterFilter,
    MessageFilter,
    NewMessage,
    PopRequest,
    PopResult,
    QueueFilter,
    QueueSpec,
    Read,
    ReadResult,
    Settlement,
    Status,
)

SPREAD = 20
FACTOR = 1.5
FRESH = count()
"""For transaction ids that were never used before."""


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


class CountingTable(OrderedDict[int, bool]):
    """A table of memory that counts how many of its keys are looked through."""

    seen = 0

    def __iter__(self) -> Iterator[int]:
        for key in super().__iter__():
            self.seen += 1
            yield key


async def test_an_ack_does_not_look_through_all_requeued_dead_letters(engine: SqliteEngine) -> None:
    await engine.push([[NewMessage("orders", "p1", b"1") for _ in range(1000)]])
    got = await pop(engine, 1000)
    items = [Settlement(m.transaction_id, m.partition_id, "dlq", got.lease_id) for m in got.messages]
    await engine.settle([items])
    letters = await engine.dead_letters(DeadLetterFilter(limit=1000))
    await engine.requeue([letter.id for letter in letters.items])

    def count(state: State, _now: int) -> CountingTable:
        [position] = state.groups["orders", "__QUEUE_MODE__"].positions.values()
        assert isinstance(position, OrderedPosition)
        table = position.requeued = CountingTable(position.requeued)
        table.seen = 0
        return table

    table = await engine._look(count)
    for left in range(999, 989, -1):
        got = await pop(engine, 1)
        [one] = got.messages
        [[outcome]] = await engine.settle([[Settlement(one.transaction_id, one.partition_id, lease_id=got.lease_id)]])  # type: ignore[misc]
        assert outcome.success
        assert len(table) == left
    assert table.seen < 100


async def test_acks_for_an_unknown_group_search_for_it_once_in_a_request(engine: SqliteEngine) -> None:
    await push_to_all(engine, 1)
    for number in range(100):
        await engine.pop([PopRequest(queue="orders", group=f"group-{number}")])
    [known] = await engine.partition_stats("orders")
    steps = Steps()
    await steps.watch(engine)
    costs = []
    for number in (10, 100):
        before = steps.number
        items = [
            Settlement(f"unknown-{one}", known.id, "completed", "lease", group="misspelt") for one in range(number)
        ]
        (outcomes,) = await engine.settle([items])
        assert isinstance(outcomes, list) and not any(outcome.success for outcome in outcomes)
        costs.append(steps.number - before)
    assert costs[1] < 5 * costs[0], "the groups are searched once, each message by its id"


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
    (answer,) = await engine._look(lambda state, _: browse.read(engine._store.reader, state.codec, [request]))
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
        await engine._look(lambda _state, _now: browse.offsets(engine._store.reader, "orders", 1, "p1"))
        return steps.number

    await push_to_all(engine, SPREAD)
    alone = await cost()
    await push_to_all(engine, 5000)
    assert await cost() <= 2 * FACTOR * alone, "a second message is one more step of the search"
    for _ in range(5):
        await engine.push([[NewMessage("orders", "p1", b"1") for _ in range(1000)]])
    assert await cost() <= 2 * FACTOR * 13 * alone, "halving"


HOT = {
    "reading for browsers": (browse.READ, ('[["orders","p1",1,10]]', 1000)),
    "reading messages": (store.SELECT_MESSAGES, ("[[1,1,5]]",)),
    "finding transaction ids": (push._FIND_TRANSACTION_IDS, ('[[1,"t"]]',)),
    "loading partitions by name": (loader._PARTITIONS_BY_NAME, ('[[1,"p"]]',)),
    "loading partitions by number": (loader._PARTITIONS_BY_ID, ("[1]",)),
    "loading positions": (loader._POSITIONS, (1, "[1]")),
    "saving positions": (ordered._SAVE_POSITIONS, ("[]",)),
    "deleting ranges": (ordered._DELETE_RANGES, ("[]",)),
    "deleting retries": (ordered._DELETE_RETRIES, ("[]",)),
    "loading places of shared groups": (loader._SHARED_POSITIONS, (1, "[1]")),
    "reading the first lane": (position.READ_FIRST, (1, 0, 10, 10)),
    "reading a lane with a priority": (position.READ_PRIORITY, (1, 5, 0, 10, 10)),
    "reading delayed messages": (position.READ_DELAYED, (1, 0, 0, 0, 10)),
    "saving places of shared groups": (shared._SAVE_SHARED_POSITIONS, ("[]",)),
    "deleting outstanding": (shared._DELETE_OUTSTANDING, ("[]",)),
    "finding what all groups are done with": (transaction._FIND, (1, "[]")),
    "saving dead letters": (transaction._SAVE_DEAD_LETTERS, ("[]",)),
}
TABLES = {
    "messages",
    "message",
    "first",
    "next",
    "place",
    "queues",
    "partitions",
    "partition",
    "positions",
    "ranges",
} | {*("retries", "requeued", "lanes", "lane", "outstanding", "gaps", "dead_letters")}


def plan_of(engine: SqliteEngine, sql: str, parameters: tuple[Any, ...]) -> list[str]:
    """How SQLite would do it."""
    return [str(row[3]) for row in engine._store.reader.execute(f"explain query plan {sql}", parameters)]


@pytest.mark.parametrize("statement", HOT)
async def test_no_hot_statement_scans_a_table(engine: SqliteEngine, statement: str) -> None:
    sql, parameters = HOT[statement]
    plan = plan_of(engine, sql, parameters)
    assert plan
    assert [line for line in plan if line.startswith("SCAN") and line.split()[1] in TABLES] == []


@pytest.mark.parametrize("sql", [keyvalue._RANGE, keyvalue._REVERSE_RANGE, keyvalue._WANTED, keyvalue._COUNT])
async def test_reads_search_by_key_and_sort_nothing(engine: SqliteEngine, sql: str) -> None:
    plan = plan_of(engine, sql, (b"a", b"b", 1, 1)[: sql.count("?")])
    assert any("SEARCH kv USING PRIMARY KEY" in step for step in plan), plan
    assert not any("SCAN kv" in step or "TEMP B-TREE" in step for step in plan), plan


async def test_a_sweep_of_keys_searches_by_time(engine: SqliteEngine) -> None:
    plan = plan_of(engine, keyvalue._OVER, (1, 1))
    assert plan == ["SEARCH kv USING COVERING INDEX kv_expiry (expires_at<?)"]


@pytest.mark.parametrize(
    "where",
    [
        DeadLetterFilter(ids=["a-letter"]),
        DeadLetterFilter(ids=[IdCodec(7).encode(3, 5), "a-letter"]),
        DeadLetterFilter(queue="orders"),
        DeadLetterFilter(queue="orders", since=1, until=2),
    ],
    ids=["id", "ids of both kinds", "queue", "queue and time"],
)
async def test_no_search_that_names_something_reads_all_dead_letters(
    engine: SqliteEngine, where: DeadLetterFilter
) -> None:
    matching, values = conditions(where, IdCodec(7))
    sql = f"select * from dead_letters where {matching} order by failed_at desc, id desc"
    plan = plan_of(engine, sql, tuple(values))
    assert not [line for line in plan if line.startswith(("SCAN dead_letters", "SCAN letter"))], plan
    assert [line for line in plan if line.startswith("SEARCH")], plan


# Shared groups ---------------------------------------------------------------------------------------------


async def take(engine: SqliteEngine, batch: int = SPREAD) -> PopResult:
    """A pop of a shared group."""
    (answer,) = await engine.pop([PopRequest(queue="jobs", group="workers", group_mode="shared", batch=batch)])
    assert isinstance(answer, PopResult)
    return answer


async def cost_of_a_shared_round(engine: SqliteEngine) -> int:
    """Steps to push some plain messages to one partition, pop and settle them."""
    steps = Steps()
    await steps.watch(engine)
    await engine.push([[NewMessage("jobs", "p", b"1") for _ in range(SPREAD)]])
    got = await take(engine)
    assert [bytes(one.payload) for one in got.messages] == [b"1"] * SPREAD
    items = [Settlement(m.id, m.partition_id, lease_id=got.lease_id, group="workers") for m in got.messages]
    (settled,) = await engine.settle([items])
    assert isinstance(settled, list)
    assert all(item.success for item in settled)
    return steps.number


async def many(engine: SqliteEngine, number: int, **options: Any) -> None:
    """Push messages with options to the same partition."""
    for _ in range(number // 1000):
        await engine.push([[NewMessage("jobs", "p", b"0", **options) for _ in range(1000)]])


@pytest.mark.parametrize("kind", ["delayed", "held", "settled", "waiting for a retry"])
async def test_the_cost_of_a_shared_claim_does_not_grow_with_other_messages_of_the_partition(
    engine: SqliteEngine, kind: str
) -> None:
    await many(engine, 1000)
    await take(engine, 1000)  # The group begins, and the messages that come are the next ones.
    alone = await cost_of_a_shared_round(engine)
    if kind == "delayed":
        await many(engine, 5000, delay_ms=3_600_000)
        await many(engine, 5000, delay_ms=3_600_000, priority=5)
    else:
        await many(engine, 10_000)
        got = await take(engine, 10_000)
        status: Status = "completed" if kind == "settled" else "retry"
        if kind != "held":
            items = [
                Settlement(m.id, status=status, delay_ms=3_600_000, lease_id=got.lease_id, group="workers")
                for m in got.messages
            ]
            await engine.settle([items])
    await cost_of_a_shared_round(engine)  # What is in the way is passed once.
    assert await cost_of_a_shared_round(engine) <= FACTOR * alone


async def test_the_cost_of_a_shared_claim_does_not_grow_with_messages_of_a_lower_priority(
    engine: SqliteEngine,
) -> None:
    async def cost() -> int:
        steps = Steps()
        await steps.watch(engine)
        await engine.push([[NewMessage("jobs", "p", b"9", priority=9) for _ in range(SPREAD)]])
        got = await take(engine)
        assert {message.priority for message in got.messages} == {9}
        return steps.number

    await many(engine, 1000)
    await take(engine, 1)
    alone = await cost()
    await many(engine, 10_000)
    await cost()
    assert await cost() <= FACTOR * alone


# Pages -----------------------------------------------------------------------------------------------------


@pytest.fixture
def looked_at(engine: SqliteEngine) -> SqliteEngine:
    """An engine with one reader, whose steps are counted."""
    engine._readers._pool.shutdown()
    engine._readers._pool = ThreadPoolExecutor(1)
    return engine


async def steps_of(engine: SqliteEngine, look: Callable[[], Awaitable[object]]) -> int:
    """How many steps the readers take for a look."""
    steps = Steps()
    await look()
    [connection] = engine._readers._connections
    steps._trace(connection)
    await look()
    connection.trace_v2(0, None)
    assert steps.number
    return steps.number


async def push_to(engine: SqliteEngine, queues: range, partitions: int = 2) -> None:
    """Two messages for each partition, of which a group has taken one."""
    names = [f"q{queue:05}" for queue in queues]
    for _ in range(2):
        await engine.push([[NewMessage(name, f"p{number:05}", b"1") for number in range(partitions)] for name in names])
    await engine.pop(
        [PopRequest(queue=name, group="g", batch=partitions, partitions=partitions, auto_ack=True) for name in names]
    )


LOOKS: dict[str, Callable[[SqliteEngine], Awaitable[object]]] = {
    "newest queues": lambda engine: engine.queue_stats(QueueFilter(limit=10)),
    "queues by name": lambda engine: engine.queue_stats(QueueFilter(limit=10, sort="name")),
    "one queue": lambda engine: engine.queue_stats(QueueFilter(names=["q00003"])),
    "a step of a survey": lambda engine: engine.survey((0, ""), 20),
    "messages of a queue": lambda engine: engine.messages(MessageFilter(queue="q00003", limit=5)),
    "messages of a partition": lambda engine: engine.messages(
        MessageFilter(queue="q00003", partition="p00001", limit=5)
    ),
    "pending messages of a queue": lambda engine: engine.messages(
        MessageFilter(queue="q00003", state="pending", limit=5)
    ),
    "messages on leases": lambda engine: engine.messages(MessageFilter(state="processing", limit=5)),
    "dead messages": lambda engine: engine.messages(MessageFilter(state="dead_letter", limit=5)),
}


async def test_pages_cost_the_same_beside_many_other_queues(looked_at: SqliteEngine) -> None:
    await push_to(looked_at, range(20))
    with_few = {name: await steps_of(looked_at, partial(look, looked_at)) for name, look in LOOKS.items()}
    await push_to(looked_at, range(20, 320))
    for name, look in LOOKS.items():
        steps = await steps_of(looked_at, partial(look, looked_at))
        # How many there are in all is counted along an index: a few steps for each.
        assert steps <= FACTOR * with_few[name] + 8 * 300, (name, with_few[name], steps)


async def test_a_page_of_partitions_or_positions_costs_the_same_beside_many_others(looked_at: SqliteEngine) -> None:
    looks: dict[str, Callable[[], Awaitable[object]]] = {
        "partitions": lambda: looked_at.partition_stats("q00000", limit=10),
        "messages": lambda: looked_at.messages(MessageFilter(queue="q00000", limit=10)),
        "a step of a survey": lambda: looked_at.survey((0, ""), 20),
    }
    await push_to(looked_at, range(1), 1100)
    with_few = {name: await steps_of(looked_at, look) for name, look in looks.items()}
    await push_to(looked_at, range(1), 3300)
    for name, look in looks.items():
        assert await steps_of(looked_at, look) <= FACTOR * with_few[name], name


async def test_the_cost_of_a_lag_grows_with_the_messages_in_flight_and_not_with_their_square(
    looked_at: SqliteEngine,
) -> None:
    costs = []
    for queue, number in (("few", 300), ("many", 3000)):
        await looked_at.push([[NewMessage(queue, "p", b"1") for _ in range(number + 1)]])
        await looked_at.pop([PopRequest(queue=queue, group="g", batch=number)])
        costs.append(await steps_of(looked_at, partial(looked_at.group_stats, queue=queue)))
    assert costs[1] <= 20 * costs[0]


async def test_a_page_of_completed_messages_does_not_look_at_each_dead_letter_before_them(
    looked_at: SqliteEngine,
) -> None:
    async def end_all(status: Status, number: int) -> None:
        await looked_at.push([[NewMessage("orders", status, b"1") for _ in range(number)]])
        got = await pop(looked_at, number)
        items = [Settlement(one.transaction_id, one.partition_id, status, got.lease_id) for one in got.messages]
        await looked_at.settle([items])

    async def look() -> None:
        found = await looked_at.messages(MessageFilter(state="completed", limit=5))
        assert [one.partition for one in found] == ["completed"] * 5

    await end_all("completed", 5)
    await end_all("dlq", 20)
    with_few = await steps_of(looked_at, look)
    await end_all("dlq", 500)
    assert await steps_of(looked_at, look) < with_few + 500 * 100


async def test_ten_thousand_queues_are_seen_page_by_page_each_once(looked_at: SqliteEngine) -> None:
    names = [f"q{number:05}" for number in range(10_000)]
    await looked_at.make_queues([QueueSpec(name=name) for name in names])
    seen: list[str] = []
    for offset in range(0, 10_000, 1000):
        page = await looked_at.queue_stats(QueueFilter(limit=1000, offset=offset))
        assert page.total == 10_000
        seen += [stats.info.name for stats in page.items]
    assert seen == names[::-1]
