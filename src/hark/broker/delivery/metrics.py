"""Numbers about deliveries to those who wait."""

from __future__ import annotations

from typing import Literal, get_args

from hark.clock import SECOND
from hark.histograms import Histogram

Source = Literal["push", "settle", "timer", "peer", "poll", "handover"]
"""The cause of a notification: new messages; released work, such as an expired lease; a due time; a hint from a peer; a
fallback poll; or a handover, because another consumer joined, left or was served."""

_BOUNDS_MS = (1, 2, 5, 10, 20, 50, 100, 250, 500, 1000, 5000)


class DeliveryMetrics:
    """Counters since the start."""

    def __init__(self) -> None:
        self.wakes: dict[Source, int] = dict.fromkeys(get_args(Source), 0)
        self.empty: dict[Source, int] = dict.fromkeys(get_args(Source), 0)
        self.latency = Histogram([bound / 1000 for bound in _BOUNDS_MS])
        """Seconds from the notification of a consumer to its delivery."""

    def woke(self, source: Source, consumers: int) -> None:
        """Count notified consumers."""
        self.wakes[source] += consumers

    def came_up_empty(self, source: Source) -> None:
        """Count a notified consumer that found nothing, because the hint was stale."""
        self.empty[source] += 1

    def delivered(self, microseconds: int) -> None:
        """Record the time from a notification to its delivery."""
        self.latency.add(microseconds / SECOND)

    def snapshot(self) -> dict[str, object]:
        """All metrics. The buckets are cumulative: each counts deliveries up to its number of milliseconds."""
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
