"""What a subscription believes to be ready: the pieces of work that hints have told of and nobody has taken yet.

Every entry has a mark that grows with each hint. A look that came up empty disproves what was believed when it began;
what was heard meanwhile stays.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable

from hark.broker.delivery.consumers import Work
from hark.model import News

Piece = tuple[str, str]
"""A queue and a partition of it: an ordered group works on one partition at a time."""


MOST_PIECES = 10_000
"""Beyond this nobody needs to know where the work is: wherever one looks there is some."""


class Believed:
    """Pieces by the mark of their last hint, the longest known first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._mark = 0
        self._pieces: OrderedDict[Piece, int] = OrderedDict()
        self._freed: dict[Piece, int] = {}
        """The marks of those that something else than an arrival told of last."""
        self._named: dict[str, int] = {}
        """Partitions to be looked at by those who named them, whether or not anything is known of them."""
        self._anywhere = 0
        """How many consumers may look although nobody knows where: twice as many each time that they found something,
        so that a thousand ready partitions are found in ten looks."""
        self._anywhere_mark = 0

    def __bool__(self) -> bool:
        return bool(self._pieces or self._named or self._anywhere)

    @property
    def mark(self) -> int:
        """All that is believed now has this mark or a lower one."""
        return self._mark

    def hear(self, pieces: Iterable[Piece], news: News) -> bool:
        """These may be ready; False: it is too much to remember, and everybody has to look everywhere."""
        self._mark += 1
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

    def look(self, partition: str | None) -> None:
        """Somebody should look, there or (None) anywhere."""
        self._mark += 1
        if partition is not None:
            self._named[partition] = self._mark
        else:
            self._anywhere = max(1, self._anywhere)
            self._anywhere_mark = self._mark

    def took(self, piece: Piece, mark: int, *, leased: bool) -> bool:
        """A look that began at a mark took it; whether it was believed to be there.

        What has been leased is not ready, whatever arrived there before the look was over: its lease has to end first,
        and that is told.
        """
        was_known = piece in self._pieces
        heard = (self._freed if leased else self._pieces).get(piece, 0)
        if heard <= mark:
            self._drop(piece)
        return was_known

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
            if queue is not None and self._pieces.get((queue, partition), mark + 1) <= mark:
                self._drop((queue, partition))
            return
        while self._pieces and next(iter(self._pieces.values())) <= mark:
            self._drop(next(iter(self._pieces)))
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
            pieces = self._pieces
            if len(named) <= len(pieces):
                at = {partition: 1 for partition in named if (queue, partition) in pieces}
            else:
                at = {partition: 1 for _, partition in pieces if partition in named}
            # A look that nobody can make now is no work: it would be given to those who can't make it, for ever.
            looks = [partition for partition in self._named if partition in named]
            extra = sum((queue, partition) not in pieces for partition in looks)
            at |= dict.fromkeys(looks, 1)
        return Work(len(self._pieces) + extra + self._anywhere, at)
