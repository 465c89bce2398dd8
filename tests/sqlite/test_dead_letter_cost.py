"""Dead letters are found by index: what a requeue costs does not depend on how many others there are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hark.clock import FakeClock
from hark.engine.sqlite import SqliteEngine
from hark.engine.sqlite.deadletters import conditions
from hark.ids import IdCodec
from hark.model import DeadLetterFilter

CODEC = IdCodec(7)
MESSAGE = CODEC.encode(3, 5)


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[SqliteEngine]:
    engine = SqliteEngine(str(tmp_path / "hark.db"), clock=FakeClock())
    await engine.start(lambda _: None)
    yield engine
    await engine.close()


@pytest.mark.parametrize(
    "where",
    [
        DeadLetterFilter(ids=["a-letter"]),
        DeadLetterFilter(ids=[MESSAGE, "a-letter"]),
        DeadLetterFilter(queue="orders"),
        DeadLetterFilter(queue="orders", since=1, until=2),
    ],
    ids=["id", "ids of both kinds", "queue", "queue and time"],
)
async def test_no_search_that_names_something_reads_all_dead_letters(
    engine: SqliteEngine, where: DeadLetterFilter
) -> None:
    matching, values = conditions(where, CODEC)
    sql = f"explain query plan select * from dead_letters where {matching} order by failed_at desc, id desc"
    plan = [str(row[3]) for row in engine._store.reader.execute(sql, tuple(values))]
    assert not [line for line in plan if line.startswith(("SCAN dead_letters", "SCAN letter"))], plan
    assert [line for line in plan if line.startswith("SEARCH")], plan
