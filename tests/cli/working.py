"""`hark work` as a process, and what it says."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO

import pytest

SECONDS = 60.0
_STEERING = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")

APP = """
import asyncio
import os
from pathlib import Path

from hark.worker import RetryPolicy, Worker

worker = Worker(os.environ["HARK_URL"], queue=os.environ["HARK_TEST_QUEUE"])


def make_worker():
    return worker


@worker.task("say")
async def say(word: str) -> None:
    print(f"said {word}\\n", end="", flush=True)  # In one write: several processes share the output.


@worker.task("wait")
async def wait(file: str) -> None:
    print("waits for", file, flush=True)
    while not Path(file).exists():
        await asyncio.sleep(0.005)
    print("waited for", file, flush=True)


@worker.task("fail", retry=RetryPolicy.never())
async def fail() -> None:
    raise ValueError("no")
"""


class Output:
    """What comes out of a process, as it comes."""

    def __init__(self, output: IO[str]) -> None:
        self.output: list[str] = []
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        self._reader = threading.Thread(target=self._read, args=(output,), daemon=True)
        self._reader.start()

    def _read(self, output: IO[str]) -> None:
        with output, suppress(OSError):  # A terminal whose other side is closed can't be read any more.
            for line in output:
                self.output.append(line)
                self._lines.put(line)
        self._lines.put(None)

    def until(self, pattern: str) -> str:
        """Wait for a line in which this is found, and answer it."""
        try:
            while (line := self._lines.get(timeout=SECONDS)) is not None:
                if re.search(pattern, line):
                    return line
        except Empty:
            pytest.fail(f"no line with {pattern!r} within {SECONDS} s; it said:\n{self.text}")
        pytest.fail(f"it ended before a line with {pattern!r}; it said:\n{self.text}")

    def end(self) -> str:
        """Wait for the end of all who could still say something; all that was said."""
        self._reader.join(SECONDS)
        assert not self._reader.is_alive(), f"somebody still runs; they said:\n{self.text}"
        return self.text

    @property
    def text(self) -> str:
        """All that was said, without what steers a terminal."""
        return _STEERING.sub("", "".join(self.output))


class Work:
    """A running `hark work`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._output = Output(process.stdout) if process.stdout is not None else None

    @property
    def output(self) -> list[str]:
        """Its lines so far."""
        assert self._output is not None, "it has a terminal"
        return self._output.output

    @property
    def text(self) -> str:
        """All that it said so far."""
        return "".join(self.output)

    def until(self, pattern: str) -> str:
        """Wait for a line in which this is found, and answer it."""
        assert self._output is not None, "it has a terminal"
        return self._output.until(pattern)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def end(self) -> int:
        """Wait for its end, and for that of its children; the exit code."""
        code = self.process.wait(SECONDS)
        if self._output is not None:
            self._output.end()
        return code


@contextmanager
def terminal(columns: int) -> Iterator[tuple[int, Output]]:
    """A terminal to give to a process, and what is to be seen on it."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    output = Output(open(ours, encoding="utf-8", newline="\n"))  # noqa: SIM115, PTH123  # closed by its reader
    try:
        yield theirs, output
    finally:
        os.close(theirs)


@contextmanager
def working(directory: Path, url: str, queue: str, *arguments: str, stdout: int = subprocess.PIPE) -> Iterator[Work]:
    """Run `hark work` there; ended by force if it still runs at the end."""
    environment = os.environ | {"HARK_URL": url, "HARK_TEST_QUEUE": queue, "PYTHONUNBUFFERED": "1", "TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-c", "from hark.cli import main; main()", "work", *arguments],
        cwd=directory,
        env=environment,
        stdout=stdout,
        stderr=subprocess.STDOUT,
        text=True,
    )
    work = Work(process)
    try:
        yield work
    finally:
        if process.poll() is None:
            process.kill()
        work.end()
