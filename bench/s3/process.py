"""One process of a row: producers and consumers of one client, `python -m bench.s3.process JOB`.

It says that it is ready when it is connected, begins when a line comes, prints what it did, and ends when another one
comes: what it asks of the bucket to begin and to end is not what it asks for its work.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Literal

import msgspec
import uvloop

import hark

QUEUE = "bench"
READY = "ready"
PAYLOAD = {"pad": "x" * 246}
"""256 bytes, as in all rows."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What a process is to do."""

    target: str
    """A bucket (`s3://...`), or the URL of a server."""
    name: str
    """Its partitions begin with it."""
    producers: int = 0
    consumers: int = 0
    batch: int = 100
    rate: float = 0
    """Batches that each producer pushes a second, or as many as it can if it is late; 0: one after the other."""
    seconds: float
    kind: Literal["load", "wait"] = "load"
    """`wait`: its consumers wait for messages that never come."""


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """What a process did."""

    pushed: int = 0
    consumed: int = 0
    seconds: float
    """To its last answer."""
    latencies_ms: list[float] = []
    """Of each push."""


class _Work:
    """A job that runs."""

    def __init__(self, client: hark.Client, job: Job) -> None:
        self._queue = client.queue(QUEUE)
        self._job = job
        self._latencies: list[float] = []
        self._pushed = self._consumed = 0

    async def run(self) -> Done:
        """Do it for as long as it is to be done."""
        job = self._job
        began = time.perf_counter()
        end = began + job.seconds
        consumption = self._queue.batch(job.batch).concurrency(max(1, job.consumers)).consume(self._handle)
        consuming = asyncio.ensure_future(consumption.run()) if job.consumers else None
        await asyncio.gather(*(self._produce(number, began, end) for number in range(job.producers)))
        await asyncio.sleep(max(0.0, end - time.perf_counter()))
        if consuming is not None:
            consumption.stop()
            await consuming
        return Done(
            pushed=self._pushed,
            consumed=self._consumed,
            seconds=time.perf_counter() - began,
            latencies_ms=self._latencies,
        )

    async def _produce(self, number: int, began: float, end: float) -> None:
        queue = self._queue.partition(f"{self._job.name}-{number}")
        items = [PAYLOAD] * self._job.batch
        turn = 0
        while (due := self._due(number, turn, began)) < end:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            sent = time.perf_counter()
            await queue.push_many(items)
            self._latencies.append(1e3 * (time.perf_counter() - sent))
            self._pushed += len(items)
            turn += 1

    def _due(self, number: int, turn: int, began: float) -> float:
        """When the next batch is to be pushed; producers take turns."""
        if not self._job.rate:
            return time.perf_counter()
        return began + (turn + number / self._job.producers) / self._job.rate

    async def _handle(self, messages: list[hark.Message]) -> None:
        self._consumed += len(messages)


async def work(job: Job) -> None:
    """Connect, wait for the beginning, do it, say so, and wait for the end."""
    if job.kind == "wait":
        await _wait(job)
        return
    async with hark.connect(job.target) as client:
        await client.queue(QUEUE).create()
        await _report_and_wait(READY)
        await _report_and_wait(_text(await _Work(client, job).run()))


async def _wait(job: Job) -> None:
    """A worker as it comes, without anything to do."""
    worker = hark.Worker(job.target, queue=QUEUE)

    @worker.task("never")
    async def never() -> None:
        """Nobody pushes it."""

    running = asyncio.create_task(worker.run(hark.WorkerRunOptions(handle_signals=False)))
    await _report_and_wait(READY)
    began = time.perf_counter()
    await asyncio.sleep(job.seconds)
    await _report_and_wait(_text(Done(seconds=time.perf_counter() - began)))
    await worker.stop()
    await running


async def _report_and_wait(report: str) -> None:
    """Say something, and wait for the word to go on."""
    print(report, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


def _text(done: Done) -> str:
    return msgspec.json.encode(done).decode()


def main() -> None:
    """Do what the command line says."""
    uvloop.run(work(msgspec.json.decode(sys.argv[1], type=Job)))


if __name__ == "__main__":
    main()
