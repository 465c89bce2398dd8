"""Rates: what the tallies say now against what they said before."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence

from hark.broker.observing.samples import Latency, QueueRates, Rates
from hark.broker.tallies import Tallies, Tally
from hark.clock import MILLISECOND, SECOND

_BUSIEST = 20
_BUSY_EACH_SECOND = 100
"""Queues of each second that may be among the busiest."""
_WINDOW = 10
"""Seconds that the busiest queues are chosen by: who looks at them should not see them dance."""
_MOST_REMEMBERED = 20_000


class Meter:
    """Messages per second since it was last read."""

    def __init__(self, tallies: Tallies, now: int) -> None:
        self._tallies = tallies
        self._at = now
        self._before = _counts(tallies.total)
        self._ages = list(tallies.ages)

    def read(self, now: int) -> tuple[Rates, Latency | None]:
        """The rates and latencies of the time since the last reading."""
        seconds = max(1, now - self._at) / SECOND
        counts, ages = _counts(self._tallies.total), list(self._tallies.ages)
        rates = Rates(*((after - before) / seconds for after, before in zip(counts, self._before, strict=True)))
        latency = percentiles([after - before for after, before in zip(ages, self._ages, strict=True)])
        self._at, self._before, self._ages = now, counts, ages
        return rates, latency


def _counts(tally: Tally) -> tuple[int, int, int, int, int]:
    return tally.pushed, tally.delivered, tally.settled, tally.failed, tally.dead_lettered


def percentiles(ages: Sequence[int]) -> Latency | None:
    """Of a histogram whose bucket i ends at 2**i microseconds; None if it is empty."""
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
    """The queues that most went through lately."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[int, int, int]] = {}
        self._window: deque[dict[str, tuple[int, int, int]]] = deque(maxlen=_WINDOW)

    def note(self, tallies: Tallies, touched: Iterable[str]) -> None:
        """A second is over in which something happened to these queues."""
        done: dict[str, tuple[int, int, int]] = {}
        for name in touched:
            tally = tallies.queues.get(name)
            if tally is None:  # Too many queues were busy since, so it is counted with the others.
                self._before.pop(name, None)
                continue
            now = (tally.pushed, tally.delivered, tally.settled)
            before = self._before.get(name, (0, 0, 0))
            if any(after < earlier for after, earlier in zip(now, before, strict=True)):
                before = (0, 0, 0)  # It was removed in between, and counts from 0 again.
            self._before[name] = now
            done[name] = (now[0] - before[0], now[1] - before[1], now[2] - before[2])
        if len(self._before) > _MOST_REMEMBERED:
            self._before = {name: counts for name, counts in self._before.items() if name in tallies.queues}
        if len(done) > _BUSY_EACH_SECOND:
            done = dict(heapq.nlargest(_BUSY_EACH_SECOND, done.items(), key=lambda item: sum(item[1])))
        self._window.append(done)

    def busiest(self) -> tuple[QueueRates, ...]:
        """Messages per second, over the seconds that are remembered."""
        sums: dict[str, tuple[int, int, int]] = {}
        for done in self._window:
            for name, counts in done.items():
                known = sums.get(name, (0, 0, 0))
                sums[name] = (known[0] + counts[0], known[1] + counts[1], known[2] + counts[2])
        active = [(name, counts) for name, counts in sums.items() if any(counts)]
        seconds = len(self._window)
        return tuple(
            QueueRates(name, *(number / seconds for number in counts))
            for name, counts in heapq.nsmallest(_BUSIEST, active, key=lambda item: (-sum(item[1]), item[0]))
        )
