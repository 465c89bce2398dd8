"""Alarms of a lane: the next due time of a delay, a retry or a lease, when a look is needed without a hint."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hark.broker.timers import Timer, Timers
from hark.clock import MILLISECOND

_SOON = MILLISECOND
"""A look that found that something was due a moment ago is repeated after this, not in the same turn for ever."""


class _Alarm(NamedTuple):
    due: int
    timer: Timer


class Alarms:
    """The next one of each lane. They outlive it: what one lane learned may be for the consumers of another."""

    def __init__(self, timers: Timers, ring: Callable[[str | None], None]) -> None:
        self._timers = timers
        self._ring = ring
        self._alarms: dict[str | None, _Alarm] = {}

    def note(self, lane: str | None, due: int) -> None:
        """Ring for a lane at a time, unless it rings before: the look at that time tells when the next has to be."""
        due = max(due, self._timers.now() + _SOON)
        alarm = self._alarms.get(lane)
        if alarm is not None:
            if alarm.due <= due:
                return
            alarm.timer.cancel()
        self._alarms[lane] = _Alarm(due, self._timers.at(due, lambda: self._rings(lane)))

    def clear(self) -> None:
        """Remove all alarms, because no consumer waits."""
        for alarm in self._alarms.values():
            alarm.timer.cancel()
        self._alarms.clear()

    def _rings(self, lane: str | None) -> None:
        del self._alarms[lane]
        self._ring(lane)
