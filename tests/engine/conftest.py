"""Fixtures of the conformance suite: a clock that stands still and a fresh engine of each kind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hark.clock import FakeClock
from hark.engine.api import Engine

from .driver import Driver
from .engines import DURABLE_ENGINES, ENGINES, EngineKind


@pytest.fixture
def clock() -> FakeClock:
    """The engine's clock; it moves when a test says so."""
    return FakeClock()


@pytest.fixture(params=ENGINES, ids=lambda kind: kind.name)
async def q(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> AsyncIterator[Driver]:
    """An empty, started engine of each kind behind a driver."""
    async for driver in _opened(request.param, tmp_path, clock):
        yield driver


@pytest.fixture
def engine(q: Driver) -> Engine:
    """The same engine, without the driver's words."""
    return q.engine


@pytest.fixture(params=DURABLE_ENGINES, ids=lambda kind: kind.name)
async def durable(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> AsyncIterator[Driver]:
    """An empty, started engine of each kind whose store can be opened again."""
    async for driver in _opened(request.param, tmp_path, clock):
        yield driver


async def _opened(kind: EngineKind, place: Path, clock: FakeClock) -> AsyncIterator[Driver]:
    driver = Driver(kind, place, clock)
    await driver.start()
    yield driver
    await driver.engine.close()
