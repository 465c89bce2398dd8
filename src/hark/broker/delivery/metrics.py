"""Numbers about deliveries to those who wait."""

from __future__ import annotations

from typing import Literal, get_args

from hark.clock import SECOND
from hark.histograms import Histogram

Source = Literal["push", "settle", "timer", "peer", "poll", "handover"]
"""What a consumer was told by: messages came; a lease ended or something else freed work; a time was due; another
server said so; a fallback poll; or it was told because another consumer came, went or was served."""

_BOUNDS_MS = (1, 2, 5, 10, 20, 50, 100, 250, 500, 1000, 5000)


class DeliveryMetrics:
    """Counters since the start."""

    def __init__(self) -> None:
        self.wakes: dict[Source, int] = dict.fromkeys(get_args(Source), 0)
        self.empty: dict[Source, int] = dict.fromkeys(get_args(Source), 0)
        self.latency = Histogram([bound / 1000 for bound in _BOUNDS_MS])
        """Seconds from when a consumer was told to when it had what it was told of."""

    def woke(self, source: Source, consumers: int) -> None:
        """So many consumers were told of work."""
        self.wakes[source] += consumers

    def came_up_empty(self, source: Source) -> None:
        """A consumer that was told found nothing: the hint was stale."""
        self.empty[source] += 1

    def delivered(self, microseconds: int) -> None:
        """A consumer got what it was told of, so long after it was told."""
        self.latency.add(microseconds / SECOND)

    def snapshot(self) -> dict[str, object]:
        """All of it; the buckets count deliveries up to so many milliseconds, each with those before it."""
        counts = [number for _, number in self.latency.cumulative()]
        return {
            "wakes": dict(self.wakes),
            "empty_wakes": dict(self.empty),
            "deliveries": self.latency.count,
            "pop_latency": {
                "count": self.latency.count,
                "sum_ms": self.latency.sum * 1000,
                "buckets_ms": dict(zip((*map(str, _BOUNDS_MS), "inf"), counts, strict=True)),
            },
        }
