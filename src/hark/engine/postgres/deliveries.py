"""What this server handed out, so that a settlement need not look for its message in the database."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

MAX_REMEMBERED = 500_000
"""Messages; beyond that the oldest leases are forgotten, and what they handed out is looked up when it is settled."""


class Deliveries:
    """Leases that this server gave, until they are settled here or over."""

    def __init__(self) -> None:
        self._offsets: dict[str, dict[tuple[int, str], int]] = {}
        self._until: dict[str, int] = {}
        self._open: dict[str, int] = {}
        self._partitions: dict[str, list[int]] = {}
        self._heap: list[tuple[int, str]] = []
        self._size = 0

    def add(self, lease: str, until: int, partition: int, number: int, named: Iterable[tuple[str, int]]) -> None:
        """A lease handed out messages of a partition; those with an id from their producer by that and the offset."""
        self._partitions.setdefault(lease, []).append(partition)
        self._open[lease] = self._open.get(lease, 0) + number
        offsets = self._offsets.setdefault(lease, {})
        before = len(offsets)
        for transaction_id, offset in named:
            offsets[partition, transaction_id] = offset
        self._size += len(offsets) - before
        self.renew(lease, until)
        while self._size > MAX_REMEMBERED:
            self.end(next(iter(self._offsets)))

    def find(self, lease: str, partition: int, transaction_id: str) -> int | None:
        """The offset of a message by the transaction id that its producer gave."""
        return self._offsets.get(lease, {}).get((partition, transaction_id))

    def partitions_of(self, lease: str) -> Sequence[int]:
        """Where a lease handed out messages."""
        return self._partitions.get(lease, ())

    def knows(self, lease: str | None) -> bool:
        """Whether all that a lease handed out is known here."""
        return lease in self._offsets

    def renew(self, lease: str, until: int) -> None:
        """A lease ends at another time."""
        if lease in self._offsets and self._until.get(lease) != until:
            self._until[lease] = until
            heapq.heappush(self._heap, (until, lease))

    def settled(self, lease: str, number: int) -> bool:
        """Some of what a lease handed out is settled. True: all of it, and of one partition; False: who knows.

        (What is said twice counts twice. Of one partition the database says whether the lease still is on it.)
        """
        if lease not in self._open:
            return False
        self._open[lease] -= number
        if self._open[lease] > 0:
            return False
        alone = len(self._partitions[lease]) == 1
        self.end(lease)
        return alone

    def end(self, lease: str) -> None:
        """A lease is over."""
        self._size -= len(self._offsets.pop(lease, ()))
        self._until.pop(lease, None)
        self._open.pop(lease, None)
        self._partitions.pop(lease, None)

    def next_end(self, now: int) -> int | None:
        """When the next lease ends; those whose time is up are forgotten."""
        while self._heap:
            until, lease = self._heap[0]
            if self._until.get(lease) == until:
                if until > now:
                    return until
                self.end(lease)
            heapq.heappop(self._heap)
        return None
