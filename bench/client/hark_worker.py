"""Hark's worker: asynchronous tasks that do nothing, many at a time, in one process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
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


async def chains(url: str, number: int) -> Taken:
    """The same as chains: each step pushes the next one."""
    return await _push_and_run(url, number, steps=STEPS)


async def _push_and_run(url: str, number: int, *, result: bool = False, steps: int = 0) -> Taken:
    worker = hark.Worker(url, queue="bench", concurrency=AT_ONCE)
    ran = 0

    # Another checkout, of which plain tasks are measured, may not know the option.
    task = worker.task("noop", result=True) if result else worker.task("noop")

    @task
    async def noop(number: int) -> int:
        nonlocal ran
        ran += 1
        return number

    def push(number: int) -> Coroutine[Any, Any, object]:
        if not steps:
            return noop.push(number)
        chain = noop.s(number)
        for _ in range(steps - 1):
            chain |= noop.s()
        return chain.push()

    await push(0)  # It connects.
    await worker.run(hark.WorkerRunOptions(burst=True))
    ran = 0
    began, cpu = time.perf_counter(), time.process_time()
    left = iter(range(number // (steps or 1)))

    async def push_all() -> None:
        for n in left:
            await push(n)

    await asyncio.gather(*(push_all() for _ in range(AT_ONCE)))
    await worker.run(hark.WorkerRunOptions(burst=True))
    taken = Taken(ran, time.perf_counter() - began, cpu_us=1e6 * (time.process_time() - cpu) / ran)
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
    main({"push": push, "work": work, "latency": latency, "plain": plain, "stored": stored, "chains": chains})
