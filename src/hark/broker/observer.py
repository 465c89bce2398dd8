"""The observer: samples of the server once a second, and the history of the last hour."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import msgspec

from hark.api.types.server import BusyQueue, Stopped, Waiting
from hark.broker.delivery.streams import admit_stream
from hark.broker.survey import Counting, Depths, Surveyor
from hark.broker.tallies import Tallies, Tally
from hark.broker.timers import Timer, Timers
from hark.clock import MILLISECOND, SECOND
from hark.engine.api import Engine


class Rates(msgspec.Struct, frozen=True):
    """Messages per second of this server process."""

    pushed: float = 0.0
    delivered: float = 0.0
    settled: float = 0.0
    failed: float = 0.0
    dead_lettered: float = 0.0


class Latency(msgspec.Struct, frozen=True):
    """The age of messages at their first delivery, in milliseconds."""

    p50: float
    p99: float


class Point(msgspec.Struct, frozen=True):
    """The rates of the time before a moment, and the last survey."""

    at: int
    rates: Rates
    latency: Latency | None
    """None without deliveries."""
    depths: Depths | None
    """None before the first survey."""

    @property
    def oldest_waiting_seconds(self) -> float | None:
        """The age of the oldest waiting message; None if there is none, or before the first survey."""
        if self.depths is None or self.depths.oldest_waiting is None:
            return None
        return max(0.0, (self.at - self.depths.oldest_waiting) / 1_000_000)


class Sample(msgspec.Struct, frozen=True):
    """A point of one second, with details for watching clients."""

    point: Point
    waiting: Waiting
    maintenance: Stopped
    busiest: tuple[BusyQueue, ...]
    """The rates of the last ten seconds, the busiest queue first."""
    changed: tuple[str, ...]
    """Queues with events in this second."""
    more: bool
    """Whether `changed` is incomplete."""


_BUSIEST = 20
_BUSY_EACH_SECOND = 100
"""Maximum number of queues of one second that are candidates."""
_WINDOW = 10
"""Number of seconds by which the busiest queues are chosen, so that the list is stable."""
_MOST_REMEMBERED = 20_000


class Meter:
    """Messages per second since the last call of `read`."""

    def __init__(self, tallies: Tallies, now: int) -> None:
        self._tallies = tallies
        self._at = now
        self._before = _counts(tallies.total)
        self._ages = list(tallies.ages)

    def read(self, now: int) -> tuple[Rates, Latency | None]:
        """The rates and latencies since the last call."""
        seconds = max(1, now - self._at) / SECOND
        counts, ages = _counts(self._tallies.total), list(self._tallies.ages)
        rates = Rates(*((after - before) / seconds for after, before in zip(counts, self._before, strict=True)))
        latency = percentiles([after - before for after, before in zip(ages, self._ages, strict=True)])
        self._at, self._before, self._ages = now, counts, ages
        return rates, latency


def _counts(tally: Tally) -> tuple[int, int, int, int, int]:
    return tally.pushed, tally.delivered, tally.settled, tally.failed, tally.dead_lettered


def percentiles(ages: Sequence[int]) -> Latency | None:
    """The percentiles of a histogram whose bucket i ends at 2**i microseconds; None if it is empty."""
    total = sum(ages)
    if not total:
        return None
    return Latency(_quantile(ages, total * 0.5), _quantile(ages, total * 0.99))


def _quantile(ages: Sequence[int], rank: float) -> float:
    """A percentile in milliseconds, with an even distribution assumed within each bucket."""
    below = 0
    for bits, number in enumerate(ages):
        if below + number >= rank:
            low, high = (1 << bits) >> 1, 1 << bits
            return (low + (high - low) * (rank - below) / number) / MILLISECOND
        below += number
    raise AssertionError("a rank is not above the number of values")


class BusyQueues:
    """The queues with the most messages in the last seconds."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[int, int, int]] = {}
        self._window: deque[dict[str, tuple[int, int, int]]] = deque(maxlen=_WINDOW)

    def note(self, tallies: Tallies, changed: Iterable[str]) -> None:
        """Add a second in which these queues had events."""
        done: dict[str, tuple[int, int, int]] = {}
        for name in changed:
            tally = tallies.queues.get(name)
            if tally is None:  # It was replaced by a busier queue.
                self._before.pop(name, None)
                continue
            now = (tally.pushed, tally.delivered, tally.settled)
            before = self._before.get(name, (0, 0, 0))
            if any(after < earlier for after, earlier in zip(now, before, strict=True)):
                before = (0, 0, 0)  # It was replaced meanwhile, and counts from 0 again.
            self._before[name] = now
            done[name] = (now[0] - before[0], now[1] - before[1], now[2] - before[2])
        if len(self._before) > _MOST_REMEMBERED:
            self._before = {name: counts for name, counts in self._before.items() if name in tallies.queues}
        if len(done) > _BUSY_EACH_SECOND:
            done = dict(heapq.nlargest(_BUSY_EACH_SECOND, done.items(), key=lambda item: sum(item[1])))
        self._window.append(done)

    def busiest(self) -> tuple[BusyQueue, ...]:
        """Messages per second over the last seconds."""
        sums: dict[str, tuple[int, int, int]] = {}
        for done in self._window:
            for name, counts in done.items():
                known = sums.get(name, (0, 0, 0))
                sums[name] = (known[0] + counts[0], known[1] + counts[1], known[2] + counts[2])
        active = [(name, counts) for name, counts in sums.items() if any(counts)]
        seconds = len(self._window)
        return tuple(
            BusyQueue(name, *(round(number / seconds, 2) for number in counts))
            for name, counts in heapq.nsmallest(_BUSIEST, active, key=lambda item: (-sum(item[1]), item[0]))
        )


class Watcher:
    """A client that receives each sample. A slow client misses samples, and receives the latest."""

    def __init__(self, observer: Observer, first: Sample | None) -> None:
        self._observer = observer
        self._next = first
        self._came = asyncio.Event()
        self._closed = False
        if first is not None:
            self._came.set()

    async def next(self) -> Sample | None:
        """Wait for the next sample; None after the end of the watch."""
        await self._came.wait()
        sample, self._next = self._next, None
        if not self._closed:
            self._came.clear()
        return None if self._closed else sample

    def notify(self, sample: Sample) -> None:
        """Pass the client a new sample."""
        if self._next is not None:  # The changes that a missed sample names are not named in this one.
            sample = msgspec.structs.replace(sample, more=True)
        self._next = sample
        self._came.set()

    def close(self) -> None:
        """End the watch."""
        self._closed = True
        self._came.set()
        self._observer.watchers.discard(self)


INTERVAL_SECONDS = 10
"""Time between two points of the history."""
HISTORY_SECONDS = 3600
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
        standing: Callable[[], tuple[Waiting, Stopped]],
        max_watchers: int,
    ) -> None:
        self._tallies = tallies
        self._timers = timers
        self._standing = standing
        self._max_watchers = max_watchers
        self.watchers: set[Watcher] = set()
        self._closed = False
        self._last_requested = 0
        self._surveyor = Surveyor(engine, timers, self._is_watched, self._found)
        self._survey: asyncio.Task[None] | None = None
        self._timer: Timer | None = None
        self.depths: Depths | None = None
        """The result of the last survey; None before the end of the first."""
        self.counts = Counting(engine, lambda: self.depths, self.attend)
        """Lists of queues and groups with their counts."""
        now = timers.now()
        self._meter = Meter(tallies, now)
        self._busy = BusyQueues()
        self._history: deque[Point] = deque(maxlen=HISTORY_SECONDS // INTERVAL_SECONDS)
        self._history_meter = Meter(tallies, now)
        self._history_due = now + INTERVAL_SECONDS * SECOND
        self.latest: Sample | None = None
        """The sample of the last second; None before the first."""

    def start(self) -> None:
        """Start the samples and surveys."""
        self._survey = asyncio.create_task(self._surveyor.run(), name="survey")
        self._set()

    def stop_watching(self) -> None:
        """End all watches, because the server shuts down."""
        self._closed = True
        for watcher in list(self.watchers):
            watcher.close()

    async def close(self) -> None:
        """Stop the samples and surveys."""
        self.stop_watching()
        if self._timer is not None:
            self._timer.cancel()
        if self._survey is not None:
            self._survey.cancel()
            await asyncio.gather(self._survey, return_exceptions=True)

    @property
    def backlogs(self) -> dict[str, int]:
        """The backlog of each queue in the last survey. A request for it keeps it fresh for a while."""
        self.attend()
        return {} if self.depths is None else {name: one.backlog for name, one in self.depths.by_queue.items()}

    def history(self, seconds: int) -> list[Point]:
        """The points of the last `seconds`, the oldest first."""
        self.attend()
        start = self._timers.now() - seconds * SECOND
        return [point for point in self._history if point.at > start]

    def attend(self) -> None:
        """Refresh the statistics of the store more often for a while, after a request for them."""
        self._last_requested = self._timers.now()
        self._surveyor.attend()

    def watch(self) -> Watcher:
        """Open a watch that receives the last sample and then one every second. Raises if there are too many."""
        admit_stream(self._closed, len(self.watchers), self._max_watchers, "clients already watch this server")
        watcher = Watcher(self, self.latest)
        self.watchers.add(watcher)
        self._surveyor.attend()
        return watcher

    def _is_watched(self) -> bool:
        return bool(self.watchers) or self._timers.now() - self._last_requested < _ATTENTION

    def _found(self, depths: Depths) -> None:
        self.depths = depths

    def _set(self) -> None:
        self._timer = self._timers.at(self._timers.now() + SECOND, self._tick)

    def _tick(self) -> None:
        now = self._timers.now()
        changed, self._tallies.changed_queues = self._tallies.changed_queues, set()
        self._busy.note(self._tallies, changed)
        if now >= self._history_due:
            self._history.append(Point(now, *self._history_meter.read(now), self.depths))
            # From now, not from the due time: after a sleep of the machine, missed points are not added.
            self._history_due = now + INTERVAL_SECONDS * SECOND
        waiting, maintenance = self._standing()
        self.latest = Sample(
            point=Point(now, *self._meter.read(now), self.depths),
            waiting=waiting,
            maintenance=maintenance,
            busiest=self._busy.busiest() if self.watchers else (),
            changed=tuple(sorted(changed)[:_MOST_CHANGED]),
            more=len(changed) > _MOST_CHANGED,
        )
        for watcher in self.watchers:
            watcher.notify(self.latest)
        self._set()
