"""When there will be work: what a worker knows of the future, so that it does not sleep past it."""

from __future__ import annotations

from datetime import UTC, datetime
from heapq import heappop, heappush

from hark.client.delivery.settling import Settled, Verdict
from hark.client.producing.pushing import NewMessage

MOST = 1000
"""Moments that are remembered; what is beyond them is found by polling."""


class Dues:
    """Moments at which messages fall due, by a monotonic clock."""

    def __init__(self) -> None:
        self._heap: list[float] = []

    def add(self, due: float) -> None:
        """One more."""
        if len(self._heap) < MOST:
            heappush(self._heap, due)

    def next_after(self, moment: float) -> float | None:
        """The first one after a moment; those before it are forgotten."""
        while self._heap and self._heap[0] <= moment:
            heappop(self._heap)
        return self._heap[0] if self._heap else None


def seconds_until_again(verdict: Verdict, settled: Settled) -> float | None:
    """When a message comes again after a settlement; None: never, or the server alone knows."""
    if not settled.success or settled.dead_lettered or verdict.status not in ("failed", "retry"):
        return None
    if verdict.delay_ms is not None:
        return verdict.delay_ms / 1000
    return 0.0 if verdict.status == "retry" else None


def seconds_until_due(message: NewMessage) -> float:
    """When a message that is pushed now may be delivered."""
    if message.deliver_at is None:
        return (message.delay or 0) / 1000
    if isinstance(message.deliver_at, int):
        at = datetime.fromtimestamp(message.deliver_at / 1000, UTC)
    else:
        at = datetime.fromisoformat(message.deliver_at)
    return max(0.0, (at - datetime.now(UTC)).total_seconds())
