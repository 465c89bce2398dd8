"""Processes without a server on one bucket: they race for every record, are killed, and sleep (SIGSTOP).

Whoever sleeps for longer than removed records are kept must not win a number that was removed, must catch up by the
snapshot, and must go on. Judged by the process that never slept: what was acknowledged is there once, what was refused
is not.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

import hark
from hark.engine.s3 import objects
from hark.engine.s3.objects import Pointer
from hark.polling import PollingStrategy
from hark.worker import Worker, current
from tests.s3.ministack import Ministack
from tests.s3.racing import CONCURRENCY, QUEUE
from tests.s3.stub.faults import Faults, Point
from tests.s3.stub.server import StubServer
from tests.worker.workers import running

WORKERS, TASKS, KILLS = 2, 15, 2
SECONDS = 90.0
SOON = PollingStrategy.fixed(interval_ms=50)
SETTINGS = {"HARK_POLLING_STRATEGY": "fixed", "HARK_POLLING_INTERVAL_MS": "50"}
PRODUCERS = ["one", "two"]
EXPECTED = {(name, task) for name in PRODUCERS for task in range(TASKS)}


async def test_producers_and_workers_that_race_for_every_record_do_each_task_once(ministack: Ministack) -> None:
    """Engines in one process share nothing but the bucket, as several processes do."""
    bucket = ministack.bucket_url("race")
    begun: Counter[tuple[str, int, int]] = Counter()

    def make() -> Worker:
        worker = Worker(bucket, queue=QUEUE, concurrency=CONCURRENCY)

        @worker.task("note")
        async def note(producer: str, number: int) -> None:
            begun[producer, number, current().attempt] += 1

        return worker

    async def produce(name: str) -> None:
        async with make() as worker:
            for number in range(TASKS):
                assert (await worker.tasks["note"].push(name, number)).status == "queued"

    async with AsyncExitStack() as stack, asyncio.timeout(SECONDS):
        workers = [await stack.enter_async_context(make()) for _ in range(WORKERS)]
        for worker in workers:
            await stack.enter_async_context(running(worker, polling=SOON))
        await asyncio.gather(*map(produce, PRODUCERS))
        await until_drained(bucket)
    # Each begun once, by one of them, with its first attempt: no lease was given twice.
    assert begun == {(*task, 1): 1 for task in EXPECTED}


async def until_drained(bucket: str) -> None:
    """Wait until nothing is left in the queue; what a killed worker held comes back when its lease is over."""
    async with hark.connect(bucket) as client, asyncio.timeout(SECONDS):
        while (totals := (await client.queue(QUEUE).stats()).totals).pending or totals.processing:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_two_that_push_at_once_lose_nothing_and_keep_their_order(ministack: Ministack) -> None:
    bucket, queue = ministack.bucket_url("numbers"), "orders"
    async with hark.connect(bucket) as first, hark.connect(bucket) as second:

        async def push(client: hark.Client, partition: str) -> None:
            for number in range(TASKS):
                await client.queue(queue).partition(partition).push(number)

        await asyncio.gather(push(first, "first"), push(second, "second"))
        for client, group in ((first, "a"), (second, "b")):
            for partition in ("first", "second"):
                popped = await client.queue(queue).partition(partition).group(group).batch(100).pop()
                assert [message.data for message in popped] == list(range(TASKS))


# Killed -----------------------------------------------------------------------------------------------------


class Program:
    """A `tests.s3.racing`."""

    def __init__(self, *arguments: str, **settings: str) -> None:
        self._arguments = arguments
        self._settings = settings

    async def start(self) -> None:
        """Begin."""
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.s3.racing", *self._arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=1 << 24,
            env=os.environ | SETTINGS | self._settings,
        )

    async def read_line(self) -> bytes:
        """The next line that it says."""
        assert self.process.stdout is not None
        line = await asyncio.wait_for(self.process.stdout.readline(), SECONDS)
        assert line, "it ended"
        return line

    async def ready(self) -> None:
        """Wait until it says that it is."""
        assert await self.read_line() == b"ready\n"

    async def end(self, number: signal.Signals | None = None) -> int:
        """Wait for its end, after a signal if there is one; the exit code."""
        if number is not None and self.process.returncode is None:
            self.process.send_signal(number)
        await asyncio.wait_for(self.process.communicate(), SECONDS)
        assert self.process.returncode is not None
        return self.process.returncode


def steps_in(file: Path) -> list[tuple[str, tuple[str, int], int]]:
    """What the workers wrote down: step, task, attempt."""
    lines = file.read_text().splitlines() if file.exists() else []
    return [(step, (name, int(number)), int(attempt)) for step, name, number, attempt in map(str.split, lines)]


async def until_ended(file: Path, tasks: int) -> None:
    """Wait until so many different tasks are done; the workers are other processes, which tell no event."""
    async with asyncio.timeout(SECONDS):
        while len({task for step, task, _ in steps_in(file) if step == "end"}) < tasks:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_workers_that_are_killed_leave_nothing_undone(stub_server: StubServer, tmp_path: Path) -> None:
    chance = random.Random(3)
    stub_server.faults.rates = Faults.by_chance(3, 0.02).rates
    bucket, file = stub_server.bucket_url("killed"), tmp_path / "steps"
    workers = [Program("work", bucket, str(file)) for _ in range(WORKERS)]
    producers = [Program("produce", bucket, name, str(TASKS)) for name in PRODUCERS]
    async with AsyncExitStack() as stack:
        for program in (*workers, *producers):
            await program.start()
            stack.push_async_callback(program.end, signal.SIGKILL)
        for worker in workers:
            await worker.ready()
        for kill in range(KILLS):
            await until_ended(file, (kill + 1) * 3)
            # The instant has to be random, so this waits for time and for nothing else.
            await asyncio.sleep(chance.uniform(0, 0.1))
            victim = chance.choice(workers)
            assert await victim.end(signal.SIGKILL) == -signal.SIGKILL
            await victim.start()
            await victim.ready()
        for producer in producers:
            assert await producer.end() == 0
        await until_drained(bucket)
        for worker in workers:
            assert await worker.end(signal.SIGTERM) == 0
    begins = [(task, attempt) for step, task, attempt in steps_in(file) if step == "begin"]
    assert {task for task, _ in begins} == EXPECTED
    # What a killed one was at is done again, and nothing else; each time it is another attempt.
    assert len(begins) == len(set(begins)) <= len(EXPECTED) + KILLS * CONCURRENCY


# Asleep ----------------------------------------------------------------------------------------------------


PREFIX = "slept"
REMOVING = {
    "HARK_S3_SNAPSHOT_RECORDS": "3",
    "HARK_S3_GRACE_SECONDS": "1",
    "HARK_POLLING_INTERVAL_MS": "20",
}
# As long as to be kept in the record and not in its row.
LONG = "a long payload that is kept in its record: "


class Sleeper(Program):
    """One that is steered, and may be stopped."""

    queue = "orders"

    def __init__(self, *arguments: str, **settings: str) -> None:
        super().__init__("steer", *arguments, **REMOVING | settings)
        self._turn = asyncio.Lock()

    async def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Send a request and wait for the answer."""
        assert self.process.stdin is not None
        async with self._turn:
            self.process.stdin.write(msgspec.json.encode([method, path, body]) + b"\n")
            return msgspec.json.decode(await self.read_line(), type=tuple[int, Any])

    async def push(self, value: str, before: str = LONG) -> int:
        """Push a message; the status of the answer."""
        item = {"queue": self.queue, "payload": before + value, "transactionId": value}
        status, body = await self.ask("POST", "/api/v1/push", {"items": [item]})
        assert status == 503 or (status, body[0]["status"]) == (201, "queued"), body
        return status

    async def pop(self, *, group: str, wait_ms: int = 0) -> list[str]:
        """What a group has not seen yet."""
        wait = f"&wait=true&timeout={wait_ms}" if wait_ms else ""
        how = f"consumerGroup={group}&subscriptionMode=all&autoAck=true&batch=1000{wait}"
        status, body = await self.ask("GET", f"/api/v1/pop/queue/{self.queue}?{how}")
        assert status in {200, 204}, body
        return [one["data"].removeprefix(LONG) for one in body["messages"]] if status == 200 else []

    async def everything(self) -> list[str]:
        """All messages, in order."""
        return await self.pop(group=uuid.uuid4().hex)

    def fall_asleep(self) -> None:
        """Stop."""
        self.process.send_signal(signal.SIGSTOP)

    def wake_up(self) -> None:
        """Go on."""
        self.process.send_signal(signal.SIGCONT)


Start = Callable[..., Awaitable[Sleeper]]


@pytest.fixture
async def start(stub_server: StubServer) -> AsyncIterator[Start]:
    """Starts a process on the bucket; its settings may be others than those above."""
    async with AsyncExitStack() as stack:

        async def begin(**settings: str) -> Sleeper:
            process = Sleeper(stub_server.bucket_url(PREFIX), **settings)
            await process.start()
            stack.push_async_callback(process.end, signal.SIGKILL)
            await process.ready()
            return process

        yield begin


def pointer_of(server: StubServer) -> Pointer:
    """What is said of snapshots and of what is removed."""
    body = server.store.read(f"{PREFIX}/{objects.POINTER}")
    return Pointer("") if body is None else msgspec.json.decode(body, type=Pointer)


def head_of(server: StubServer) -> int:
    """The last record of the log."""
    return max(int(key.rpartition("/")[2]) for key in server.store.keys(f"{PREFIX}/log/"))


async def go_on(server: StubServer, process: Sleeper, beyond: int, before: str = LONG) -> list[str]:
    """Push until the log is removed beyond a record: what was pushed. Records with long payloads stay."""
    pushed: list[str] = []
    while pointer_of(server).removed <= beyond + 1:
        value = f"on-{beyond}-{len(pushed)}"
        assert await process.push(value, before) == 201
        pushed.append(value)
    return pushed


async def push_asleep(
    server: StubServer, sleeper: Sleeper, other: Sleeper, point: Point, before: str
) -> tuple[int, list[str]]:
    """Stop a process in the middle of an append until its number is removed; its answer, and what the other pushed.

    Its request reaches the store only when it wakes up ("before"), or it is only the answer that is late ("after").
    """
    leased = server.faults.stop(point, kind="put", key=f"{PREFIX}/log/")
    pushing = asyncio.ensure_future(sleeper.push("late", before))
    number = int((await leased.reached()).key.rpartition("/")[2])
    sleeper.fall_asleep()
    pushed = await go_on(server, other, number, before)
    is_there = server.store.read(f"{PREFIX}/{objects.record(number)}") is not None
    assert is_there == (before == LONG), "a record stays as long as somebody needs a payload in it"
    leased.go()
    sleeper.wake_up()
    return await pushing, pushed


# It sleeps before its request reaches the store or after it; its payload; what it is answered; what there is then.
CASES: dict[str, tuple[Point, str, int, list[str]]] = {
    # It wins a number that was removed: nobody will ever read that.
    "number-removed": ("before", "", 503, ["early", "..."]),
    # The number is still taken: it is done again, where the log ends now.
    "number-taken": ("before", LONG, 201, ["early", "...", "late"]),
    # It was in time, and that can't be seen any more: no answer would be right but that nobody knows.
    "answer-late": ("after", "", 503, ["early", "late", "..."]),
    "answer-late-record-stays": ("after", LONG, 503, ["early", "late", "..."]),
}


async def test_who_slept_in_the_middle_of_an_append_acknowledges_only_what_is_in_the_log(
    stub_server: StubServer, start: Start
) -> None:
    sleeper, other = await asyncio.gather(start(), start())
    for name, (point, before, status, found) in CASES.items():
        sleeper.queue = other.queue = name
        assert await sleeper.push("early") == 201
        answered, pushed = await push_asleep(stub_server, sleeper, other, point, before)
        gap = found.index("...")
        expected = [*found[:gap], *pushed, *found[gap + 1 :]]
        assert (answered, await other.everything()) == (status, expected), name
        assert await sleeper.push("afterwards") == 201
        assert await other.everything() == [*expected, "afterwards"], name
        assert await sleeper.everything() == [*expected, "afterwards"], name


async def test_two_who_slept_through_the_removal_win_no_removed_number_and_go_on_both(
    stub_server: StubServer, start: Start
) -> None:
    *sleepers, other = await asyncio.gather(start(), start(), start())
    for number, sleeper in enumerate(sleepers):
        assert await sleeper.push(f"before-{number}") == 201
    slept_at = head_of(stub_server)
    for sleeper in sleepers:
        sleeper.fall_asleep()
    pushed = await go_on(stub_server, other, slept_at)
    asleep = [asyncio.ensure_future(sleeper.push(f"after-{number}")) for number, sleeper in enumerate(sleepers)]
    for sleeper in sleepers:
        sleeper.wake_up()
    assert await asyncio.gather(*asleep) == [201, 201]
    assert await sleepers[0].push("later") == 201
    found = await other.everything()
    assert found[: 2 + len(pushed)] == ["before-0", "before-1", *pushed]
    assert sorted(found[2 + len(pushed) : -1]) == ["after-0", "after-1"]
    assert found[-1] == "later"
    for sleeper in sleepers:
        assert await sleeper.everything() == found


async def test_who_waits_for_messages_gets_those_whose_records_are_removed_already(
    stub_server: StubServer, start: Start
) -> None:
    """Whether it slept meanwhile, or looks more rarely than records are kept."""
    sleeper, rare, other = await asyncio.gather(start(), start(HARK_POLLING_INTERVAL_MS="1500"), start())
    assert await other.push("first") == 201
    waiting: dict[Sleeper, asyncio.Future[list[str]]] = {}
    for reader, group in ((sleeper, "sleepers"), (rare, "rare")):
        assert await reader.pop(group=group) == ["first"]
        waiting[reader] = asyncio.ensure_future(reader.pop(group=group, wait_ms=30_000))
    slept_at = head_of(stub_server)
    sleeper.fall_asleep()
    pushed = await go_on(stub_server, other, slept_at)
    sleeper.wake_up()
    for reader, group in ((sleeper, "sleepers"), (rare, "rare")):
        found = await waiting[reader]
        while len(found) < len(pushed):
            found += await reader.pop(group=group, wait_ms=30_000)
        assert found == pushed
