"""kill -9 and frozen servers while schedules run: each due time is pushed exactly once."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

import hark
from hark.client.calling import CallPolicy
from hark.client.client import Client
from hark.errors import LeaseLost
from tests.crash.server import SEED, Server, running
from tests.postgres_server import PostgresServer

ROUNDS = int(os.environ.get("HARK_TEST_CRASH_ROUNDS", "3"))
NAMES = [f"schedule-{number}" for number in range(20)]
SECOND = timedelta(seconds=1)


class Seen:
    """The messages that a consumer received, by transaction id."""

    def __init__(self) -> None:
        self.ids: dict[str, set[str]] = {}
        self._arrived = asyncio.Event()

    async def consume(self, client: Client) -> None:
        """Receive messages until cancelled."""
        async for message in client.queue("ticks").group("watch").batch(100).messages():
            self.ids.setdefault(message.transaction_id, set()).add(message.id)
            self._arrived.set()
            with suppress(LeaseLost):  # Killed servers lose leases; then the message is redelivered.
                await message.ack()

    async def wait_for(self, number: int) -> None:
        """Wait until this many different messages were received."""
        while len(self.ids) < number:
            self._arrived.clear()
            await self._arrived.wait()


async def check(servers: Sequence[Server], chance: random.Random) -> None:
    """Kill servers while they run schedules, and compare the messages with the due times."""
    retry = CallPolicy(attempts=1000, give_up_after=60)
    async with running(*servers), hark.connect([server.url for server in servers], retry=retry) as client:
        # A lease whose answer was lost must not hold up the end for long.
        await client.queue("ticks").configure(lease_time=1, retry_limit=1000)
        made = [await client.schedules.put(name, "ticks", name, every=1, catch_up="all") for name in NAMES]
        seen = Seen()
        consuming = asyncio.create_task(seen.consume(client))
        for number in range(ROUNDS):
            await seen.wait_for(len(seen.ids) + chance.randint(1, 2 * len(NAMES)))
            server = chance.choice(servers)
            # The instant within a commit has to be random, so this waits for time and for nothing else.
            await asyncio.sleep(chance.uniform(0, 0.02))
            if number % 3 == 2:
                await server.freeze(1.5)
            else:
                await server.end(signal.SIGKILL)
                await server.start()
        shown = [await client.schedules.pause(name) for name in NAMES]
        await seen.wait_for(sum(one.runs for one in shown))
        assert not consuming.done(), consuming
        consuming.cancel()
        await asyncio.wait([consuming])
    assert all(len(ids) == 1 for ids in seen.ids.values())
    for first, one in zip(made, shown, strict=True):
        assert first.next_run_at is not None
        due = sorted(
            datetime.fromisoformat(key.partition("@")[2]) for key in seen.ids if key.startswith(f"{one.name}@")
        )
        assert due == [first.next_run_at + number * SECOND for number in range(one.runs)]
    assert len(seen.ids) == sum(one.runs for one in shown)


async def test_killing_any_of_three_servers_on_postgresql_neither_loses_nor_repeats_a_due_time(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    del postgres_server
    await check([Server(settings={"HARK_ENGINE": postgres_url}) for _ in range(3)], random.Random(SEED))


async def test_killing_the_server_on_sqlite_neither_loses_nor_repeats_a_due_time(tmp_path: Path) -> None:
    await check([Server("--data", str(tmp_path / "data"))], random.Random(SEED))
