"""The expected number of ready messages in partitions of shared groups, where many consumers share a partition."""

from __future__ import annotations

from collections.abc import Iterator

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
