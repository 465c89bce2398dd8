"""The text format of Prometheus, for the server and for workers: one place that makes it, by prometheus-client."""

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
    """What only grows; by convention its name ends in `_total`."""
    return _metric(name.removesuffix("_total"), "counter", meaning, name, rows)


def gauge(name: str, meaning: str, rows: Rows) -> Metric:
    """How things are now."""
    return _metric(name, "gauge", meaning, name, rows)


def one(value: float) -> Rows:
    """The only row of a metric without labels."""
    return ((NO_LABELS, value),)


def histogram(name: str, meaning: str, rows: Iterable[tuple[Labels, Histogram]]) -> Metric:
    """How values are spread; buckets, sum and count."""
    metric = Metric(name, meaning, "histogram")
    for labels, values in rows:
        count = 0
        for bound, count in values.cumulative():
            metric.add_sample(f"{name}_bucket", {**labels, "le": bound}, count)
        metric.add_sample(f"{name}_sum", dict(labels), values.sum)
        metric.add_sample(f"{name}_count", dict(labels), count)
    return metric


def text(metrics: Iterable[Metric]) -> bytes:
    """What a scraper gets."""
    return generate_latest(_Collected(metrics))


class _Collected(NamedTuple):
    """Metrics in the form of something that collects them."""

    metrics: Iterable[Metric]

    def collect(self) -> Iterable[Metric]:
        """All of them."""
        return self.metrics


def _metric(name: str, kind: str, meaning: str, sample: str, rows: Rows) -> Metric:
    metric = Metric(name, meaning, kind)
    for labels, value in rows:
        metric.add_sample(sample, dict(labels), value)
    return metric
