"""Histograms of task durations."""

from __future__ import annotations

from hark.histograms import Histogram

BOUNDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0)
"""Upper bounds of the buckets, in seconds."""


class Durations:
    """One histogram per task and outcome."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[str, str], Histogram] = {}

    def add(self, task: str, outcome: str, seconds: float) -> None:
        """Add one duration."""
        self._seconds.setdefault((task, outcome), Histogram(BOUNDS)).add(seconds)

    def count(self, task: str, outcome: str) -> int:
        """The number of durations."""
        found = self._seconds.get((task, outcome))
        return 0 if found is None else found.count

    def prometheus(self) -> str:
        """The histograms in the text format of Prometheus."""
        # Imported here, because it is slow to import and only needed for a scrape.
        from hark.prometheus import histogram, text

        rows = [
            ({"task": task, "outcome": outcome}, found)
            for (task, outcome), found in sorted(self._seconds.items(), key=lambda item: item[0])
        ]
        return text([histogram("worker_task_seconds", "How long tasks took.", rows)]).decode()
