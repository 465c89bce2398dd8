"""kill -9 under load: nothing acknowledged is lost, order holds, the database opens every time."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import sys
from pathlib import Path

import httpx

from tests.crash.history import History, problems
from tests.crash.load import Load

ROUNDS = int(os.environ.get("HARK_TEST_CRASH_ROUNDS", "8"))
SEED = int(os.environ.get("HARK_TEST_CRASH_SEED", "1"))


class Server:
    """A server process that can be killed and started again on the same store and port."""

    def __init__(self, data: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._data = data

    async def start(self) -> None:
        """Start, and wait until it answers."""
        command = [sys.executable, "-m", "hark", "serve", "--port", str(self.port), "--data", str(self._data)]
        self._process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), 20)
        assert line.startswith(b"Hark"), f"the server did not come up: exit code {self._process.returncode}"

    async def end(self, number: signal.Signals) -> None:
        """Stop it in the given way."""
        self._process.send_signal(number)
        await self._process.wait()
        if self._process.stdout is not None:
            await self._process.stdout.read()


async def test_killing_the_server_at_random_instants_loses_and_reorders_nothing(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    server, history = Server(tmp_path / "data"), History()
    await server.start()
    load = Load(server.url, history, SEED)
    async with asyncio.TaskGroup() as tasks:
        for number in range(4):
            tasks.create_task(load.produce(f"producer-{number}"))
            tasks.create_task(load.consume(f"consumer-{number}"))
        for _ in range(ROUNDS):
            await load.wait_for_pushes(chance.randint(5, 60))
            # The instant within a commit has to be random, so this waits for time and for nothing else.
            await asyncio.sleep(chance.uniform(0, 0.01))
            await server.end(signal.SIGKILL)
            await server.start()
        await load.wait_for_pushes(10)
        load.stop()
    await server.end(signal.SIGTERM)
    await server.start()  # Leases do not outlive the server: all that is unsettled can be had now.
    await asyncio.wait_for(load.consume("drain", until_empty=True), 60)
    async with httpx.AsyncClient(base_url=server.url) as client:
        queue = (await client.get("/api/v1/resources/queues/crash")).json()
    await server.end(signal.SIGTERM)
    history.save(tmp_path / "history.jsonl")
    assert problems(history) == []
    assert queue["totals"]["pending"] == 0
    assert len(history.named("ack")) > ROUNDS
