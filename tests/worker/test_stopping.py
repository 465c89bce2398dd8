"""A worker that stops, by a call or by cancellation, and within its grace period."""

from __future__ import annotations

import asyncio
import signal
import threading
import time

import pytest

from hark.client.calling import CallPolicy, ConnectionFailed
from hark.client.client import Client
from hark.client.http import HttpTransport
from hark.errors import HarkError
from hark.worker import Worker, WorkerRunOptions, current
from hark.worker.worker import plan_for
from hark.worker.worker_run import WorkerRun, stop_signals
from tests.worker.workers import SECONDS, ScriptedServer, ask, burst, push_raw, running, until_it_waits


async def test_running_handlers_finish_when_the_worker_stops(worker: Worker) -> None:
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


async def test_an_idle_worker_stops_at_once_although_its_poll_waits(
    server_url: str, queue: str, worker: Worker
) -> None:
    began = time.monotonic()
    async with running(worker, timeout_ms=30_000):
        await until_it_waits(server_url, queue)
        began = time.monotonic()
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("how", ["stopped", "cancelled"])
async def test_a_handler_that_does_not_finish_is_cancelled_and_handed_back_uncounted(worker: Worker, how: str) -> None:
    started = asyncio.Event()
    attempts: list[int] = []

    @worker.task
    async def work() -> None:
        attempts.append(current().attempt)
        started.set()
        if len(attempts) == 1:
            await asyncio.Event().wait()

    await work.push()
    run = asyncio.create_task(worker.run(WorkerRunOptions(handle_signals=False, grace_seconds=0.2)))
    async with asyncio.timeout(SECONDS):
        await started.wait()
        if how == "stopped":
            await worker.stop()
            summary = await run
            assert (summary.totals.handed_back, summary.abandoned) == (1, 0)
        else:
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run
    assert (await burst(worker)).totals.done == 1  # At once: nobody waits for a lease to end.
    assert attempts == [1, 1]


async def test_a_handler_that_will_not_be_cancelled_is_abandoned(
    worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
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
    assert "did not end in time: 1" in caplog.text


async def test_a_function_in_a_thread_is_handed_back_at_the_end_of_the_grace_period(worker: Worker) -> None:
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


async def test_a_worker_runs_once_at_a_time_but_again_after_that(worker: Worker) -> None:
    async with running(worker) as first:
        with pytest.raises(HarkError, match="is already running"):
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


async def test_a_handler_may_stop_its_worker(worker: Worker) -> None:

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


# The grace period counts from the call to stop, and nothing makes a run last longer ----------------------------


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


async def test_the_grace_period_counts_from_the_call_although_the_loop_is_late(worker: Worker) -> None:
    started = await push_one_that_waits(worker)
    late = 0.0
    plan = plan_for(WorkerRunOptions(grace_seconds=AN_HOUR, handle_signals=False), lease=10 * AN_HOUR)
    worker_run = WorkerRun(worker, worker.client, plan, monotonic=lambda: time.monotonic() + late)
    run = asyncio.create_task(worker_run.run())
    async with asyncio.timeout(SECONDS):
        await started.wait()
        worker_run.stop()
        late = AN_HOUR  # A handler blocks the loop for as long: nobody could do anything until now.
        summary = await run
    assert summary.totals.handed_back == 1


async def test_a_run_that_is_cancelled_while_it_stops_says_so(worker: Worker) -> None:
    started, stopping = await push_one_that_waits(worker), asyncio.Event()
    run = asyncio.create_task(worker.run(WorkerRunOptions(handle_signals=False, grace_seconds=AN_HOUR)))
    async with asyncio.timeout(SECONDS):
        await started.wait()
        stop_task = asyncio.create_task(worker.stop())
        while not stopping.is_set():
            await asyncio.sleep(0)
            if worker.stats is not None and worker.stats.stopping:
                stopping.set()
        for _ in range(10):  # It lets the handler finish now.
            await asyncio.sleep(0)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        await stop_task


async def test_a_push_that_no_one_answers_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    server, line = ScriptedServer(), ScriptedServer()
    monkeypatch.setattr(server, "fork", lambda: line)  # What is pulled and settled goes there, in a loop of its own.
    line.answer_pop("1")
    worker = Worker(server, queue="q", group="g")

    @worker.task("t")
    async def work() -> None:
        await work.push()

    run = asyncio.create_task(worker.run(WorkerRunOptions(handle_signals=False, grace_seconds=0.5)))
    async with asyncio.timeout(SECONDS):  # A push alone waits for longer.
        await server.pushed.wait()
        await worker.stop()
        summary = await run
    assert summary.totals.handed_back == 1
    assert [[item["status"] for item in batch] for batch in line.acks] == [["retry"]]


async def test_without_a_grace_period_nothing_is_waited_for(worker: Worker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "hark.worker")
    started = await push_one_that_waits(worker)
    run = asyncio.create_task(worker.run(WorkerRunOptions(handle_signals=False, grace_seconds=0)))
    async with asyncio.timeout(SECONDS):
        await started.wait()
        await worker.stop()
        assert (await run).totals.handed_back == 1
    assert "running handlers: 1, 0.0 s to finish" in caplog.text


HANGS = 10.0
"""Seconds after which a loop that was not woken wakes by itself."""


def test_a_signal_that_another_thread_receives_wakes_the_loop() -> None:
    def receive() -> None:
        time.sleep(0.2)  # Until the loop waits, with nothing else to wake it; no event tells. Earlier would prove less.
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    async def wait() -> None:
        stopped = asyncio.Event()
        with stop_signals(True, stopped.set, lambda: None):
            threading.Thread(target=receive, daemon=True).start()
            asyncio.get_running_loop().call_later(HANGS, lambda: None)  # It wakes a loop that the signal does not wake.
            await stopped.wait()

    # The loop of asyncio: uvloop wakes by itself.
    began = time.monotonic()
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        runner.run(wait())
    assert time.monotonic() - began < HANGS
