"""The ready work of a subscription: announced by hints, and received by no consumer yet."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator

from hark.broker.delivery.consumers import Work
from hark.model import HintKind

PartitionKey = tuple[str, str]
"""A queue and a partition of it."""

_MOST_ENTRIES = 4
"""Of one piece; the looks under way at a time are few, and what is heard before the first of them need not be told
apart."""


class _Messages:
    """Those of one piece: how many were heard of at which mark, the oldest first."""

    __slots__ = ("entries", "looks")

    def __init__(self) -> None:
        self.entries: list[tuple[int, int]] = []
        self.looks = 0
        """How many consumers it takes to take them."""

    def add(self, count: int, mark: int) -> None:
        entries = self.entries
        if entries and entries[-1][0] == mark:
            entries[-1] = mark, entries[-1][1] + count
            return
        entries.append((mark, count))
        if len(entries) > _MOST_ENTRIES:
            # Use the later mark: a wrong expectation costs a look, a missing one delays a message.
            entries[:2] = [(entries[1][0], entries[0][1] + entries[1][1])]

    def take(self, count: int, mark: int) -> None:
        """Messages were taken by a look that began at a mark: of those heard of since it may have taken none."""
        while count and self.entries and self.entries[0][0] <= mark:
            noted_at, noted = self.entries[0]
            if noted > count:
                self.entries[0] = noted_at, noted - count
                return
            count -= noted
            del self.entries[0]

    def disprove(self, mark: int) -> None:
        while self.entries and self.entries[0][0] <= mark:
            del self.entries[0]


class ReadyCounts:
    """Pieces with their messages; a piece without any is not kept."""

    def __init__(self) -> None:
        self._partitions: dict[PartitionKey, _Messages] = {}
        self._batch = 1
        """How many messages are counted as one look."""
        self._next_batch = 1
        self.looks = 0
        """How many consumers it takes to take all of them."""

    def __len__(self) -> int:
        return len(self._partitions)

    def __contains__(self, key: PartitionKey) -> bool:
        return key in self._partitions

    def __iter__(self) -> Iterator[PartitionKey]:
        return iter(self._partitions)

    def set_batch(self, batch: int) -> None:
        """Set the smallest batch size of the waiting consumers.

        A larger size takes effect when no work is expected: otherwise one consumer with a small batch that joins and
        leaves often would cause a new count each time. Until then a few consumers too many are notified.
        """
        self._next_batch = batch
        if batch < self._batch or not self._partitions:
            self._batch = batch
            for messages in self._partitions.values():
                self._recount(messages)

    def add(self, key: PartitionKey, count: int, mark: int) -> None:
        """Add a number of ready messages to a piece."""
        messages = self._partitions.get(key)
        if messages is None:
            messages = self._partitions[key] = _Messages()
        messages.add(count, mark)
        self._recount(messages)

    def took(self, key: PartitionKey, count: int, mark: int) -> bool:
        """Subtract the messages of a look that began at a mark. Returns whether some were expected there."""
        messages = self._partitions.get(key)
        if messages is None:
            return False
        messages.take(count, mark)
        self._keep(key, messages)
        return True

    def disprove(self, mark: int) -> None:
        """A look that began at a mark found nothing anywhere."""
        for key in list(self._partitions):
            self.disprove_at(key, mark)

    def disprove_at(self, key: PartitionKey, mark: int) -> None:
        """A look that began at a mark found nothing there."""
        messages = self._partitions.get(key)
        if messages is not None:
            messages.disprove(mark)
            self._keep(key, messages)

    def clear(self) -> None:
        """Believe nothing."""
        self._partitions.clear()
        self._batch = self._next_batch
        self.looks = 0

    def looks_at(self, key: PartitionKey) -> int:
        """How many consumers it takes to take those of one piece."""
        messages = self._partitions.get(key)
        return 0 if messages is None else messages.looks

    def _keep(self, key: PartitionKey, messages: _Messages) -> None:
        self._recount(messages)
        if not messages.entries:
            del self._partitions[key]
            if not self._partitions:
                self._batch = self._next_batch

    def _recount(self, messages: _Messages) -> None:
        looks = -(-sum(count for _, count in messages.entries) // self._batch)
        self.looks += looks - messages.looks
        messages.looks = looks


# Every entry has a mark that grows with each look. An empty look removes the entries from before it began; entries
# from
# hints since then stay.
#
# In an ordered group one consumer works on a partition at a time, so a piece is a partition. In a shared group a piece
# is
# a number of messages in a partition, and as many consumers are notified as are needed to receive them.


MOST_PARTITIONS = 10_000
"""Maximum number of remembered pieces. With more pieces than this, any look finds work."""


class ReadyWork:
    """Pieces by the mark of their last hint, the oldest first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._mark = 0
        self._partitions: OrderedDict[PartitionKey, int] = OrderedDict()
        self._ready_counts = ReadyCounts()
        """Pieces of shared groups."""
        self._freed: dict[PartitionKey, int] = {}
        """The marks of pieces whose last hint was about released work, not about new messages."""
        self._named: dict[str, int] = {}
        """Partitions that their consumers must look at, whether or not work is expected there."""
        self._anywhere = 0
        """Number of consumers that may look without a known place. It doubles after each successful look, so that
        ten looks find a thousand ready partitions."""
        self._anywhere_mark = 0

    def __bool__(self) -> bool:
        return bool(self._partitions or self._ready_counts or self._named or self._anywhere)

    @property
    def mark(self) -> int:
        """The highest mark of all current entries."""
        return self._mark

    def begin_look(self) -> int:
        """The mark of a look that begins now. Later hints get a higher mark."""
        self._mark += 1
        return self._mark - 1

    def add(self, partitions: Iterable[PartitionKey], kind: HintKind) -> bool:
        """Note that these pieces may be ready. False: there are too many to remember; all lanes must look."""
        known = self._partitions
        if len(known) > MOST_PARTITIONS:
            known.clear()
            self._freed.clear()
            return False
        for key in partitions:
            known[key] = self._mark
            known.move_to_end(key)  # So that the marks stay in order.
            if kind == "free":
                self._freed[key] = self._mark
        return True

    def add_counts(self, counts: Iterable[tuple[PartitionKey, int]]) -> bool:
        """Note that more messages of a shared group may be ready. False: there are too many pieces to remember."""
        if len(self._ready_counts) > MOST_PARTITIONS:
            self._ready_counts.clear()
            return False
        for key, count in counts:
            self._ready_counts.add(key, count, self._mark)
        return True

    def set_batch(self, batch: int) -> None:
        """Set the smallest batch size of the waiting consumers of a shared group."""
        self._ready_counts.set_batch(batch)

    def look(self, partition: str | None) -> None:
        """Request a look in a partition, or (None) anywhere."""
        if partition is not None:
            self._named[partition] = self._mark
        else:
            self._anywhere = max(1, self._anywhere)
            self._anywhere_mark = self._mark

    def took(self, key: PartitionKey, count: int, mark: int, *, leased: bool) -> bool:
        """Note the result of a look: `count` messages of a piece. Returns whether work was expected there.

        In an ordered group a leased partition is not ready, even if messages arrived during the look: its lease must
        end first, and a hint announces that. In a shared group the other messages stay ready.
        """
        was_known = key in self._partitions
        noted = (self._freed if leased else self._partitions).get(key, 0)
        if noted <= mark:
            self._drop(key)
        return self._ready_counts.took(key, count, mark) or was_known

    def _drop(self, key: PartitionKey) -> None:
        self._partitions.pop(key, None)
        self._freed.pop(key, None)

    def expect_more(self) -> None:
        """Allow more looks without a known place, because every look found work and some of it was unexpected."""
        self._anywhere = min(2 * self._anywhere, self._most)

    def disprove(self, partition: str | None, queue: str | None, mark: int) -> None:
        """Remove entries after an empty look in a partition, or (None) anywhere."""
        if partition is not None:
            if self._named.get(partition, mark + 1) <= mark:
                del self._named[partition]
            if queue is not None:
                if self._partitions.get((queue, partition), mark + 1) <= mark:
                    self._drop((queue, partition))
                self._ready_counts.disprove_at((queue, partition), mark)
            return
        while self._partitions and next(iter(self._partitions.values())) <= mark:
            self._drop(next(iter(self._partitions)))
        self._ready_counts.disprove(mark)
        # Without work anywhere there is none in the named partitions: their consumers need not look.
        self._named = {name: named_mark for name, named_mark in self._named.items() if named_mark > mark}
        if self._anywhere_mark <= mark:
            self._anywhere = 0

    def forget(self, partition: str) -> None:
        """Remove a partition that no consumer names any more."""
        self._named.pop(partition, None)

    def work(self, queue: str | None, named: Collection[str]) -> Work:
        """The expected work, with the share of the named partitions."""
        at: dict[str, int] = {}
        extra = 0
        if named and queue is not None:
            at = self._work_at(queue, named)
            # A requested look without a waiting consumer is not work: it would go to consumers that cannot do it.
            for partition in self._named:
                if partition in named and partition not in at:
                    at[partition] = 1
                    extra += 1
        return Work(len(self._partitions) + self._ready_counts.looks + extra + self._anywhere, at)

    def _work_at(self, queue: str, named: Collection[str]) -> dict[str, int]:
        """The share of the named partitions in the announced work."""
        partitions, counts = self._partitions, self._ready_counts
        if len(named) <= len(partitions) + len(counts):
            known = [
                partition for partition in named if (queue, partition) in partitions or (queue, partition) in counts
            ]
        else:
            known = [partition for _, partition in (*partitions, *counts) if partition in named]
        return {one: ((queue, one) in partitions) + counts.looks_at((queue, one)) for one in known}
