"""The processes without a server, as the crash test has them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

START_SECONDS = 30.0


class Member:
    """A `tests.crash.member` that can be killed and started again: it goes on where its journal ends."""

    def __init__(self, bucket: str, directory: Path, name: str, seed: int, settings: Mapping[str, str]) -> None:
        self.name = name
        self.journal = directory / f"{name}.jsonl"
        self._bucket = bucket
        self._directory = directory
        self._seed = seed
        self._settings = dict(settings)
        self._pushed = 0
        self._progress = asyncio.Event()

    async def start(self) -> None:
        """Start, and wait until it has opened the bucket."""
        self._seed += 1
        arguments = [self._bucket, str(self.journal), self.name, str(self._seed)]
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.crash.member", *arguments),
            stdout=asyncio.subprocess.PIPE,
            env=os.environ | self._settings,
        )
        output = self._process.stdout
        assert output is not None
        line = await asyncio.wait_for(output.readline(), START_SECONDS)
        assert line == b"ready\n", f"{self.name} did not come up: {line!r}, exit code {self._process.returncode}"
        self._reading = asyncio.create_task(self._read(output))

    async def _read(self, output: asyncio.StreamReader) -> None:
        while await output.readline():
            self._pushed += 1
            self._progress.set()
        self._progress.set()

    async def wait_for_pushes(self, number: int) -> None:
        """Wait until so many more pushes of it were acknowledged."""
        target = self._pushed + number
        while self._pushed < target:
            assert not self._reading.done(), f"{self.name} ended by itself"
            self._progress.clear()
            await self._progress.wait()

    async def end(self, number: signal.Signals) -> None:
        """Stop it in the given way."""
        if self._process.returncode is None:
            self._process.send_signal(number)
        code = await self._process.wait()
        await self._reading
        assert code == (-signal.SIGKILL if number == signal.SIGKILL else 0), f"{self.name} ended with {code}"
