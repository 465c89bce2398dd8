"""Four metrics of polling, in the text format of Prometheus."""

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
    """The metrics of one poller, or of several that share them."""

    interval_seconds: float = 0.0
    """Current poll interval in seconds."""
    polls: int = 0
    """Number of polls."""
    empty: int = 0
    """Number of polls that found no work."""
    backoffs: int = 0
    """Number of times the poll interval grew."""

    def text(self, labels: Mapping[str, str] = NO_LABELS) -> str:
        """The metrics in the text format of Prometheus."""
        return prometheus_text([(labels, self)])


def prometheus_text(pollers: Iterable[tuple[Mapping[str, str], PollMetrics]]) -> str:
    """The metrics of several pollers with their labels."""
    # Imported here, because it is slow to import and only needed for a scrape.
    from hark.prometheus import counter, gauge, text

    rows = list(pollers)
    kinds = {"counter": counter, "gauge": gauge}
    return text(
        kinds[kind](name, meaning, [(labels, getattr(metrics, field)) for labels, metrics in rows])
        for name, kind, meaning, field in _METRICS
    ).decode()
