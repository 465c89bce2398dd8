"""The observer: once a second it takes a sample of what goes on, for those who watch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from hark.broker.observing.history import History
from hark.broker.observing.rates import BusyQueues, Meter
from hark.broker.observing.samples import Depths, Point, QueueDepth, Sample, Standing
from hark.broker.observing.surveyor import Surveyor
from hark.broker.observing.watchers import Watcher, Watchers
from hark.broker.tallies import Tallies
from hark.broker.timers import Timer, Timers
from hark.clock import SECOND
from hark.engine.api import Engine

_MOST_CHANGED = 100
_ATTENTION = 30 * SECOND
"""How long after a request for store statistics they are refreshed as often as for a watching client."""


class Observer:
    """The statistics of this server and its store, sent to watching clients every second."""

    def __init__(
        self,
        engine: Engine,
        tallies: Tallies,
        timers: Timers,
        standing: Callable[[], Standing],
        max_watchers: int,
    ) -> None:
        self._tallies = tallies
        self._timers = timers
        self._standing = standing
        self.watchers = Watchers(max_watchers)
        self._asked_at = 0
        self._surveyor = Surveyor(engine, timers, self._is_watched, self._found)
        self._survey: asyncio.Task[None] | None = None
        self._timer: Timer | None = None
        self._depths: Depths | None = None
        now = timers.now()
        self._started = now
        self._meter = Meter(tallies, now)
        self._busy = BusyQueues()
        self._history = History(tallies, now)
        self.latest: Sample | None = None
        """The sample of the last second; None before the first."""

    def start(self) -> None:
        """Begin."""
        self._survey = asyncio.create_task(self._surveyor.run(), name="survey")
        self._set()

    def stop_watching(self) -> None:
        """End all watches, because the server shuts down."""
        self.watchers.close()

    async def close(self) -> None:
        """Stop."""
        self.stop_watching()
        if self._timer is not None:
            self._timer.cancel()
        if self._survey is not None:
            self._survey.cancel()
            await asyncio.gather(self._survey, return_exceptions=True)

    # What is known -----------------------------------------------------------------------------------------

    @property
    def depths(self) -> Depths | None:
        """What the last survey found; None before the first is complete."""
        return self._depths

    @property
    def queues(self) -> Mapping[str, QueueDepth]:
        """What the last survey found in each queue."""
        return {} if self._depths is None else self._depths.by_queue

    @property
    def backlogs(self) -> dict[str, int]:
        """How many messages wait in each queue, by the last survey; asking for it keeps it fresh for a while."""
        self.attend()
        return {name: depth.backlog for name, depth in self.queues.items()}

    def history(self, seconds: int) -> list[Point]:
        """The points of the last `seconds`, the oldest first."""
        self.attend()
        return self._history.since(self._timers.now() - seconds * SECOND)

    def attend(self) -> None:
        """Refresh the statistics of the store more often for a while, after a request for them."""
        self._asked_at = self._timers.now()
        self._surveyor.attend()

    def watch(self) -> Watcher:
        """A new watcher that gets a sample every second. Raises if there are too many."""
        watcher = self.watchers.open(self.latest)
        self._surveyor.attend()
        return watcher

    # How it becomes known ----------------------------------------------------------------------------------

    def _is_watched(self) -> bool:
        return bool(self.watchers) or self._timers.now() - self._asked_at < _ATTENTION

    def _found(self, depths: Depths) -> None:
        self._depths = depths

    def _set(self) -> None:
        self._timer = self._timers.at(self._timers.now() + SECOND, self._tick)

    def _tick(self) -> None:
        now = self._timers.now()
        touched, self._tallies.touched = self._tallies.touched, set()
        rates, latency = self._meter.read(now)
        self._busy.note(self._tallies, touched)
        self._history.tick(now, self._depths)
        self.latest = Sample(
            point=Point(now, rates, latency, self._depths),
            standing=self._standing(),
            busiest=self._busy.busiest() if self.watchers else (),
            changed=tuple(sorted(touched)[:_MOST_CHANGED]),
            more=len(touched) > _MOST_CHANGED,
        )
        self.watchers.tell(self.latest)
        self._set()
