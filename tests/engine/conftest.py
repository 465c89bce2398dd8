"""Fixtures of the conformance suite: a clock that stands still and a fresh engine of each kind."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from hark.clock import FakeClock
from hark.engine.api import Engine
from hark.model import GroupMode

from .driver import Driver
from .engines import ENGINES, EngineKind
from .workers import Workers


@pytest.fixture
def clock() -> FakeClock:
    """The engine's clock; it moves when a test says so."""
    return FakeClock()


@pytest.fixture(params=ENGINES, ids=lambda kind: kind.name)
async def q(request: pytest.FixtureRequest, clock: FakeClock) -> AsyncIterator[Driver]:
    """An empty, started engine of each kind behind a driver."""
    kind: EngineKind = request.param
    with kind.store(request) as open_engine:
        driver = Driver(open_engine, clock)
        await driver.start()
        yield driver
        await driver.engine.close()


@pytest.fixture
def engine(q: Driver) -> Engine:
    """The same engine, without the driver's words."""
    return q.engine


@pytest.fixture
def workers(q: Driver) -> Workers:
    """A shared group of the queue "orders" on that engine."""
    return Workers(q)


@pytest.fixture(params=["ordered", "shared"])
def mode(request: pytest.FixtureRequest) -> GroupMode:
    """Both kinds of groups, one after the other."""
    kind: GroupMode = request.param
    return kind


@pytest.fixture
def either(q: Driver, mode: GroupMode) -> Workers:
    """A group of each kind of the queue "orders" on that engine, for rules that hold for both."""
    return Workers(q, mode=mode)
