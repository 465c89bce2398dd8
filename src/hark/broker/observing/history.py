"""The last hour, with a point every ten seconds. It is kept in memory and is empty after a restart."""

from __future__ import annotations

from collections import deque

from hark.broker.observing.rates import Meter
from hark.broker.observing.samples import Depths, Point
from hark.broker.tallies import Tallies
from hark.clock import SECOND

INTERVAL_SECONDS = 10
HISTORY_SECONDS = 3600


class History:
    """The points, the oldest first."""

    def __init__(self, tallies: Tallies, now: int) -> None:
        self._meter = Meter(tallies, now)
        self._due = now + INTERVAL_SECONDS * SECOND
        self._points: deque[Point] = deque(maxlen=HISTORY_SECONDS // INTERVAL_SECONDS)

    def tick(self, now: int, depths: Depths | None) -> None:
        """Add a point if it is time for one."""
        if now < self._due:
            return
        rates, latency = self._meter.read(now)
        self._points.append(Point(now, rates, latency, depths))
        # From here, not from when it was due: a machine that slept does not make up for it.
        self._due = now + INTERVAL_SECONDS * SECOND

    def since(self, time: int) -> list[Point]:
        """The points after a time."""
        return [point for point in self._points if point.at > time]
