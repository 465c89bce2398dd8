"""What passes between the two sides of a worker: messages it holds one way, how they ended the other."""

from __future__ import annotations

from hark.client.delivery.settling import Verdict
from hark.client.delivery.sources import Delivered
from hark.worker.outcome import Ending


class Held:
    """Messages that came together, under one lease."""

    __slots__ = ("ended", "is_lost", "lease_id", "left", "messages")

    def __init__(self, lease_id: str, messages: list[Delivered]) -> None:
        self.lease_id = lease_id
        self.messages = messages
        self.left = len(messages)
        """How many are not settled yet."""
        self.ended: set[str] = set()
        """The ids of those whose handling is over, settled or not."""
        self.is_lost = False


class Ended:
    """How the handling of one message ended; no verdict: there is nothing to say to the server."""

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
