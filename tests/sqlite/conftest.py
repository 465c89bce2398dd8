"""Fixtures of the tests for SQLite: an engine on a file, and disks that are slow or fail."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hark.clock import FakeClock
from hark.engine.sqlite import SqliteEngine
from hark.model import Hint


@pytest.fixture
def clock() -> FakeClock:
    """The clock of the engine; it moves when a test says so."""
    return FakeClock()


@pytest.fixture
def hints() -> list[Hint]:
    """What the listener of the engine was told."""
    return []


@pytest.fixture
async def engine(tmp_path: Path, clock: FakeClock, hints: list[Hint]) -> AsyncIterator[SqliteEngine]:
    """A started engine on an empty file."""
    engine = SqliteEngine(str(tmp_path / "hark.db"), clock=clock)
    await engine.start(hints.extend)
    yield engine
    await engine.close()
