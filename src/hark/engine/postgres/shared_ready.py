"""What a server believes of a shared group's partitions: a partition that was served stays ready while it has more."""

from __future__ import annotations

from collections.abc import Sequence

from hark.engine.postgres.ready import Ready
from hark.model import EmptyReason


class SharedReady(Ready):
    """Partitions of one group: the highest priority first, then the one served longest ago."""

    def __init__(self) -> None:
        super().__init__()
        self._tops: dict[int, int] = {}
        """The highest priority that is believed ready."""
        self._told: dict[int, int] = {}
        """How many messages others have been told of that are still there, as far as is known."""
        self._told_due: dict[int, int] = {}
        """Times that whoever looks learns, and that others have been told to look for."""

    def forget(self) -> None:
        """Everything has to be discovered again."""
        super().forget()
        self._told.clear()
        self._told_due.clear()

    def _rank(self, partition: int) -> int:
        return -self._tops.get(partition, 0)

    # What happened -----------------------------------------------------------------------------------------

    def arrived(self, partition: int, number: int, top: int) -> None:
        """So many messages may be taken, and whoever says so tells others."""
        self._raise(partition, top)
        self._told[partition] = self._told.get(partition, 0) + number
        self.add(partition)
        self._enter(partition)

    def later(self, partition: int, due: int) -> bool:
        """A message may be taken from a time on; True: others have to be told, so that somebody learns the time."""
        waking = self.waking.get(partition)
        known = self._told_due.get(partition)
        if waking is not None and waking[0] <= due and known is not None and known <= due:
            self._heard[partition] = self.now()
            return False
        self._told_due[partition] = due
        self.add(partition)
        return True

    def _raise(self, partition: int, top: int) -> None:
        before = self._tops.get(partition, 0) if partition in self._ready else 0
        self._tops[partition] = max(before, top)
        self.prioritized |= top > 0

    # What pops find ----------------------------------------------------------------------------------------

    def served(self, partition: int, number: int) -> None:
        """A partition had its turn and gave so many messages."""
        self._served[partition] = self.now()
        if partition in self._ready:
            self._enter(partition)  # It stays ready, but behind the others: whatever is said of it next.
        self._told[partition] = max(0, self._told.get(partition, 0) - number)

    def has_left(self, partition: int, counts: Sequence[int]) -> None:
        """There is more to take: so many messages of each priority, or at least one look."""
        self._stop_waiting(partition)
        self._tops[partition] = max((priority for priority, number in enumerate(counts) if number), default=0)
        self.prioritized |= self._tops[partition] > 0
        self._enter(partition)
        self._untold.pop(partition, None)
        number, told = max(1, sum(counts)), self._told.get(partition, 0)
        if number > told:
            self._untold[partition] = number - told
            self._told[partition] = number

    def has_nothing(self, partition: int) -> None:
        """There is nothing to take, until something is heard of it."""
        self.remove(partition)
        self._told.pop(partition, None)
        self._told_due.pop(partition, None)

    def waits(self, partition: int, due: int, reason: EmptyReason, now: int) -> None:
        """There is nothing to take until a time. Unless others know that, they have to look: then so do they."""
        self.wake_at(partition, due, reason)
        self._told.pop(partition, None)
        known = self._told_due.get(partition)
        if reason != "lease_held" and (known is None or known <= now or due < known):
            self._told_due[partition] = due
            self._untold[partition] = 1

    def pass_by(self, partition: int) -> None:
        """Somebody else is at it."""
        self._leave(partition)
