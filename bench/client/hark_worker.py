"""Hark's worker: asynchronous tasks that do nothing, many at a time, in one process."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import hark
from bench.client.program import Taken, main

AT_ONCE = 50
STEPS = 10
"""Steps of a chain."""
IDLE_SECONDS = 0.05
"""Between two pushes to an idle worker."""


async def push(url: str, number: int) -> Taken:
    """Enqueue."""
    worker = hark.Worker(url, queue="bench", concurrency=AT_ONCE)

    @worker.task("noop")
    async def noop(number: int) -> None:
        """Nothing."""

    began = time.perf_counter()
    for start in range(0, number, 1000):
        await asyncio.gather(*(noop.push(number=n) for n in range(start, min(start + 1000, number))))
    await worker.close()
    return Taken(number, time.perf_counter() - began)


async def work(url: str, number: int) -> Taken:
    """Run what is there."""
    worker = hark.Worker(url, queue="bench", concurrency=AT_ONCE)
    times: list[float] = []

    @worker.task("noop")
    async def noop(number: int) -> None:
        times.append(time.perf_counter())

    await worker.run(hark.WorkerRunOptions(burst=True))
    return Taken(len(times), times[-1] - times[0])


async def plain(url: str, number: int) -> Taken:
    """Push tasks and run them."""
    return await _push_and_run(url, number)


async def stored(url: str, number: int) -> Taken:
    """The same with results that are stored."""
    return await _push_and_run(url, number, result=True)


async def push_chains(url: str, number: int) -> Taken:
    """Push steps as chains."""
    worker, task, _ = _counting(url)
    left = iter(range(number // STEPS))

    async def push_all() -> None:
        for n in left:
            chain = task.s(n)
            for _ in range(STEPS - 1):
                chain |= task.s()
            await chain.push()

    await task.push(0)  # It connects.
    began, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(push_all() for _ in range(AT_ONCE)))
    taken = _taken(number, began, cpu)
    await worker.close()
    return taken


async def run_chains(url: str, number: int) -> Taken:
    """Run these steps: each one is pushed when the one before it is acknowledged."""
    worker, _, ran = _counting(url)
    began, cpu = time.perf_counter(), time.process_time()
    await worker.run(hark.WorkerRunOptions(burst=True))
    taken = _taken(len(ran), began, cpu)
    if taken.number < number:
        raise RuntimeError(f"{taken.number} of {number} steps ran")
    await worker.close()
    return taken


def _counting(url: str, *, result: bool = False) -> tuple[hark.Worker, hark.Task[[int], Any], list[int]]:
    """A worker with one task, and the list of what it ran."""
    worker = hark.Worker(url, queue="bench", concurrency=AT_ONCE)
    ran: list[int] = []

    async def noop(number: int) -> int:
        ran.append(number)
        return number

    # Another checkout, of which plain tasks are measured, may not know the option.
    task = worker.task("noop", result=True) if result else worker.task("noop")
    return worker, task(noop), ran


def _taken(number: int, began: float, cpu: float) -> Taken:
    seconds = time.perf_counter() - began
    return Taken(number, seconds, cpu_us=1e6 * (time.process_time() - cpu) / number)


async def _push_and_run(url: str, number: int, *, result: bool = False) -> Taken:
    worker, task, ran = _counting(url, result=result)
    await task.push(0)  # It connects.
    await worker.run(hark.WorkerRunOptions(burst=True))
    ran.clear()
    left = iter(range(number))

    async def push_all() -> None:
        for n in left:
            await task.push(n)

    began, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(push_all() for _ in range(AT_ONCE)))
    await worker.run(hark.WorkerRunOptions(burst=True))
    taken = _taken(len(ran), began, cpu)
    await worker.close()
    return taken


async def latency(url: str, number: int) -> Taken:
    """From a push to the start of its handler, one at a time at a worker that waits."""
    worker = hark.Worker(url, queue="bench", concurrency=AT_ONCE)
    begun: asyncio.Queue[float] = asyncio.Queue()

    @worker.task("noop")
    async def noop(number: int) -> None:
        begun.put_nowait(time.perf_counter())

    running = asyncio.create_task(worker.run(hark.WorkerRunOptions(handle_signals=False)))
    taken = []
    began = time.perf_counter()
    for index in range(number + 1):
        await asyncio.sleep(IDLE_SECONDS)
        pushed = time.perf_counter()
        await noop.push(number=index)
        latency = 1e3 * (await begun.get() - pushed)
        if index:  # The first one connects.
            taken.append(latency)
    seconds = time.perf_counter() - began
    await worker.stop()
    await running
    return Taken(number, seconds, taken)


if __name__ == "__main__":
    main(
        {
            "push": push,
            "work": work,
            "latency": latency,
            "plain": plain,
            "stored": stored,
            "push_chains": push_chains,
            "run_chains": run_chains,
        }
    )
