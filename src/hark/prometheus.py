"""Prometheus text format for servers and workers, made with prometheus-client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import Metric

from hark.histograms import Histogram

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
