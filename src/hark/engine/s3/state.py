"""The state at a record of the log: a local database, its copy in memory, and how both advance.

The database is in a temporary folder. A killed process cannot remove its folder, and the database can be large. So each
process locks its own folder, and removes folders of other processes that are not locked.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import apsw

from hark.engine.core import schema
from hark.engine.core.loader import Loader
from hark.engine.core.state import Group, Queue, State
from hark.engine.core.store import rows_of, run
from hark.engine.hints import HintBook
from hark.engine.s3.flush import Flush
from hark.engine.s3.leases import Changeset, LeaseRows, Owner, PositionKey, group_by_id, stored_rates
from hark.engine.s3.objects import Record
from hark.errors import DiskFull, StoreUnusable
from hark.ids import IdCodec, IdSource
from hark.model import Hint, KeyNotification

log = logging.getLogger(__name__)

PREFIX = "hark-s3-"
_UNFINISHED = "new-"
_LOCK = "lock"


class ScratchFolder:
    """A new folder in the temporary directory of this machine, or in `parent`."""

    def __init__(self, parent: Path | None = None) -> None:
        parent = Path(tempfile.gettempdir()) if parent is None else parent
        made = Path(tempfile.mkdtemp(prefix=_UNFINISHED + PREFIX, dir=parent))
        self._lock = os.open(made / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        # The folder gets its final name only after it is locked.
        self.path = made.rename(parent / made.name.removeprefix(_UNFINISHED))
        _remove_orphans(parent)

    def close(self) -> None:
        """Remove everything."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _remove_orphans(parent: Path) -> None:
    for folder in parent.glob(f"{PREFIX}*"):
        # Folders of other users, and folders that another process is removing, are skipped.
        with contextlib.suppress(OSError):
            lock = os.open(folder / _LOCK, os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


VERSION = 4
"""The version of the tables of the state: of those in `tables.sql` and of those of the queue (`core/migrations`).

Raise it with each change of any of them; a test checks this. Records and snapshots of older versions are read. Newer
ones are refused, because this process would drop the values of columns that it lacks. Records of an older version are
applied to the tables of this version, and processes are upgraded at different places of the log. So tables and columns
are only added (columns at the end, with a default), and no step changes rows.
"""

_LOCAL_TABLES = frozenset({"replica"})
_CACHE_KIB = 32 * 1024


class Scratch:
    """The local database. Each start from a snapshot uses a new file."""

    def __init__(self) -> None:
        self._folder = ScratchFolder()
        self.generation = 0
        """Number of the file. When it grows, connections must be opened again."""

    @property
    def path(self) -> str:
        """The current file."""
        return str(self._file(self.generation))

    def _file(self, generation: int) -> Path:
        return self._folder.path / f"state-{generation}.db"

    def open(self, tag: int, database: bytes | None = None) -> None:
        """Start empty or from the database of a snapshot. If that fails, nothing changes."""
        current, file = self.path, self._file(self.generation + 1)
        _remove(file)  # An earlier attempt that failed.
        if database is not None:
            try:
                file.write_bytes(database)
            except OSError as error:
                raise DiskFull(
                    f"the state does not fit into {file.parent}: {error}; the request had no effect; free disk space"
                ) from error
        writer = apsw.Connection(str(file), statementcachesize=200)
        schema.distrust(writer)
        try:
            _prepare(writer, tag)
        except BaseException:
            writer.close()
            raise
        self._close_writer()
        self.writer = writer
        # Only now, because other threads may open it from here on.
        self.generation += 1
        _remove(Path(current))  # Readers that have it open keep reading it.

    def record(self) -> apsw.Session:
        """Record changed rows from now on."""
        session = apsw.Session(self.writer, "main")
        session.table_filter(lambda name: name not in _LOCAL_TABLES)
        session.attach()
        return session

    def connect_reader(self) -> apsw.Connection:
        """Open a connection that sees committed rows; from any thread."""
        while True:
            generation = self.generation
            try:
                connection = apsw.Connection(self.path, flags=apsw.SQLITE_OPEN_READONLY, statementcachesize=100)
                schema.distrust(connection)
                break
            except apsw.CantOpenError:
                if generation == self.generation:
                    raise
        connection.set_busy_timeout(10_000)
        connection.pragma("query_only", True)
        return connection

    def size(self) -> int:
        """Return the size of the current file in bytes."""
        path = Path(self.path)
        return path.stat().st_size if path.exists() else 0

    def close(self) -> None:
        """Remove everything."""
        self._close_writer()
        self._folder.close()

    def _close_writer(self) -> None:
        writer: apsw.Connection | None = self.__dict__.pop("writer", None)
        if writer is not None:
            writer.close()


def _prepare(writer: apsw.Connection, tag: int) -> None:
    writer.pragma("journal_mode", "wal")
    # After a crash, everything is read from the bucket again.
    writer.pragma("synchronous", "off")
    writer.pragma("cache_size", -_CACHE_KIB)
    schema.migrate(writer)
    with writer:
        for _ in writer.execute((files(__package__) / "tables.sql").read_text()):
            pass
        writer.execute("insert or ignore into meta values ('tag', ?)", (tag,))


def _remove(file: Path) -> None:
    """Remove a database with its companion files."""
    for one in file.parent.glob(f"{file.name}*"):
        one.unlink()


# What a record changes --------------------------------------------------------------------------------------

Holders = dict[str, list[tuple[str, str]]]
"""Queues and groups by lease."""


def holders(state: State, changeset: Changeset) -> Holders:
    """Return the owners of leases that a record changes. Call it before the change, because leases can end by it."""
    found = (state.leases.get(lease_id) for lease_id in changeset.leases)
    return {
        lease.id: list({(position.group.queue_name, position.group.name): None for position in lease.parts})
        for lease in found
        if lease is not None
    }


def hints(connection: apsw.Connection, state: State, changeset: Changeset, before: Holders) -> list[Hint]:
    """Return the hints for changes that have been applied."""
    book = HintBook()
    _notify_arrivals(connection, book, changeset.arrived)
    for number in changeset.queues:
        for (queue,) in rows_of(connection, "select name from queues where id = ?1", number):
            book.add(queue, None, None)
    for number in {key[0] for key in changeset.positions} | changeset.groups:
        for queue, group in rows_of(connection, "select queue, name from groups where id = ?1", number):
            book.add(queue, group, None)
    for lease_id, positions in before.items():
        for queue, group in positions:
            owner = state.queues.get(queue)
            if owner is not None and owner.bounds.blocked:
                # Of all groups of a queue that share a limit, one may have room now.
                owner.bounds.blocked = False
                book.add(queue, None, None)
            if lease_id not in state.leases:
                book.add(queue, group, None)
                book.ended(queue, group, lease_id)
    return book.hints()


def _notify_arrivals(connection: apsw.Connection, book: HintBook, arrived: dict[int, int]) -> None:
    by_queue: dict[str, dict[str, int]] = {}
    sql = "select queues.name, partitions.name from partitions join queues on queues.id = partitions.queue"
    for partition, number in arrived.items():
        for queue, name in rows_of(connection, f"{sql} where partitions.id = ?1", partition):
            by_queue.setdefault(queue, {})[name] = number
    for queue, numbers in by_queue.items():
        book.arrived(queue, numbers, (), numbers)


# The verbs of `engine/core` assume that only they write the tables. Here other processes write them too, and own
# changes can be undone. So whatever memory holds of changed rows is dropped and read again. The rest stays, because
# otherwise every record of another process would cost a pass over all partitions.


class Memory:
    """The state in memory, over tables that other processes write too."""

    def __init__(self, scratch: Scratch, state: State, leases: LeaseRows) -> None:
        self._scratch = scratch
        self._state = state
        self._leases = leases
        self.forgotten: set[str] = set()
        """Queues whose consumers wait for a limit. A reload forgets that, so they must pop again."""

    def read_all(self) -> None:
        """Reload everything. What the tables do not hold is kept: when partitions were served, and why leases ended."""
        state, writer = self._state, self._scratch.writer
        expired, removed = state.expired_leases, state.removed
        self.forgotten |= {queue.name for queue in state.queues.values() if queue.bounds.blocked}
        self.forgotten |= {group.queue_name for group in state.groups.values() if group.bounds.blocked}
        state.remember_turns()
        state.clear()
        state.expired_leases, state.removed = expired, removed
        loader = Loader(writer, state)
        loader.queues()
        self._load_rates(loader)
        self._leases.load(writer)

    def follow(self, changeset: Changeset, now: int) -> None:
        """Reload what depends on changed rows."""
        if changeset.is_structural:
            self.read_all()
            return
        state, writer = self._state, self._scratch.writer
        loader = Loader(writer, state)
        groups = {group.id: group for group in state.groups.values()}
        if changeset.labels:
            state.labels.clear()
        if state.completed and changeset.positions:
            # Another process may have moved a group there, and completed the same messages under other leases.
            state.completed = {
                key: lease for key, lease in state.completed.items() if key[:2] not in changeset.positions
            }
        if changeset.numbers:
            loader.numbers()
        if changeset.rates:
            self._load_rates(loader, changeset.rates)
        # Before and after: only memory knows the queues of partitions that were undone or removed.
        queues, positions = self._queues_of(changeset.partitions), self._positions_in(changeset.partitions)
        loader.renew_partitions(changeset.partitions)
        queues |= self._queues_of(changeset.partitions)
        positions |= self._positions_in(changeset.partitions)
        positions, leases = self._closed(changeset, positions)
        wanted = self._drop(positions, leases, groups)
        for group, partitions in wanted.items():
            loader.positions(group, sorted(partitions))
        self._leases.load(writer, leases)
        for group, partitions in wanted.items():
            for partition in partitions:
                position = group.positions.get(partition)
                if position is not None:
                    position.refresh(now)
        moved = {group for group, _ in changeset.positions}
        for queue in state.queues.values():
            # The count has all groups of the queue; memory has only those that were used here.
            if queue in queues or not moved.isdisjoint(queue.open or ()):
                queue.open = None  # Counted again when it is next needed.

    def _load_rates(self, loader: Loader, owners: Iterable[Owner] | None = None) -> None:
        """Load the remaining tokens of these queues and groups, or of all."""
        writer = self._scratch.writer
        stored = stored_rates(writer)
        queues = {queue.id: queue for queue in self._state.queues.values()}
        for kind, number in stored if owners is None else owners:
            # Also groups that are not in memory: `Loader` does not read tokens when they are used.
            owner = queues.get(number) if kind == "queue" else group_by_id(writer, loader, number)
            if owner is not None:
                tokens, filled_at = stored.get((kind, number), (None, owner.bounds.filled_at))
                owner.bounds.tokens, owner.bounds.filled_at = tokens, filled_at

    def _positions_in(self, partitions: Iterable[int]) -> set[PositionKey]:
        """Return the positions of all groups in partitions, as far as they are in memory."""
        found = (self._state.partitions.get(number) for number in partitions)
        return {(group.id, one.id) for one in found if one is not None for group in one.queue.groups.values()}

    def _closed(self, changeset: Changeset, positions: set[PositionKey]) -> tuple[set[PositionKey], set[str]]:
        """Return positions and leases that must be dropped together, because they refer to each other."""
        positions = (
            positions | changeset.positions | self._leases.stored_positions(self._scratch.writer, changeset.leases)
        )
        leases, seen = set(changeset.leases), -1
        while len(positions) + len(leases) != seen:
            seen = len(positions) + len(leases)
            for key in positions:
                leases |= self._leases.leases_at(key)
            for lease in leases:
                positions |= self._leases.positions_of(lease)
        return positions, leases

    def _drop(self, positions: set[PositionKey], leases: set[str], groups: dict[int, Group]) -> dict[Group, set[int]]:
        """Drop them from memory; return the positions that must be read again, because a pop may need them."""
        state = self._state
        for lease in leases:
            state.leases.pop(lease, None)
            self._leases.forget(lease)
        wanted: dict[Group, set[int]] = {}
        for number, partition in positions:
            group = groups.get(number)
            if group is None:
                continue
            position = group.positions.pop(partition, None)
            if position is not None:
                group.in_flight -= position.noted
                if position.served:
                    state.turns[number, partition] = position.served
            for known in (group.ready, group.waking, group.rising):
                known.pop(partition, None)
            if group.discovered or position is not None:
                wanted.setdefault(group, set()).add(partition)
        return wanted

    def _queues_of(self, partitions: Iterable[int]) -> set[Queue]:
        """Return the queues of partitions, as far as they are in memory."""
        found = (self._state.partitions.get(number) for number in partitions)
        return {partition.queue for partition in found if partition is not None}


# Own changes are made in a `Flush` and then kept or undone; records of other processes are applied. Both return hints.
# Only the state thread uses all of this.

# A full disk is not among them: the log is fine, and the record is applied when there is space again.
_MISFITS = (apsw.AbortError, apsw.ConstraintError, apsw.CorruptError)


class Head(NamedTuple):
    """The last applied record."""

    seq: int
    time: int
    nonce: str


class Change(NamedTuple):
    """The notifications after a record was applied."""

    hints: Sequence[Hint] = ()
    keys: KeyNotification | None = None


class LocalState:
    """The state; see the module."""

    def __init__(self, ids: IdSource, tag: int, writer: str, skew_margin: int) -> None:
        self._ids = ids
        self._tag = tag
        self.scratch = Scratch()
        self.state = State(IdCodec(tag))
        self._lease_rows = LeaseRows(self.state, writer, skew_margin)
        self._memory = Memory(self.scratch, self.state, self._lease_rows)
        self._session: apsw.Session | None = None
        self._in_step = False
        """Whether memory agrees with the tables."""
        self.head = Head(0, 0, "")

    def open(self, database: bytes | None) -> None:
        """Start empty, or from the database of a snapshot."""
        self._drop_session()
        self.scratch.open(self._tag, database)
        [self.head] = [Head(*row) for row in self.scratch.writer.execute("select seq, time, nonce from replica")]
        self._read_all()

    def mend(self) -> bool:
        """Reload memory if a failure such as a full disk left it behind; return whether it did."""
        if self._in_step:
            return False
        self._roll_back()
        self._read_all()
        return True

    def forgotten(self) -> list[Hint]:
        """Return hints for consumers whose wait a reload has forgotten."""
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
        """Begin the batch that becomes the next record."""
        self.scratch.writer.execute("begin immediate")
        self._session = self.scratch.record()
        return Flush(self.scratch.writer, self.state, self._ids, self._lease_rows, self.head.seq + 1, now)

    def changes(self) -> bytes:
        """Return the changes of the open batch; empty if there are none."""
        assert self._session is not None
        return b"" if self._session.is_empty else bytes(self._session.patchset())

    def keep(self, head: Head | None) -> None:
        """Commit the batch, which is in the log as this record or changed nothing (None)."""
        self._drop_session()
        self._commit(head)

    def undo(self, changes: bytes | None = None) -> None:
        """Undo the batch, which is not in the log. `changes`: what it changed, if it was complete."""
        self._in_step = False
        self._roll_back()
        self.state.completed.clear()  # A part of it was undone.
        if changes is None:
            self._read_all()
        else:
            self._follow(Changeset(changes), self.head.time)

    # Records of other processes ----------------------------------------------------------------------------

    def apply(self, record: Record) -> Change:
        """Apply the next record of another process."""
        writer = self.scratch.writer
        try:
            changeset = Changeset(record.changes)
            ended = holders(self.state, changeset)
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
        self._follow(changeset, record.time)
        keys = KeyNotification(tuple(changeset.keys)) if changeset.keys else None
        return Change(hints(writer, self.state, changeset, ended), keys)

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

    def _follow(self, changeset: Changeset, now: int) -> None:
        self._in_step = False
        self._memory.follow(changeset, now)
        self._in_step = True

    def _drop_session(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


def _refuse(reason: int, change: apsw.TableChange) -> int:
    why = apsw.mapping_session_conflict.get(reason, reason)
    log.error("a log record conflicts with table %s (%s): the log is damaged", change.name, why)
    return int(apsw.SQLITE_CHANGESET_ABORT)
