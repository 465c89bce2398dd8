"""Stores for the tests of observers: one whose looks take time, and numbers as they would be tallied."""

from __future__ import annotations

from typing import cast

from hark.broker.tallies import Tallies
from hark.clock import FakeClock
from hark.engine.api import Engine
from hark.errors import EngineFailure
from hark.model import Census, Depth, Survey


class SlowStore:
    """A store of so many steps, each of which takes so many seconds."""

    def __init__(self, clock: FakeClock, steps: int = 1, step_seconds: float = 0.0) -> None:
        self._clock = clock
        self._steps = steps
        self._step_seconds = step_seconds
        self.depths: list[Depth] = []
        self.looked: list[int] = []
        """When each step began."""
        self.busy = 0.0
        self.fails = False

    async def census(self) -> Census:
        """Takes no time."""
        if self.fails:
            raise EngineFailure("away")
        return Census(len({depth.queue for depth in self.depths}), {}, {})

    async def survey(self, after: tuple[int, str], limit: int) -> Survey:  # noqa: ARG002  # as the engines have it
        """The next step."""
        self.looked.append(self._clock.now())
        self._clock.advance(self._step_seconds)
        self.busy += self._step_seconds
        number = after[0] + 1
        return Survey(self.depths if number == 1 else [], None if number >= self._steps else (number, ""))

    def engine(self) -> Engine:
        """It, as far as an observer uses one."""
        return cast(Engine, self)


def tally(tallies: Tallies, queue: str, *, pushed: int = 0, delivered: int = 0, completed: int = 0) -> None:
    """Something happens to a queue."""
    for one in (tallies.of(queue), tallies.total):
        one.pushed += pushed
        one.delivered += delivered
        one.completed += completed
