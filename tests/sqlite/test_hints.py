"""Hints on SQLite when the disk is slow or fails: told in order, and nothing is forgotten with memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import apsw
import pytest

from hark.clock import FakeClock
from hark.engine.sqlite import SqliteEngine
from hark.errors import EngineFailure
from hark.model import Hint, NewMessage, PopRequest, PopResult

from .test_waiting_for_the_disk import SlowDisk, failing, pop_of


@pytest.fixture
def told() -> list[Hint]:
    """What the listener heard."""
    return []


@pytest.fixture
async def engine(tmp_path: Path, told: list[Hint]) -> AsyncIterator[SqliteEngine]:
    engine = SqliteEngine(str(tmp_path / "hark.db"), clock=FakeClock())
    await engine.start(told.extend)
    yield engine
    await engine.close()


async def pop(engine: SqliteEngine) -> PopResult:
    """A pop of the queue."""
    return pop_of(await engine.pop([PopRequest(queue="orders")]))


async def test_a_pop_that_found_nothing_during_a_commit_is_answered_before_its_hint(
    engine: SqliteEngine, told: list[Hint], monkeypatch: pytest.MonkeyPatch
) -> None:
    await pop(engine)
    disk = SlowDisk(engine, monkeypatch)
    push = asyncio.ensure_future(engine.push([[NewMessage("orders", "p", b"1")]]))
    await disk.wait_until_busy()
    told.clear()
    assert not (await pop(engine)).messages
    assert told == [], "nobody is told of what can't be popped yet"
    disk.go_on.set()
    await push
    assert [hint.partitions for hint in told] == [("p",), ("p",)]
    assert len((await pop(engine)).messages) == 1


async def test_when_memory_is_lost_everybody_is_told_and_all_leases_are_over(
    engine: SqliteEngine, told: list[Hint], monkeypatch: pytest.MonkeyPatch
) -> None:
    await engine.push([[NewMessage("orders", "p", b"1")]])
    held = await pop(engine)
    told.clear()
    monkeypatch.setattr(engine._store, "commit", failing(apsw.IOError, 1))
    with pytest.raises(EngineFailure):
        await engine.push([[NewMessage("bills", "p", b"2")]])
    monkeypatch.undo()
    assert Hint("orders") in told, "what was leased is ready again, and more may be"
    assert {lease for hint in told for lease in hint.ended} == {held.lease_id}
    assert len((await pop(engine)).messages) == 1
