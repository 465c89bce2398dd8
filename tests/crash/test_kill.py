"""kill -9 under load: nothing acknowledged is lost, order holds, the database opens every time."""

from __future__ import annotations

import asyncio
import random
import signal
from pathlib import Path

from tests.crash.load import loaded
from tests.crash.server import ROUNDS, SEED, Server


async def test_killing_the_server_at_random_instants_loses_and_reorders_nothing(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    server = Server("--data", str(tmp_path / "data"))
    async with loaded([server], tmp_path, clients=4) as load:
        for _ in range(ROUNDS):
            await load.wait_for_pushes(chance.randint(5, 60))
            # The instant within a commit has to be random, so this waits for time and for nothing else.
            await asyncio.sleep(chance.uniform(0, 0.01))
            await server.end(signal.SIGKILL)
            await server.start()
