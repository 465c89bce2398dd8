"""Functions in processes of their own: what comes back, and what ends them."""

from __future__ import annotations

import asyncio
import logging
import os
import select
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hark
from hark.clock import SystemClock
from hark.engine.sqlite import SqliteEngine
from hark.errors import InvalidInput
from hark.testing import HarkServer
from hark.worker import Middleware, RetryPolicy, TaskCancelled, TaskFailed, Worker, WorkerRunOptions, current
from tests.worker import heavy
from tests.worker.workers import running

SECONDS = 60.0
"""Python takes seconds to start on a busy machine."""


def ended(process: int) -> bool:
    """Wait until a process has ended."""
    try:
        handle = os.pidfd_open(process)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], SECONDS)[0])
    finally:
        os.close(handle)


async def appears(file: Path) -> int:
    """Wait until a function has written which process it runs in: it tells no event."""
    async with asyncio.timeout(SECONDS):
        while not file.exists():  # noqa: ASYNC110, ASYNC240  # Another process writes it.
            await asyncio.sleep(0.01)
    return _number(file)


def _number(file: Path) -> int:
    return int(file.read_text())


def add(worker: Worker, function: Callable[..., Any], **options: Any) -> Any:
    """Register a function of the module."""
    return worker.task(function.__name__, pool="process", **({"retry": RetryPolicy.never()} | options))(function)


async def test_a_result_comes_from_another_process_which_is_kept(worker: Worker) -> None:
    where, square = add(worker, heavy.where, result=True), add(worker, heavy.square, result=True)
    async with running(worker, concurrency=1):
        first = await (await where.push()).result(timeout=SECONDS)
        assert first != os.getpid()
        assert await (await square.push(7)).result(timeout=SECONDS) == 49
        assert await (await where.push()).result(timeout=SECONDS) == first
    assert ended(first)


async def test_a_task_of_a_module_is_found_and_the_testing_kit_runs_it() -> None:
    with HarkServer() as server:
        async with server.serving(heavy.worker):
            handle = await heavy.cube.push(3)
            assert (await server.run_worker(heavy.worker)).totals.done == 1
            assert await handle.result(timeout=SECONDS) == 27
    assert heavy.cube(2) == 8


async def test_what_a_function_pushes_goes_where_its_task_came_from() -> None:
    """The worker of the module would push to another server."""
    with HarkServer() as server:
        async with server.serving(heavy.worker):
            await heavy.square_of_cube.push(3)
            assert (await server.run_worker(heavy.worker)).totals.done == 2
        server.assert_pushed("heavy", task="cube", arguments={"number": 9})
        server.assert_pushed("notes", 3)


async def test_a_server_in_the_process_of_the_worker_is_not_replaced_by_another_one() -> None:
    async with hark.connect(SqliteEngine(":memory:", clock=SystemClock())) as client:
        with heavy.worker.connect_to(client=client):
            await heavy.square_of_cube.options(retry=RetryPolicy.never()).push(3)
            await heavy.worker.run(WorkerRunOptions(burst=True, handle_signals=False))
        [letter] = (await client.dlq("heavy").list()).items
        assert letter.error.startswith("HarkError: this process cannot reach the server of the worker; give")


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("value", "ValueError: no fuel"),
        ("odd", "RuntimeError: Odd: one and two"),
        ("exit", "RuntimeError: SystemExit: 3"),
        ("die", "ProcessDied: the process of the task ended with exit code 7"),
        ("orphan", "ProcessDied: the process of the task ended with exit code 8"),
    ],
)
async def test_a_failure_has_the_remote_traceback(worker: Worker, kind: str, text: str) -> None:
    fail = add(worker, heavy.fail, result=True)
    async with running(worker):
        handle = await fail.push(kind)
        with pytest.raises(TaskFailed, match=text) as failed:
            await handle.result(timeout=SECONDS)
        if kind not in ("die", "orphan"):
            assert 'heavy.py", line' in failed.value.traceback
            assert "child.py" not in failed.value.traceback


async def test_retries_and_discards_are_those_of_any_task(worker: Worker) -> None:
    fail = add(worker, heavy.fail, retry=RetryPolicy.schedule([0]))
    async with running(worker) as run:
        await fail.push("retry")
        await fail.push("discard")
        await run.ended(3)
    assert run.summary is not None
    totals = run.summary.totals
    assert (totals.retried, totals.done, totals.discarded, totals.dead) == (1, 1, 1, 0)


async def test_the_time_limit_kills_the_process_and_the_next_task_gets_another(worker: Worker, tmp_path: Path) -> None:
    spin = add(worker, heavy.spin, timeout=0.2, result=True)
    where = add(worker, heavy.where, result=True)
    async with running(worker, concurrency=1) as run:
        handle = await spin.push(str(tmp_path / "spins"))
        with pytest.raises(TaskFailed, match=r"timed out after 0\.2 s"):
            await handle.result(timeout=SECONDS)
        process = _number(tmp_path / "spins")
        assert ended(process)
        (child,) = list(tmp_path.glob("spins.child-*"))  # noqa: ASYNC240  # A few files.
        assert ended(int(child.name.partition("-")[2]))  # What it started is killed with it.
        assert await (await where.push()).result(timeout=SECONDS) != process
        await run.ended(2)
        assert worker.stats is not None
        assert worker.stats.stuck == 0  # Unlike a thread, it keeps no slot.


async def test_a_process_that_is_killed_is_a_failure_and_the_task_is_retried(worker: Worker, tmp_path: Path) -> None:
    spin = add(worker, heavy.spin_first, retry=RetryPolicy.schedule([0]), result=True)
    async with running(worker):
        handle = await spin.push(str(tmp_path / "spins"))
        os.kill(await appears(tmp_path / "spins"), signal.SIGKILL)
        assert await handle.result(timeout=SECONDS) == 2


async def test_a_cancelled_task_is_killed(server_url: str, queue: str, tmp_path: Path) -> None:
    async with Worker(server_url, queue=queue, lease=1) as worker:
        spin = add(worker, heavy.spin, result=True)
        async with running(worker) as run:
            handle = await spin.push(str(tmp_path / "spins"))
            process = await appears(tmp_path / "spins")
            assert await handle.cancel()
            with pytest.raises(TaskCancelled):
                await handle.result(timeout=SECONDS)
            assert ended(process)
            await run.ended(1)
        assert run.summary is not None
        assert run.summary.totals.discarded == 1


async def test_a_shutdown_kills_what_does_not_end_and_releases_its_task(worker: Worker, tmp_path: Path) -> None:
    spin = add(worker, heavy.spin)
    async with running(worker, grace_seconds=0.5) as run:
        await spin.push(str(tmp_path / "spins"))
        process = await appears(tmp_path / "spins")
    assert ended(process)
    assert run.summary is not None
    assert (run.summary.totals.handed_back, run.summary.abandoned) == (1, 0)


async def test_current_works_there_with_progress_and_log_records(
    worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    class Tagged(Middleware):
        async def on_push(self, outgoing: Any) -> None:
            outgoing.headers["tag"] = "blue"

    worker.middleware = (Tagged(),)
    context = add(worker, heavy.context, result=True)
    async with running(worker):
        handle = await context.push(greeting="hello")
        shown = await handle.result(timeout=SECONDS)
    assert shown == ["context", handle.id, 1, {"greeting": "hello"}, {"tag": "blue"}, handle.queue]
    assert ("heavy", logging.WARNING, "hello from context") in caplog.record_tuples


async def test_progress_is_shown_while_it_runs(worker: Worker, tmp_path: Path) -> None:
    report = add(worker, heavy.report, result=True)
    begun, until = tmp_path / "begun", tmp_path / "until"
    async with running(worker):
        handle = await report.push(str(begun), str(until))
        await appears(begun)
        async with asyncio.timeout(SECONDS):
            while (state := await handle.state()).progress is None:
                pass
        assert (state.progress, state.note) == (0.25, "a quarter")
        until.touch()
        assert await handle.result(timeout=SECONDS) == "done"


async def test_a_result_that_cannot_be_sent_is_a_dead_letter_at_once(worker: Worker) -> None:
    lock = add(worker, heavy.lock, result=True, retry=3)
    async with running(worker) as run:
        handle = await lock.push()
        with pytest.raises(TaskFailed, match="the result cannot be sent from another process"):
            await handle.result(timeout=SECONDS)
        assert [event.dead for event in await run.ended(1)] == [True]


async def test_a_process_ends_with_its_worker(server_url: str, queue: str, tmp_path: Path) -> None:
    """A worker that is killed can end no process: its processes notice its end."""
    program = "import asyncio, sys; from tests.worker.test_pool import run_alone; asyncio.run(run_alone(*sys.argv[1:]))"
    worker = Worker(server_url, queue=queue)
    spin = add(worker, heavy.spin)
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, server_url, queue)
    try:
        await spin.push(str(tmp_path / "spins"))
        runs = await appears(tmp_path / "spins")
    finally:
        process.kill()
        await process.wait()
    assert ended(runs)
    await worker.close()


async def run_alone(url: str, queue: str) -> None:
    """Run a worker in a process of a test."""
    worker = Worker(url, queue=queue)
    add(worker, heavy.spin)
    await worker.run()


def test_what_cannot_run_in_a_process_is_refused() -> None:
    worker = Worker(queue="q")
    with pytest.raises(InvalidInput, match="an async function runs in the event loop; remove async or the pool"):

        @worker.task(pool="process")
        async def wait() -> None: ...

    with pytest.raises(InvalidInput, match=r"another process cannot import .*<locals>.inner'; define it at the top"):

        @worker.task(pool="process")
        def inner() -> None: ...

    with pytest.raises(InvalidInput, match="expected 'thread' or 'process', got 'green'"):
        worker.task("green", pool="green")(heavy.where)  # type: ignore[call-overload]


def test_current_is_not_set_outside() -> None:
    with pytest.raises(LookupError):
        current()
