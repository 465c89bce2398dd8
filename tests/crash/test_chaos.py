"""Everything fails at once: connections are cut, servers and clients are killed and frozen, and the store restarts.

Consumers also commit transactions (acknowledgement, push and key) after their leases have expired. At the end every
message that was acknowledged has been delivered, in order, and is in the output of the transactions exactly once.
`scripts/chaos` runs this for a long time; the suite for a few seconds on each engine.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec

from tests.crash.history import History, operations_in, output_differs, problems, recorded
from tests.crash.load import OPTIONS, Load, over_http
from tests.crash.member import Member
from tests.crash.proxy import Proxy
from tests.crash.server import SEED, Server, running
from tests.crash.test_kill_postgres import servers_on
from tests.crash.test_kill_s3 import PREFIX, SETTINGS, misbehaving_bucket
from tests.postgres_server import OwnPostgresServer
from tests.s3.stub.server import serving_in_thread

SECONDS = float(os.environ.get("HARK_TEST_CHAOS_SECONDS", "4"))
CLIENTS, MEMBERS = 2, 2
BYTES_PER_FAULT = 30_000
LONGEST_FREEZE = 3 * OPTIONS["leaseTime"]
DRAIN_SECONDS = 120.0 + SECONDS
"""What the chaos left in the queue grows with its time, and S3 delivers slowly."""
LONG_SECONDS = 60.0
"""From here on everything happens that can happen."""

Trouble = Callable[[], Awaitable[object]]


class Chaos(msgspec.Struct):
    """Servers behind faulty proxies, clients in this process and in others, and what to do to them."""

    servers: list[Server]
    members: list[Member]
    load: Load
    troubles: dict[str, Trouble]

    async def rage(self, counts: Counter[str]) -> None:
        """Do harm at random instants until the time is up."""
        chance = random.Random(SEED)
        end = time.monotonic() + SECONDS
        names = [*self.troubles, "kill", "freeze"]
        while time.monotonic() < end or any(not counts[name] for name in names):
            await self.load.wait_for_pushes(chance.randint(1, 20))
            name = chance.choice([one for one in names if not counts[one]] or [*names, "kill", "freeze"])
            counts[name] += 1
            if name in self.troubles:
                await self.troubles[name]()
                continue
            everyone: list[Server | Member] = [*self.servers, *self.members]
            victim = chance.choice(everyone)
            if name == "freeze":
                await victim.freeze(chance.uniform(0.1, LONGEST_FREEZE))
            else:
                # The instant within a commit has to be random, so this waits for time and for nothing else.
                await asyncio.sleep(chance.uniform(0, 0.02))
                await victim.end(signal.SIGKILL)
                await victim.start()


@asynccontextmanager
async def chaos_on(
    servers: list[Server],
    directory: Path,
    history: History,
    troubles: dict[str, Trouble],
    counts: Counter[str],
    settings: dict[str, str],
) -> AsyncIterator[Chaos]:
    """Start everything, and stop all clients at the end."""
    proxies = [Proxy(server.port, SEED + number, BYTES_PER_FAULT) for number, server in enumerate(servers)]
    async with AsyncExitStack() as stack:
        for proxy in proxies:
            await stack.enter_async_context(proxy.serving())
        urls = [proxy.url for proxy in proxies]
        load = Load(over_http(urls, SEED), history, SEED)
        await load.prepare()
        environment = settings | {"HARK_TEST_PIPELINE": "1"}
        members = [
            Member(",".join(urls), directory, f"member-{number}", number * 1000, environment)
            for number in range(MEMBERS)
        ]
        await asyncio.gather(*(member.start() for member in members))
        for member in members:
            stack.push_async_callback(member.end, signal.SIGTERM)
        async with asyncio.TaskGroup() as tasks:
            for number in range(CLIENTS):
                tasks.create_task(load.produce(f"producer-{number}"))
                tasks.create_task(load.consume(f"consumer-{number}"))
                tasks.create_task(load.transform(f"transformer-{number}"))
            yield Chaos(servers, members, load, troubles)
            await load.wait_for_pushes(1)
            load.stop()
    for proxy in proxies:
        counts.update(proxy.happened)


async def survive(
    servers: list[Server],
    directory: Path,
    troubles: dict[str, Trouble] | None = None,
    settings: dict[str, str] | None = None,
) -> None:
    """Let everything fail for a while, drain the queue, and judge what was seen."""
    counts: Counter[str] = Counter()
    with recorded(directory / "history.jsonl") as history:
        async with running(*servers):
            async with chaos_on(servers, directory, history, troubles or {}, counts, settings or {}) as chaos:
                await chaos.rage(counts)
            calm = Load(over_http([server.url for server in servers], SEED), history, SEED)
            async with asyncio.timeout(DRAIN_SECONDS), asyncio.TaskGroup() as tasks:
                tasks.create_task(calm.drain("drain"))
                tasks.create_task(calm.drain_pipeline("drain"))
            output = await calm.output()
        for member in chaos.members:
            history.operations += operations_in(member.journal)
        history.operations.sort(key=lambda operation: operation.called)
    report(history, counts)
    assert problems(history) == []
    assert output_differs(history, output) == []
    if SECONDS >= LONG_SECONDS:
        assert all(counts[name] for name in ("cut", "stall", "drip"))
        refused = [commit for commit in history.named("commit") if commit.known and not commit.messages]
        assert refused, "no transaction was refused"


def report(history: History, counts: Counter[str]) -> None:
    """The figures of a run, for `pytest -rP`."""
    acknowledged = sum(len(push.messages) for push in history.named("push") if push.known)
    delivered = sum(len(pop.messages) for pop in history.named("pop"))
    commits = [commit for commit in history.named("commit") if commit.known]
    refused = sum(not commit.messages for commit in commits)
    print(
        f"{SECONDS:.0f} s, seed {SEED}: {acknowledged} messages acknowledged, {delivered} deliveries, "
        f"{len(commits)} transactions answered, {refused} of them refused; {dict(sorted(counts.items()))}"
    )


async def test_nothing_is_lost_reordered_or_done_twice_on_sqlite(tmp_path: Path) -> None:
    await survive([Server("--data", str(tmp_path / "data"))], tmp_path)


async def test_nothing_is_lost_reordered_or_done_twice_on_postgresql(
    own_postgres_server: OwnPostgresServer, tmp_path: Path
) -> None:
    with own_postgres_server.fresh_database() as url:
        troubles: dict[str, Trouble] = {
            "restart": lambda: asyncio.to_thread(own_postgres_server.restart, "immediate"),
            "terminate": lambda: asyncio.to_thread(own_postgres_server.terminate_backends, url),
        }
        await survive(servers_on(url), tmp_path, troubles)


async def test_nothing_is_lost_reordered_or_done_twice_on_s3(tmp_path: Path) -> None:
    with serving_in_thread(misbehaving_bucket()) as bucket:
        url = bucket.bucket_url(PREFIX)
        await survive([Server("--engine", url, settings=SETTINGS) for _ in range(2)], tmp_path, settings=SETTINGS)
