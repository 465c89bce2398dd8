"""Copies of the database file: made while a server writes to it, and put back where a server will find them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import apsw

from hark.engine.sqlite import schema
from hark.engine.sqlite.store import Store
from hark.errors import StoreUnusable

Progress = Callable[[int, int], None]
"""Told how many pages are copied, of how many."""

_PAGES_PER_STEP = 1000
_PART = ".part"
_OWN = ("", "-wal", "-shm", ".lock")
"""How the names of files of a store end."""


def backup(path: Path, target: Path, progress: Progress, *, replace: bool = False) -> None:
    """Copy one moment of a database to a file of its own, whoever writes to it meanwhile.

    The copy is checked before it gets its name, so that a file of that name is a good one.
    """
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
    """A copy must not replace a store: its server would go on with the file it has open, and lose what it writes."""
    real = path.resolve()
    if target.resolve() in [real.with_name(real.name + ending) for ending in _OWN]:
        raise StoreUnusable(f"{target} belongs to the store itself; choose another name")
    if target.is_dir():
        raise StoreUnusable(f"{target} is a directory; pass a file name")
    log = target.with_name(f"{target.name}-wal")
    if log.exists() and log.stat().st_size:  # It would be taken for the log of the copy.
        raise StoreUnusable(
            f"{target} has a write-ahead log, so it is a store in use or was not closed; choose another name"
        )


def restore(copy: Path, path: Path, progress: Progress, *, set_aside: Path | None = None) -> None:
    """Put a copy in the place of a database that no server has open; one that is there moves to `set_aside`."""
    check(copy)
    path.parent.mkdir(parents=True, exist_ok=True)
    # The lock of a server: nobody can start between our look and our copy.
    with Store(str(path)).locked():
        if set_aside is None and (there := _of_worth(path)):
            raise StoreUnusable(f"{there[0]} already exists; add --replace to move it aside")
        part = _part_of(path)
        try:
            _copy(copy, part, progress)
            check(part)
            if set_aside is not None:
                _set_aside(path, set_aside)
            for leftover in _files(path):  # A log of nothing, or the index of one that is gone.
                leftover.unlink()
            _keep(part, path)
        finally:
            part.unlink(missing_ok=True)


def check(path: Path) -> None:
    """Raise unless a file is a whole database that this Hark can open."""
    if not path.is_file():
        raise StoreUnusable(f"the file {path} does not exist; check the path")
    try:
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            version = schema.version_of(connection)
            if not version or connection.pragma("application_id") != schema.APPLICATION_ID:
                raise StoreUnusable(f"{path} is not a Hark database; check the path")
            if version > schema.CURRENT_VERSION:
                raise StoreUnusable(
                    f"{path} has schema version {version}, but this Hark supports up to {schema.CURRENT_VERSION}; "
                    "upgrade Hark"
                )
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
        # One read transaction over all steps holds one moment: without it a write of the server starts the copy over.
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


def _keep(part: Path, target: Path) -> None:
    """Give a finished copy its name; after a power failure it is there whole, or not at all."""
    descriptor = os.open(part, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    part.replace(target)
    directory = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _set_aside(path: Path, aside: Path) -> None:
    """Move a database away with its log, without which it would not be whole, and which no other one must meet."""
    if _files(aside):
        raise StoreUnusable(f"{aside} already exists; move it away first")
    for file in _files(path):
        file.rename(aside.with_name(aside.name + file.name.removeprefix(path.name)))


def _of_worth(path: Path) -> list[Path]:
    """Files of a database that say something: a reader may have left an empty log."""
    return [file for file in _files(path) if file == path or (file.name.endswith("-wal") and file.stat().st_size)]


def _files(path: Path) -> list[Path]:
    """What there is of a database: its log, and itself."""
    files = [path.with_name(path.name + ending) for ending in ("-wal", "-shm", "")]
    return [file for file in files if file.exists()]


def _part_of(target: Path) -> Path:
    return target.with_name(target.name + _PART)
