"""A message that a shared group has passed and not settled."""

from __future__ import annotations

import msgspec

from hark.engine.sqlite.track import Lease


class Entry(msgspec.Struct, eq=False):
    """An exception beside the lanes."""

    offset: int
    priority: int
    created_at: int
    available_at: int
    attempts: int = 0
    error: str | None = None
    front: bool = False
    """A requeued dead letter: before all others."""
    is_out: bool = False
    """Held, or on its way to a consumer."""
    saved: bool = False
    """Whether there is a row for it."""
    lease: Lease | None = None
    transaction_id: str = ""
    schedule: tuple[int, ...] | None = None

    @property
    def turn(self) -> tuple[int, int, int]:
        """Its place among those that are due."""
        return -self.priority, self.available_at, self.offset

    def changed(self, attempts: int, available_at: int, error: str | None) -> Entry:
        """A copy that says how it will be."""
        return Entry(self.offset, self.priority, self.created_at, available_at, attempts, error, self.front)
