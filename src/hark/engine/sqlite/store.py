"""The database file: opening it safely, its connections, and wide statements.

apsw gives up the interpreter lock at every step of a statement, and getting it back from a busy event loop takes
longer than the step itself (measured: 15 us a row instead of 4). So whatever touches many rows goes through
SQLite in one step: rows are inserted 64 at a time, and many are read as one JSON text.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import msgspec

from hark.engine.sqlite import schema
from hark.errors import StoreUnusable

MEMORY = ":memory:"
_HEADER = b"SQLite format 3\x00"
_DATABASE_MARK = b"database\n"
_ROWS_PER_INSERT = (64, 8, 1)
_MESSAGE_COLUMNS = 8
_WRITER_CACHE_KIB = 64 * 1024
_READER_CACHE_KIB = 8 * 1024
_INSERTS = {
    rows: "insert into messages"
    " (partition, offset, created_at, priority, deliver_at, transaction_id, extra, payload) values "
    + ", ".join(["(?, ?, ?, ?, ?, ?, ?, ?)"] * rows)
    for rows in _ROWS_PER_INSERT
}

Value = None | int | float | str | bytes


class Store:
    """One database: the connection that writes, the one that claims read with, and more for those who look."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.memory = path == MEMORY
        self._lock_file: int | None = None
        self._was_there = False

    def open(self) -> None:
        """Open or create the database; raises `StoreUnusable` with what to do."""
        try:
            if not self.memory:
                self._lock()
            self.writer = self._connect()
            self._check_identity()
            if not self.memory:
                self.writer.pragma("journal_mode", "wal")
                # A commit returns when the log is on stable storage; checkpoints run in a thread of their own.
                self.writer.pragma("synchronous", "full")
                self.writer.wal_autocheckpoint(0)
                # A large commit that outgrows the page cache would be written twice.
                self.writer.pragma("cache_size", -_WRITER_CACHE_KIB)
            schema.migrate(self.writer)
            self.tag = self._tag()
            self.reader = self.writer if self.memory else self.connect_reader()
            self._sign_lock(_DATABASE_MARK)
        except apsw.Error as error:
            self.close()
            raise StoreUnusable(self._explain(error)) from error
        except StoreUnusable:
            self.close()
            raise

    def close(self) -> None:
        """Close what is open and let other processes in."""
        for name in ("reader", "writer"):
            connection = self.__dict__.pop(name, None)
            if connection is not None:
                connection.close()
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep servers away from the file without opening it; raises `StoreUnusable` when one has it."""
        self._take_lock(Path(self.path))
        try:
            yield
            self._sign_lock(_DATABASE_MARK if Path(self.path).exists() else b"")
        finally:
            self.close()

    def commit(self) -> None:
        """End the writer's transaction; returns when it is on stable storage."""
        self.writer.execute("commit")

    def connect_reader(self) -> apsw.Connection:
        """Another connection that sees what is committed and never waits for the writer."""
        connection = apsw.Connection(self.path, flags=apsw.SQLITE_OPEN_READONLY, statementcachesize=100)
        connection.set_busy_timeout(10_000)
        connection.pragma("query_only", True)
        connection.pragma("cache_size", -_READER_CACHE_KIB)
        return connection

    def connect_checkpointer(self) -> apsw.Connection:
        """The connection that moves the log into the database."""
        connection = apsw.Connection(self.path)
        connection.pragma("synchronous", "full")
        return connection

    def _connect(self) -> apsw.Connection:
        connection = apsw.Connection(self.path, statementcachesize=200)
        connection.set_busy_timeout(10_000)
        return connection

    def _lock(self) -> None:
        path = Path(self.path)
        self._take_lock(path)
        # The second line outlives the owner: it says that there is a database beside the lock.
        assert self._lock_file is not None
        self._was_there = os.pread(self._lock_file, 64, 0).partition(b"\n")[2].startswith(_DATABASE_MARK)
        self._check_file(path)
        self._sign_lock(_DATABASE_MARK if self._was_there else b"")

    def _take_lock(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock_file = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StoreUnusable(
                f"cannot write to the directory of {path}: {error.strerror}; check its permissions or choose another "
                "--data"
            ) from error
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.pread(self._lock_file, 32, 0).decode("ascii", "replace").partition("\n")[0] or "unknown"
            os.close(self._lock_file)
            self._lock_file = None
            raise StoreUnusable(
                f"{path} is in use by another Hark server (process {owner}); shut it down, or choose another --data"
            ) from error

    def _sign_lock(self, mark: bytes) -> None:
        if self._lock_file is not None:
            os.ftruncate(self._lock_file, 0)
            os.pwrite(self._lock_file, f"{os.getpid()}\n".encode() + mark, 0)

    def _check_file(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                header = file.read(len(_HEADER))
            if not os.access(path, os.W_OK):
                raise StoreUnusable(f"{path} is not writable; check its permissions or choose another --data")
        except FileNotFoundError:
            wal = Path(f"{path}-wal")
            if wal.exists() and wal.stat().st_size:
                raise StoreUnusable(
                    f"{path} is missing, but its log {wal.name} exists: the database was moved or deleted; "
                    "restore it, or move the log away to start with an empty store"
                ) from None
            self._refuse_lost(path, "is missing")
            return
        except OSError as error:
            raise StoreUnusable(f"cannot read {path}: {error.strerror}; check its permissions") from error
        if header and header != _HEADER:
            raise StoreUnusable(f"{path} is not a Hark database, or is corrupt (bad header); restore it from a backup")
        if not header:
            self._refuse_lost(path, "was truncated to nothing")

    def _refuse_lost(self, path: Path, what: str) -> None:
        if self._was_there:
            raise StoreUnusable(
                f"{path} {what}, but it contained a database before; restore it from a backup, or remove {path}.lock "
                "to start with an empty store"
            )

    def _check_identity(self) -> None:
        version = schema.version_of(self.writer)
        if version > schema.CURRENT_VERSION:
            raise StoreUnusable(
                f"{self.path} has schema version {version}, but this Hark supports up to {schema.CURRENT_VERSION}; "
                "upgrade Hark"
            )
        tables = self.writer.execute("select count(*) from sqlite_schema").get
        if version == 0 and tables:
            raise StoreUnusable(f"{self.path} is a database of another program; choose another file")
        if version and self.writer.pragma("application_id") != schema.APPLICATION_ID:
            raise StoreUnusable(f"{self.path} is a database of another program; choose another file")
        # quick_check reads everything; a damaged schema or index root shows here at no cost that grows with history.
        for table in ("queues", "partitions", "messages", "groups", "tracks") if version else ():
            self.writer.execute(
                f"select * from {table} order by rowid desc limit 1"
                if table != "tracks"
                else "select * from tracks limit 1"
            ).fetchall()

    def _tag(self) -> int:
        tag = self.writer.execute("select value from meta where key = 'tag'").get
        if tag is None:
            tag = secrets.randbits(30)
            with self.writer:
                self.writer.execute("insert into meta values ('tag', ?)", (tag,))
        return int(tag)

    def _explain(self, error: apsw.Error) -> str:
        if isinstance(error, (apsw.CorruptError, apsw.NotADBError)):
            return f"{self.path} is corrupt ({error}); restore it from a backup; nothing was changed"
        if isinstance(error, (apsw.CantOpenError, apsw.ReadOnlyError, apsw.PermissionsError)):
            return f"cannot open {self.path} for writing ({error}); check its permissions or choose another --data"
        if isinstance(error, apsw.FullError):
            return f"no disk space left for {self.path} ({error}); free disk space, then start again"
        return f"cannot use {self.path}: {error}"


def insert_messages(connection: apsw.Connection, flat: list[Value]) -> None:
    """Insert rows given as one flat list, eight values each, in as few steps as possible."""
    position, end = 0, len(flat)
    for rows in _ROWS_PER_INSERT:
        width = rows * _MESSAGE_COLUMNS
        statement = _INSERTS[rows]
        while end - position >= width:
            connection.execute(statement, flat[position : position + width])
            position += width


def run(connection: apsw.Connection, sql: str, *parameters: Value) -> None:
    """Execute a statement that answers nothing."""
    connection.execute(sql, parameters)


def scalar(connection: apsw.Connection, sql: str, *parameters: Value) -> Any:
    """The first value of the first row, or None."""
    return connection.execute(sql, parameters).get


def for_each(connection: apsw.Connection, sql: str, rows: Sequence[Any]) -> None:
    """Run a statement over `json_each(?1)` of many small rows: one step, however many there are."""
    if rows:
        connection.execute(sql, (msgspec.json.encode(rows).decode(),))


def rows_of(connection: apsw.Connection, sql: str, *parameters: Value) -> list[Any]:
    """All rows of a small result."""
    return list(connection.execute(sql, parameters))
