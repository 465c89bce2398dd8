"""A disk that forgets what was not synced: SQLite writes to it through a VFS that remembers what was.

After a power failure a file is what was synced, and of what was written since any part: each sector of each write may
be there or not, in whatever order the disk liked. A sync that fails is worse: what it did not write is gone for good,
although it can still be read until the power fails. As on Linux, everybody who has the file open is told once: the
sync after that says nothing of it.
"""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import apsw

NAME = "hark-power"
_BASE = "unix"
_SECTOR = 512

Kind = Literal["write", "sync"]
Step = Callable[[Kind, str], None]
"""Called before each write and sync with the name of the file; what it raises is what the disk answers."""


class _Contents:
    """One file: what is on stable storage, and what was written since. None: it is not even there."""

    def __init__(self, synced: bytes | None) -> None:
        self.synced = synced
        self.pending: list[tuple[int, bytes] | int] = []
        """Writes (where, what), and sizes to which it was cut."""
        self.opened: set[object] = set()
        """Who has it open."""
        self.untold: set[object] = set()
        """Who has not heard yet that a sync failed."""

    def after_power_failure(self, chance: random.Random) -> bytes | None:
        """What the disk may have."""
        likely = chance.choice([0.0, 0.5, 0.9, 1.0])
        if self.synced is None and chance.random() >= likely:
            return None
        contents = bytearray(self.synced or b"")
        for change in self.pending:
            _apply(contents, change, lambda: chance.random() < likely)
        return bytes(contents)

    def sync(self) -> None:
        """All of it is on stable storage."""
        contents = bytearray(self.synced or b"")
        for change in self.pending:
            _apply(contents, change, lambda: True)
        self.synced = bytes(contents)
        self.pending.clear()


def _apply(contents: bytearray, change: tuple[int, bytes] | int, reaches_the_disk: Callable[[], bool]) -> None:
    if isinstance(change, int):
        if reaches_the_disk():
            del contents[change:]
        return
    offset, data = change
    start = 0
    while start < len(data):
        end = min(len(data), start + _SECTOR - (offset + start) % _SECTOR)
        if reaches_the_disk():
            contents.extend(bytes(max(0, offset + end - len(contents))))
            contents[offset + start : offset + end] = data[start:end]
        start = end


class Disk:
    """The files of one directory. `step` is told of each write and sync, under the lock: nothing changes meanwhile."""

    def __init__(self, directory: Path, chance: random.Random) -> None:
        self.directory = directory
        self.step: Step = lambda _kind, _name: None
        self._chance = chance
        self._lock = threading.RLock()
        self._files = {
            file.name: _Contents(file.read_bytes()) for file in directory.iterdir() if not file.name.endswith("-shm")
        }

    def after_power_failure(self) -> dict[str, bytes]:
        """The files that may be found when the power is back."""
        with self._lock:
            found = {name: file.after_power_failure(self._chance) for name, file in self._files.items()}
        return {name: contents for name, contents in found.items() if contents is not None}

    def after_kill(self) -> dict[str, bytes]:
        """The files that are found when only the process has ended."""
        with self._lock:
            return {name: (self.directory / name).read_bytes() for name in self._files}

    def heal(self) -> None:
        """From now on everything works, and everybody has heard of what did not."""
        with self._lock:
            self.step = lambda _kind, _name: None
            for file in self._files.values():
                file.untold.clear()

    def opened(self, name: str, by: object) -> None:
        """A file is there, and somebody has it open."""
        with self._lock:
            self._files.setdefault(name, _Contents(None)).opened.add(by)

    def closed(self, name: str, by: object) -> None:
        """Somebody has closed a file."""
        with self._lock:
            if name in self._files:
                self._files[name].opened.discard(by)

    def removed(self, name: str) -> None:
        """A file is gone."""
        with self._lock:
            self._files.pop(name, None)

    def write(self, name: str, data: bytes, offset: int, write: Callable[[bytes, int], None]) -> None:
        """Write, or fail after a part of it."""
        with self._lock:
            try:
                self.step("write", name)
            except apsw.Error:
                data = data[: self._chance.randrange(len(data) + 1)]
                if data:
                    write(data, offset)
                    self._files[name].pending.append((offset, data))
                raise
            write(data, offset)
            self._files[name].pending.append((offset, data))

    def truncate(self, name: str, size: int, truncate: Callable[[int], None]) -> None:
        """Cut a file."""
        with self._lock:
            truncate(size)
            self._files[name].pending.append(size)

    def sync(self, name: str, by: object) -> None:
        """Put what was written on stable storage; or fail, and lose some of it."""
        with self._lock:
            file = self._files[name]
            try:
                self.step("sync", name)
            except apsw.Error as error:
                error.extendedresult = apsw.SQLITE_IOERR_FSYNC  # type: ignore[attr-defined]  # apsw passes it on
                file.synced = file.after_power_failure(self._chance)
                file.pending.clear()
                file.untold = file.opened - {by}
                raise
            file.sync()
            if by in file.untold:
                file.untold.remove(by)
                late = apsw.IOError(f"an earlier sync of {name} failed")
                late.extendedresult = apsw.SQLITE_IOERR_FSYNC  # type: ignore[attr-defined]  # apsw passes it on
                raise late


class _Vfs(apsw.VFS):
    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        super().__init__(NAME, _BASE, makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:
        path = Path(name.filename() if isinstance(name, apsw.URIFilename) else name or "")
        if path.parent != self._disk.directory:
            return apsw.VFSFile(_BASE, name, flags)
        return _File(self._disk, path.name, name, flags)

    def xDelete(self, name: str, sync: bool) -> None:
        super().xDelete(name, sync)
        if Path(name).parent == self._disk.directory:
            self._disk.removed(Path(name).name)


class _File(apsw.VFSFile):
    def __init__(self, disk: Disk, short: str, name: Any, flags: list[int]) -> None:
        self._disk = disk
        self._short = short
        super().__init__(_BASE, name, flags)
        disk.opened(short, self)

    def xWrite(self, data: Any, offset: int) -> None:
        self._disk.write(self._short, bytes(data), offset, super().xWrite)

    def xTruncate(self, newsize: int) -> None:
        self._disk.truncate(self._short, newsize, super().xTruncate)

    def xSync(self, flags: int) -> None:  # noqa: ARG002  # The real disk is not what is tested.
        self._disk.sync(self._short, self)

    def xClose(self) -> None:
        self._disk.closed(self._short, self)
        super().xClose()

    def xLock(self, level: int) -> None:
        try:
            super().xLock(level)
        except apsw.IOError as error:
            # A connection that only reads can't lock a file for writing. SQLite expects that; apsw would raise it.
            raise apsw.BusyError(str(error)) from None


@contextmanager
def powered_by(disk: Disk) -> Iterator[None]:
    """All databases that are opened in this process meanwhile are on that disk if they are in its directory."""
    vfs = _Vfs(disk)
    try:
        yield
    finally:
        vfs.unregister()


def put(files: dict[str, bytes], directory: Path) -> Path:
    """Put files into a directory that has nothing else; the answer is the directory."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    for name, contents in files.items():
        (directory / name).write_bytes(contents)
    return directory
