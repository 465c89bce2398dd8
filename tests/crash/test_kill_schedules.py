"""kill -9, frozen servers and clocks that jump while schedules run: each due time is pushed exactly once.

`scripts/crash 200 SEED -rP -k schedules` does it for long.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal

import hark
from hark.client.calling import CallPolicy
from hark.client.client import Client
from hark.errors import LeaseLost
from tests.crash.moved_clock import WallClock
from tests.crash.server import SEED, Server, running
from tests.crash.test_kill_s3 import PREFIX, SETTINGS, misbehaving_bucket
from tests.s3.stub.server import serving_in_thread

ROUNDS = int(os.environ.get("HARK_TEST_CRASH_ROUNDS", "3"))
CATCH_UP: tuple[Literal["all", "latest", "none"], ...] = ("all", "all", "latest", "none")
NAMES = [f"schedule-{number}" for number in range(8)]
SECOND = timedelta(seconds=1)
FAR_SECONDS = 70
"""A jump that makes earlier due times missed ones."""


class Seen:
    """The messages that a consumer received, by transaction id."""

    def __init__(self) -> None:
        self.ids: dict[str, set[str]] = {}
        self._arrived = asyncio.Event()

    async def consume(self, client: Client) -> None:
        """Receive messages until cancelled."""
        queue = client.queue("ticks").group("watch").batch(500).wait()
        while True:
            messages = await queue.pop()
            for message in messages:
                self.ids.setdefault(message.transaction_id, set()).add(message.id)
            self._arrived.set()
            with suppress(LeaseLost):  # Killed servers lose leases; then the messages are redelivered.
                await asyncio.gather(*(message.ack() for message in messages))

    async def wait_for(self, number: int) -> None:
        """Wait until this many different messages were received."""
        while len(self.ids) < number:
            self._arrived.clear()
            await self._arrived.wait()


class Clocks:
    """The wall clocks of servers. They jump ahead of the others, and back to what the others have run already."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._ahead: dict[WallClock, float] = {}
        self.counts: Counter[str] = Counter()

    def jump(self, clock: WallClock, *, far: bool) -> None:
        """Move one clock; the furthest one stays near the others, so that no run waits for long."""
        before = self._ahead.get(clock, 0.0)
        latest = max(self._ahead.values(), default=0.0)
        after = latest + (FAR_SECONDS if far else self._chance.uniform(-4, 2))
        self.counts["far ahead" if far else "ahead" if after > before else "back"] += 1
        self._ahead[clock] = after
        clock.set(after)


async def check(servers: Sequence[Server]) -> None:
    """Kill servers while they run schedules, and compare the messages with the due times."""
    chance = random.Random(SEED)
    clocks = Clocks(chance)
    troubles: Counter[str] = Counter()
    retry = CallPolicy(attempts=1000, give_up_after=60)
    async with running(*servers), hark.connect([server.url for server in servers], retry=retry) as client:
        # A lease whose answer was lost must not hold up the end for long. A message is forgotten at once, so that
        # nothing but the schedule prevents that a due time is pushed again.
        await client.queue("ticks").configure(lease_time=2, retry_limit=1000, drop_settled=True)
        made = [
            await client.schedules.put(name, "ticks", name, every=1, catch_up=CATCH_UP[number % len(CATCH_UP)])
            for number, name in enumerate(NAMES)
        ]
        seen = Seen()
        consuming = asyncio.create_task(seen.consume(client))
        for number in range(ROUNDS):
            await seen.wait_for(len(seen.ids) + chance.randint(1, 2 * len(NAMES)))
            server = chance.choice(servers)
            assert server.clock is not None
            clocks.jump(server.clock, far=number % 20 == 1)
            # The instant within a commit has to be random, so this waits for time and for nothing else.
            await asyncio.sleep(chance.uniform(0, 0.02))
            if number % 4 == 2:
                troubles["frozen"] += 1
                await server.freeze(1.5)
            else:
                troubles["killed"] += 1
                await server.end(signal.SIGKILL)
                await server.start()
        shown = [await client.schedules.pause(name) for name in NAMES]
        pushed = sum(one.runs for one in shown)
        await seen.wait_for(pushed)
        last = await client.queue("ticks").push("last", delay=3600)
        assert (await client.admin.explain(last.id)).offset == pushed + 1
        assert not consuming.done(), consuming
        consuming.cancel()
        await asyncio.wait([consuming])
    assert all(len(ids) == 1 for ids in seen.ids.values())
    assert len(seen.ids) == pushed
    for first, one in zip(made, shown, strict=True):
        assert first.next_run_at is not None
        due = sorted(
            datetime.fromisoformat(key.partition("@")[2]) for key in seen.ids if key.startswith(f"{one.name}@")
        )
        expected = [first.next_run_at + number * SECOND for number in range(one.runs + one.skipped)]
        if one.catch_up == "all":
            assert due == expected
        else:  # Each one that was not pushed was counted as missed.
            assert len(due) == one.runs and set(due) <= set(expected)
    skipped = sum(one.skipped for one in shown)
    assert skipped, "no clock jumped over due times"
    print(f"seed {SEED}: {dict(troubles)}; clocks: {dict(clocks.counts)}; {pushed} due times pushed, {skipped} missed")


async def test_killing_any_of_three_servers_on_postgresql_neither_loses_nor_repeats_a_due_time(
    postgres_url: str, tmp_path: Path
) -> None:
    settings = {"HARK_ENGINE": postgres_url}
    await check([Server(settings=settings, clock=WallClock(tmp_path / f"clock-{number}")) for number in range(3)])


async def test_killing_the_server_on_sqlite_neither_loses_nor_repeats_a_due_time(tmp_path: Path) -> None:
    await check([Server("--data", str(tmp_path / "data"), clock=WallClock(tmp_path / "clock"))])


async def test_killing_any_of_three_servers_on_s3_neither_loses_nor_repeats_a_due_time(tmp_path: Path) -> None:
    with serving_in_thread(misbehaving_bucket()) as bucket:
        url = bucket.bucket_url(PREFIX)
        clocks = [WallClock(tmp_path / f"clock-{number}") for number in range(3)]
        await check([Server("--engine", url, settings=SETTINGS, clock=clock) for clock in clocks])
