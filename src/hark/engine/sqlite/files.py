"""The database file: backup and restore, metrics, and the time of the store after a start."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable
from pathlib import Path

import apsw

from hark.clock import SECOND, Clock
from hark.engine.core import schema
from hark.engine.core.state import State
from hark.engine.core.store import run, scalar
from hark.engine.sqlite.store import Store, sync_directory
from hark.errors import StoreUnusable
from hark.ids import TAG_BITS


def store_metrics(store: Store, state: State) -> dict[str, float]:
    """Sizes of the store by name."""
    log = Path(f"{store.path}-wal")
    page = store.reader.pragma("page_size")
    return {
        "database_bytes": store.reader.pragma("page_count") * page,
        "free_bytes": store.reader.pragma("freelist_count") * page,
        "log_bytes": log.stat().st_size if not store.memory and log.exists() else 0,
        **state.metrics(),
    }


# All stored times are times of the store, so delays, retries and times to live continue where they were. `deliverAt`
# alone is a time of the system clock. Messages keep it (`Extra.a`), and their delivery time is computed again when the
# difference between store and system clock changes.

log = logging.getLogger(__name__)

_NOTED = "select value from meta where key = ?1"
_NOTE = "insert or replace into meta values (?1, ?2)"
# Due messages stay due. The others become due after all messages that shared groups have passed (`State.latest_due`).
_MOVE = """
update messages indexed by messages_delayed set deliver_at = max((extra ->> 'a') + ?1, ?2 + 1)
where deliver_at > ?2 and extra ->> 'a' is not null
"""


def resume(store: Store, clock: Clock) -> int:
    """Determine how far the store is ahead of the clock, in microseconds, and move absolute times by that."""
    last = max(_noted(store.writer, "time"), _noted(store.writer, "latest_due"))
    ahead = max(0, last - clock.now())
    if ahead != _noted(store.writer, "ahead"):
        try:
            with store.writer:
                run(store.writer, _MOVE, ahead, last)
                run(store.writer, _NOTE, "ahead", ahead)
        except apsw.Error as error:
            store.close()
            raise StoreUnusable(store.explain(error)) from error
    if ahead >= SECOND:
        log.warning(
            "the system clock was set back by at least %d s since %s was last used; delays, leases and expiries go on, "
            "and deliverAt waits for the clock; correct the clock, then restart the server",
            ahead // SECOND,
            store.path,
            extra={"fields": {"seconds": ahead // SECOND}},
        )
    return ahead


def note_time(connection: apsw.Connection, now: int) -> None:
    """Store the last known time."""
    run(connection, _NOTE, "time", now)


def _noted(connection: apsw.Connection, key: str) -> int:
    return int(scalar(connection, _NOTED, key) or 0)


Progress = Callable[[int, int], None]
"""Receives the number of copied pages and the number of all pages."""

_PAGES_PER_STEP = 1000
_PART = ".part"
_OWN = ("", "-wal", "-shm", ".lock")
"""Suffixes of the files of a store."""


def backup(path: Path, target: Path, progress: Progress, *, replace: bool = False) -> None:
    """Copy a consistent state of a database to a file, while a server may write to it.

    The copy is checked before it gets its name, so that a file with that name is valid.
    """
    Store(str(path)).refuse_half_restored()
    if not path.exists():
        raise StoreUnusable(f"no database found at {path}; pass its directory with --data")
    _refuse_stores(path, target)
    if target.exists() and not replace:
        raise StoreUnusable(f"{target} already exists; choose another name, or add --replace")
    part = _part_of(target)
    try:
        _copy(path, part, progress)
        check(part)
        _keep(part, target)
    finally:
        part.unlink(missing_ok=True)


def _refuse_stores(path: Path, target: Path) -> None:
    """Refuse to replace a store: its server would continue to write to the replaced file."""
    real = path.resolve()
    if target.resolve() in [real.with_name(real.name + ending) for ending in _OWN]:
        raise StoreUnusable(f"{target} belongs to the store itself; choose another name")
    if target.is_dir():
        raise StoreUnusable(f"{target} is a directory; pass a file name")
    log = target.with_name(f"{target.name}-wal")
    if log.exists() and log.stat().st_size:  # SQLite would apply it to the copy.
        raise StoreUnusable(
            f"{target} has a write-ahead log, so it is a store in use or was not closed; choose another name"
        )


def restore(copy: Path, path: Path, progress: Progress, *, set_aside: Path | None = None) -> None:
    """Replace a database that no server uses by a copy. An existing database is moved to `set_aside`.

    After an interruption, the next start opens the old store or the new one, or is refused.
    """
    check(copy)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # The lock of a server, so that no server starts between the check and the copy.
    store = Store(str(path))
    with store.locked():
        if set_aside is None and (there := _of_worth(path)):
            raise StoreUnusable(f"{there[0]} already exists; add --replace to move it aside")
        if set_aside is not None and _files(set_aside):
            raise StoreUnusable(f"{set_aside} already exists; move it away first")
        part = _part_of(path)
        try:
            _copy(copy, part, progress)
            _mark_anew(part)
            check(part)
            store.begin_to_replace()
            if set_aside is not None:
                _set_aside(path, set_aside)
            for leftover in _files(path):  # An empty log, or the index of a log that is gone.
                leftover.unlink()
            _keep(part, path)
        finally:
            part.unlink(missing_ok=True)


def check(path: Path) -> None:
    """Raise unless a file is a complete database that this Hark can open."""
    if not path.is_file():
        raise StoreUnusable(f"the file {path} does not exist; check the path")
    try:
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        schema.distrust(connection)
        try:
            version = schema.version_of(connection)
            if not version or connection.pragma("application_id") != schema.APPLICATION_ID:
                raise StoreUnusable(f"{path} is not a Hark database; check the path")
            schema.refuse_newer(path, version)
            found = connection.pragma("quick_check")
        finally:
            connection.close()
    except apsw.Error as error:
        raise StoreUnusable(f"cannot read {path}: {error}") from error
    if found != "ok":
        raise StoreUnusable(f"{path} is damaged: {found}; use another backup")


def _copy(source: Path, target: Path, progress: Progress) -> None:
    target.unlink(missing_ok=True)
    try:
        reader = apsw.Connection(str(source), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            _copy_pages(reader, target, progress)
        finally:
            reader.close()
    except apsw.Error as error:
        raise StoreUnusable(f"cannot copy {source} to {target}: {error}") from error
    except OSError as error:
        raise StoreUnusable(f"cannot write {target}: {error.strerror}; check disk space and permissions") from error


def _copy_pages(reader: apsw.Connection, target: Path, progress: Progress) -> None:
    target.touch(mode=0o600)
    writer = apsw.Connection(str(target))
    try:
        # All steps are in one read transaction. Without it, a write of the server would restart the copy.
        reader.execute("begin")
        reader.execute("select count(*) from sqlite_schema").fetchall()
        with writer.backup("main", reader, "main") as copying:
            while not copying.done:
                copying.step(_PAGES_PER_STEP)
                progress(copying.page_count - copying.remaining, copying.page_count)
        reader.execute("rollback")
        writer.pragma("journal_mode", "delete")
    finally:
        writer.close()


def _mark_anew(part: Path) -> None:
    """Give a restored store another tag, so that new messages do not get the ids of messages after the backup."""
    connection = apsw.Connection(str(part))
    schema.distrust(connection)
    try:
        tags = 1 << TAG_BITS
        step = 1 + secrets.randbelow(tags - 1)
        connection.execute("update meta set value = (value + ?1) % ?2 where key = 'tag'", (step, tags))
    except apsw.Error as error:
        raise StoreUnusable(f"cannot write {part}: {error}; check disk space and permissions") from error
    finally:
        connection.close()


def _keep(part: Path, target: Path) -> None:
    """Give a finished copy its name. After a power failure it is complete or missing."""
    descriptor = os.open(part, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    part.replace(target)
    sync_directory(target.parent)


def _set_aside(path: Path, aside: Path) -> None:
    """Move a database with its log, which belongs to it alone."""
    for file in _files(path):
        file.rename(aside.with_name(aside.name + file.name.removeprefix(path.name)))


def _of_worth(path: Path) -> list[Path]:
    """Files of a database that have content. A reader may have left an empty log."""
    return [file for file in _files(path) if file == path or (file.name.endswith("-wal") and file.stat().st_size)]


def _files(path: Path) -> list[Path]:
    files = [path.with_name(path.name + ending) for ending in ("-wal", "-shm", "")]
    return [file for file in files if file.exists()]


def _part_of(target: Path) -> Path:
    return target.with_name(target.name + _PART)
