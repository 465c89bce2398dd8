"""A worker's numbers as text for Prometheus."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from hark.polling.metrics import escaped
from hark.worker.stats import OUTCOMES, Snapshot


@runtime_checkable
class HasMetrics(Protocol):
    """A middleware with numbers of its own."""

    def prometheus(self) -> str:
        """The text for a scraper."""


def prometheus(snapshot: Snapshot, polling: str, middleware: Sequence[object]) -> str:
    """Everything that a scraper gets: tasks, slots, polling, and what middleware adds."""
    lines = [
        "# HELP worker_tasks_total Deliveries of tasks, by how they ended.",
        "# TYPE worker_tasks_total counter",
    ]
    for task, counts in sorted(snapshot.tasks.items()):
        for outcome in OUTCOMES:
            lines.append(f'worker_tasks_total{{task="{escaped(task)}",outcome="{outcome}"}} {getattr(counts, outcome)}')
    lines += [
        "# HELP worker_running Handlers that run now.",
        "# TYPE worker_running gauge",
        f"worker_running {snapshot.running}",
        "# HELP worker_stuck Functions that still run although their time is over.",
        "# TYPE worker_stuck gauge",
        f"worker_stuck {snapshot.stuck}",
        "# HELP worker_slots Handlers that may run at a time.",
        "# TYPE worker_slots gauge",
        f"worker_slots {snapshot.concurrency}",
        "",
    ]
    return "\n".join(lines) + polling + "".join(one.prometheus() for one in middleware if isinstance(one, HasMetrics))
