"""Several engines on one bucket that behave as one: each verb is asked of the next of them.

Whatever the rules say of one engine must hold for all of them together, so the conformance suite and the machines run
on this too. No verb may answer by what its engine happens to know.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count, cycle
from typing import Any, cast

import pytest
from hypothesis import Phase, seed, settings
from hypothesis.errors import FlakyStrategyDefinition, HypothesisException
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from hark.engine.api import Engine, KeyListener, Listener, ignore_keys
from hark.model import Hint
from tests.engine.engines import LocalBucket, Open
from tests.s3.stub.faults import Faults


class Many:
    """An engine made of engines."""

    shared = True
    follows = True

    def __init__(self, engines: Sequence[Engine]) -> None:
        self.engines = engines
        self._next = cycle(engines)

    async def start(self, listener: Listener, key_listener: KeyListener = ignore_keys) -> None:
        """Start them all; whatever one of them tells is told."""
        for engine in self.engines:
            await engine.start(listener, key_listener)

    async def close(self) -> None:
        """Close them all."""
        for engine in self.engines:
            await engine.close()

    def hear(self, hints: Sequence[Hint]) -> list[Hint]:
        """Nothing that the log does not say."""
        return [hint for engine in self.engines for hint in engine.hear(hints)]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        verb: Callable[..., Any] = getattr(next(self._next), name)
        assert inspect.iscoroutinefunction(verb), name
        return verb


@contextmanager
def three(_request: pytest.FixtureRequest, rate: float = 0.05, snapshot_records: int = 1000) -> Iterator[Open]:
    """Three engines on a bucket, of whose requests such a share fails."""
    seeds = count(1)

    async def at_once(_seconds: float) -> None:
        await asyncio.sleep(0)

    # Of many starts the self-test would refuse a few: it has tests of its own.
    bucket = LocalBucket(lambda: Faults.by_chance(next(seeds), rate, spare="probe/"), at_once, snapshot_records)
    yield lambda clock: cast("Engine", Many([bucket.open(clock) for _ in range(3)]))


_SEARCHES = 10


def explore(machine: type[RuleBasedStateMachine], how: settings) -> None:
    """Search with a machine on several engines.

    Which of them knows what at a moment depends on threads, and with it which of several messages comes first. So what
    failed does not get smaller by being tried again, and a beginning that was tried before may go on in another way:
    Hypothesis gives up on that, and by itself it means nothing: then other beginnings are tried.
    """
    failures: list[Exception] = []

    class Watched(machine):  # type: ignore[valid-type,misc]  # mypy wants to know which one it is.
        def teardown(self) -> None:
            error = sys.exc_info()[1]
            if isinstance(error, Exception) and not isinstance(error, HypothesisException):
                failures.append(error)
            super().teardown()

    for number in range(_SEARCHES):
        try:
            chosen = seed(number)(Watched) if how.derandomize else Watched
            run_state_machine_as_test(chosen, settings=settings(how, phases=[Phase.generate]))
            return
        except FlakyStrategyDefinition:
            if failures:
                raise failures[0] from None
