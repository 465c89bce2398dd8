"""A worker as a process of its own, which says in lines what it does: `python -m tests.worker.program URL QUEUE`."""

from __future__ import annotations

import asyncio
import os
import sys
import time

import uvloop

from hark.worker import Worker, WorkerRunOptions


def say(*words: object) -> None:
    """One line, whole and at once: threads say something at the same time."""
    os.write(sys.stdout.fileno(), (" ".join(map(str, words)) + "\n").encode())


def make(url: str, queue: str, lease: int = 30, concurrency: int = 10) -> Worker:
    """The worker that tests run, here and in processes."""
    worker = Worker(url, queue=queue, lease=lease, concurrency=concurrency)

    @worker.task
    async def nap(number: int, seconds: float) -> None:
        say("start", number)
        await asyncio.sleep(seconds)
        say("done", number)

    @worker.task
    def doze(number: int, seconds: float) -> None:
        say("start", number)
        time.sleep(seconds)
        say("done", number)

    @worker.task
    async def block(number: int, seconds: float) -> None:
        say("start", number)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            sum(range(1000))
        say("done", number)

    return worker


async def main(url: str, queue: str, lease: int, concurrency: int, grace: float) -> None:
    """Work until a signal comes."""
    worker = make(url, queue, lease, concurrency)
    run = asyncio.create_task(worker.run(WorkerRunOptions(grace_seconds=grace)))
    await asyncio.sleep(0)
    say("ready")
    summary = await run
    say("ended", summary.totals.done, summary.totals.handed_back, summary.abandoned)


if __name__ == "__main__":
    loops = uvloop.new_event_loop if sys.argv[6] == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=loops) as runner:
        runner.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])))
