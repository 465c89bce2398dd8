"""Producers and workers on a bucket without a server, each a process of its own.

    python -m tests.s3.racing produce BUCKET NAME COUNT     pushes so many tasks, one after the other, and ends
    python -m tests.s3.racing work BUCKET FILE              works until SIGTERM, and writes down what it does

A line of the file: `begin` or `end`, the producer, the number, the attempt, the process.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from hark.worker import Worker, current

QUEUE = "race"
LEASE_SECONDS = 2
CONCURRENCY = 4


def worker_on(bucket: str, file: Path | None = None) -> Worker:
    """The worker, and with it its only task."""
    worker = Worker(bucket, queue=QUEUE, lease=LEASE_SECONDS, concurrency=CONCURRENCY)

    @worker.task("note")
    async def note(producer: str, number: int) -> None:
        assert file is not None
        with file.open("ab", buffering=0) as output:
            for step in ("begin", "end"):
                # In one piece: several processes write, and may be killed.
                output.write(f"{step} {producer} {number} {current().attempt} {os.getpid()}\n".encode())
                await asyncio.sleep(0)

    return worker


async def produce(bucket: str, name: str, count: int) -> None:
    """Each push is acknowledged before the next."""
    async with worker_on(bucket) as worker:
        for number in range(count):
            pushed = await worker.tasks["note"].push(name, number)
            assert pushed.status == "queued", pushed
            print(number, flush=True)


async def work(bucket: str, file: Path) -> None:
    """Until SIGTERM."""
    async with worker_on(bucket, file) as worker:
        running = asyncio.create_task(worker.run())
        await worker.ready()
        print("ready", flush=True)
        await running


if __name__ == "__main__":
    if sys.argv[1] == "produce":
        asyncio.run(produce(sys.argv[2], sys.argv[3], int(sys.argv[4])))
    else:
        asyncio.run(work(sys.argv[2], Path(sys.argv[3])))
