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
        self.prioritized = False
        """Whether messages may have priorities; only shared groups have use for that."""
        self.blocked = False
        """Whether too many messages were in flight for somebody to take more: then he is told when there are fewer."""
        self._ready: dict[int, tuple[int, int]] = {}
        self._heap: list[tuple[int, int, int]] = []
        self._waking_heap: list[tuple[int, int]] = []
        self._served: dict[int, int] = {}
        self._heard: dict[int, int] = {}
        """When (in turns) something was last said of a partition by anybody but a pop."""
        self._forgotten = 0
        self._missed: set[int] = set()
        """Partitions that got messages while they waited."""
        self._untold: dict[int, int] = {}
        """Partitions that pops made ready, and that nobody was told of; in shared groups with a number of messages."""
        self._leased_elsewhere: set[int] = set()
        """Partitions that the database said are leased, by whomever."""

    def forget(self) -> None:
        """Something changed beyond what is tracked here: everything has to be discovered again."""
        self.discovered = None
        self._forgotten = next(_turns)
        self.waking.clear()
        self._waking_heap.clear()
        self._missed.clear()
        self._leased_elsewhere.clear()

    # What happened -----------------------------------------------------------------------------------------

    def add(self, partition: int) -> None:
        """A partition may be taken, and whoever says so tells others."""
        self._heard[partition] = next(_turns)
        self.found(partition)
        self._untold.pop(partition, None)

    def offer(self, partition: int) -> bool:
        """A partition got a message: it may be taken (True) unless what it waits for comes first."""
        if partition in self.waking:
            self._heard[partition] = next(_turns)
            self._missed.add(partition)
            return False
        self.add(partition)
        return True

    def drained(self, partition: int) -> bool:
        """A lease ended, and at that time nothing was left; True: something has come since, it may be taken."""
        if partition in self._missed:
            self.add(partition)
            return True
        self._heard[partition] = next(_turns)
        self._stop_waiting(partition)
        return False

    def look_behind(self) -> list[int]:
        """What partitions wait for, other than leases, may be gone: they may be taken; which they are."""
        found = [partition for partition, (_, reason) in self.waking.items() if reason != "lease_held"]
        for partition in found:
            self.add(partition)
        return found

    def doubt_leases(self) -> list[int]:
        """A lease of another server ended somewhere: believe in none of those; what they kept from being offered."""
        missed = [partition for partition in self._leased_elsewhere if partition in self._missed]
        for partition in list(self._leased_elsewhere):
            self._stop_waiting(partition)
        for partition in missed:
            self.add(partition)
        return missed

    # What pops find ----------------------------------------------------------------------------------------

    def now(self) -> int:
        """A turn to compare with what is heard later."""
        return next(_turns)

    def heard_since(self, partition: int, turn: int) -> bool:
        """Whether something was said of a partition since: then an answer that was under way may be too old."""
        return max(self._heard.get(partition, 0), self._forgotten) > turn

    def found(self, partition: int) -> None:
        """A partition may be taken, as a pop found."""
        self._stop_waiting(partition)
        if partition not in self._ready:
            self._enter(partition)
            self._untold[partition] = 1

    def _enter(self, partition: int) -> None:
        """Among the ready ones in the order in which they are tried."""
        key = self._rank(partition), self._served.get(partition, 0)
        if self._ready.get(partition) != key:
            self._ready[partition] = key
            heapq.heappush(self._heap, (*key, partition))

    def _rank(self, _partition: int) -> int:
        """What comes before turns: nothing."""
        return 0

    def put_back(self, partition: int) -> None:
        """A partition may be taken some day, but to tell anybody of it now would be of no use."""
        self.found(partition)
        self._untold.pop(partition, None)

    def take_untold(self) -> dict[int, int]:
        """The partitions that are ready and that nobody was told of; they are told now."""
        untold, self._untold = self._untold, {}
        return untold

    def remove(self, partition: int) -> None:
        """A partition can't be taken, until something is heard of it again."""
        self._leave(partition)
        self._stop_waiting(partition)

    def _leave(self, partition: int) -> None:
        self._ready.pop(partition, None)
        self._untold.pop(partition, None)

    def _stop_waiting(self, partition: int) -> None:
        self.waking.pop(partition, None)
        self._missed.discard(partition)
        self._leased_elsewhere.discard(partition)

    def leased_until(self, partition: int, due: int) -> None:
        """Somebody has leased a partition; who, the database did not say."""
        self.wake_at(partition, due, "lease_held")
        self._leased_elsewhere.add(partition)

    def wake_at(self, partition: int, due: int, reason: EmptyReason) -> None:
        """A partition may be taken from a time on."""
        self._leave(partition)
        self._leased_elsewhere.discard(partition)
        if self.waking.get(partition) != (due, reason):
            self.waking[partition] = due, reason
            heapq.heappush(self._waking_heap, (due, partition))

    def wake_due(self, now: int) -> None:
        """Move what has fallen due to the ready ones."""
        heap = self._waking_heap
        while heap and heap[0][0] <= now:
            due, partition = heapq.heappop(heap)
            if partition in self.waking and self.waking[partition][0] == due:
                self.found(partition)

    def next_wake(self) -> int | None:
        """When the next partition wakes."""
        heap = self._waking_heap
        while heap:
            due, partition = heap[0]
            if partition in self.waking and self.waking[partition][0] == due:
                return due
            heapq.heappop(heap)
        return None

    def first(self) -> tuple[int, int, int] | None:
        """The ready partition that was served longest ago, as (rank, turn, partition)."""
        heap = self._heap
        while heap:
            rank, turn, partition = heap[0]
            if self._ready.get(partition) == (rank, turn):
                return heap[0]
            heapq.heappop(heap)
        return None

    def heads(self, number: int) -> list[tuple[int, int, int]]:
        """The first of the ready partitions, as `first` answers them; they stay ready."""
        found: list[tuple[int, int, int]] = []
        while len(found) < number and (head := self.first()) is not None:
            found.append(head)
            heapq.heappop(self._heap)
        for one in found:
            heapq.heappush(self._heap, one)
        return found

    def take(self) -> int:
        """Remove the partition that `first` answered."""
        partition = heapq.heappop(self._heap)[-1]
        self._leave(partition)
        return partition

    def serve(self, partition: int) -> None:
        """A partition had its turn."""
        self.remove(partition)
        self._served[partition] = next(_turns)
