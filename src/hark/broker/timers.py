"""Timers: callbacks at times of the clock, so that what waits can be tested without waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from heapq import heappop, heappush
from typing import Generic, NamedTuple, Protocol, TypeVar

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


K = TypeVar("K", bound=Hashable)


class TickQueue(Generic[K]):
    """Keys by the tick at which they are due, the end of the tick that their time falls into.

    Only ticks are in the heap and each of them once, so that moving a key costs a look into two dicts.
    """

    def __init__(self, tick: int) -> None:
        self._tick = tick
        """Its length in microseconds."""
        self._keys: dict[int, dict[K, None]] = {}
        """By tick, in the order in which they were put there."""
        self._ticks: list[int] = []
        """A heap; a tick whose keys were all removed stays until it is the first."""
        self._tick_of: dict[K, int] = {}

    def __len__(self) -> int:
        return len(self._tick_of)

    def put(self, key: K, due: int) -> None:
        """Note a key, or move it to another tick."""
        tick = -(-due // self._tick) * self._tick
        noted = self._tick_of.get(key)
        if noted == tick:
            return
        if noted is not None:
            del self._keys[noted][key]
        keys = self._keys.get(tick)
        if keys is None:
            keys = self._keys[tick] = {}
            heappush(self._ticks, tick)
        keys[key] = None
        self._tick_of[key] = tick

    def remove(self, key: K) -> None:
        """Forget a key, if it is noted."""
        tick = self._tick_of.pop(key, None)
        if tick is not None:
            del self._keys[tick][key]

    def next_due(self) -> int | None:
        """The time of the first tick with a key; None: there is no key."""
        while self._ticks and not self._keys[self._ticks[0]]:
            del self._keys[heappop(self._ticks)]
        return self._ticks[0] if self._ticks else None

    def take(self, now: int) -> list[K]:
        """Give out the keys that are due, and forget them."""
        taken: list[K] = []
        while self._ticks and self._ticks[0] <= now:
            taken += self._keys.pop(heappop(self._ticks))
        for key in taken:
            del self._tick_of[key]
        return taken


_SOON = MILLISECOND
"""A look that found that something was due a moment ago is repeated after this, not in the same turn for ever."""


class _Wakeup(NamedTuple):
    due: int
    timer: Timer


class Wakeups:
    """The next one of each lane. They outlive it: what one lane learned may be for the consumers of another."""

    def __init__(self, timers: Timers, ring: Callable[[str | None], None]) -> None:
        self._timers = timers
        self._ring = ring
        self._wakeups: dict[str | None, _Wakeup] = {}

    def note(self, lane: str | None, due: int) -> None:
        """Ring for a lane at a time, unless it rings before: the look at that time tells when the next has to be."""
        due = max(due, self._timers.now() + _SOON)
        wakeup = self._wakeups.get(lane)
        if wakeup is not None:
            if wakeup.due <= due:
                return
            wakeup.timer.cancel()
        self._wakeups[lane] = _Wakeup(due, self._timers.at(due, lambda: self._rings(lane)))

    def clear(self) -> None:
        """Remove all alarms, because no consumer waits."""
        for wakeup in self._wakeups.values():
            wakeup.timer.cancel()
        self._wakeups.clear()

    def _rings(self, lane: str | None) -> None:
        del self._wakeups[lane]
        self._ring(lane)
