"""What a process has used, read from /proc: CPU by thread, and memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import msgspec

STORE_THREADS = "hark-store"
_TICK_US = 1_000_000 // os.sysconf("SC_CLK_TCK")


class Cpu(msgspec.Struct, frozen=True):
    """Microseconds of CPU: of a server with its database, of its store, and of a store in processes of its own."""

    total_us: int
    store_us: int
    """The threads of the server that are its store, or the database."""
    database_us: int = 0

    @property
    def server_us(self) -> int:
        """What the server's process alone used."""
        return self.total_us - self.database_us

    def since(self, before: Cpu) -> Cpu:
        """What was used between two readings."""
        return Cpu(
            self.total_us - before.total_us, self.store_us - before.store_us, self.database_us - before.database_us
        )


class Stat(NamedTuple):
    """What a line of /proc/PID/stat says; CPU is user and system time."""

    name: str
    used_us: int
    ended_us: int
    """What children used that have ended."""


def parse_stat(text: str) -> Stat:
    """The parts of such a line."""
    # The name is in parentheses and may hold spaces and parentheses itself.
    name, _, rest = text.partition("(")[2].rpartition(")")
    fields = rest.split()
    user, system, ended_user, ended_system = (int(field) * _TICK_US for field in fields[11:15])
    return Stat(name, user + system, ended_user + ended_system)


def _stat(folder: Path) -> Stat:
    return parse_stat((folder / "stat").read_text(encoding="utf-8"))


def cpu_of(pid: int) -> Cpu:
    """What a process and its store threads have used until now."""
    process = Path(f"/proc/{pid}")
    named = unnamed = 0
    for thread in (process / "task").iterdir():
        try:
            stat = _stat(thread)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile; the process still counts it
        if stat.name.startswith(STORE_THREADS):
            named += stat.used_us
        elif thread.name != str(pid):
            unnamed += stat.used_us
    # Before Python 3.14 a thread's name does not reach the kernel; the first thread is the event loop.
    return Cpu(_stat(process).used_us, named or unnamed)


def family_us(pid: int) -> int:
    """CPU microseconds of a process, its children, and those of its children that have ended."""
    parent = _stat(Path(f"/proc/{pid}"))
    total = parent.used_us + parent.ended_us
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split():
        try:
            total += _stat(Path(f"/proc/{child}")).used_us
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile; its parent counts it at the next reading
    return total


def open_files(pid: int) -> int:
    """Descriptors that a process has open."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def rss_mb(pid: int) -> float:
    """Resident memory of a process in megabytes."""
    return _memory_mb(pid, "VmRSS:")


def peak_mb(pid: int) -> float:
    """Resident memory of a process when it was largest, in megabytes."""
    return _memory_mb(pid, "VmHWM:")


def _memory_mb(pid: int, name: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(name):
            return int(line.split()[1]) / 1024
    return 0.0
