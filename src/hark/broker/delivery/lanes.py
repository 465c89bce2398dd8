"""The parts of a subscription: what it is about, who in it wants the same, and what a look for them came to."""

from __future__ import annotations

from typing import NamedTuple


class Key(NamedTuple):
    """What a subscription is about: a queue, or all queues with a namespace and/or a task; and for which group."""

    queue: str | None
    namespace: str | None
    task: str | None
    group: str


class Lane:
    """Consumers of a subscription that want the same partition, or any."""

    __slots__ = ("consumers", "looking")

    def __init__(self) -> None:
        self.consumers = 0
        self.looking = False
        """A look for some of them is under way."""


class LookResult:
    """What a look for several consumers came to."""

    __slots__ = ("empty", "failed", "found", "surprised")

    def __init__(self) -> None:
        self.found = False
        """A consumer received messages."""
        self.surprised = False
        """A message came from a place without expected work."""
        self.empty = False
        """A consumer received nothing."""
        self.failed = False


class Batches:
    """How many messages consumers take at once."""

    def __init__(self) -> None:
        self._consumers: dict[int, int] = {}
        """The number of consumers of each batch size."""
        self.smallest = 1
        """The smallest batch size."""

    def add(self, batch: int) -> bool:
        """A consumer came; whether another batch is the smallest now."""
        known = self._consumers.get(batch, 0)
        self._consumers[batch] = known + 1
        return not known and self._changed()

    def remove(self, batch: int) -> bool:
        """A consumer went; whether another batch is the smallest now."""
        self._consumers[batch] -= 1
        if self._consumers[batch]:
            return False
        del self._consumers[batch]
        return bool(self._consumers) and self._changed()

    def _changed(self) -> bool:
        before, self.smallest = self.smallest, min(self._consumers)
        return self.smallest != before
