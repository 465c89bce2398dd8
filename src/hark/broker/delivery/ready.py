"""The ready work of a subscription: announced by hints, and received by no consumer yet."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator

from hark.broker.delivery.consumers import Work
from hark.model import HintKind

Piece = tuple[str, str]
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

    def hear(self, count: int, mark: int) -> None:
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
            heard_at, heard = self.entries[0]
            if heard > count:
                self.entries[0] = heard_at, heard - count
                return
            count -= heard
            del self.entries[0]

    def disprove(self, mark: int) -> None:
        while self.entries and self.entries[0][0] <= mark:
            del self.entries[0]


class Counted:
    """Pieces with their messages; a piece without any is not kept."""

    def __init__(self) -> None:
        self._pieces: dict[Piece, _Messages] = {}
        self._batch = 1
        """How many messages are counted as one look."""
        self._next_batch = 1
        self.looks = 0
        """How many consumers it takes to take all of them."""

    def __len__(self) -> int:
        return len(self._pieces)

    def __contains__(self, piece: Piece) -> bool:
        return piece in self._pieces

    def __iter__(self) -> Iterator[Piece]:
        return iter(self._pieces)

    def set_batch(self, batch: int) -> None:
        """Set the smallest batch size of the waiting consumers.

        A larger size takes effect when no work is expected: otherwise one consumer with a small batch that joins and
        leaves often would cause a new count each time. Until then a few consumers too many are notified.
        """
        self._next_batch = batch
        if batch < self._batch or not self._pieces:
            self._batch = batch
            for messages in self._pieces.values():
                self._recount(messages)

    def hear(self, piece: Piece, count: int, mark: int) -> None:
        """Add a number of ready messages to a piece."""
        messages = self._pieces.get(piece)
        if messages is None:
            messages = self._pieces[piece] = _Messages()
        messages.hear(count, mark)
        self._recount(messages)

    def took(self, piece: Piece, count: int, mark: int) -> bool:
        """Subtract the messages of a look that began at a mark. Returns whether some were expected there."""
        messages = self._pieces.get(piece)
        if messages is None:
            return False
        messages.take(count, mark)
        self._keep(piece, messages)
        return True

    def disprove(self, mark: int) -> None:
        """A look that began at a mark found nothing anywhere."""
        for piece in list(self._pieces):
            self.disprove_at(piece, mark)

    def disprove_at(self, piece: Piece, mark: int) -> None:
        """A look that began at a mark found nothing there."""
        messages = self._pieces.get(piece)
        if messages is not None:
            messages.disprove(mark)
            self._keep(piece, messages)

    def clear(self) -> None:
        """Believe nothing."""
        self._pieces.clear()
        self._batch = self._next_batch
        self.looks = 0

    def looks_at(self, piece: Piece) -> int:
        """How many consumers it takes to take those of one piece."""
        messages = self._pieces.get(piece)
        return 0 if messages is None else messages.looks

    def _keep(self, piece: Piece, messages: _Messages) -> None:
        self._recount(messages)
        if not messages.entries:
            del self._pieces[piece]
            if not self._pieces:
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


MOST_PIECES = 10_000
"""Maximum number of remembered pieces. With more pieces than this, any look finds work."""


class Believed:
    """Pieces by the mark of their last hint, the oldest first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._mark = 0
        self._pieces: OrderedDict[Piece, int] = OrderedDict()
        self._counted = Counted()
        """Pieces of shared groups."""
        self._freed: dict[Piece, int] = {}
        """The marks of pieces whose last hint was about released work, not about new messages."""
        self._named: dict[str, int] = {}
        """Partitions that their consumers must look at, whether or not work is expected there."""
        self._anywhere = 0
        """Number of consumers that may look without a known place. It doubles after each successful look, so that
        ten looks find a thousand ready partitions."""
        self._anywhere_mark = 0

    def __bool__(self) -> bool:
        return bool(self._pieces or self._counted or self._named or self._anywhere)

    @property
    def mark(self) -> int:
        """The highest mark of all current entries."""
        return self._mark

    def begin_look(self) -> int:
        """The mark of a look that begins now. Later hints get a higher mark."""
        self._mark += 1
        return self._mark - 1

    def hear(self, pieces: Iterable[Piece], news: HintKind) -> bool:
        """Note that these pieces may be ready. False: there are too many to remember; all lanes must look."""
        known = self._pieces
        if len(known) > MOST_PIECES:
            known.clear()
            self._freed.clear()
            return False
        for piece in pieces:
            known[piece] = self._mark
            known.move_to_end(piece)  # So that the marks stay in order.
            if news == "free":
                self._freed[piece] = self._mark
        return True

    def hear_counted(self, counts: Iterable[tuple[Piece, int]]) -> bool:
        """Note that more messages of a shared group may be ready. False: there are too many pieces to remember."""
        if len(self._counted) > MOST_PIECES:
            self._counted.clear()
            return False
        for piece, count in counts:
            self._counted.hear(piece, count, self._mark)
        return True

    def set_batch(self, batch: int) -> None:
        """Set the smallest batch size of the waiting consumers of a shared group."""
        self._counted.set_batch(batch)

    def look(self, partition: str | None) -> None:
        """Request a look in a partition, or (None) anywhere."""
        if partition is not None:
            self._named[partition] = self._mark
        else:
            self._anywhere = max(1, self._anywhere)
            self._anywhere_mark = self._mark

    def took(self, piece: Piece, count: int, mark: int, *, leased: bool) -> bool:
        """Note the result of a look: `count` messages of a piece. Returns whether work was expected there.

        In an ordered group a leased partition is not ready, even if messages arrived during the look: its lease must
        end first, and a hint announces that. In a shared group the other messages stay ready.
        """
        was_known = piece in self._pieces
        heard = (self._freed if leased else self._pieces).get(piece, 0)
        if heard <= mark:
            self._drop(piece)
        return self._counted.took(piece, count, mark) or was_known

    def _drop(self, piece: Piece) -> None:
        self._pieces.pop(piece, None)
        self._freed.pop(piece, None)

    def expect_more(self) -> None:
        """Allow more looks without a known place, because every look found work and some of it was unexpected."""
        self._anywhere = min(2 * self._anywhere, self._most)

    def disprove(self, partition: str | None, queue: str | None, mark: int) -> None:
        """Remove entries after an empty look in a partition, or (None) anywhere."""
        if partition is not None:
            if self._named.get(partition, mark + 1) <= mark:
                del self._named[partition]
            if queue is not None:
                if self._pieces.get((queue, partition), mark + 1) <= mark:
                    self._drop((queue, partition))
                self._counted.disprove_at((queue, partition), mark)
            return
        while self._pieces and next(iter(self._pieces.values())) <= mark:
            self._drop(next(iter(self._pieces)))
        self._counted.disprove(mark)
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
        return Work(len(self._pieces) + self._counted.looks + extra + self._anywhere, at)

    def _work_at(self, queue: str, named: Collection[str]) -> dict[str, int]:
        """The share of the named partitions in the announced work."""
        pieces, counted = self._pieces, self._counted
        if len(named) <= len(pieces) + len(counted):
            known = [partition for partition in named if (queue, partition) in pieces or (queue, partition) in counted]
        else:
            known = [partition for _, partition in (*pieces, *counted) if partition in named]
        return {one: ((queue, one) in pieces) + counted.looks_at((queue, one)) for one in known}
