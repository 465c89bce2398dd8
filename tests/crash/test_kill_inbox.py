"""`hark.send` while servers, applications and the database are killed: each committed message arrives exactly once.

`scripts/crash 200 SEED -rP -k inbox` does it for long.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import asyncpg
import msgspec

from tests.crash.server import SEED, Server, running
from tests.postgres_server import OwnPostgresServer

ROUNDS = int(os.environ.get("HARK_TEST_CRASH_ROUNDS", "3"))
SERVERS = 3
SENDERS = 4
PARTITIONS = 3
LONGEST = 40
MOVED = 200
"""How many messages are moved in a round at least."""
TABLE = "create table if not exists public.committed (token text primary key)"
NOTE = "insert into public.committed values ($1) on conflict do nothing returning true"
"""Waits for a transaction with the same token, and finds nothing to do if that was committed."""
END_SERVERS = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'hark'"
LOST = (asyncpg.PostgresError, asyncpg.InterfaceError, OSError)


class Sender:
    """An application: it sends numbered messages in transactions of all kinds, and knows which were committed."""

    def __init__(self, url: str, name: str) -> None:
        self.name = name
        self._url = url
        self._chance = random.Random(f"{SEED}.{name}")
        self._number = 0
        self._tokens = 0
        self._connection: asyncpg.Connection | None = None
        self.counts: Counter[str] = Counter()
        self.committed: dict[str, list[str]] = defaultdict(list)
        """By partition, in the order of the calls."""

    async def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            await self._connection.close()

    def kill(self) -> None:
        """Break its connection at any point of its transaction, as the end of its process does."""
        if self._connection is not None:
            self._connection.terminate()

    async def short(self) -> None:
        """A transaction of many calls, some of which are rolled back to a savepoint."""
        await self._transaction(self._send_some, 0.2)

    def lasting(self, moved: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        """Transactions that stay open between two calls while messages of the others are `moved`."""

        async def work(connection: asyncpg.Connection) -> list[tuple[str, str]]:
            first = await self._send(connection)
            await moved()
            self.counts["outlasted"] += 1
            return [first, await self._send(connection)]

        return lambda: self._transaction(work, 0.5)

    async def _transaction(
        self, work: Callable[[asyncpg.Connection], Awaitable[list[tuple[str, str]]]], rolled_back: float
    ) -> None:
        self._tokens += 1
        token = f"{self.name}-{self._tokens}"
        kept: list[tuple[str, str]] = []
        try:
            connection = await self._connected()
            outer = connection.transaction()
            await outer.start()
            await connection.execute(NOTE, token)
            kept = await work(connection)
            if self._chance.random() < rolled_back:
                await outer.rollback()
                self.counts["rolled back"] += 1
                return
            await outer.commit()
        except LOST:
            self.counts["cut"] += 1
            if not await self._is_committed(token):
                return
            self.counts["committed, with the reply lost"] += 1
        self.counts["committed"] += 1
        for partition, payload in kept:
            self.committed[partition].append(payload)

    async def _connected(self) -> asyncpg.Connection:
        if self._connection is None or self._connection.is_closed():
            self._connection = await asyncpg.connect(self._url)
        return self._connection

    async def _is_committed(self, token: str) -> bool:
        """Whether a transaction whose connection broke was committed; asks until the database answers."""
        while True:
            with suppress(*LOST):
                connection = await self._connected()
                return not await connection.fetchval(NOTE, token)
            self._connection = None

    async def _send_some(self, connection: asyncpg.Connection) -> list[tuple[str, str]]:
        kept: list[tuple[str, str]] = []
        for _ in range(self._chance.randint(1, LONGEST)):
            savepoint = connection.transaction()
            await savepoint.start()
            sent = await self._send(connection)
            if self._chance.random() < 0.2:
                await savepoint.rollback()
            else:
                await savepoint.commit()
                kept.append(sent)
        return kept

    async def _send(self, connection: asyncpg.Connection) -> tuple[str, str]:
        self._number += 1
        partition, payload = f"p{self._chance.randrange(PARTITIONS)}", f"{self.name}-{self._number}"
        encoded = msgspec.json.encode(payload).decode()
        await connection.execute("select hark.send('orders', $1::jsonb, $2)", encoded, partition)
        return partition, payload


class Watcher:
    """Looks into the store, whatever happens to the database."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: asyncpg.Connection | None = None

    async def fetch(self, query: str) -> list[asyncpg.Record]:
        """Ask until the database answers."""
        while True:
            with suppress(*LOST):
                if self._connection is None or self._connection.is_closed():
                    self._connection = await asyncpg.connect(self._url)
                return list(await self._connection.fetch(query))

    async def count_moved(self) -> int:
        """The number of messages that were moved. The pause leaves the processors to the servers."""
        [row] = await self.fetch("select coalesce(sum(tail), 0)::bigint from hark.partitions, pg_sleep(0.05)")
        return int(row[0])

    async def wait_for(self, number: int) -> None:
        """Return when this number of further messages has been moved."""
        target = await self.count_moved() + number
        while await self.count_moved() < target:
            pass

    async def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            await self._connection.close()


@asynccontextmanager
async def sending(transactions: Sequence[Callable[[], Awaitable[None]]]) -> AsyncIterator[None]:
    """Each of these runs again and again; at the end those that are under way complete."""
    stopping = asyncio.Event()

    async def repeat(transaction: Callable[[], Awaitable[None]]) -> None:
        while not stopping.is_set():
            await transaction()

    async with asyncio.TaskGroup() as tasks:
        for transaction in transactions:
            tasks.create_task(repeat(transaction))
        yield
        stopping.set()


async def kill_at_random(
    servers: list[Server], senders: list[Sender], database: OwnPostgresServer, watcher: Watcher
) -> Counter[str]:
    """Kill servers, applications and the database, and end connections of servers, at any instant."""
    chance = random.Random(SEED)
    counts: Counter[str] = Counter()
    for number in range(ROUNDS):
        await watcher.wait_for(MOVED)
        # The instant within a move has to be random, so this waits for time and for nothing else.
        await asyncio.sleep(chance.uniform(0, 0.05))
        if number % 2:
            chance.choice(senders).kill()
            counts["applications killed"] += 1
        if number % 8 == 2:
            await asyncio.to_thread(database.execute, END_SERVERS)
            counts["connections of servers ended"] += 1
        if number % 40 == 7:
            await asyncio.to_thread(database.restart, "immediate")
            counts["databases killed"] += 1
        server = chance.choice(servers)
        await server.end(signal.SIGKILL)
        counts["servers killed"] += 1
        await server.start()
    return counts


async def test_killing_servers_applications_and_the_database_loses_doubles_and_reorders_nothing_that_was_sent(
    own_postgres_server: OwnPostgresServer,
) -> None:
    with own_postgres_server.fresh_database() as url:
        servers = [Server(settings={"HARK_ENGINE": url}) for _ in range(SERVERS)]
        senders = [Sender(url, f"sender{number}") for number in range(SENDERS)]
        watchers = [Watcher(url) for _ in range(3)]
        # One stays open in the transactions of one round, the other in those of many.
        lasting = [Sender(url, "long"), Sender(url, "longest")]
        spans = [lambda: watchers[1].wait_for(MOVED), lambda: watchers[2].wait_for(MOVED * min(ROUNDS, 20))]
        async with AsyncExitStack() as stack:
            closing = [*(watcher.close for watcher in watchers), *(sender.close for sender in (*senders, *lasting))]
            for close in closing:
                stack.push_async_callback(close)
            await watchers[0].fetch(TABLE)
            async with (
                running(*servers),
                sending([sender.short for sender in senders]),
                sending([sender.lasting(span) for sender, span in zip(lasting, spans, strict=True)]),
            ):
                troubles = await kill_at_random(servers, senders, own_postgres_server, watchers[0])
            async with running(servers[0]):
                while (await watchers[0].fetch("select exists (select from hark.inbox)"))[0][0]:
                    pass
            rows = await watchers[0].fetch(
                "select p.name, m.payload from hark.messages m join hark.partitions p on p.id = m.partition"
                ' order by p.name, m."offset"'
            )
    verify(rows, [*senders, *lasting])
    assert all(sender.counts["outlasted"] for sender in lasting)
    counts: Counter[str] = sum((sender.counts for sender in [*senders, *lasting]), Counter())
    print(f"seed {SEED}: {dict(troubles)}; transactions: {dict(counts)}; {len(rows)} messages arrived")


def verify(rows: list[asyncpg.Record], senders: list[Sender]) -> None:
    """Each partition has what each application committed, once, in its order, and nothing else."""
    found: dict[str, list[str]] = defaultdict(list)
    for name, payload in rows:
        found[name].append(msgspec.json.decode(payload))
    for partition, payloads in found.items():
        for sender in senders:
            mine = [one for one in payloads if one.rpartition("-")[0] == sender.name]
            assert mine == sender.committed[partition], f"those of {sender.name} in {partition}"
    assert len(rows) == sum(len(one) for sender in senders for one in sender.committed.values())
