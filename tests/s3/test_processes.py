"""Workers without a server that are killed at random: every task that was acknowledged is done."""

from __future__ import annotations

import asyncio
import random
import signal
from pathlib import Path

from tests.s3.races import Racer, begun, racing, steps_in, until_drained, until_ended
from tests.s3.racing import CONCURRENCY
from tests.s3.stub.faults import Faults
from tests.s3.stub.server import StubServer

PRODUCERS, WORKERS, TASKS, KILLS = 2, 2, 15, 3


async def test_workers_that_are_killed_leave_nothing_undone(stub_server: StubServer, tmp_path: Path) -> None:
    chance = random.Random(3)
    stub_server.faults.rates = Faults.by_chance(3, 0.02).rates
    bucket, file = stub_server.bucket_url("killed"), tmp_path / "steps"
    workers = [Racer("work", bucket, str(file)) for _ in range(WORKERS)]
    producers = [Racer("produce", bucket, f"producer-{number}", str(TASKS)) for number in range(PRODUCERS)]
    async with racing(*workers, *producers):
        for worker in workers:
            assert await worker.hear() == "ready"
        for kill in range(KILLS):
            await until_ended(file, (kill + 1) * 3)
            # The instant has to be random, so this waits for time and for nothing else.
            await asyncio.sleep(chance.uniform(0, 0.1))
            victim = chance.choice(workers)
            assert await victim.end(signal.SIGKILL) == -signal.SIGKILL
            await victim.start()
            assert await victim.hear() == "ready"
        for producer in producers:
            assert await producer.end() == 0
        await until_drained(bucket)
        for worker in workers:
            assert await worker.end(signal.SIGTERM) == 0
    begins = [(step.task, step.attempt) for step in steps_in(file) if step.step == "begin"]
    tasks = begun(file)
    assert set(tasks) == {(f"producer-{number}", task) for number in range(PRODUCERS) for task in range(TASKS)}
    # What a killed one was at is done again, and nothing else; each time it is another attempt.
    assert len(begins) == len(set(begins)) <= len(tasks) + KILLS * CONCURRENCY
