"""The local database, in a temporary folder.

A killed process cannot remove its folder, and the database can be large. So each process locks its own folder, and
removes folders of other processes that are not locked.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from importlib.resources import files
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


VERSION = 3
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
