"""Histograms of how long tasks take."""

from __future__ import annotations

from bisect import bisect_left

from hark.polling.metrics import escaped

BOUNDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0)
"""Upper ends of the buckets, in seconds."""


class Durations:
    """One histogram per task and outcome."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], list[int]] = {}
        self._sums: dict[tuple[str, str], float] = {}

    def add(self, task: str, outcome: str, seconds: float) -> None:
        """One more."""
        key = (task, outcome)
        counts = self._counts.setdefault(key, [0] * (len(BOUNDS) + 1))
        counts[bisect_left(BOUNDS, seconds)] += 1
        self._sums[key] = self._sums.get(key, 0.0) + seconds

    def count(self, task: str, outcome: str) -> int:
        """How many there were."""
        return sum(self._counts.get((task, outcome), ()))

    def prometheus(self) -> str:
        """The text for a scraper."""
        name = "worker_task_seconds"
        lines = [f"# HELP {name} How long tasks took.", f"# TYPE {name} histogram"]
        for (task, outcome), counts in sorted(self._counts.items()):
            labels = f'task="{escaped(task)}",outcome="{outcome}"'
            total = 0
            for bound, count in zip((*map(str, BOUNDS), "+Inf"), counts, strict=True):
                total += count
                lines.append(f'{name}_bucket{{{labels},le="{bound}"}} {total}')
            lines.append(f"{name}_sum{{{labels}}} {self._sums[task, outcome]:.6f}")
            lines.append(f"{name}_count{{{labels}}} {total}")
        return "\n".join(lines) + "\n"
