"""Numbers about deliveries to those who wait."""

from __future__ import annotations

from bisect import bisect_left
from typing import Literal, get_args

from hark.clock import MILLISECOND

Source = Literal["push", "settle", "timer", "peer", "poll", "handover"]
"""What a consumer was told by: messages came; a lease ended or something else freed work; a time was due; another
server said so; a fallback poll; or it was told because another consumer came, went or was served."""

_BOUNDS_MS = (1, 2, 5, 10, 20, 50, 100, 250, 500, 1000, 5000)


class DeliveryMetrics:
    """Counters since the start."""

    def __init__(self) -> None:
        self._wakes: dict[Source, int] = dict.fromkeys(get_args(Source), 0)
        self._empty: dict[Source, int] = dict.fromkeys(get_args(Source), 0)
        self._deliveries = 0
        self._latency = [0] * (len(_BOUNDS_MS) + 1)
        self._latency_sum = 0

    def woke(self, source: Source, consumers: int) -> None:
        """So many consumers were told of work."""
        self._wakes[source] += consumers

    def came_up_empty(self, source: Source) -> None:
        """A consumer that was told found nothing: the hint was stale."""
        self._empty[source] += 1

    def delivered(self, microseconds: int) -> None:
        """A consumer got what it was told of, so long after it was told."""
        self._deliveries += 1
        self._latency_sum += microseconds
        self._latency[bisect_left(_BOUNDS_MS, microseconds / MILLISECOND)] += 1

    def snapshot(self) -> dict[str, object]:
        """All of it; the buckets count deliveries up to so many milliseconds, each with those before it."""
        buckets = {}
        total = 0
        for bound, number in zip((*map(str, _BOUNDS_MS), "inf"), self._latency, strict=True):
            total += number
            buckets[bound] = total
        return {
            "wakes": dict(self._wakes),
            "empty_wakes": dict(self._empty),
            "deliveries": self._deliveries,
            "pop_latency": {
                "count": self._deliveries,
                "sum_ms": self._latency_sum / MILLISECOND,
                "buckets_ms": buckets,
            },
        }
