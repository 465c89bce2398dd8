"""A worker that stops in its own loop, by a call or by cancellation."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from hark.client.calling import CallPolicy
from hark.client.client import Client
from hark.client.transport.api import ConnectionFailed
from hark.client.transport.http import HttpTransport
from hark.errors import HarkError
from hark.worker import Worker, WorkerRunOptions, current
from tests.worker.workers import SECONDS, ask, burst, push_raw, running, until_it_waits


async def test_running_handlers_finish_when_the_worker_stops(server_url: str, queue: str) -> None:
    worker = Worker(server_url, queue=queue)
    started, go_on = asyncio.Event(), asyncio.Event()

    @worker.task
    async def work() -> None:
        started.set()
        await go_on.wait()

    await work.push()
    async with running(worker) as found:
        async with asyncio.timeout(SECONDS):
            await started.wait()
        stopping = asyncio.create_task(worker.stop())
        await asyncio.sleep(0)
        assert worker.stats is not None
        assert worker.stats.stopping
        go_on.set()
        await stopping
    assert found.summary is not None
    assert (found.summary.totals.done, found.summary.totals.handed_back) == (1, 0)


async def test_an_idle_worker_stops_at_once_although_its_poll_waits(server_url: str, queue: str) -> None:
    worker = Worker(server_url, queue=queue)
    began = time.monotonic()
    async with running(worker, timeout_ms=30_000):
        await until_it_waits(server_url, queue)
        began = time.monotonic()
    assert time.monotonic() - began < 5


async def test_a_handler_that_does_not_finish_is_cancelled_and_handed_back_uncounted(
    server_url: str, queue: str
) -> None:
    worker = Worker(server_url, queue=queue)
    started = asyncio.Event()
    attempts: list[int] = []

    @worker.task
    async def work() -> None:
        attempts.append(current().attempt)
        started.set()
        if len(attempts) == 1:
            await asyncio.Event().wait()

    await work.push()
    async with running(worker, grace_seconds=0.2) as found, asyncio.timeout(SECONDS):
        await started.wait()
    assert found.summary is not None
    assert (found.summary.totals.handed_back, found.summary.abandoned) == (1, 0)
    assert (await burst(worker)).totals.done == 1  # At once: nobody waits for a lease to end.
    assert attempts == [1, 1]


async def test_a_handler_that_will_not_be_cancelled_is_abandoned(
    server_url: str, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker(server_url, queue=queue)
    started, release = asyncio.Event(), asyncio.Event()

    @worker.task
    async def stubborn() -> None:
        started.set()
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                assert current().is_lost

    await stubborn.push()
    async with running(worker, grace_seconds=0.2) as found, asyncio.timeout(SECONDS):
        await started.wait()
    release.set()
    assert found.summary is not None
    assert (found.summary.totals.handed_back, found.summary.abandoned) == (1, 1)
    assert "1 did not end" in caplog.text


async def test_a_function_in_a_thread_is_handed_back_at_the_end_of_the_grace_period(
    server_url: str, queue: str
) -> None:
    worker = Worker(server_url, queue=queue)
    started, release = threading.Event(), threading.Event()

    @worker.task
    def work() -> None:
        started.set()
        release.wait(SECONDS)

    await work.push()
    async with running(worker, grace_seconds=0.2) as found:
        await asyncio.to_thread(started.wait, SECONDS)
    assert found.summary is not None
    assert (found.summary.totals.handed_back, found.summary.abandoned) == (1, 1)
    release.set()
    assert (await burst(worker)).totals.done == 1


async def test_cancelling_run_hands_back_too(server_url: str, queue: str) -> None:
    worker = Worker(server_url, queue=queue)
    started = asyncio.Event()
    attempts: list[int] = []

    @worker.task
    async def work() -> None:
        attempts.append(current().attempt)
        started.set()
        if len(attempts) == 1:
            await asyncio.Event().wait()

    await work.push()
    run = asyncio.create_task(worker.run(WorkerRunOptions(handle_signals=False)))
    async with asyncio.timeout(SECONDS):
        await started.wait()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
    assert (await burst(worker)).totals.done == 1
    assert attempts == [1, 1]


async def test_a_worker_runs_once_at_a_time_but_again_after_that(server_url: str, queue: str) -> None:
    worker = Worker(server_url, queue=queue)
    async with running(worker) as first:
        with pytest.raises(HarkError, match="runs already"):
            await worker.run()
    async with running(worker) as second:
        pass
    assert first.summary is not None
    assert second.summary is not None
    assert first.summary.worker_id != second.summary.worker_id


async def test_stopping_a_worker_that_does_not_run_does_nothing(queue: str) -> None:
    await Worker(queue=queue).stop()


async def test_a_group_that_is_ordered_ends_the_run_with_a_clear_error(server_url: str, queue: str) -> None:
    await push_raw(server_url, queue, 1)
    await ask(server_url, f"pop/queue/{queue}", groupMode="ordered", consumerGroup="g")
    worker = Worker(server_url, queue=queue, group="g")
    with pytest.raises(HarkError) as caught:
        await burst(worker)
    assert caught.value.code == "group_mode_conflict"


async def test_a_handler_may_stop_its_worker(server_url: str, queue: str) -> None:
    worker = Worker(server_url, queue=queue)

    @worker.task
    async def last() -> None:
        await worker.stop()

    await last.push()
    async with asyncio.timeout(SECONDS):
        summary = await worker.run(WorkerRunOptions(handle_signals=False))
    assert summary.totals.done == 1


async def test_a_burst_does_not_wait_for_a_server_that_is_away(queue: str) -> None:
    client = Client(HttpTransport("http://127.0.0.1:9"), retry=CallPolicy(attempts=1))
    with pytest.raises(ConnectionFailed):
        await burst(Worker(client=client, queue=queue))
    await client.close()
