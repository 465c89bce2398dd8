"""The store of the SQLite engine: opening, locks, connections, free space, and checkpoints of the log."""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from shutil import disk_usage

import apsw

from hark.engine.core import schema
from hark.errors import DiskFull, StoreUnusable
from hark.ids import TAG_BITS

log = logging.getLogger(__name__)

MEMORY = ":memory:"
AUTO = -1
_LEAST_FREE_BYTES = 256 * 1024 * 1024
_LEAST_FREE_SHARE = 0.02
_LEAST_SQLITE = (3, 51, 3)
_HEADER = b"SQLite format 3\x00"
_DATABASE_MARK = b"database\n"
_RESTORING_MARK = b"restoring\n"
_WRITER_CACHE_KIB = 64 * 1024
_READER_CACHE_KIB = 8 * 1024

_PAGES = 2_000
_BLOCKING_PAGES = 40_000
"""A passive checkpoint cannot rewind a log that is being written to. From this size on, writers wait for it."""


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
        schema.refuse_newer(self.path, version)
        tables = self.writer.execute("select count(*) from sqlite_schema").get
        is_ours = self.writer.pragma("application_id") == schema.APPLICATION_ID
        if (version and not is_ours) or (tables and not version):
            raise StoreUnusable(f"{self.path} is a database of another program; choose another file")
        # This finds a damaged schema or index root. `quick_check` would read the whole file.
        for table in ("queues", "partitions", "messages", "groups", "positions") if version else ():
            order = "" if table == "positions" else "order by rowid desc"
            self.writer.execute(f"select * from {table} {order} limit 1").fetchall()

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


def _protect(path: Path) -> None:
    """Let only the owner read a database. SQLite gives the log the mode of the database."""
    path.touch(mode=0o600)
    for file in (path, *(path.with_name(path.name + end) for end in ("-wal", "-shm", ".lock"))):
        with suppress(OSError):  # It does not exist, or belongs to another user.
            if file.stat().st_mode & 0o077:
                file.chmod(0o600)


class Checkpointer:
    """The thread that moves the log into the database when it has grown."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pages = 0
        self._wanted = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="hark-store-move", daemon=True)

    def start(self) -> None:
        """Start to watch the commits of the writer."""
        self._store.writer.set_wal_hook(self._note_pages)
        self._thread.start()

    def stop(self) -> None:
        """End the thread. Closing the database moves the rest of the log."""
        self._stopping = True
        self._wanted.set()
        self._thread.join()

    def _note_pages(self, _connection: apsw.Connection, _database: str, pages: int) -> int:
        self._pages = pages
        if pages >= _PAGES:
            self._wanted.set()
        return apsw.SQLITE_OK

    def _run(self) -> None:
        connection = apsw.Connection(self._store.path)
        connection.pragma("synchronous", "full")
        while True:
            self._wanted.wait()
            self._wanted.clear()
            if self._stopping:
                break
            if self._store.must_keep_log:
                continue
            blocking = self._pages >= _BLOCKING_PAGES
            mode = apsw.SQLITE_CHECKPOINT_RESTART if blocking else apsw.SQLITE_CHECKPOINT_PASSIVE
            try:
                connection.wal_checkpoint(mode=mode)
            except apsw.BusyError:
                pass  # A reader blocks it; the next commit tries again.
            except apsw.Error as error:
                if getattr(error, "extendedresult", None) == apsw.SQLITE_IOERR_FSYNC:
                    self._keep_log(error)
                    continue
                text = "cannot checkpoint the log of %s, which grows meanwhile; check disk space and permissions: %s"
                log.error(text, self._store.path, error)
        connection.close()

    def _keep_log(self, error: apsw.Error) -> None:
        """Stop checkpoints in this process.

        A failed sync loses pages, and the next sync does not report that. SQLite would then write only later changes,
        and restart the log. The next start moves the whole log.
        """
        self._store.must_keep_log = True
        text = "cannot sync %s; its log is kept, and grows, until you restart the server; check the disk: %s"
        log.critical(text, self._store.path, error)
