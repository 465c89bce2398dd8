"""Lists of queues by backlog, and without those that the asker may not see."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from hark.broker.observing.listing import list_queues
from hark.clock import FakeClock
from hark.engine.sqlite import SqliteEngine
from hark.model import QueueFilter, QueuePage, QueueSpec


@pytest.fixture
async def engine() -> AsyncIterator[SqliteEngine]:
    clock = FakeClock()
    engine = SqliteEngine(":memory:", clock=clock)
    await engine.start(lambda _: None)
    for name in ("b", "a", "secret", "c"):
        await engine.configure([QueueSpec(name=name, namespace="n" if name != "c" else "")])
        clock.advance(1)
    yield engine
    await engine.close()


def named(page: QueuePage) -> tuple[list[str], int]:
    """The names on a page, and the total."""
    return [stats.info.name for stats in page.items], page.total


def public(queue: str) -> bool:
    """Whether somebody may see a queue."""
    return queue != "secret"


async def test_the_longest_backlogs_come_first_and_the_others_by_name(engine: SqliteEngine) -> None:
    backlogs = {"c": 5, "a": 9, "gone": 100}
    assert named(await list_queues(engine, QueueFilter(), backlogs=backlogs)) == (["a", "c", "b", "secret"], 4)
    page = QueueFilter(limit=2, offset=1)
    assert named(await list_queues(engine, page, backlogs=backlogs)) == (["c", "b"], 4)


@pytest.mark.parametrize(
    ("where", "names", "total"),
    [
        (QueueFilter(), ["c", "a", "b"], 3),
        (QueueFilter(sort="name"), ["a", "b", "c"], 3),
        (QueueFilter(sort="name", limit=1, offset=1), ["b"], 3),
        (QueueFilter(namespace="n"), ["a", "b"], 2),
        (QueueFilter(task="t"), [], 0),
        (QueueFilter(search="e"), [], 0),
        (QueueFilter(names=["secret", "a"]), ["a"], 1),
    ],
    ids=["newest", "name", "page", "namespace", "task", "search", "names"],
)
async def test_what_may_not_be_seen_is_not_listed_and_not_counted(
    engine: SqliteEngine, where: QueueFilter, names: list[str], total: int
) -> None:
    assert named(await list_queues(engine, where, visible=public)) == (names, total)
