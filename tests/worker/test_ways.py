"""Ways to a server, and leases on them: in the worker's loop, over a WebSocket, by plain polling, through an outage."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from hark.clock import SystemClock
from hark.connecting import connect
from hark.engine.sqlite import SqliteEngine
from hark.polling import PollingStrategy
from hark.worker import RetryPolicy, Worker, current
from tests.servers import server_process
from tests.worker.workers import SECONDS, burst, post, running


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


async def test_plain_polling_picks_up_what_comes_later(worker: Worker) -> None:

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


async def test_a_push_in_the_workers_own_process_ends_the_rest_of_its_polling(worker: Worker) -> None:

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


# An outage -----------------------------------------------------------------------------------------------------


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


async def test_a_worker_goes_on_by_itself_when_its_server_is_back(tmp_path: Path, queue: str) -> None:
    arguments = ("--port", str(free_port()))
    worker = Worker(f"http://127.0.0.1:{arguments[1]}", queue=queue)
    started, release = asyncio.Event(), asyncio.Event()

    @worker.task
    async def slow() -> None:
        started.set()
        await release.wait()

    @worker.task
    async def quick() -> None: ...

    server = server_process(tmp_path, engine="sqlite:///hark.db", arguments=arguments)
    await asyncio.to_thread(server.__enter__)
    try:
        await slow.push()
        async with running(worker) as found:
            async with asyncio.timeout(SECONDS):
                await started.wait()
            await asyncio.to_thread(server.__exit__, None, None, None)
            release.set()  # It ends while there is nobody to tell.
            await asyncio.sleep(0)
            server = server_process(tmp_path, engine="sqlite:///hark.db", arguments=arguments)
            await asyncio.to_thread(server.__enter__)
            await quick.push()
            async with asyncio.timeout(SECONDS):
                while not {"slow", "quick"} <= {event.task for event in found.events if event.ending == "done"}:
                    await found.ended(len(found.events) + 1)
    finally:
        await asyncio.to_thread(server.__exit__, None, None, None)


# Leases --------------------------------------------------------------------------------------------------------


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
