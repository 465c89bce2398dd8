"""Two servers on one PostgreSQL, either of them killed and the database restarted under load: nothing is lost."""

from __future__ import annotations

import asyncio
import random
import signal
from pathlib import Path

from tests.crash.load import loaded
from tests.crash.server import ROUNDS, SEED, Server
from tests.postgres_server import OwnPostgresServer, PostgresServer

CLIENTS = 8
SETTINGS = {"HARK_POSTGRES_WAIT_MS": "2000"}


def servers_on(url: str) -> list[Server]:
    """Two servers."""
    return [Server(settings=SETTINGS | {"HARK_ENGINE": url}) for _ in range(2)]


async def test_killing_either_server_and_restarting_the_database_loses_and_reorders_nothing(
    own_postgres_server: OwnPostgresServer, tmp_path: Path
) -> None:
    chance = random.Random(SEED)
    with own_postgres_server.fresh_database() as url:
        servers = servers_on(url)
        async with loaded(servers, tmp_path, CLIENTS) as load:
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
    async with loaded(servers_on(postgres_url), tmp_path, CLIENTS) as load:
        ended = 0
        for _ in range(ROUNDS):
            await load.wait_for_pushes(chance.randint(5, 60))
            ended += await asyncio.to_thread(postgres_server.terminate_backends, postgres_url)
        assert ended >= ROUNDS
