"""Chains and chords under kill -9 of workers and servers: each step is pushed once and counted once.

The suite kills a few times. HARK_TEST_FLOW_KILLS kills more often, as `scripts/chaos` does for messages.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import hark
from hark.errors import HarkError
from tests.crash.flow_worker import CHAIN, CHORD, MESSAGES, QUEUES, make
from tests.crash.server import SEED, START_SECONDS, Server, running
from tests.crash.test_kill_postgres import servers_on

KILLS = int(os.environ.get("HARK_TEST_FLOW_KILLS", "4"))
OPEN = 6
"""Flows that are under way at the same time."""
T = TypeVar("T")


class Process:
    """A process of workers that can be killed and started again."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def start(self) -> None:
        """Start, and wait until its workers run."""
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.crash.flow_worker", self._url), stdout=asyncio.subprocess.PIPE
        )
        assert self._process.stdout is not None
        assert await asyncio.wait_for(self._process.stdout.readline(), START_SECONDS) == b"ready\n"

    async def end(self, number: signal.Signals) -> None:
        """Stop it in the given way."""
        self._process.send_signal(number)
        await self._process.wait()


class Load:
    """Pushes chains and chords in turns, and waits for their results."""

    def __init__(self, url: str) -> None:
        left, _, chain, chord = make(url)
        self._worker = left
        self._flows = {"chain": chain, "chord": chord}
        self.pushed: Counter[str] = Counter()
        self._ended = asyncio.Semaphore(0)
        self.stopped = False

    async def produce(self, name: str) -> None:
        """Push one flow after the other, until stopped."""
        number = 0
        while not self.stopped:
            kind = ("chain", "chord")[number % 2]
            push = partial(self._flows[kind].push, id=f"{name}-{number}")
            handle = await persist(push)
            self.pushed[kind] += 1
            steps = [text.split()[0] for text in await persist(handle.result)]
            assert steps == (CHAIN if kind == "chain" else CHORD), (handle, steps)
            self._ended.release()
            number += 1

    async def wait_for_end(self) -> None:
        """Wait until one more flow has ended."""
        await self._ended.acquire()

    async def close(self) -> None:
        """Close the client."""
        await self._worker.close()


async def persist(call: Callable[[], Awaitable[T]]) -> T:
    """Call until a server answers: a client gives up while its server is down for long."""
    while True:
        try:
            return await call()
        except HarkError as error:
            if not error.retryable:
                raise


async def survive(servers: list[Server]) -> None:
    """Kill workers and servers while flows run, and count the messages of all steps at the end."""
    chance = random.Random(SEED)
    kills: Counter[str] = Counter()
    async with running(*servers), hark.connect(servers[0].url) as client:
        for queue in QUEUES:  # A message is forgotten at once, so that nothing but the flow prevents a second push.
            await client.queue(queue).admin.configure(drop_settled=True)
        workers = [Process(servers[number % len(servers)].url) for number in range(2)]
        await asyncio.gather(*(worker.start() for worker in workers))
        everyone: list[Server | Process] = [*servers, *workers]
        load = Load(servers[0].url)
        try:
            async with asyncio.timeout(KILLS * START_SECONDS), asyncio.TaskGroup() as tasks:
                for number in range(OPEN):
                    tasks.create_task(load.produce(f"producer-{number}"))
                while kills.total() < KILLS:
                    if kills.total() % 3 == 2:
                        await load.wait_for_end()
                    # The instant within a commit has to be random, so this waits for time and for nothing else.
                    await asyncio.sleep(chance.uniform(0, 0.3))
                    victim = chance.choice(everyone)
                    kills[type(victim).__name__] += 1
                    await victim.end(signal.SIGKILL)
                    await victim.start()
                load.stopped = True
            for queue in QUEUES:
                last = await client.queue(queue).push({"task": "last"}, delay=3600)
                expected = sum(MESSAGES[kind][queue] * number for kind, number in load.pushed.items())
                # Offsets have no gaps, and a duplicate takes none.
                assert (await client.admin.explain(last.id)).offset == expected + 1, (queue, load.pushed)
        finally:
            await load.close()
            await asyncio.gather(*(worker.end(signal.SIGKILL) for worker in workers))
    print(f"{dict(kills)} killed; flows: {dict(load.pushed)}")


async def test_each_step_is_pushed_and_counted_once_on_sqlite(tmp_path: Path) -> None:
    await survive([Server("--data", str(tmp_path / "data"))])


async def test_each_step_is_pushed_and_counted_once_on_postgres(postgres_url: str) -> None:
    await survive(servers_on(postgres_url))
