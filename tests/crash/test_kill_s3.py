"""Servers and processes without a server on one bucket that misbehaves, all killed at random: nothing is lost."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from hark.clock import SystemClock
from hark.engine.s3 import objects
from hark.engine.s3.objects import Pointer
from tests.crash.history import History, leased_twice, operations_in, problems, recorded
from tests.crash.load import OPTIONS, Load, over_http
from tests.crash.member import WIDEST, Member
from tests.crash.server import SEED, Server, running
from tests.s3.credentials import AWS_ENVIRONMENT
from tests.s3.stub.faults import Faults
from tests.s3.stub.server import StubServer, serving_in_thread
from tests.s3.stub.store import StubStore

# Fewer than elsewhere unless somebody asks for more: whoever was killed reads a snapshot and the log before it is back.
ROUNDS = int(os.environ.get("HARK_TEST_CRASH_ROUNDS", "2"))
PREFIX = "crash"
FAULTS = 0.02
SERVERS, MEMBERS, CLIENTS = 2, 2, 2
# Snapshots, starts from them, and removal happen all the time.
SETTINGS = AWS_ENVIRONMENT | {
    "HARK_S3_SNAPSHOT_RECORDS": "20",
    "HARK_S3_GRACE_SECONDS": "2",
    "HARK_S3_SKEW_MARGIN_MS": "100",
    "HARK_POLLING_STRATEGY": "fixed",
    "HARK_POLLING_INTERVAL_MS": "50",
    # Long runs also remove messages, and with them payloads; never those of a push that may be repeated yet.
    "HARK_RETENTION_COMPLETED_SECONDS": "40",
    "HARK_RETENTION_INTERVAL_MS": "3000",
}


def misbehaving_bucket() -> StubServer:
    """A bucket over HTTP with some latency, where some requests fail in every way there is."""
    chance = random.Random(SEED)
    faults = Faults.by_chance(SEED, FAULTS, latency=lambda _: chance.uniform(0.001, 0.006))
    return StubServer(StubStore(SystemClock()), faults)


async def kill_at_random(servers: list[Server], members: list[Member], load: Load) -> None:
    """Any of them, and every other time all of them at once, at any instant; they come back on the same store."""
    chance = random.Random(SEED)
    everyone: list[Server | Member] = [*servers, *members]
    for number in range(ROUNDS):
        victims = everyone if number % 2 else [chance.choice(everyone)]
        witness = chance.choice(victims)
        await (witness if isinstance(witness, Member) else load).wait_for_pushes(chance.randint(1, 8))
        # The instant within a commit has to be random, so this waits for time and for nothing else.
        await asyncio.sleep(chance.uniform(0, 0.05))
        await asyncio.gather(*(victim.end(signal.SIGKILL) for victim in victims))
        await asyncio.gather(*(victim.start() for victim in victims))


def verify(history: History, members: list[Member]) -> None:
    """All that was seen, by all of them."""
    for member in members:
        history.operations += operations_in(member.journal)
    history.operations.sort(key=lambda operation: operation.called)
    assert problems(history) == []
    lease_seconds = OPTIONS["leaseTime"]
    assert leased_twice(history, lease_seconds) == []
    for member in members:
        assert any(push.known and push.process == member.name for push in history.named("push"))


def report(bucket: StubServer, history: History, seconds: float) -> None:
    """The figures of a run, for those who look (`pytest -rP`)."""
    pushes, pops = history.named("push"), history.named("pop")
    acknowledged = {(name, value) for push in pushes if push.known for name, _, value in push.messages}
    delivered = Counter((name, offset) for pop in pops for name, offset, _ in pop.messages)
    print(
        f"{ROUNDS} rounds of kills, seed {SEED}, {seconds:.0f} s: {len(acknowledged)} messages acknowledged, "
        f"{len(delivered)} delivered, {delivered.total() - len(delivered)} of them again, "
        f"{len(bucket.faults.happened)} faults in {sum(bucket.store.counts.values())} requests, "
        f"{len(bucket.store.keys(f'{PREFIX}/log/'))} records left, {pointer_of(bucket)}"
    )
    print(dict(Counter(fault.value for fault, _ in bucket.faults.happened)))


def pointer_of(bucket: StubServer) -> Pointer:
    """What the bucket says of its snapshots."""
    body = bucket.store.read(f"{PREFIX}/{objects.POINTER}")
    assert body is not None
    return msgspec.json.decode(body, type=Pointer)


async def test_killing_servers_and_processes_without_one_on_a_bad_bucket_loses_and_reorders_nothing(
    tmp_path: Path,
) -> None:
    begun = time.monotonic()
    with serving_in_thread(misbehaving_bucket()) as bucket, recorded(tmp_path / "history.jsonl") as history:
        url = bucket.bucket_url(PREFIX)
        servers = [Server("--engine", url, settings=SETTINGS) for _ in range(SERVERS)]
        members = [Member(url, tmp_path, f"member-{number}", number * 1000, SETTINGS) for number in range(MEMBERS)]
        load = Load(over_http([server.url for server in servers], SEED), history, SEED, WIDEST)
        async with running(*servers):
            await load.prepare()
            async with AsyncExitStack() as stack:
                await asyncio.gather(*(member.start() for member in members))
                for member in members:
                    stack.push_async_callback(member.end, signal.SIGTERM)
                async with asyncio.TaskGroup() as tasks:
                    for number in range(CLIENTS):
                        tasks.create_task(load.produce(f"producer-{number}"))
                        tasks.create_task(load.consume(f"consumer-{number}"))
                    await kill_at_random(servers, members, load)
                    await load.wait_for_pushes(CLIENTS)
                    load.stop()
            await asyncio.wait_for(load.drain("drain"), 60)
        verify(history, members)
        report(bucket, history, time.monotonic() - begun)
        assert pointer_of(bucket).removed > 0, "nothing was removed while it went on"
