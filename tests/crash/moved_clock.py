"""`hark` with a wall clock that a test moves: `python -m tests.crash.moved_clock FILE ARGUMENTS`."""

from __future__ import annotations

import mmap
import sys
import time
from pathlib import Path

_BYTES = 8


class WallClock:
    """How far the wall clock of a process is ahead. It is in a file that the test and the process share."""

    def __init__(self, file: Path) -> None:
        if not file.exists():
            file.write_bytes(bytes(_BYTES))
        with file.open("r+b") as opened:
            self._shared = mmap.mmap(opened.fileno(), _BYTES)
        self.file = file

    @property
    def ahead_ns(self) -> int:
        """The difference in nanoseconds."""
        return int.from_bytes(self._shared[:], "little", signed=True)

    def set(self, seconds: float) -> None:
        """Let the clock jump. A process that runs sees it at once."""
        self._shared[:] = round(seconds * 1e9).to_bytes(_BYTES, "little", signed=True)


def move(clock: WallClock) -> None:
    """Move the wall clock of this process."""
    time_ns = time.time_ns
    time.time_ns = lambda: time_ns() + clock.ahead_ns
    time.time = lambda: time.time_ns() / 1e9


if __name__ == "__main__":
    move(WallClock(Path(sys.argv.pop(1))))
    from hark.cli import main

    main()
