"""The background task that surveys the store repeatedly, but never for more than a small part of the time.

It works in steps, so that other calls do not wait long, and pauses after each step: twenty times its duration while a
client watches, otherwise a hundred times. So it can survey a store of any size; a large one takes longer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from hark.broker.observing.folding import Fold
from hark.broker.observing.samples import Depths
from hark.broker.timers import Timers
from hark.clock import SECOND
from hark.engine.api import Engine
from hark.errors import HarkError

log = logging.getLogger(__name__)

STEP = 1000
"""Partitions that are looked at in one step."""
_REST, _INTERVAL = 20, 2 * SECOND
_REST_UNWATCHED, _INTERVAL_UNWATCHED = 100, 10 * SECOND
_LONGEST_REST = 60 * SECOND


class Surveyor:
    """Surveys a store for as long as it runs."""

    def __init__(
        self,
        engine: Engine,
        timers: Timers,
        is_watched: Callable[[], bool],
        found: Callable[[Depths], None],
        step: int = STEP,
    ) -> None:
        self._engine = engine
        self._timers = timers
        self._is_watched = is_watched
        self._found = found
        self._step = step
        self._alarm: asyncio.Future[None] | None = None

    async def run(self) -> None:
        """Survey for ever."""
        while True:
            started = self._timers.now()
            try:
                await self._survey()
            except HarkError as error:
                log.debug("cannot survey the store; retrying: %s", error)
            await self._rest(0, self._timers.now(), started)

    def attend(self) -> None:
        """A client began to watch: a postponed survey may be due."""
        _end(self._alarm)

    async def _survey(self) -> None:
        began = self._timers.now()
        fold = Fold(await self._engine.census())
        await self._rest(self._timers.now() - began, self._timers.now())
        place: tuple[int, str] | None = (0, "")
        while place is not None:
            began = self._timers.now()
            step = await self._engine.survey(place, self._step)
            fold.add(step.depths)
            place = step.next
            now = self._timers.now()
            if place is None:
                self._found(fold.finish(now))
            await self._rest(now - began, now)

    async def _rest(self, took: int, ended: int, started: int | None = None) -> None:
        """Wait after something that took so long; after a survey that `started` then, until the next one is due."""
        while True:
            watched = self._is_watched()
            due = ended + min(took * (_REST if watched else _REST_UNWATCHED), _LONGEST_REST)
            if started is not None:
                due = max(due, started + (_INTERVAL if watched else _INTERVAL_UNWATCHED))
            if due <= self._timers.now():
                return
            alarm = self._alarm = asyncio.get_running_loop().create_future()
            timer = self._timers.at(due, lambda alarm=alarm: _end(alarm))  # type: ignore[misc]  # mypy can't infer it
            try:
                await alarm
            finally:
                self._alarm = None
                timer.cancel()


def _end(alarm: asyncio.Future[None] | None) -> None:
    if alarm is not None and not alarm.done():
        alarm.set_result(None)
