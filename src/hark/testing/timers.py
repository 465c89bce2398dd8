"""Timers that fire when the test moves their clock."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

from hark.clock import SECOND, FakeClock


class FakeTimer:
    """One scheduled call."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Cancel the call."""
        self.callback = None


class FakeTimers:
    """Timers whose clock stands still until the test moves it."""

    def __init__(self, clock: FakeClock | None = None) -> None:
        self.clock = clock or FakeClock()
        self.set = 0
        """Number of timers that were ever set."""
        self._heap: list[tuple[int, int, FakeTimer]] = []

    @property
    def armed(self) -> int:
        """Number of timers that were neither cancelled nor called."""
        return sum(timer.callback is not None for _, _, timer in self._heap)

    def next_due(self) -> int | None:
        """The time of the first timer that was neither cancelled nor called."""
        while self._heap and self._heap[0][2].callback is None:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def now(self) -> int:
        """The time of the clock."""
        return self.clock.now()

    def at(self, due: int, callback: Callable[[], None]) -> FakeTimer:
        """Call a function when the clock reaches `due`."""
        timer = FakeTimer(callback)
        self.set += 1
        heappush(self._heap, (due, self.set, timer))
        return timer

    def advance(self, seconds: float) -> None:
        """Move the clock, and call due timers in order, each at its own time."""
        end = self.now() + round(seconds * SECOND)
        while self._heap and self._heap[0][0] <= end:
            due, _, timer = heappop(self._heap)
            if timer.callback is not None:
                self._move_to(due)
                callback, timer.callback = timer.callback, None
                callback()
        self._move_to(end)

    def _move_to(self, time: int) -> None:
        self.clock.advance(max(0, time - self.now()) / SECOND)
