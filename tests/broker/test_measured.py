"""Every call of an engine is counted and timed."""

from __future__ import annotations

import inspect
from typing import cast

import pytest

from hark.broker.measured import VERBS, EngineCalls, measured
from hark.broker.tallies import Tallies
from hark.clock import FakeClock, SystemClock
from hark.engine.api import Engine
from hark.engine.sqlite import SqliteEngine
from hark.errors import EngineFailure
from hark.model import NewMessage


class Broken:
    """An engine that is away."""

    def __init__(self, clock: list[float]) -> None:
        self._clock = clock
        self.code = "engine_failure"

    async def ping(self) -> None:
        """Fail after a while."""
        self._clock[0] += 0.02
        raise EngineFailure("away", code=self.code)

    async def push(self, _requests: object) -> None:
        """Fail as no engine should."""
        raise ValueError


def broken() -> tuple[Broken, Engine, EngineCalls]:
    """An engine that is away, with its measured face and the numbers."""
    now = [0.0]
    engine = Broken(now)
    calls = EngineCalls(timer=lambda: now[0])
    return engine, measured(cast(Engine, engine), calls, Tallies(FakeClock())), calls


def test_all_verbs_of_the_protocol_are_wrapped() -> None:
    engine = SqliteEngine(":memory:", clock=SystemClock())
    face = measured(engine, EngineCalls(), Tallies(FakeClock()))
    asynchronous = inspect.getmembers(Engine, inspect.iscoroutinefunction)
    assert set(VERBS) == {name for name, _ in asynchronous} >= {"push", "ping", "write_keys"}
    assert set(VERBS) <= set(vars(face)), "not merely passed on"


async def test_failures_are_counted_by_verb_and_code_and_raised_as_they_are() -> None:
    _, face, calls = broken()
    for _ in range(2):
        with pytest.raises(EngineFailure, match="away"):
            await face.ping()
    with pytest.raises(ValueError):
        await face.push([])
    assert calls.errors == {("ping", "engine_failure"): 2, ("push", "internal"): 1}
    assert calls.seconds["ping"].count == 2
    assert calls.seconds["ping"].sum == pytest.approx(0.04)
    assert dict(calls.seconds["ping"].cumulative())["0.01"] == 0
    assert dict(calls.seconds["ping"].cumulative())["0.05"] == 2


async def test_codes_without_end_are_summed_up() -> None:
    engine, face, calls = broken()
    for number in range(1000):
        engine.code = f"code-{number}"
        with pytest.raises(EngineFailure):
            await face.ping()
    assert len(calls.errors) == 61
    assert sum(calls.errors.values()) == 1000


async def test_what_is_no_verb_is_the_engines_own() -> None:
    engine = SqliteEngine(":memory:", clock=SystemClock())
    tallies = Tallies(FakeClock())
    face = measured(engine, EngineCalls(), tallies)
    assert (face.shared, face.follows, face.hear([])) == (engine.shared, engine.follows, [])
    await face.start(lambda _hints: None)
    await face.push([[NewMessage("a"), NewMessage("a")]])
    await face.close()
    assert tallies.queues["a"].pushed == 2
