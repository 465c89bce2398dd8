"""The metrics of a worker in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from hark.worker.stats import OUTCOMES, Snapshot


@runtime_checkable
class HasMetrics(Protocol):
    """A middleware with its own metrics."""

    def prometheus(self) -> str:
        """The metrics in the text format of Prometheus."""


def prometheus(snapshot: Snapshot, polling: str, middleware: Sequence[object]) -> str:
    """All metrics of a worker: tasks, slots, polling and middleware."""
    # Imported here, because it is slow to import and only needed for a scrape.
    from hark.prometheus import counter, gauge, one, text

    ended = [
        ({"task": task, "outcome": outcome}, getattr(counts, outcome))
        for task, counts in sorted(snapshot.tasks.items())
        for outcome in OUTCOMES
    ]
    own = text(
        (
            counter("worker_tasks_total", "Deliveries of tasks, by outcome.", ended),
            gauge("worker_running", "Handlers that are running.", one(snapshot.running)),
            gauge(
                "worker_stuck", "Functions in threads that still run after their delivery ended.", one(snapshot.stuck)
            ),
            gauge("worker_slots", "Maximum number of handlers that run at the same time.", one(snapshot.concurrency)),
        )
    )
    return own.decode() + polling + "".join(each.prometheus() for each in middleware if isinstance(each, HasMetrics))
