"""Two servers on one PostgreSQL, either of them killed and the database restarted under load: nothing is lost."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.crash.history import problems, recorded
from tests.crash.load import Load, over_http
from tests.crash.server import ROUNDS, SEED, Server, running
from tests.postgres_server import OwnPostgresServer, PostgresServer

CLIENTS = 8
SETTINGS = {"HARK_POSTGRES_WAIT_MS": "2000"}


@asynccontextmanager
async def loaded_servers(url: str, directory: Path) -> AsyncIterator[tuple[list[Server], Load]]:
    """Two servers under load; at the end they are drained, and what was seen is judged."""
    servers = [Server("--engine", url, settings=SETTINGS) for _ in range(2)]
    with recorded(directory / "history.jsonl") as history:
        load = Load(over_http([server.url for server in servers], SEED), history, SEED)
        async with running(*servers):
            await load.prepare()
            async with asyncio.TaskGroup() as tasks:
                for number in range(CLIENTS):
                    tasks.create_task(load.produce(f"producer-{number}"))
                    tasks.create_task(load.consume(f"consumer-{number}"))
                yield servers, load
                await load.wait_for_pushes(CLIENTS)
                load.stop()
            await asyncio.wait_for(load.drain("drain"), 60)
    assert problems(history) == []
    assert len(history.named("ack")) > ROUNDS


async def test_killing_either_server_and_restarting_the_database_loses_and_reorders_nothing(
    own_postgres_server: OwnPostgresServer, tmp_path: Path
) -> None:
    chance = random.Random(SEED)
    with own_postgres_server.fresh_database() as url:
        async with loaded_servers(url, tmp_path) as (servers, load):
            for number in range(ROUNDS):
                await load.wait_for_pushes(chance.randint(5, 60))
                # The instant within a commit has to be random, so this waits for time and for nothing else.
                await asyncio.sleep(chance.uniform(0, 0.01))
                if number % 4 == 2:
                    await asyncio.to_thread(own_postgres_server.restart, "immediate")
                else:
                    server = chance.choice(servers)
                    await server.end(signal.SIGKILL)
                    await server.start()


async def test_ending_all_connections_under_load_loses_and_reorders_nothing(
    postgres_server: PostgresServer, postgres_url: str, tmp_path: Path
) -> None:
    chance = random.Random(SEED)
    async with loaded_servers(postgres_url, tmp_path) as (_, load):
        ended = 0
        for _ in range(ROUNDS):
            await load.wait_for_pushes(chance.randint(5, 60))
            ended += await asyncio.to_thread(postgres_server.terminate_backends, postgres_url)
        assert ended >= ROUNDS
