"""Messages that applications sent in their own transactions, and that a server has to move into their partitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from hark.model import NewMessage, PushOutcome

Seal = Callable[[Sequence[NewMessage]], Sequence[NewMessage]]
"""Encrypts the payloads of encrypted queues. Raises `HarkError` if this server cannot."""
Note = Callable[[Sequence[NewMessage], Sequence[PushOutcome]], None]
"""Counts messages that were moved."""


class Inbox(Protocol):
    """The inbox of a store. Servers share the work, and move each message exactly once."""

    def listening(self) -> AbstractAsyncContextManager[None]:
        """Learn of commits while the context lasts."""

    async def wait(self) -> None:
        """Return when there may be something to move, at the latest when it is time to look."""

    async def move(self, seal: Seal, note: Note) -> bool:
        """Move what is committed, in order. Messages that a queue refuses stay, and are tried again later.

        True if the encryption of a queue was changed: its messages wait until they are sealed accordingly.
        """
