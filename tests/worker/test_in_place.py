"""Ways to a server: in the worker's own loop, over a WebSocket, with a given client, by plain polling."""

from __future__ import annotations

import asyncio

from hark.clock import SystemClock
from hark.connecting import connect
from hark.engine.sqlite import SqliteEngine
from hark.polling import PollingStrategy
from hark.worker import RetryPolicy, Worker, current
from tests.worker.workers import burst, running


async def test_a_worker_runs_beside_an_engine_in_its_own_loop(queue: str) -> None:
    async with Worker(SqliteEngine(":memory:", clock=SystemClock()), queue=queue) as worker:
        seen: list[int] = []

        @worker.task
        async def work(value: int) -> None:
            seen.append(value)

        await asyncio.gather(*(work.push(value) for value in range(30)))
        assert (await burst(worker)).totals.done == 30
        async with running(worker) as found:
            await work.push(30)
            await found.ended(1)
        # The engine is open as long as the worker is.
        await work.push(31)
        assert (await burst(worker)).totals.done == 1
        assert sorted(seen) == list(range(32))


async def test_a_client_that_was_given_is_used_and_left_open(server_url: str, queue: str) -> None:
    async with connect(server_url) as client:
        worker = Worker(client=client, queue=queue)

        @worker.task
        async def work() -> None: ...

        await work.push()
        assert (await burst(worker)).totals.done == 1
        assert (await work.push()).status == "queued"


async def test_a_worker_can_be_pointed_at_another_server(server_url: str, queue: str) -> None:
    worker = Worker("http://127.0.0.1:9", queue=queue)

    @worker.task
    async def work() -> None: ...

    with worker.connect_to(server_url):
        await work.push()
        assert (await burst(worker)).totals.done == 1


async def test_plain_polling_picks_up_what_comes_later(server_url: str, queue: str) -> None:
    worker = Worker(server_url, queue=queue)

    @worker.task
    async def work() -> None: ...

    async with running(worker, wait=False, polling=PollingStrategy.fixed(interval_ms=10)) as found:
        for count in (1, 2, 3):
            await work.push()
            await found.ended(count)
        stats = worker.stats
    assert stats is not None
    assert stats.polls >= 3
    assert stats.poll_interval == 0.01


async def test_a_push_in_the_workers_own_process_ends_the_rest_of_its_polling(server_url: str, queue: str) -> None:
    worker = Worker(server_url, queue=queue)

    @worker.task(retry=RetryPolicy.schedule([0.05]))
    async def work() -> None:
        if current().attempt == 1:
            raise ValueError

    async with running(worker, wait=False, polling=PollingStrategy.fixed(interval_ms=3_600_000)) as found:
        await work.push()
        await found.ended(2)
        await work.push(delay=0.05)
        await found.ended(4)
    assert [event.ending for event in found.events] == ["failed", "done"] * 2


async def test_tasks_come_over_a_websocket(server_url: str, queue: str) -> None:
    worker = Worker(server_url.replace("http", "ws", 1), queue=queue, concurrency=3)
    seen: list[int] = []

    @worker.task
    async def work(value: int) -> None:
        seen.append(value)

    await asyncio.gather(*(work.push(value) for value in range(20)))
    async with running(worker) as found:
        await found.ended(20)
    assert sorted(seen) == list(range(20))
    assert found.summary is not None
    assert (found.summary.totals.done, found.summary.totals.lost) == (20, 0)
