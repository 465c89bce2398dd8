"""What polling costs, in four numbers, as text for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import msgspec

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
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
    rows = [(_labels(labels), metrics) for labels, metrics in pollers]
    lines = []
    for name, kind, help_text, field in _METRICS:
        lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]
        lines += [f"{name}{labels} {getattr(metrics, field):.15g}" for labels, metrics in rows]
    return "\n".join([*lines, ""])


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items()) + "}"


def escaped(value: str) -> str:
    """A label's value as Prometheus reads it."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
