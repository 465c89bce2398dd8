"""Histograms that cost next to nothing to add to."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

CALL_SECONDS = (0.0005, 0.002, 0.01, 0.05, 0.25, 1.0, 5.0, 30.0)
"""Upper bounds of the buckets for the duration of calls, in seconds."""


class Histogram:
    """How many values fell between bounds, and their sum."""

    __slots__ = ("_bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        """Values above the bound before and not above this one; the last has no bound."""
        self.sum = 0.0

    def add(self, value: float) -> None:
        """One more."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        """How many there were."""
        return sum(self.counts)

    def cumulative(self) -> Iterator[tuple[str, int]]:
        """By the upper end of each bucket, how many were not above it."""
        return zip((*map(_shown, self._bounds), "+Inf"), accumulate(self.counts), strict=True)


def _shown(bound: float) -> str:
    return f"{bound:.15g}"
