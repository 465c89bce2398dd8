"""Processes that race for every record, on a server that others wrote: totals are right, nothing is done twice."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import hark
from tests.s3.ministack import Ministack
from tests.s3.races import Racer, begun, racing, steps_in, until_drained, until_ended

PRODUCERS, WORKERS, TASKS = 3, 2, 15


async def test_producers_and_workers_that_race_for_every_record_do_each_task_once(
    ministack: Ministack, tmp_path: Path
) -> None:
    bucket, file = ministack.bucket_url("race"), tmp_path / "steps"
    workers = [Racer("work", bucket, str(file)) for _ in range(WORKERS)]
    producers = [Racer("produce", bucket, f"producer-{number}", str(TASKS)) for number in range(PRODUCERS)]
    async with racing(*workers, *producers):
        for producer in producers:
            assert await producer.end() == 0
            assert producer.said == [str(number) for number in range(TASKS)]
        await until_ended(file, PRODUCERS * TASKS)
        await until_drained(bucket)
        for worker in workers:
            assert await worker.end(signal.SIGTERM) == 0
    expected = {(f"producer-{number}", task) for number in range(PRODUCERS) for task in range(TASKS)}
    # Each begun once, in one process, with its first attempt: no lease was given twice.
    assert begun(file) == dict.fromkeys(expected, 1)
    assert {step.attempt for step in steps_in(file)} == {1}


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
