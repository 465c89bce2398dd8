"""What a subscription believes to be ready: the pieces of work that hints have told of and nobody has taken yet.

Every entry has a mark that grows with each look. A look that came up empty disproves what was believed when it began;
what was heard meanwhile stays.

An ordered group works on one partition at a time, so there a piece is a partition. In a shared one it is a number of
messages in a partition, and as many consumers are told of it as it takes to take them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable

from hark.broker.delivery.consumers import Work
from hark.broker.delivery.counted import Counted, Piece
from hark.model import News

MOST_PIECES = 10_000
"""Beyond this nobody needs to know where the work is: wherever one looks there is some."""


class Believed:
    """Pieces by the mark of their last hint, the longest known first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._mark = 0
        self._pieces: OrderedDict[Piece, int] = OrderedDict()
        self._counted = Counted()
        """Those of shared groups."""
        self._freed: dict[Piece, int] = {}
        """The marks of those that something else than an arrival told of last."""
        self._named: dict[str, int] = {}
        """Partitions to be looked at by those who named them, whether or not anything is known of them."""
        self._anywhere = 0
        """How many consumers may look although nobody knows where: twice as many each time that they found something,
        so that a thousand ready partitions are found in ten looks."""
        self._anywhere_mark = 0

    def __bool__(self) -> bool:
        return bool(self._pieces or self._counted or self._named or self._anywhere)

    @property
    def mark(self) -> int:
        """All that is believed now has this mark or a lower one."""
        return self._mark

    def begin_look(self) -> int:
        """The mark of a look that begins now: whatever is heard from now on has a higher one."""
        self._mark += 1
        return self._mark - 1

    def hear(self, pieces: Iterable[Piece], news: News) -> bool:
        """These may be ready; False: it is too much to remember, and everybody has to look everywhere."""
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
        """So many more messages of a shared group may be ready; False: it is too much to remember."""
        if len(self._counted) > MOST_PIECES:
            self._counted.clear()
            return False
        for piece, count in counts:
            self._counted.hear(piece, count, self._mark)
        return True

    def set_batch(self, batch: int) -> None:
        """Nobody who waits takes fewer messages of a shared group at once, unless there are fewer."""
        self._counted.set_batch(batch)

    def look(self, partition: str | None) -> None:
        """Somebody should look, there or (None) anywhere."""
        if partition is not None:
            self._named[partition] = self._mark
        else:
            self._anywhere = max(1, self._anywhere)
            self._anywhere_mark = self._mark

    def took(self, piece: Piece, count: int, mark: int, *, leased: bool) -> bool:
        """A look that began at a mark took so many messages there; whether something was believed to be there.

        What an ordered group has leased is not ready, whatever arrived there before the look was over: its lease has to
        end first, and that is told. In a shared group the rest is as ready as before.
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
        """All who looked found something, and not all of it was known: there may be more where that came from."""
        self._anywhere = min(2 * self._anywhere, self._most)

    def disprove(self, partition: str | None, queue: str | None, mark: int) -> None:
        """A look that began at a mark came up empty there, or (None) anywhere."""
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
        # Nothing anywhere is nothing there: whoever names a partition need not look for itself.
        self._named = {name: named_mark for name, named_mark in self._named.items() if named_mark > mark}
        if self._anywhere_mark <= mark:
            self._anywhere = 0

    def forget(self, partition: str) -> None:
        """Nobody names this partition any more."""
        self._named.pop(partition, None)

    def work(self, queue: str | None, named: Collection[str]) -> Work:
        """What there is to do, with the share of the partitions that some consumer named."""
        at: dict[str, int] = {}
        extra = 0
        if named and queue is not None:
            at = self._work_at(queue, named)
            # A look that nobody can make now is no work: it would be given to those who can't make it, for ever.
            for partition in self._named:
                if partition in named and partition not in at:
                    at[partition] = 1
                    extra += 1
        return Work(len(self._pieces) + self._counted.looks + extra + self._anywhere, at)

    def _work_at(self, queue: str, named: Collection[str]) -> dict[str, int]:
        """The share of the named partitions in what was heard of."""
        pieces, counted = self._pieces, self._counted
        if len(named) <= len(pieces) + len(counted):
            known = [partition for partition in named if (queue, partition) in pieces or (queue, partition) in counted]
        else:
            known = [partition for _, partition in (*pieces, *counted) if partition in named]
        return {one: ((queue, one) in pieces) + counted.looks_at((queue, one)) for one in known}
