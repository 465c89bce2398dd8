"""Histograms, and the text format of Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType
from typing import NamedTuple

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import Metric

CALL_SECONDS = (0.0005, 0.002, 0.01, 0.05, 0.25, 1.0, 5.0, 30.0)
"""Upper bounds of the buckets for the duration of calls, in seconds."""


class Histogram:
    """Number of values in each bucket, and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        """Number of values in each bucket; the last bucket has no upper bound."""
        self.sum = 0.0

    def add(self, value: float) -> None:
        """Add a value. `App.begin` and `EngineCalls.ended` do the same in place, because they run for every request."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        """Number of values."""
        return sum(self.counts)

    def cumulative(self) -> Iterator[tuple[str, int]]:
        """The upper bound of each bucket, and the number of values up to this bound."""
        bounds = (*(f"{bound:.15g}" for bound in self.bounds), "+Inf")
        return zip(bounds, accumulate(self.counts), strict=True)


CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

Labels = Mapping[str, str]
Rows = Iterable[tuple[Labels, float]]
NO_LABELS: Labels = MappingProxyType({})


def counter(name: str, meaning: str, rows: Rows) -> Metric:
    """Return a counter. Its name ends in `_total`."""
    return _metric(name.removesuffix("_total"), "counter", meaning, name, rows)


def gauge(name: str, meaning: str, rows: Rows) -> Metric:
    """Return a gauge."""
    return _metric(name, "gauge", meaning, name, rows)


def one(value: float) -> Rows:
    """Return the row of a metric without labels."""
    return ((NO_LABELS, value),)


def histogram(name: str, meaning: str, rows: Iterable[tuple[Labels, Histogram]]) -> Metric:
    """Return a histogram with buckets, sum and count."""
    metric = Metric(name, meaning, "histogram")
    for labels, values in rows:
        count = 0
        for bound, count in values.cumulative():
            metric.add_sample(f"{name}_bucket", {**labels, "le": bound}, count)
        metric.add_sample(f"{name}_sum", dict(labels), values.sum)
        metric.add_sample(f"{name}_count", dict(labels), count)
    return metric


def text(metrics: Iterable[Metric]) -> bytes:
    """Return metrics in the Prometheus text format."""
    return generate_latest(_Collected(metrics))


class _Collected(NamedTuple):
    """A collector of given metrics."""

    metrics: Iterable[Metric]

    def collect(self) -> Iterable[Metric]:
        """Return all metrics."""
        return self.metrics


def _metric(name: str, kind: str, meaning: str, sample: str, rows: Rows) -> Metric:
    metric = Metric(name, meaning, kind)
    for labels, value in rows:
        metric.add_sample(sample, dict(labels), value)
    return metric
