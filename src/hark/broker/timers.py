"""Something to be done at a time of the clock, so that what waits can be tested without waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from hark.clock import MILLISECOND, Clock


class Timer(Protocol):
    """A call that is still to come."""

    def cancel(self) -> None:
        """See to it that it does not come; no effect if it came."""


class Timers(Clock, Protocol):
    """The clock, and calls at its times."""

    def at(self, due: int, callback: Callable[[], None]) -> Timer:
        """Call back once, as soon as the clock shows `due` and never before; not within this call."""


class LoopTimers:
    """Timers of the running event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def now(self) -> int:
        """The time of the clock."""
        return self._clock.now()

    def at(self, due: int, callback: Callable[[], None]) -> Timer:
        """Call back once, as soon as the clock shows `due`."""
        return _LoopTimer(self._clock, due, callback)


class _LoopTimer:
    """One call. The loop has another clock than Hark, so when it rings early it is set again."""

    __slots__ = ("_callback", "_clock", "_due", "_handle")

    def __init__(self, clock: Clock, due: int, callback: Callable[[], None]) -> None:
        self._clock = clock
        self._due = due
        self._callback = callback
        self._set()

    def cancel(self) -> None:
        """Do not call."""
        self._handle.cancel()

    def _set(self) -> None:
        # Up to a whole millisecond: uvloop knows no less, and rounded down it would ring early again and again.
        wait_ms = -(-(self._due - self._clock.now()) // MILLISECOND)
        self._handle = asyncio.get_running_loop().call_later(max(0, wait_ms) / 1000, self._ring)

    def _ring(self) -> None:
        if self._clock.now() < self._due:
            self._set()
        else:
            self._callback()
