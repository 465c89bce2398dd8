"""A client process: it produces and consumes, and the crash test, which has a `Member`, kills or freezes it.

    python -m tests.crash.member STORE JOURNAL NAME SEED

STORE is a bucket, which it uses without a server, or the URLs of servers with commas between them.

It says `ready` when it has opened the bucket, and a line for each push that was acknowledged. SIGTERM ends it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import hark
from tests.crash.history import Journal
from tests.crash.load import Load, OpenWay, over_http, through
from tests.crash.server import START_SECONDS, freeze

WIDEST = 60


@asynccontextmanager
async def way_to(store: str, seed: int) -> AsyncIterator[OpenWay]:
    """How to reach a store."""
    if store.startswith("http"):
        yield over_http(store.split(","), seed)
    else:
        async with hark.connect(store) as client:
            yield through(client.caller.transport)


async def work(store: str, journal: Path, name: str, seed: int) -> None:
    """Produce and consume until SIGTERM."""
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    history = Journal(journal)
    async with way_to(store, seed) as open_way:
        load = Load(open_way, history, seed, WIDEST)
        await load.prepare()
        print("ready", flush=True)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(load.produce(name, history.last_number(name), history.open_batch(name)))
            tasks.create_task(load.consume(name))
            if "HARK_TEST_PIPELINE" in os.environ:
                tasks.create_task(load.transform(name))
            reporting = tasks.create_task(report(load))
            await stopping.wait()
            load.stop()
            reporting.cancel()


async def report(load: Load) -> None:
    """Say so whenever a push was acknowledged."""
    while True:
        await load.wait_for_pushes(1)
        print("pushed", flush=True)


class Member:
    """A `tests.crash.member` that can be killed and started again: it goes on where its journal ends."""

    def __init__(self, store: str, directory: Path, name: str, seed: int, settings: Mapping[str, str]) -> None:
        self.name = name
        self.journal = directory / f"{name}.jsonl"
        self._store = store
        self._directory = directory
        self._seed = seed
        self._settings = dict(settings)
        self._pushed = 0
        self._progress = asyncio.Event()

    async def start(self) -> None:
        """Start, and wait until it has opened the bucket."""
        self._seed += 1
        arguments = [self._store, str(self.journal), self.name, str(self._seed)]
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

    async def freeze(self, seconds: float) -> None:
        """Suspend it for a time, as a machine that swaps or a virtual machine that is moved does."""
        await freeze(self._process, seconds)

    async def end(self, number: signal.Signals) -> None:
        """Stop it in the given way."""
        if self._process.returncode is None:
            self._process.send_signal(number)
        code = await self._process.wait()
        await self._reading
        assert code == (-signal.SIGKILL if number == signal.SIGKILL else 0), f"{self.name} ended with {code}"


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])))
