"""How a transaction changes a place of a shared group: deltas, so that it costs what it changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hark.engine.sqlite.shared.entry import Entry
from hark.engine.sqlite.track import AnyDraft, Held, Lease, Retry

if TYPE_CHECKING:
    from hark.engine.sqlite.shared.track import SharedTrack

SETTLED = None
"""What becomes of an exception that the group is done with."""


class SharedDraft(AnyDraft):
    """A place of a shared group as the running transaction leaves it."""

    __slots__ = ("_track", "added", "base", "changes", "removes")

    def __init__(self, track: SharedTrack) -> None:
        super().__init__(track.settled_at)
        self._track = track
        self.base = track.base
        self.changes: dict[int, Entry | None] = {}
        """What becomes of exceptions, by offset."""
        self.added: dict[int, Entry] = {}
        """New exceptions: requeued messages."""
        self.removes = False
        """Messages that lanes may be at are being removed."""

    @property
    def blocks(self) -> bool:
        """See `AnyDraft.blocks`: what it settles is in somebody's hands, but what it removes may be the next."""
        return self.voided or self.removes

    def restart(self, base: int, entries: Sequence[Entry]) -> None:
        """Begin anew behind an offset, with these exceptions."""
        self.voided = True
        self.base = base
        self.changes = {}
        self.added = {entry.offset: entry for entry in entries}

    @property
    def settled(self) -> int:
        """How many messages it settles."""
        return sum(change is SETTLED for change in self.changes.values())

    def finish(self, offset: int) -> None:
        """See `AnyDraft.finish`."""
        if self.added.pop(offset, None) is None:
            self.changes[offset] = SETTLED

    def retry_of(self, offset: int) -> Retry | None:
        """See `AnyDraft.retry_of`."""
        entry = self.changes.get(offset) or self._track.entries.get(offset)
        return None if entry is None else Retry(entry.attempts, entry.available_at, entry.error)

    def wait(self, offset: int, lease: Lease, retry: Retry) -> None:  # noqa: ARG002  # nobody waits with it
        """See `AnyDraft.wait`."""
        self.changes[offset] = self._track.entries[offset].changed(retry.attempts, retry.due, retry.error)

    def is_gone(self, held: Held) -> bool:
        """See `AnyDraft.is_gone`."""
        return held[0] in self.changes

    def forget(self, held: Held) -> None:
        """See `AnyDraft.forget`: every change says that already."""

    def end_part(self, lease: Lease) -> None:
        """See `AnyDraft.end_part`: nobody waited for it."""

    def is_free_of(self, lease: Lease) -> bool:
        """See `AnyDraft.is_free_of`: whether it was the last message, here and elsewhere."""
        return all(part.open <= 0 for part in lease.parts.values())

    def expire(self, lease: Lease, held: Sequence[Held]) -> Sequence[Held]:  # noqa: ARG002  # each by itself
        """See `AnyDraft.expire`: each message pays."""
        return held

    def give_back(self, lease: Lease, held: Sequence[Held]) -> None:  # noqa: ARG002  # each by itself
        """See `AnyDraft.give_back`."""
        for offset, *_ in held:
            entry = self._track.entries[offset]
            self.changes[offset] = entry.changed(entry.attempts, entry.available_at, entry.error)

    def add_front(self, offset: int, priority: int, now: int) -> None:
        """See `AnyDraft.add_front`."""
        entry = self.added[offset] = Entry(offset, priority, now, now)
        entry.front = True
