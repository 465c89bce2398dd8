"""The grace period: it counts from the call to stop, and nothing makes a run last longer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from hark.client.transport.http import HttpTransport
from hark.model import QUEUE_MODE
from hark.worker import Worker, WorkerRunOptions
from hark.worker.options import plan_for
from hark.worker.shift import Shift
from tests.worker.workers import SECONDS

AN_HOUR = 3600


async def push_one_that_waits(worker: Worker) -> asyncio.Event:
    """Push a task that waits until it is cancelled; the event is set when it runs."""
    started = asyncio.Event()

    @worker.task
    async def work() -> None:
        started.set()
        await asyncio.Event().wait()

    await work.push()
    return started


async def test_the_grace_period_counts_from_the_call_although_the_loop_is_late(server_url: str, queue: str) -> None:
    worker = Worker(server_url, queue=queue)
    started = await push_one_that_waits(worker)
    late = 0.0
    plan = plan_for(WorkerRunOptions(grace_seconds=AN_HOUR, handle_signals=False), lease=10 * AN_HOUR)
    transport = HttpTransport(server_url)
    shift = Shift(
        transport, queue, QUEUE_MODE, worker.tasks, (), plan, name="late", monotonic=lambda: time.monotonic() + late
    )
    run = asyncio.create_task(shift.run())
    async with asyncio.timeout(SECONDS):
        await started.wait()
        shift.stop()
        late = AN_HOUR  # A handler blocks the loop for as long: nobody could do anything until now.
        summary = await run
    await worker.close()
    await transport.close()
    assert summary.totals.handed_back == 1


async def test_a_run_that_is_cancelled_while_it_stops_says_so(server_url: str, queue: str) -> None:
    worker = Worker(server_url, queue=queue)
    started, stopping = await push_one_that_waits(worker), asyncio.Event()
    run = asyncio.create_task(worker.run(WorkerRunOptions(handle_signals=False, grace_seconds=AN_HOUR)))
    async with asyncio.timeout(SECONDS):
        await started.wait()
        asking = asyncio.create_task(worker.stop())
        while not stopping.is_set():
            await asyncio.sleep(0)
            if worker.stats is not None and worker.stats.stopping:
                stopping.set()
        for _ in range(10):  # It lets the handler finish now.
            await asyncio.sleep(0)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        await asking


class HalfServer:
    """Gives one task, takes settlements, and never answers a push."""

    def __init__(self) -> None:
        self.pushed = asyncio.Event()
        self.statuses: list[str] = []
        self._popped = False

    async def pop(self, _request: web.Request) -> web.Response:
        """The task, once."""
        if self._popped:
            await asyncio.Event().wait()
        self._popped = True
        message = {
            "id": "1",
            "transactionId": "1",
            "traceId": None,
            "data": {"task": "work"},
            "producerSub": None,
            "createdAt": "2030-01-01T00:00:00Z",
            "partitionId": "p",
            "partition": "Default",
            "leaseId": "lease",
            "consumerGroup": QUEUE_MODE,
            "queue": "q",
            "offset": 1,
            "priority": 0,
            "deliveryAttempt": 1,
        }
        return web.json_response({"messages": [message]})

    async def push(self, _request: web.Request) -> web.Response:
        """Nobody hears of it again."""
        self.pushed.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def ack(self, request: web.Request) -> web.Response:
        """All is well."""
        items = (await request.json())["acknowledgments"]
        self.statuses += [item.get("status", "completed") for item in items]
        return web.json_response([{"success": True} for _ in items])


@asynccontextmanager
async def half_server(server: HalfServer) -> AsyncIterator[str]:
    """Run it in this loop; its URL."""
    app = web.Application()
    app.router.add_get("/api/v1/pop/queue/q", server.pop)
    app.router.add_post("/api/v1/push", server.push)
    app.router.add_post("/api/v1/ack/batch", server.ack)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_a_push_that_nobody_answers_does_not_hold_up_the_end() -> None:
    server = HalfServer()
    async with half_server(server) as url:
        worker = Worker(url, queue="q")

        @worker.task
        async def work() -> None:
            await work.push()

        run = asyncio.create_task(worker.run(WorkerRunOptions(handle_signals=False, grace_seconds=0.5)))
        async with asyncio.timeout(SECONDS):  # A push alone waits for longer.
            await server.pushed.wait()
            await worker.stop()
            summary = await run
    assert summary.totals.handed_back == 1
    assert server.statuses == ["retry"]


async def test_without_a_grace_period_nothing_is_waited_for(
    server_url: str, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "hark.worker")
    worker = Worker(server_url, queue=queue)
    started = await push_one_that_waits(worker)
    run = asyncio.create_task(worker.run(WorkerRunOptions(handle_signals=False, grace_seconds=0)))
    async with asyncio.timeout(SECONDS):
        await started.wait()
        await worker.stop()
        assert (await run).totals.handed_back == 1
    assert "1 still running, with 0.0 s to finish" in caplog.text
