"""Which datagrams of which senders were heard before."""

from __future__ import annotations

from collections import OrderedDict

WINDOW = 1024
"""Sequences of a sender that may overtake each other; what comes later than that counts as repeated."""
MAX_SENDERS = 1024
"""Senders that are remembered; beyond that the one heard of longest ago is forgotten."""

_ALL = (1 << WINDOW) - 1


class Senders:
    """For each sender, the highest sequence heard and a bit for each of those just below it."""

    def __init__(self) -> None:
        self._heard: OrderedDict[bytes, tuple[int, int]] = OrderedDict()

    def is_new(self, sender: bytes, sequence: int) -> bool:
        """Note a sequence of a sender; False when it may have been noted before."""
        highest, bits = self._heard.get(sender, (sequence, 0))
        if sequence > highest:
            ahead = sequence - highest
            # A huge step must not make a huge number.
            highest, bits = sequence, bits << ahead & _ALL if ahead < WINDOW else 0
        behind = highest - sequence
        if behind >= WINDOW or bits >> behind & 1:
            return False
        self._heard[sender] = highest, bits | 1 << behind
        self._heard.move_to_end(sender)
        if len(self._heard) > MAX_SENDERS:
            self._heard.popitem(last=False)
        return True
