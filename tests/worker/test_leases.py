"""Leases of a worker: as many as it has room for, renewed, and given up when they are lost."""

from __future__ import annotations

import asyncio

from hark.worker import Worker, current
from tests.worker.workers import SECONDS, post, running


async def test_no_more_is_leased_than_there_are_free_slots(server_url: str, queue: str) -> None:
    worker = Worker(server_url, queue=queue, concurrency=3)
    running_now = 0
    most = 0
    started = asyncio.Semaphore(0)
    release = asyncio.Event()

    @worker.task
    async def work() -> None:
        nonlocal running_now, most
        running_now += 1
        most = max(most, running_now)
        started.release()
        await release.wait()
        running_now -= 1

    await asyncio.gather(*(work.push() for _ in range(10)))
    other = Worker(server_url, queue=queue)
    seen = 0

    @other.task("work")
    async def work_there() -> None:
        nonlocal seen
        seen += 1

    async with running(worker) as found:
        async with asyncio.timeout(SECONDS):
            for _ in range(3):
                await started.acquire()
        # The seven others are free for anybody.
        async with running(other) as elsewhere:
            await elsewhere.ended(7)
        assert seen == 7
        release.set()
        await found.ended(3)
    assert most == 3


async def test_a_lost_lease_cancels_the_handler_and_settles_nothing(server_url: str, queue: str) -> None:
    worker = Worker(server_url, queue=queue, lease=1)
    started = asyncio.Event()
    attempts: list[int] = []
    lost: list[bool] = []

    @worker.task
    async def work() -> None:
        context = current()
        attempts.append(context.attempt)
        if len(attempts) > 1:
            return
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            lost.append(context.lost.is_set())

    await work.push()
    async with running(worker) as found:
        async with asyncio.timeout(SECONDS):
            await started.wait()
        # Somebody moves the group to the beginning: its leases are void, and the message comes again.
        await post(
            server_url, f"consumer-groups/__QUEUE_MODE__/queues/{queue}/seek", {"timestamp": "2000-01-01T00:00:00Z"}
        )
        events = await found.ended(2)
    assert sorted(event.ending for event in events) == ["done", "lost"]
    assert lost == [True]


async def test_a_handler_that_takes_several_leases_runs_once(server_url: str, queue: str) -> None:
    worker = Worker(server_url, queue=queue, lease=1)
    attempts: list[int] = []

    @worker.task
    async def work() -> None:
        attempts.append(current().attempt)
        await asyncio.sleep(2.2)  # More than two leases; the server's clock is the real one.

    await work.push()
    async with running(worker) as found:
        events = await found.ended(1)
    assert [event.ending for event in events] == ["done"]
    assert attempts == [1]
