"""A temporary folder that does not outlive its process for long.

A process that is killed can't remove its folder, and its database may be large. So each holds a lock on its own, and
removes those of others that nobody holds."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

import apsw

from hark.engine.core import schema
from hark.errors import DiskFull

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
        # It gets the name that others look for once it is held.
        self.path = made.rename(parent / made.name.removeprefix(_UNFINISHED))
        _remove_orphans(parent)

    def close(self) -> None:
        """Remove everything."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _remove_orphans(parent: Path) -> None:
    for folder in parent.glob(f"{PREFIX}*"):
        # Those of other users, and those that somebody else is just removing, are none of our business.
        with contextlib.suppress(OSError):
            lock = os.open(folder / _LOCK, os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


VERSION = 3
"""The version of the tables of the state: of those here and of those of the queue (`core/schema.py`).

Raise it with each change of any of them; a test notices. Records and snapshots of older versions are read, and newer
ones refused: a process would leave out what it has no columns for. A record of an older version is applied to the
tables of this one, and processes come to it at different places of the log. So tables and columns are only ever added
(columns at the end, with a default), and no step may change rows.
"""

# What the state has beside the tables of the queue. `replica` is local: which record was applied last.
_TABLES = """
create table if not exists replica (
    id integer primary key check (id = 1),
    seq integer not null,
    time integer not null,
    nonce text not null
);
insert or ignore into replica values (1, 0, 0, '');

-- What consumers hold. parts: for each place [group, partition, handed, open, last, blocks, [[first, last] ...],
-- consumer, since].
create table if not exists leases (
    id text primary key,
    expires_at integer not null,
    writer text not null,
    parts text not null
) without rowid;

-- What is left of the rates of queues and groups.
create table if not exists rates (
    kind text not null check (kind in ('queue', 'group')),
    owner integer not null,
    tokens real not null,
    filled_at integer not null,
    primary key (kind, owner)
) without rowid;

-- Records that hold payloads. dead_since: time since which no message refers to them.
create table if not exists segments (
    seq integer primary key,
    bytes integer not null,
    dead_since integer
);
"""
_LOCAL_TABLES = frozenset({"replica"})
_CACHE_KIB = 32 * 1024


class Scratch:
    """One database after the other: each start from a snapshot is a new file."""

    def __init__(self) -> None:
        self._folder = ScratchFolder()
        self.generation = 0
        """Grows with each new file: who has connections must make them anew."""

    @property
    def path(self) -> str:
        """The current file."""
        return str(self._file(self.generation))

    def _file(self, generation: int) -> Path:
        return self._folder.path / f"state-{generation}.db"

    def open(self, tag: int, database: bytes | None = None) -> None:
        """Begin anew, with nothing or with a snapshot's database. Where that fails everything is as it was."""
        current, file = self.path, self._file(self.generation + 1)
        _remove(file)  # One that was begun and failed.
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
        # Not before it is whole: others may open it from now on.
        self.generation += 1
        _remove(Path(current))  # Readers that still have it open keep what they see.

    def record(self) -> apsw.Session:
        """Note from now on which rows change."""
        session = apsw.Session(self.writer, "main")
        session.table_filter(lambda name: name not in _LOCAL_TABLES)
        session.attach()
        return session

    def connect_reader(self) -> apsw.Connection:
        """A connection that sees what is committed. For any thread."""
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
        """The bytes of the current file."""
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
    # What is lost here in a crash is read from the bucket again.
    writer.pragma("synchronous", "off")
    writer.pragma("cache_size", -_CACHE_KIB)
    schema.migrate(writer)
    with writer:
        for _ in writer.execute(_TABLES):
            pass
        writer.execute("insert or ignore into meta values ('tag', ?)", (tag,))


def _remove(file: Path) -> None:
    """A database, and what belongs to it."""
    for one in file.parent.glob(f"{file.name}*"):
        one.unlink()
