"""Chains, groups and chords under kill -9 of workers and servers: each step is pushed once and counted once.

The suite kills a few times, `scripts/crash 200 SEED -rP -k flows` 200 times on each engine.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TypeVar

import hark
from hark.errors import HarkError
from tests.crash.flow_worker import MESSAGES, QUEUES, STEPS, Kind, Result, flows, make
from tests.crash.proxy import Proxy
from tests.crash.server import SEED, START_SECONDS, Server, running
from tests.crash.test_kill_postgres import servers_on
from tests.crash.test_kill_s3 import PREFIX, SETTINGS, misbehaving_bucket
from tests.s3.stub.server import serving_in_thread

KILLS = int(os.environ.get("HARK_TEST_CRASH_ROUNDS", "4"))
OPEN = 6
"""Flows that are under way at the same time."""
BYTES_PER_FAULT = 10_000
"""Workers reach servers through proxies: replies to settlements are lost more often than by kills alone."""
T = TypeVar("T")


class Workers:
    """A process of workers that can be killed and started again. It uses a server, or a bucket without one."""

    def __init__(self, url: str, settings: Mapping[str, str]) -> None:
        self._url = url
        self._settings = settings

    async def start(self) -> None:
        """Start, and wait until its workers run."""
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.crash.flow_worker", self._url),
            stdout=asyncio.subprocess.PIPE,
            env=os.environ | self._settings,
        )
        assert self._process.stdout is not None
        assert await asyncio.wait_for(self._process.stdout.readline(), START_SECONDS) == b"ready\n"

    async def end(self, number: signal.Signals) -> None:
        """Stop it in the given way."""
        self._process.send_signal(number)
        await self._process.wait()


class Load:
    """Pushes flows of all kinds in turns, and waits for their results."""

    def __init__(self, url: str) -> None:
        self._worker, right = make(url)
        self._flows = flows(self._worker, right)
        self.pushed: Counter[Kind] = Counter()
        self._ended = asyncio.Semaphore(0)
        self.stopped = False

    async def produce(self, name: str) -> None:
        """Push one flow after the other, until stopped."""
        number = 0
        while not self.stopped:
            kind = list(self._flows)[number % len(self._flows)]
            handle = await persist(partial(self._flows[kind].push, id=f"{name}-{number}"))
            self.pushed[kind] += 1
            steps = [text.split()[0] for text in flat(await persist(handle.result))]
            assert steps == STEPS[kind], (handle, steps)
            self._ended.release()
            number += 1

    async def wait_for_end(self) -> None:
        """Wait until one more flow has ended."""
        await self._ended.acquire()

    async def close(self) -> None:
        """Close the client."""
        await self._worker.close()


def flat(result: Result) -> list[str]:
    """The names of a result, which for a group is a list of those of its members."""
    return [text for one in result for text in ([one] if isinstance(one, str) else one)]


async def persist(call: Callable[[], Awaitable[T]]) -> T:
    """Call until a server answers: a client gives up while its server is down for long."""
    while True:
        try:
            return await call()
        except HarkError as error:
            if not error.retryable:
                raise


async def survive(
    servers: list[Server], settings: Mapping[str, str] | None = None, without_server: str | None = None
) -> None:
    """Kill workers and servers while flows run, and count the messages of all steps at the end."""
    chance = random.Random(SEED)
    kills: Counter[str] = Counter()
    proxies = [Proxy(server.port, SEED + number, BYTES_PER_FAULT) for number, server in enumerate(servers)]
    async with running(*servers), hark.connect(servers[0].url) as client, AsyncExitStack() as stack:
        for proxy in proxies:
            await stack.enter_async_context(proxy.serving())
        for queue in QUEUES:  # A message is forgotten at once, so that nothing but the flow prevents a second push.
            await client.queue(queue).admin.configure(drop_settled=True)
        urls = [proxies[0].url, without_server or proxies[-1].url]
        workers = [Workers(url, settings or {}) for url in urls]
        await asyncio.gather(*(worker.start() for worker in workers))
        load = Load(servers[0].url)
        try:
            async with asyncio.timeout(KILLS * START_SECONDS), asyncio.TaskGroup() as tasks:
                for number in range(OPEN):
                    tasks.create_task(load.produce(f"producer-{number}"))
                for number in range(KILLS):
                    if number % 3 == 2:
                        await load.wait_for_end()
                    # The instant within a commit has to be random, so this waits for time and for nothing else.
                    await asyncio.sleep(chance.uniform(0, 0.3))
                    everyone: Sequence[Server | Workers] = workers if number % 2 else servers
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
    steps = sum(sum(MESSAGES[kind].values()) * number for kind, number in load.pushed.items())
    faults = sum((proxy.happened for proxy in proxies), Counter())
    assert faults["cut"], "no connection was cut"
    print(
        f"seed {SEED}: {dict(kills)} killed; {dict(faults)} connections; flows: {dict(load.pushed)} with {steps} steps"
    )


async def test_each_step_is_pushed_and_counted_once_on_sqlite(tmp_path: Path) -> None:
    await survive([Server("--data", str(tmp_path / "data"))])


async def test_each_step_is_pushed_and_counted_once_on_postgres(postgres_url: str) -> None:
    await survive(servers_on(postgres_url))


async def test_each_step_is_pushed_and_counted_once_on_s3_with_workers_that_have_no_server() -> None:
    with serving_in_thread(misbehaving_bucket()) as bucket:
        url = bucket.bucket_url(PREFIX)
        await survive([Server("--engine", url, settings=SETTINGS) for _ in range(2)], SETTINGS, without_server=url)
