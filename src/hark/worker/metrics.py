"""A worker's numbers as text for Prometheus."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from hark.worker.stats import OUTCOMES, Snapshot


@runtime_checkable
class HasMetrics(Protocol):
    """A middleware with numbers of its own."""

    def prometheus(self) -> str:
        """The text for a scraper."""


def prometheus(snapshot: Snapshot, polling: str, middleware: Sequence[object]) -> str:
    """Everything that a scraper gets: tasks, slots, polling, and what middleware adds."""
    # Slow to import: only those pay for it who are scraped.
    from hark.prometheus import counter, gauge, one, text

    ended = [
        ({"task": task, "outcome": outcome}, getattr(counts, outcome))
        for task, counts in sorted(snapshot.tasks.items())
        for outcome in OUTCOMES
    ]
    own = text(
        (
            counter("worker_tasks_total", "Deliveries of tasks, by how they ended.", ended),
            gauge("worker_running", "Handlers that run now.", one(snapshot.running)),
            gauge("worker_stuck", "Functions that still run although their time is over.", one(snapshot.stuck)),
            gauge("worker_slots", "Handlers that may run at a time.", one(snapshot.concurrency)),
        )
    )
    return own.decode() + polling + "".join(each.prometheus() for each in middleware if isinstance(each, HasMetrics))
