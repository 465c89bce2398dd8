"""Programs on a bucket without a server, each a process of its own.

    python -m tests.s3.racing produce BUCKET NAME COUNT     pushes so many tasks, one after the other, and ends
    python -m tests.s3.racing work BUCKET FILE              works until SIGTERM, and writes down what it does
    python -m tests.s3.racing steer BUCKET                  does what a test says, one request after the other

A line of the file: `begin` or `end`, the producer, the number, the attempt. Who is steered says `ready`; then each line
is a request as JSON, `[method, path, body]`, and the answer a line `[status, body]`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec

import hark
from hark.worker import Worker, current
from tests.crash.load import through

QUEUE = "race"
LEASE_SECONDS = 2
CONCURRENCY = 4
TIMEOUT_SECONDS = 120.0


def worker_on(bucket: str, file: Path | None = None) -> Worker:
    """The worker, and with it its only task."""
    worker = Worker(bucket, queue=QUEUE, lease=LEASE_SECONDS, concurrency=CONCURRENCY)

    @worker.task("note")
    async def note(producer: str, number: int) -> None:
        assert file is not None
        with file.open("ab", buffering=0) as output:
            for step in ("begin", "end"):
                # In one piece: several processes write, and may be killed.
                output.write(f"{step} {producer} {number} {current().attempt}\n".encode())
                await asyncio.sleep(0)

    return worker


async def produce(bucket: str, name: str, count: str) -> None:
    """Each push is acknowledged before the next."""
    async with worker_on(bucket) as worker:
        for number in range(int(count)):
            pushed = await worker.tasks["note"].push(name, number)
            assert pushed.status == "queued", pushed


async def work(bucket: str, file: str) -> None:
    """Until SIGTERM."""
    async with worker_on(bucket, Path(file)) as worker:
        running = asyncio.create_task(worker.run())
        await worker.ready()
        print("ready", flush=True)
        await running


async def steer(bucket: str) -> None:
    """Until the input ends."""
    loop = asyncio.get_running_loop()
    async with hark.connect(bucket) as client, through(client.caller.transport, TIMEOUT_SECONDS)() as way:
        print("ready", flush=True)
        while line := await loop.run_in_executor(None, sys.stdin.buffer.readline):
            reply = await way.ask(*msgspec.json.decode(line))
            answer = (0, None) if reply is None else (reply.status, msgspec.Raw(reply.body or b"null"))
            print(msgspec.json.encode(answer).decode(), flush=True)


PROGRAMS: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {"produce": produce, "work": work, "steer": steer}

if __name__ == "__main__":
    asyncio.run(PROGRAMS[sys.argv[1]](*sys.argv[2:]))
