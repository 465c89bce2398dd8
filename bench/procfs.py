"""What a process has used, read from /proc: CPU by thread, and memory."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

STORE_THREADS = "hark-store"
_TICK_US = 1_000_000 // os.sysconf("SC_CLK_TCK")


class Cpu(msgspec.Struct, frozen=True):
    """Microseconds of CPU: of the whole process, and of those threads of it that are the store."""

    total_us: int
    store_us: int

    def since(self, before: Cpu) -> Cpu:
        """What was used between two readings."""
        return Cpu(self.total_us - before.total_us, self.store_us - before.store_us)


def parse_stat(text: str) -> tuple[str, int]:
    """The name and the CPU microseconds (user and system) in a line of /proc/PID/stat."""
    # The name is in parentheses and may hold spaces and parentheses itself.
    name, _, rest = text.partition("(")[2].rpartition(")")
    fields = rest.split()
    return name, (int(fields[11]) + int(fields[12])) * _TICK_US


def cpu_of(pid: int) -> Cpu:
    """What a process and its store threads have used until now."""
    process = Path(f"/proc/{pid}")
    named = unnamed = 0
    for thread in (process / "task").iterdir():
        try:
            name, used = parse_stat((thread / "stat").read_text(encoding="utf-8"))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile; the process still counts it
        if name.startswith(STORE_THREADS):
            named += used
        elif thread.name != str(pid):
            unnamed += used
    # Before Python 3.14 a thread's name does not reach the kernel; the first thread is the event loop.
    return Cpu(parse_stat((process / "stat").read_text(encoding="utf-8"))[1], named or unnamed)


def rss_mb(pid: int) -> float:
    """Resident memory of a process in megabytes."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0
