"""Ready means: the store answered lately, or does when asked."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from hark.broker.measured import EngineCalls, measured
from hark.broker.readiness import LATELY_SECONDS, Readiness
from hark.broker.tallies import Tallies
from hark.clock import FakeClock
from hark.engine.api import Engine
from hark.errors import EngineFailure, HarkError, InvalidInput


class _Store:
    """An engine that answers, or does not."""

    shared = follows = False

    def __init__(self) -> None:
        self.error: HarkError | None = None
        self.pings = 0
        self.hold = asyncio.Event()
        self.hold.set()

    async def ping(self) -> None:
        """Count, wait if told to, and fail if there is a reason."""
        self.pings += 1
        await self.hold.wait()
        if self.error is not None:
            raise self.error

    async def settle(self, requests: list[object]) -> list[object]:
        """Answer nothing, or fail."""
        if self.error is not None:
            raise self.error
        return [[] for _ in requests]


class _World:
    """A store, its measured engine, and the time."""

    def __init__(self) -> None:
        self.now = 100.0
        self.store = _Store()
        calls = EngineCalls(lambda: self.now)
        self.engine = measured(cast(Engine, self.store), calls, Tallies(FakeClock()))
        self.readiness = Readiness(self.engine, calls)


@pytest.fixture
async def world() -> _World:
    """A world in which nothing happened yet."""
    return _World()


async def test_a_store_that_was_never_asked_is_asked(world: _World) -> None:
    assert await world.readiness.problem() is None
    assert world.store.pings == 1


async def test_an_answer_counts_for_a_while_and_then_the_store_is_asked_again(world: _World) -> None:
    await world.engine.settle([])
    world.now += LATELY_SECONDS
    assert await world.readiness.problem() is None
    assert world.store.pings == 0
    world.now += 0.1
    assert await world.readiness.problem() is None
    assert world.store.pings == 1
    assert await world.readiness.problem() is None
    assert world.store.pings == 1, "the answer to that counts too"


async def test_a_failure_makes_the_last_answer_worthless(world: _World) -> None:
    await world.engine.settle([])
    world.store.error = EngineFailure("the disk is gone")
    with pytest.raises(EngineFailure):
        await world.engine.settle([])
    assert await world.readiness.problem() == "the disk is gone"
    world.store.error = None
    assert await world.readiness.problem() is None


async def test_a_refusal_is_an_answer(world: _World) -> None:
    await world.engine.settle([])
    world.store.error = InvalidInput("no")
    with pytest.raises(InvalidInput):
        await world.engine.settle([])
    assert await world.readiness.problem() is None
    assert world.store.pings == 0


async def test_many_who_ask_share_one_question(world: _World) -> None:
    world.store.hold.clear()
    asking = [asyncio.ensure_future(world.readiness.reach())]
    asking += [asyncio.ensure_future(world.readiness.problem()) for _ in range(3)]
    asking += [asyncio.ensure_future(world.readiness.reach())]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    asking.pop().cancel()
    world.store.hold.set()
    assert await asyncio.gather(*asking) == [None] * 4
    assert world.store.pings == 1


async def test_a_server_that_stops_is_not_ready(world: _World) -> None:
    await world.engine.settle([])
    world.readiness.stopping = True
    assert await world.readiness.problem() == "the server is stopping"
