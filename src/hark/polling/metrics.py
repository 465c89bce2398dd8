"""What polling costs, in four numbers, as text for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import msgspec

NO_LABELS: Mapping[str, str] = MappingProxyType({})

_METRICS = (
    ("worker_poll_interval_seconds", "gauge", "The current poll interval.", "interval_seconds"),
    ("worker_poll_total", "counter", "Polls.", "polls"),
    ("worker_poll_empty_total", "counter", "Polls that found no work.", "empty"),
    ("worker_backoff_total", "counter", "Times that the poll interval grew.", "backoffs"),
)


class PollMetrics(msgspec.Struct):
    """The numbers of one poller, or of several that share it."""

    interval_seconds: float = 0.0
    polls: int = 0
    empty: int = 0
    backoffs: int = 0

    def text(self, labels: Mapping[str, str] = NO_LABELS) -> str:
        """The numbers in the text format of Prometheus."""
        return prometheus_text([(labels, self)])


def prometheus_text(pollers: Iterable[tuple[Mapping[str, str], PollMetrics]]) -> str:
    """The numbers of several pollers, told apart by their labels: each metric once, with a line for each poller."""
    # Slow to import: only those pay for it who are scraped.
    from hark.prometheus import counter, gauge, text

    rows = list(pollers)
    kinds = {"counter": counter, "gauge": gauge}
    return text(
        kinds[kind](name, meaning, [(labels, getattr(metrics, field)) for labels, metrics in rows])
        for name, kind, meaning, field in _METRICS
    ).decode()
