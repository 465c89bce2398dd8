"""Clocks: integer microseconds since the epoch, injected everywhere, and how they are written."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import lru_cache
from typing import Protocol

SECOND = 1_000_000
MILLISECOND = 1_000
EARLIEST, LATEST = -62_135_596_800 * SECOND, 253_402_300_800 * SECOND - 1
"""The first time of the year 1 and the last of the year 9999 in UTC: no other times can be written as text."""


class Clock(Protocol):
    """The source of time for the broker and the engines."""

    def now(self) -> int:
        """The current time in microseconds since the epoch; never runs backwards."""


class SystemClock:
    """The wall clock at start, advanced by a clock that never jumps.

    A step of the wall clock (an administrator, NTP after boot) must not expire every lease at once nor
    freeze all of them, so it is read once; CLOCK_BOOTTIME also counts the time the machine slept.
    """

    def __init__(self) -> None:
        self._source = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
        self._offset = time.time_ns() - time.clock_gettime_ns(self._source)

    def now(self) -> int:
        return (time.clock_gettime_ns(self._source) + self._offset) // 1000


class ShiftedClock:
    """A clock that is ahead of another one."""

    def __init__(self, clock: Clock, ahead: int = 0) -> None:
        self._clock = clock
        self.ahead = ahead
        """The difference in microseconds."""

    def now(self) -> int:
        return self._clock.now() + self.ahead


class FakeClock:
    """A clock that moves only when a test advances it."""

    def __init__(self, start: int = 1_700_000_000 * SECOND) -> None:
        self._now = start

    def now(self) -> int:
        return self._now

    def advance(self, seconds: float) -> int:
        """Move the clock forward. Returns the new time."""
        self._now += round(seconds * SECOND)
        return self._now


# Times as text --------------------------------------------------------------------------------------------


def format_time(us: int) -> str:
    """Format a time with microseconds; called for every delivered message."""
    if us < SECOND:
        return f"{_second_text(str(us // SECOND))}.{us % SECOND:06d}Z"
    digits = str(us)
    return f"{_second_text(digits[:-6])}.{digits[-6:]}Z"


def format_time_ms(us: int) -> str:
    """Format a time with milliseconds."""
    return f"{_second_text(str(us // SECOND))}.{us % SECOND // MILLISECOND:03d}Z"


# Messages of one response mostly share a few seconds. Splitting the digits as text is cheaper than a division, a
# remainder and their formatting.
@lru_cache(maxsize=4096)
def _second_text(seconds: str) -> str:
    # A store can contain times that are not accepted: they must not break a list.
    shown = min(max(int(seconds), EARLIEST // SECOND), LATEST // SECOND)
    return datetime.fromtimestamp(shown, UTC).strftime("%Y-%m-%dT%H:%M:%S").rjust(19, "0")
