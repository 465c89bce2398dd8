"""The processes of `tests.s3.racing`, as tests have them, and what their file says."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import hark
from tests.s3.racing import QUEUE

SECONDS = 90.0
SETTINGS = {"HARK_POLLING_STRATEGY": "fixed", "HARK_POLLING_INTERVAL_MS": "50"}


class Racer:
    """A producer or a worker."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments
        self.said: list[str] = []

    async def start(self) -> None:
        """Begin; whether it comes up is seen by what it says."""
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.s3.racing", *self._arguments),
            stdout=asyncio.subprocess.PIPE,
            env=os.environ | SETTINGS,
        )

    async def hear(self) -> str:
        """The next line that it says."""
        assert self._process.stdout is not None
        line = (await asyncio.wait_for(self._process.stdout.readline(), SECONDS)).decode().strip()
        assert line, f"it ended; it had said {self.said}"
        self.said.append(line)
        return line

    async def kill(self) -> None:
        """End it, if it runs."""
        if self._process.returncode is None:
            self._process.kill()
            await self._process.communicate()

    async def end(self, number: signal.Signals | None = None) -> int:
        """Wait for its end, after a signal if there is one; the exit code. What it still says is read."""
        if number is not None and self._process.returncode is None:
            self._process.send_signal(number)
        rest, _ = await asyncio.wait_for(self._process.communicate(), SECONDS)
        self.said += rest.decode().split()
        assert self._process.returncode is not None
        return self._process.returncode


@asynccontextmanager
async def racing(*racers: Racer) -> AsyncIterator[None]:
    """Start them all; whoever still runs at the end is killed."""
    try:
        for racer in racers:
            await racer.start()
        yield
    finally:
        for racer in racers:
            await racer.kill()


class Step(NamedTuple):
    """A line of the workers' file."""

    step: str
    task: tuple[str, int]
    attempt: int
    process: int


def steps_in(file: Path) -> list[Step]:
    """What the workers wrote down."""
    lines = file.read_text().splitlines() if file.exists() else []
    fields = [line.split() for line in lines]
    return [Step(step, (name, int(number)), int(attempt), int(pid)) for step, name, number, attempt, pid in fields]


async def until_ended(file: Path, tasks: int) -> None:
    """Wait until so many different tasks are done; the workers are other processes, which tell no event."""
    async with asyncio.timeout(SECONDS):
        while len({step.task for step in steps_in(file) if step.step == "end"}) < tasks:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def until_drained(bucket: str) -> None:
    """Wait until nothing is left in the queue; what a killed worker held comes back when its lease is over."""
    async with hark.connect(bucket) as client, asyncio.timeout(SECONDS):
        while (totals := (await client.queue(QUEUE).stats()).totals).pending or totals.processing:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def begun(file: Path) -> Counter[tuple[str, int]]:
    """How often each task was begun."""
    return Counter(step.task for step in steps_in(file) if step.step == "begin")
