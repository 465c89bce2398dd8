"""Servers that move what applications sent are killed: every committed message arrives once, and no other."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import defaultdict

import asyncpg
import msgspec

from tests.crash.server import SEED, Server, running
from tests.postgres_server import PostgresServer

ROUNDS = int(os.environ.get("HARK_TEST_CRASH_ROUNDS", "3"))
SERVERS = 3
SENDERS = 4
PARTITIONS = 3
LONGEST = 40


class Sender:
    """An application: it sends numbered messages in transactions of all kinds, and knows which were committed."""

    def __init__(self, url: str, name: str, seed: str) -> None:
        self._url = url
        self._name = name
        self._chance = random.Random(seed)
        self._number = 0
        self.committed: dict[str, list[str]] = defaultdict(list)
        """By partition, in the order of the calls."""

    async def work(self, stopping: asyncio.Event) -> None:
        """Send until it is time to stop."""
        connection = await asyncpg.connect(self._url)
        try:
            while not stopping.is_set():
                await self._transaction(connection)
        finally:
            await connection.close()

    async def _transaction(self, connection: asyncpg.Connection) -> None:
        kept: list[tuple[str, str]] = []
        outer = connection.transaction()
        await outer.start()
        for _ in range(self._chance.randint(1, LONGEST)):
            savepoint = connection.transaction()
            await savepoint.start()
            sent = await self._send(connection)
            if self._chance.random() < 0.2:
                await savepoint.rollback()
            else:
                await savepoint.commit()
                kept.append(sent)
        if self._chance.random() < 0.2:
            await outer.rollback()
            return
        await outer.commit()
        for partition, payload in kept:
            self.committed[partition].append(payload)

    async def _send(self, connection: asyncpg.Connection) -> tuple[str, str]:
        self._number += 1
        partition, payload = f"p{self._chance.randrange(PARTITIONS)}", f"{self._name}-{self._number}"
        encoded = msgspec.json.encode(payload).decode()
        await connection.execute("select hark.send('orders', $1::jsonb, $2)", encoded, partition)
        return partition, payload


async def test_killing_servers_that_move_messages_loses_doubles_and_reorders_none(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    chance = random.Random(SEED)
    servers = [Server(settings={"HARK_ENGINE": postgres_url}) for _ in range(SERVERS)]
    senders = [Sender(postgres_url, f"sender{number}", f"{SEED}.{number}") for number in range(SENDERS)]
    end_servers = _END_SERVERS.format(postgres_url.rpartition("/")[2])
    stopping = asyncio.Event()
    long = await asyncpg.connect(postgres_url)
    try:
        async with running(*servers), asyncio.TaskGroup() as sending:
            lasting = long.transaction()
            await lasting.start()
            await long.execute("select hark.send('orders', '\"long\"', 'p0')")
            for sender in senders:
                sending.create_task(sender.work(stopping))
            for number in range(ROUNDS):
                await _moved(long, 200 * (number + 1))
                # The instant within a move has to be random, so this waits for time and for nothing else.
                await asyncio.sleep(chance.uniform(0, 0.05))
                if number % 4 == 3:
                    await asyncio.to_thread(postgres_server.execute, end_servers)
                server = chance.choice(servers)
                await server.end(signal.SIGKILL)
                await server.start()
            await lasting.commit()
            stopping.set()
        async with running(servers[0]):
            while await long.fetchval("select exists (select from hark.inbox)"):
                pass
        rows = await long.fetch(
            "select p.name, m.payload from hark.messages m join hark.partitions p on p.id = m.partition"
            ' order by p.name, m."offset"'
        )
    finally:
        await long.close()
    found: dict[str, list[str]] = defaultdict(list)
    for name, payload in rows:
        found[name].append(msgspec.json.decode(payload))
    assert found["p0"].count("long") == 1
    found["p0"].remove("long")
    for partition, payloads in found.items():
        for number, sender in enumerate(senders):
            mine = [one for one in payloads if one.startswith(f"sender{number}-")]
            assert mine == sender.committed[partition], f"those of sender {number} in {partition}"
    assert sum(map(len, found.values())) == sum(len(one) for sender in senders for one in sender.committed.values())


_END_SERVERS = (
    "select pg_terminate_backend(pid) from pg_stat_activity where datname = '{}' and application_name = 'hark'"
)


async def _moved(connection: asyncpg.Connection, number: int) -> None:
    """Return when this number of messages has been moved. Each statement of a transaction sees what is new."""
    while await connection.fetchval("select coalesce(sum(tail), 0) from hark.partitions") < number:
        pass
