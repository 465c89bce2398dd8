"""kill -9 under load: nothing acknowledged is lost, order holds, the database opens every time."""

from __future__ import annotations

import asyncio
import random
import signal
from pathlib import Path

from tests.crash.history import problems, recorded
from tests.crash.load import Load, over_http
from tests.crash.server import ROUNDS, SEED, Server, running


async def test_killing_the_server_at_random_instants_loses_and_reorders_nothing(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    server = Server("--data", str(tmp_path / "data"))
    with recorded(tmp_path / "history.jsonl") as history:
        load = Load(over_http([server.url], SEED), history, SEED)
        async with running(server):
            await load.prepare()
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
            await asyncio.wait_for(load.drain("drain"), 60)
    assert problems(history) == []
    assert len(history.named("ack")) > ROUNDS
