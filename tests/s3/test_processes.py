"""Those who race for every record, on a server that others wrote, and workers without a server that are killed."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import hark
from hark.polling import PollingStrategy
from hark.worker import Worker, current
from tests.s3.ministack import Ministack
from tests.s3.racing import CONCURRENCY, QUEUE
from tests.s3.stub.faults import Faults
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
    """A `tests.s3.racing`: a producer or a worker."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments

    async def start(self) -> None:
        """Begin."""
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.s3.racing", *self._arguments),
            stdout=asyncio.subprocess.PIPE,
            env=os.environ | SETTINGS,
        )

    async def ready(self) -> None:
        """Wait until a worker says that it works."""
        assert self._process.stdout is not None
        assert await asyncio.wait_for(self._process.stdout.readline(), SECONDS) == b"ready\n"

    async def end(self, number: signal.Signals | None = None) -> int:
        """Wait for its end, after a signal if there is one; the exit code."""
        if number is not None and self._process.returncode is None:
            self._process.send_signal(number)
        await asyncio.wait_for(self._process.communicate(), SECONDS)
        assert self._process.returncode is not None
        return self._process.returncode


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
