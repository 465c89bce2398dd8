"""The database file: opening, locks and connections; rows of messages, and statements over many rows.

apsw releases the interpreter lock at every step of a statement, and it takes longer to get the lock back from a busy
event loop than to do the step (measured: 15 us per row instead of 4). So statements over many rows take one step: rows
are inserted 64 at a time, and read as one JSON text.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from shutil import disk_usage
from typing import Any, NamedTuple, cast

import apsw
import msgspec

from hark.engine.core import schema
from hark.errors import DiskFull, StoreUnusable
from hark.ids import TAG_BITS
from hark.model import NULL_PAYLOAD

log = logging.getLogger(__name__)

MEMORY = ":memory:"
AUTO = -1
_LEAST_FREE_BYTES = 256 * 1024 * 1024
_LEAST_FREE_SHARE = 0.02
_LEAST_SQLITE = (3, 51, 3)
_HEADER = b"SQLite format 3\x00"
_DATABASE_MARK = b"database\n"
_RESTORING_MARK = b"restoring\n"
MESSAGE_COLUMNS = 8
_WRITER_CACHE_KIB = 64 * 1024
_READER_CACHE_KIB = 8 * 1024

Value = None | int | float | str | bytes


def check_library(version: str | None = None) -> None:
    """Reject a SQLite library that can lose the write-ahead log when several connections reset it."""
    found = version or apsw.sqlite_lib_version()
    if tuple(int(part) for part in found.split(".")) < _LEAST_SQLITE:
        least = ".".join(map(str, _LEAST_SQLITE))
        raise StoreUnusable(
            f"the package apsw brings SQLite {found}, which can lose data; install SQLite {least} or newer with: "
            f"pip install 'apsw>={least}.0'"
        )


class Store:
    """A database, with the connection of the writer, that of claims, and more for readers."""

    def __init__(self, path: str, min_free_bytes: int = AUTO) -> None:
        self.path = path
        self._folder = str(Path(path).parent)
        self._min_free_bytes = min_free_bytes
        self._is_short = False
        self.must_keep_log = False
        """The log has changes that the database lacks, although SQLite considers them written."""
        self.memory = path == MEMORY
        self._lock_file: int | None = None
        self._was_there = False

    def open(self) -> None:
        """Open or create the database. Raises `StoreUnusable` with the remedy."""
        check_library()
        try:
            if not self.memory:
                self._lock()
            self.writer = self._connect()
            self.commit = partial(self.writer.execute, "commit")
            """Commits the transaction of the writer. Returns when it is on stable storage."""
            self._check_identity()
            if not self.memory:
                self.writer.pragma("journal_mode", "wal")
                # A commit returns when the log is on stable storage. Checkpoints run in a separate thread.
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
            raise StoreUnusable(self.explain(error)) from error
        except StoreUnusable:
            self.close()
            raise

    def close(self) -> None:
        """Close the connections and release the lock."""
        for name in ("reader", "writer"):
            connection = self.__dict__.pop(name, None)
            if connection is not None:
                if self.must_keep_log:
                    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
                connection.close()
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the file without opening it. Raises `StoreUnusable` if a server has it."""
        self._take_lock(Path(self.path))
        try:
            yield
            self._sign_lock(_DATABASE_MARK if Path(self.path).exists() else b"")
        finally:
            self.close()

    def begin_to_replace(self) -> None:
        """Under `locked`: refuse the start of servers until the lock is released, even after a power failure."""
        self._sign_lock(_RESTORING_MARK)
        assert self._lock_file is not None
        os.fsync(self._lock_file)
        sync_directory(Path(self.path).parent)

    def refuse_half_restored(self) -> None:
        """Raise if a replacement of the file was interrupted."""
        try:
            mark = Path(f"{self.path}.lock").read_bytes().partition(b"\n")[2]
        except FileNotFoundError:
            return
        if mark.startswith(_RESTORING_MARK):
            name = Path(self.path).name
            raise StoreUnusable(
                f"a restore of {self.path} was interrupted; repeat it with hark restore --replace, or move the files "
                f"of {name}.before-* back to {name}* and remove {name}.lock"
            )

    def refusal(self) -> DiskFull | None:
        """The reason if nothing may be added, because settlements need the remaining space. For the writer thread."""
        if self.memory or not self._min_free_bytes:
            return None
        disk = disk_usage(self._folder)
        if not self._is_short and disk.free >= max(self._min_free_bytes, _LEAST_FREE_BYTES):
            return None  # Enough, whatever the size of the disk.
        least = least_free(disk.total, self._min_free_bytes)
        # Free pages of the file are used before the file grows.
        short = disk.free < least
        if short:
            unused = int(self.writer.pragma("freelist_count")) * int(self.writer.pragma("page_size"))
            short = disk.free + unused < least
        if short is not self._is_short:
            self._is_short = short
            if short:
                log.error("%s has less than %d bytes of disk space left; pushes are refused", self.path, least)
            else:
                log.warning("%s has enough disk space again; pushes are accepted", self.path)
        if not short:
            return None
        return DiskFull(
            f"less than {least:,} bytes are left on the disk of the store (limits.min_free_bytes); the request had no "
            "effect; free disk space"
        )

    def overwrite_failed_commit(self) -> None:
        """Overwrite a commit whose sync failed.

        Its frames are in the log, so a process that reads the log after a crash would apply it.
        """
        with self.writer:
            self.writer.execute(
                "insert into meta values ('failed_commits', 1) on conflict (key) do update set value = value + 1"
            )

    def connect_reader(self) -> apsw.Connection:
        """A connection that reads committed rows and never waits for the writer."""
        connection = apsw.Connection(self.path, flags=apsw.SQLITE_OPEN_READONLY, statementcachesize=100)
        schema.distrust(connection)  # The file may be a restored copy.
        connection.set_busy_timeout(10_000)
        connection.pragma("query_only", True)
        connection.pragma("cache_size", -_READER_CACHE_KIB)
        return connection

    def _connect(self) -> apsw.Connection:
        connection = apsw.Connection(self.path, statementcachesize=200)
        schema.distrust(connection)
        connection.set_busy_timeout(10_000)
        return connection

    def _lock(self) -> None:
        path = Path(self.path)
        self._take_lock(path)
        # The second line stays after the process ends. It says that a database exists.
        self.refuse_half_restored()
        assert self._lock_file is not None
        self._was_there = os.pread(self._lock_file, 64, 0).partition(b"\n")[2].startswith(_DATABASE_MARK)
        self._check_file(path)
        _protect(path)
        self._sign_lock(_DATABASE_MARK if self._was_there else b"")

    def _take_lock(self, path: Path) -> None:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except FileExistsError as error:
            raise StoreUnusable(f"{path.parent} is not a directory; choose another --data") from error
        except OSError as error:
            there = next(folder for folder in path.parent.parents if folder.exists())
            raise StoreUnusable(
                f"{path.parent} does not exist and cannot be created in {there}: {error.strerror}; create it, or "
                "choose another --data"
            ) from error
        try:
            self._lock_file = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
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
        # This finds a damaged schema or index root. `quick_check` would read the whole file.
        for table in ("queues", "partitions", "messages", "groups", "positions") if version else ():
            self.writer.execute(
                f"select * from {table} order by rowid desc limit 1"
                if table != "positions"
                else "select * from positions limit 1"
            ).fetchall()

    def _tag(self) -> int:
        tag = self.writer.execute("select value from meta where key = 'tag'").get
        if tag is None:
            tag = secrets.randbits(TAG_BITS)
            with self.writer:
                self.writer.execute("insert into meta values ('tag', ?)", (tag,))
        return int(tag)

    def explain(self, error: apsw.Error) -> str:
        """Why the store cannot be opened, and the remedy."""
        if isinstance(error, (apsw.CorruptError, apsw.NotADBError)):
            return f"{self.path} is corrupt ({error}); restore it from a backup; nothing was changed"
        if isinstance(error, (apsw.CantOpenError, apsw.ReadOnlyError, apsw.PermissionsError)):
            return f"cannot open {self.path} for writing ({error}); check its permissions or choose another --data"
        if isinstance(error, apsw.FullError):
            return f"no disk space left for {self.path} ({error}); free disk space, then start again"
        return f"cannot use {self.path}: {error}"


def least_free(total: int, min_free_bytes: int) -> int:
    """Free bytes below which nothing is added, on a disk of that size."""
    if min_free_bytes != AUTO:
        return min_free_bytes
    return min(_LEAST_FREE_BYTES, round(total * _LEAST_FREE_SHARE))


def sync_directory(path: Path) -> None:
    """Sync the names of files in a directory."""
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def run(connection: apsw.Connection, sql: str, *parameters: Value) -> None:
    """Execute a statement without a result."""
    connection.execute(sql, parameters)


def scalar(connection: apsw.Connection, sql: str, *parameters: Value) -> Any:
    """The first value of the first row, or None."""
    return connection.execute(sql, parameters).get


def for_each(connection: apsw.Connection, sql: str, rows: Sequence[Any]) -> None:
    """Run a statement over `json_each(?1)` of small rows, in one step."""
    if rows:
        connection.execute(sql, (msgspec.json.encode(rows).decode(),))


def delete_traces(connection: apsw.Connection, addresses: Sequence[tuple[int, int]]) -> None:
    """Delete the trace events of messages, given as (partition, offset)."""
    found = "from traces where (partition, offset) in (select value ->> 0, value ->> 1 from json_each(?1))"
    for_each(connection, f"delete from trace_names where trace in (select id {found})", addresses)
    for_each(connection, f"delete {found}", addresses)


DELETE_ROWS = """
delete from {table} where (grp, partition, {key}) in
    (select value ->> 0, value ->> 1, value ->> 2 from json_each(?1))
"""
"""For `for_each`: delete rows of a table of positions by their keys."""


def rows_of(connection: apsw.Connection, sql: str, *parameters: Value, **named: Value) -> list[Any]:
    """All rows of a small result."""
    return list(connection.execute(sql, named or parameters))


def _protect(path: Path) -> None:
    """Let only the owner read a database. SQLite gives the log the mode of the database."""
    path.touch(mode=0o600)
    for file in (path, *(path.with_name(path.name + end) for end in ("-wal", "-shm", ".lock"))):
        with suppress(OSError):  # It does not exist, or belongs to another user.
            if file.stat().st_mode & 0o077:
                file.chmod(0o600)


class Elsewhere(NamedTuple):
    """The place of a payload outside the tables: in a record of the log of the S3 engine."""

    record: int
    offset: int
    """Its first byte in the object of the record."""
    length: int


class Extra(msgspec.Struct, omit_defaults=True, gc=False, frozen=True):
    """Rare attributes of messages. The names have one letter, because they are stored with each such message."""

    t: str | None = None
    """Trace id."""
    u: str | None = None
    """Producer (the subject of its token)."""
    s: bool = False
    """The payload is sealed."""
    b: tuple[int, ...] | None = None
    """Retry schedule of the message, in milliseconds."""
    x: int = 0
    """Expiry of the message."""
    k: tuple[str, ...] = ()
    """Keys that receive the payload of an undeliverable message, encoded, in hex."""
    c: str | None = None
    """Trace context."""
    a: int = 0
    """The delivery time by the system clock, if the producer gave one."""
    r: Elsewhere | None = None
    """The place of the payload, if it is not in the column, which is `null` then."""


NO_EXTRA = Extra()


class MessageRow(msgspec.Struct, array_like=True, gc=False):
    """A message as a claim reads it; `fetch` is the index of its range."""

    fetch: int
    offset: int
    created_at: int
    priority: int
    deliver_at: int | None
    owner: int | None
    """The only group that receives it, because it is a requeued dead letter."""
    transaction_id: str | None
    extra: Extra | None
    payload: msgspec.Raw


decode_messages = msgspec.json.Decoder(list[MessageRow]).decode
decode_extra = msgspec.json.Decoder(Extra).decode
encode_extra = msgspec.json.Encoder().encode


def extra_of(text: str | None) -> Extra:
    """The decoded column `extra`."""
    return NO_EXTRA if text is None else decode_extra(text)


def payload_of(payload: msgspec.Raw, extra: Extra | None) -> msgspec.Raw:
    """The payload of a row, or an `Elsewhere`.

    The type omits `Elsewhere` on purpose: only the engine that stores payloads elsewhere gets one, and it replaces it
    before it answers.
    """
    if extra is None or extra.r is None:
        return payload
    return cast("msgspec.Raw", extra.r)


def size_of(payload: msgspec.Raw, extra: Extra | None) -> int:
    """The length of the payload of a row."""
    if extra is None or extra.r is None:
        return len(memoryview(payload))
    return extra.r.length


SELECT_MESSAGES = """
select cast('[' || group_concat(
    '[' || fetch || ',' || offset || ',' || created_at || ',' || priority || ',' || ifnull(deliver_at, 'null')
    || ',' || ifnull(owner, 'null') || ',' || ifnull(json_quote(transaction_id), 'null')
    || ',' || ifnull(extra, 'null') || ',' || payload || ']') || ']' as blob)
from (
    select wanted.key as fetch, message.*
    from json_each(?1) as wanted
    cross join messages as message indexed by messages_offset
    where message.partition = wanted.value ->> 0
      and message.offset between wanted.value ->> 1 and wanted.value ->> 2
)
"""
"""Messages of many ranges (partition, first, last) as one JSON text, in offset order within a range."""

Locate = Callable[[bytes], tuple[int, int, int] | None]
"""Stores a payload elsewhere and returns its record, offset and length; None: it stays in its row."""

_EXTRA, _PAYLOAD = 6, 7


def set_locations(flat: list[Value], locate: Locate) -> None:
    """Store the payloads of rows elsewhere, before the rows are inserted.

    Rows with `keysIfUndelivered` keep theirs, because SQL alone may store it as a value. The loop runs for every
    message.
    """
    for start in range(0, len(flat), MESSAGE_COLUMNS):
        text, payload = flat[start + _EXTRA], flat[start + _PAYLOAD]
        assert isinstance(payload, bytes)
        if text is None:
            location = locate(payload)
            if location is None:
                continue
            record, offset, length = location
            flat[start + _EXTRA] = f'{{"r":[{record},{offset},{length}]}}'
        else:
            extra = decode_extra(str(text))
            if extra.k or extra.r is not None:
                continue
            location = locate(payload)
            if location is None:
                continue
            flat[start + _EXTRA] = encode_extra(msgspec.structs.replace(extra, r=Elsewhere(*location))).decode()
        flat[start + _PAYLOAD] = NULL_PAYLOAD
