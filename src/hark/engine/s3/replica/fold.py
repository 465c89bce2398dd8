"""The state as of a record of the log: tables, what memory keeps of them, and how both move on.

Own changes are made in a `Flush` and then kept or undone; records of others are applied as they are. Both say whom to
tell. All of it belongs to one thread.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

import apsw

from hark.engine.hints import HintBook
from hark.engine.s3.log.record import Record
from hark.engine.s3.replica import foreign
from hark.engine.s3.replica.flush import Flush
from hark.engine.s3.replica.leases import LeaseRows
from hark.engine.s3.replica.memory import Memory
from hark.engine.s3.replica.scratch import Scratch
from hark.engine.s3.replica.touched import Touched
from hark.engine.sqlite.state import State
from hark.engine.sqlite.store import run
from hark.errors import StoreUnusable
from hark.ids import IdCodec, IdSource
from hark.model import Hint, KeyNews

log = logging.getLogger(__name__)

# A full disk is another matter: it says nothing of the log, and the record is applied when there is room again.
_MISFITS = (apsw.AbortError, apsw.ConstraintError, apsw.CorruptError)


class Head(NamedTuple):
    """Where in the log the state is."""

    seq: int
    time: int
    nonce: str


class Change(NamedTuple):
    """What applying records made of the state: whom to tell."""

    hints: Sequence[Hint] = ()
    keys: KeyNews | None = None


class Fold:
    """See the module's text."""

    def __init__(self, ids: IdSource, tag: int, writer: str, skew_margin: int) -> None:
        self._ids = ids
        self._tag = tag
        self.scratch = Scratch()
        self.state = State(IdCodec(tag))
        self._lease_rows = LeaseRows(self.state, writer, skew_margin)
        self._memory = Memory(self.scratch, self.state, self._lease_rows)
        self._session: apsw.Session | None = None
        self._in_step = False
        """Memory has what the tables have."""
        self.head = Head(0, 0, "")

    def open(self, database: bytes | None) -> None:
        """Begin with nothing, or with the database of a snapshot."""
        self._drop_session()
        self.scratch.open(self._tag, database)
        [self.head] = [Head(*row) for row in self.scratch.writer.execute("select seq, time, nonce from replica")]
        self._read_all()

    def mend(self) -> bool:
        """Bring memory into step again if a failure (a full disk, say) left it behind; whether that was so."""
        if self._in_step:
            return False
        self._roll_back()
        self._read_all()
        return True

    def forgotten(self) -> list[Hint]:
        """Whom to tell that it is not known any more that they wait."""
        book = HintBook()
        while self._memory.forgotten:
            book.add(self._memory.forgotten.pop(), None, None)
        return book.hints()

    def close(self) -> None:
        """Remove the tables."""
        self._drop_session()
        self.scratch.close()

    # Own changes -------------------------------------------------------------------------------------------

    def begin(self, now: int) -> Flush:
        """Open a batch of verbs that will be the next record."""
        self.scratch.writer.execute("begin immediate")
        self._session = self.scratch.record()
        return Flush(self.scratch.writer, self.state, self._ids, self._lease_rows, self.head.seq + 1, now)

    def changes(self) -> bytes:
        """What the open batch changed; empty: nothing."""
        assert self._session is not None
        return b"" if self._session.is_empty else bytes(self._session.patchset())

    def keep(self, head: Head | None) -> None:
        """The batch is in the log as that record, or it changed nothing (None)."""
        self._drop_session()
        self._commit(head)

    def undo(self, changes: bytes | None = None) -> None:
        """The batch is not in the log: as if it had never been. `changes`: what it changed, if it came to its end."""
        self._in_step = False
        self._roll_back()
        if changes is None:
            self._read_all()
        else:
            self._follow(Touched(changes), self.head.time)

    # Records of others -------------------------------------------------------------------------------------

    def apply(self, record: Record) -> Change:
        """Take over the next record."""
        writer = self.scratch.writer
        try:
            touched = Touched(record.changes)
            ended = foreign.holders(self.state, touched)
            writer.execute("begin immediate")
            try:
                apsw.Changeset.apply(record.changes, writer, conflict=_refuse)
                self._commit(Head(record.seq, record.time, record.nonce))
            except BaseException:
                self._roll_back()
                raise
        except _MISFITS as error:
            raise StoreUnusable(
                f"log record {record.seq} does not match the records before it ({error}): the log is damaged; "
                "restore it from a backup"
            ) from error
        self._follow(touched, record.time)
        return Change(foreign.hints(writer, self.state, touched, ended), foreign.key_news(touched))

    def _commit(self, head: Head | None) -> None:
        if head is not None:
            run(self.scratch.writer, "update replica set seq = ?1, time = ?2, nonce = ?3", *head)
        self.scratch.writer.execute("commit")
        self.head = self.head if head is None else head

    def _roll_back(self) -> None:
        self._drop_session()
        if self.scratch.writer.in_transaction:
            self.scratch.writer.execute("rollback")

    def _read_all(self) -> None:
        self._in_step = False
        self._memory.read_all()
        self._in_step = True

    def _follow(self, touched: Touched, now: int) -> None:
        self._in_step = False
        self._memory.follow(touched, now)
        self._in_step = True

    def _drop_session(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


def _refuse(reason: int, change: apsw.TableChange) -> int:
    why = apsw.mapping_session_conflict.get(reason, reason)
    log.error("a log record conflicts with table %s (%s): the log is damaged", change.name, why)
    return int(apsw.SQLITE_CHANGESET_ABORT)
