"""Following the log: what others wrote, and where to begin when it was collected up to here."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from hark.engine.hints import HintBook
from hark.engine.s3.bucket.api import Stored
from hark.engine.s3.log import record as records
from hark.engine.s3.log.reading import more_at_once
from hark.engine.s3.replica.chain import Chain
from hark.engine.s3.replica.fold import Change, Fold, Head
from hark.engine.s3.replica.pace import Pace
from hark.engine.sqlite.outbox import Outbox

log = logging.getLogger(__name__)
_FEW = 2
"""So many records are asked for at once where there is likely one."""
_MUCH_BYTES = 16 << 20
"""Where so much came at once, no more records are asked for at once."""

OnHead = Callable[[Head, int, bool], None]
"""Told of each record that was applied: where the state is, how large it was, and whether it was written here."""


class Follower:
    """Takes the state to the end of the log. It belongs to the thread of the state."""

    def __init__(self, chain: Chain, fold: Fold, outbox: Outbox, pace: Pace, on_head: OnHead) -> None:
        self._chain = chain
        self._fold = fold
        self._outbox = outbox
        self._pace = pace
        self._on_head = on_head
        self.in_doubt = False
        """The last record may be in the log or not: the log has to be read before the next."""

    def make_sure(self) -> None:
        """Before anything is appended: know where the head is, and that no number there was removed."""
        if self._chain.is_stale:
            self.check_pointer()
        if self.in_doubt or self._pace.is_likely_behind(time.monotonic(), self._chain.seconds_since_sight()):
            self.read_on(_FEW)
            self.in_doubt = False

    def check_pointer(self) -> None:
        """Start again from the newest snapshot if the log up to here may be gone."""
        if not self._chain.covers(self._fold.head.seq):
            self.restart()

    def restart(self) -> None:
        """Throw the state away and begin with the newest snapshot, or with nothing."""
        again = self._fold.head.seq > 0
        self._chain.begin_with_newest(self._fold.open)
        if again:
            log.info("%s: reloaded the state from the snapshot of record %d", self._chain.name, self._fold.head.seq)
        self.tell_all()
        self._on_head(self._fold.head, 0, False)

    def tell_all(self) -> None:
        """Whatever was known may be otherwise: everybody looks again."""
        hints = HintBook()
        for queue in self._fold.state.queues:
            hints.add(queue, None, None)
        self._outbox.post([], hints.hints())

    def read_on(self, number: int = 1) -> bool:
        """Apply all that is in the log, asking for so many at once; whether there was something."""
        any_new, next_number = False, 1
        while True:
            found = self._chain.read(self._fold.head.seq + 1, number)
            if found is None:
                self.check_pointer()
                continue
            self.apply(found)
            any_new = any_new or bool(found)
            if len(found) < number:
                return any_new
            if sum(len(stored.body) for stored in found) > _MUCH_BYTES:
                next_number = 1  # They have to fit into memory together.
            number, next_number = next_number, more_at_once(next_number)

    def apply(self, found: Sequence[Stored]) -> None:
        """Take over the records that come next."""
        for stored in found:
            head = self._fold.head
            record = records.decode(stored.body, head.seq + 1, self._chain.name)
            self._chain.check(record, head.nonce)
            change: Change = self._fold.apply(record)
            self._chain.keep_payloads(record)
            self._outbox.post([], change.hints, change.keys)
            self._pace.saw_other(time.monotonic())
            self._on_head(self._fold.head, len(stored.body), False)
