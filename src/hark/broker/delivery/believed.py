"""The expected work of a subscription: pieces of work that hints have announced and no consumer has received yet.

Every entry has a mark that grows with each look. An empty look removes the entries from before it began; entries from
hints since then stay.

In an ordered group one consumer works on a partition at a time, so a piece is a partition. In a shared group a piece is
a number of messages in a partition, and as many consumers are notified as are needed to receive them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable

from hark.broker.delivery.consumers import Work
from hark.broker.delivery.counted import Counted, Piece
from hark.model import News

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

    def hear(self, pieces: Iterable[Piece], news: News) -> bool:
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
