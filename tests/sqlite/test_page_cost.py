"""What a page costs depends on what is on it, not on how many queues, partitions and messages there are.

Cost is counted in steps of SQLite's machine, which do not depend on the time of day.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest

from hark.clock import FakeClock
from hark.engine.sqlite import SqliteEngine
from hark.model import MessageFilter, NewMessage, PopRequest, QueueFilter, QueueSpec

FACTOR = 1.5


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[SqliteEngine]:
    engine = SqliteEngine(str(tmp_path / "hark.db"), clock=FakeClock())
    await engine.start(lambda _: None)
    engine._pool.shutdown()
    engine._pool = ThreadPoolExecutor(1)  # One reader, whose steps are counted.
    yield engine
    await engine.close()


async def steps_of(engine: SqliteEngine, look: Callable[[], Awaitable[object]]) -> int:
    """How many steps the readers take for a look."""
    number = 0

    def note(event: dict[str, Any]) -> None:
        nonlocal number
        number += event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]

    await look()
    [connection] = engine._reader_connections
    connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, note)
    await look()
    connection.trace_v2(0, None)
    assert number
    return number


async def push_to(engine: SqliteEngine, queues: range, partitions: int = 2) -> None:
    """Two messages for each partition, of which a group has taken one."""
    names = [f"q{queue:05}" for queue in queues]
    for _ in range(2):
        await engine.push([[NewMessage(name, f"p{place:05}", b"1") for place in range(partitions)] for name in names])
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


async def test_pages_cost_the_same_beside_many_other_queues(engine: SqliteEngine) -> None:
    await push_to(engine, range(20))
    with_few = {name: await steps_of(engine, partial(look, engine)) for name, look in LOOKS.items()}
    await push_to(engine, range(20, 320))
    for name, look in LOOKS.items():
        steps = await steps_of(engine, partial(look, engine))
        # How many there are in all is counted along an index: a few steps for each.
        assert steps <= FACTOR * with_few[name] + 8 * 300, (name, with_few[name], steps)


async def test_a_page_of_partitions_or_places_costs_the_same_beside_many_others(engine: SqliteEngine) -> None:
    looks: dict[str, Callable[[], Awaitable[object]]] = {
        "partitions": lambda: engine.partition_stats("q00000", limit=10),
        "messages": lambda: engine.messages(MessageFilter(queue="q00000", limit=10)),
        "a step of a survey": lambda: engine.survey((0, ""), 20),
    }
    await push_to(engine, range(1), 1100)
    with_few = {name: await steps_of(engine, look) for name, look in looks.items()}
    await push_to(engine, range(1), 3300)
    for name, look in looks.items():
        assert await steps_of(engine, look) <= FACTOR * with_few[name], name


async def test_ten_thousand_queues_are_seen_page_by_page_each_once(engine: SqliteEngine) -> None:
    names = [f"q{number:05}" for number in range(10_000)]
    await engine.make_queues([QueueSpec(name=name) for name in names])
    seen: list[str] = []
    for offset in range(0, 10_000, 1000):
        page = await engine.queue_stats(QueueFilter(limit=1000, offset=offset))
        assert page.total == 10_000
        seen += [stats.info.name for stats in page.items]
    assert seen == names[::-1]
