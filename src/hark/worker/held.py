"""Objects that pass between the two sides of a worker: leased messages, and how they ended."""

from __future__ import annotations

from hark.client.delivery.settling import Verdict
from hark.client.delivery.sources import Delivered
from hark.worker.outcome import Ending


class Held:
    """Messages that were delivered together, under one lease."""

    __slots__ = ("ended", "is_lost", "lease_id", "left", "messages")

    def __init__(self, lease_id: str, messages: list[Delivered]) -> None:
        self.lease_id = lease_id
        self.messages = messages
        self.left = len(messages)
        """Number of messages that are not settled yet."""
        self.ended: set[str] = set()
        """Ids of messages whose handling has ended, settled or not."""
        self.is_lost = False


class Ended:
    """How the handling of one message ended, and how to settle it; None if there is nothing to settle."""

    __slots__ = ("ending", "error", "held", "message", "seconds", "task", "verdict")

    def __init__(
        self,
        held: Held,
        message: Delivered,
        verdict: Verdict | None,
        ending: Ending,
        task: str,
        seconds: float = 0.0,
        error: str | None = None,
    ) -> None:
        self.held = held
        self.message = message
        self.verdict = verdict
        self.ending = ending
        self.task = task
        self.seconds = seconds
        self.error = error
