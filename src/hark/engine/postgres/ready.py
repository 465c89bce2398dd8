"""What a server believes of a group's partitions: which are ready, which will be when. The database verifies it.

Losing all of this costs latency only: what is not known is discovered.
"""

from __future__ import annotations

import heapq
from itertools import count

from hark.model import EmptyReason

_turns = count(1)


class Ready:
    """Partitions of one group, the one served longest ago first."""

    def __init__(self) -> None:
        self.discovered: int | None = None
        """The time of the last discovery; None: there was none yet, so nothing is known."""
        self.discover_after = 0.0
        """The loop's time before which a group with work is not searched for more."""
        self.waking: dict[int, tuple[int, EmptyReason]] = {}
        """Partitions that will be ready at a time, and what they wait for."""
        self._ready: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []
        self._waking_heap: list[tuple[int, int]] = []
        self._served: dict[int, int] = {}

    def forget(self) -> None:
        """Something changed beyond what is tracked here: everything has to be discovered again."""
        self.discovered = None
        self.waking.clear()
        self._waking_heap.clear()

    def add(self, partition: int) -> None:
        """A partition may be taken."""
        self.waking.pop(partition, None)
        if partition not in self._ready:
            turn = self._served.get(partition, 0)
            self._ready[partition] = turn
            heapq.heappush(self._heap, (turn, partition))

    def offer(self, partition: int) -> None:
        """A partition got a message: it may be taken unless what it waits for comes first."""
        if partition not in self.waking:
            self.add(partition)

    def remove(self, partition: int) -> None:
        """A partition can't be taken, until something is heard of it again."""
        self._ready.pop(partition, None)
        self.waking.pop(partition, None)

    def wake_at(self, partition: int, due: int, reason: EmptyReason) -> None:
        """A partition may be taken from a time on."""
        self._ready.pop(partition, None)
        if self.waking.get(partition) != (due, reason):
            self.waking[partition] = due, reason
            heapq.heappush(self._waking_heap, (due, partition))

    def wake_due(self, now: int) -> None:
        """Move what has fallen due to the ready ones."""
        heap = self._waking_heap
        while heap and heap[0][0] <= now:
            due, partition = heapq.heappop(heap)
            if partition in self.waking and self.waking[partition][0] == due:
                self.add(partition)

    def next_wake(self) -> int | None:
        """When the next partition wakes."""
        heap = self._waking_heap
        while heap:
            due, partition = heap[0]
            if partition in self.waking and self.waking[partition][0] == due:
                return due
            heapq.heappop(heap)
        return None

    def first(self) -> tuple[int, int] | None:
        """The ready partition that was served longest ago, as (turn, partition)."""
        heap = self._heap
        while heap:
            turn, partition = heap[0]
            if self._ready.get(partition) == turn:
                return heap[0]
            heapq.heappop(heap)
        return None

    def take(self) -> int:
        """Remove the partition that `first` answered."""
        _, partition = heapq.heappop(self._heap)
        del self._ready[partition]
        return partition

    def serve(self, partition: int) -> None:
        """A partition had its turn."""
        self.remove(partition)
        self._served[partition] = next(_turns)
