"""Known due times of messages, so that a polling worker does not sleep past them."""

from __future__ import annotations

from datetime import UTC, datetime
from heapq import heappop, heappush

from hark.client.delivery.settling import Settled, Verdict
from hark.client.producing.pushing import NewMessage

MOST = 1000
"""Maximum number of remembered times. Later messages are found by polling."""


class Dues:
    """Times at which messages are due, by a monotonic clock."""

    def __init__(self) -> None:
        self._heap: list[float] = []

    def add(self, due: float) -> None:
        """Add a time."""
        if len(self._heap) < MOST:
            heappush(self._heap, due)

    def next_after(self, moment: float) -> float | None:
        """The first time after a moment. Earlier times are dropped."""
        while self._heap and self._heap[0] <= moment:
            heappop(self._heap)
        return self._heap[0] if self._heap else None


def seconds_until_again(verdict: Verdict, settled: Settled) -> float | None:
    """Seconds until a settled message is redelivered. None: never, or only the server knows."""
    if not settled.success or settled.dead_lettered or verdict.status not in ("failed", "retry"):
        return None
    if verdict.delay_ms is not None:
        return verdict.delay_ms / 1000
    return 0.0 if verdict.status == "retry" else None


def seconds_until_due(message: NewMessage) -> float:
    """Seconds until a message that is pushed now can be delivered."""
    if message.deliver_at is None:
        return (message.delay or 0) / 1000
    if isinstance(message.deliver_at, int):
        at = datetime.fromtimestamp(message.deliver_at / 1000, UTC)
    else:
        at = datetime.fromisoformat(message.deliver_at)
    return max(0.0, (at - datetime.now(UTC)).total_seconds())
