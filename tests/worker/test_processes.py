"""Workers as processes: killed, told to stop, and blocked by their own handlers."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from hark.worker import Worker, current
from tests.worker.program import make
from tests.worker.workers import SECONDS, burst, running, until_it_waits, until_no_consumer_waits

PROCESS_SECONDS = 60.0
"""What a process never needs to say something; Python alone takes seconds to start on a busy machine."""
WAIT_SECONDS = 8.0
"""Seconds that a busy machine may need in addition; far less than what would be wrong."""


class Process:
    """A worker's process and what it said."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.output: list[str] = []

    async def line(self, beginning: str) -> str:
        """Read on until a line that begins so."""
        assert self.process.stdout is not None
        async with asyncio.timeout(PROCESS_SECONDS):
            while line := (await self.process.stdout.readline()).decode().strip():
                self.output.append(line)
                if line.startswith(beginning):
                    return line
        raise AssertionError(f"the worker ended without {beginning!r}; it said: {self.output}")

    async def end(self) -> int:
        """Read all that is left, and wait for its end."""
        assert self.process.stdout is not None
        async with asyncio.timeout(PROCESS_SECONDS):
            self.output += (await self.process.stdout.read()).decode().splitlines()
            return await self.process.wait()


@asynccontextmanager
async def worker_process(
    url: str, queue: str, *, lease: int = 30, concurrency: int = 10, grace: float = 10, loop: str = "asyncio"
) -> AsyncIterator[Process]:
    """Run `program` within the block."""
    arguments = (url, queue, str(lease), str(concurrency), str(grace), loop)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.worker.program", *arguments, stdout=asyncio.subprocess.PIPE
    )
    found = Process(process)
    try:
        await found.line("ready")
        yield found
    finally:
        if process.returncode is None:
            process.kill()
        await found.end()


async def left_over(url: str, queue: str) -> list[tuple[int, int]]:
    """The tasks that a worker gets now, sorted, and their attempts."""
    seen: list[tuple[int, int]] = []

    async def note(number: int, seconds: float) -> None:  # noqa: ARG001  # Of the same shape as there.
        seen.append((number, current().attempt))

    async with Worker(url, queue=queue) as rest:
        for name in ("nap", "doze", "block"):
            rest.task(name)(note)
        assert (await burst(rest)).totals.failed == 0
    return sorted(seen)


async def test_a_task_of_a_killed_worker_runs_elsewhere_within_one_lease_time(server_url: str, queue: str) -> None:
    lease = 1
    other = Worker(server_url, queue=queue, lease=lease)
    started: asyncio.Future[tuple[float, int]] = asyncio.get_running_loop().create_future()

    @other.task
    async def nap(number: int, seconds: float) -> None:  # noqa: ARG001  # Of the same shape as there.
        started.set_result((time.monotonic(), current().attempt))

    async with worker_process(server_url, queue, lease=lease) as process:
        await nap.push(1, 3600)
        await process.line("start 1")
        async with running(other):
            killed = time.monotonic()
            process.process.kill()
            async with asyncio.timeout(SECONDS):
                at, attempt = await started
    assert attempt == 2
    # At once when its lease ends, not at the next look of somebody: the benchmark has the exact figure.
    assert at - killed < lease + WAIT_SECONDS


async def test_sigterm_under_load_loses_nothing_and_doubles_nothing(server_url: str, queue: str) -> None:
    count = 400
    async with make(server_url, queue) as worker:
        nap, doze = worker.tasks["nap"], worker.tasks["doze"]
        await asyncio.gather(*((doze if number % 5 == 0 else nap).push(number, 0.02) for number in range(count)))
    async with worker_process(server_url, queue, concurrency=20) as process:
        await process.line("done 50")
        process.process.send_signal(signal.SIGTERM)
        assert await process.end() == 0
    first = [line for line in process.output if line.startswith("done")]
    assert 0 < len(first) < count
    done = [int(line.split()[1]) for line in first]
    left = await left_over(server_url, queue)
    assert {attempt for _, attempt in left} == {1}  # What came back came back uncounted.
    assert sorted(done + [number for number, _ in left]) == list(range(count))


async def test_what_does_not_finish_in_the_grace_period_goes_back_and_the_process_ends_in_time(
    server_url: str, queue: str
) -> None:
    worker = make(server_url, queue)
    await worker.tasks["nap"].push(1, 3600)
    await worker.tasks["doze"].push(2, 3600)
    grace = 1.5
    async with worker_process(server_url, queue, grace=grace) as process:
        await process.line("start")
        await process.line("start")
        began = time.monotonic()
        process.process.send_signal(signal.SIGTERM)
        assert (await process.line("ended")).split() == ["ended", "0", "2", "1"]  # A thread is left.
        assert await process.end() == 0
        assert time.monotonic() - began < grace + WAIT_SECONDS
    await worker.close()
    assert await left_over(server_url, queue) == [(1, 1), (2, 1)]


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
async def test_a_second_signal_waits_for_no_one(server_url: str, queue: str, loop: str) -> None:
    worker = make(server_url, queue)
    await worker.tasks["nap"].push(1, 3600)
    async with worker_process(server_url, queue, grace=600, loop=loop) as process:
        await process.line("start 1")
        process.process.send_signal(signal.SIGINT)
        process.process.send_signal(signal.SIGTERM)
        assert (await process.line("ended")).split() == ["ended", "0", "1", "0"]
        assert await process.end() == 0
    await worker.close()


async def test_a_handler_that_blocks_its_loop_for_three_leases_keeps_its_tasks(server_url: str, queue: str) -> None:
    worker = make(server_url, queue)
    seen: list[int] = []
    # Not shorter: the line shares Python with the handler that blocks, on machines that are busy already.
    lease = 2
    other = Worker(server_url, queue=queue, lease=lease)

    @other.task
    async def block(number: int, seconds: float) -> None:  # noqa: ARG001  # Of the same shape as there.
        seen.append(number)

    other.task("nap")(block.function)
    async with worker_process(server_url, queue, lease=lease, concurrency=2) as process:
        await worker.tasks["block"].push(1, 3.2 * lease)
        await process.line("start 1")
        # Comes while the loop is blocked: it is leased, and kept too, before its handler can start.
        await until_it_waits(server_url, queue)
        await worker.tasks["nap"].push(2, 0)
        await worker.close()
        async with running(other) as found:
            await process.line("done 1")
            await process.line("done 2")
            process.process.send_signal(signal.SIGTERM)
            assert (await process.line("ended")).split() == ["ended", "2", "0", "0"]
        assert found.events == []
    assert seen == []
    assert Counter(process.output)["start 1"] == 1


async def test_a_handler_that_blocks_its_loop_for_ever_does_not_keep_the_process_from_ending(
    server_url: str, queue: str
) -> None:
    worker = make(server_url, queue)
    async with worker_process(server_url, queue, concurrency=2, grace=1) as process:
        await worker.tasks["block"].push(1, 3600)
        await process.line("start 1")
        await until_it_waits(server_url, queue)
        await worker.tasks["nap"].push(2, 0)  # It is taken, and can't begin.
        await until_no_consumer_waits(server_url, queue)
        began = time.monotonic()
        process.process.send_signal(signal.SIGTERM)
        assert await process.end() == 1
        assert time.monotonic() - began < 1 + WAIT_SECONDS
    await worker.close()
    assert await left_over(server_url, queue) == [(1, 1), (2, 1)]  # At once, and uncounted.


async def test_a_blocked_loop_does_not_keep_a_signal_from_stopping_the_pulls(server_url: str, queue: str) -> None:
    worker = make(server_url, queue)
    seen: list[int] = []
    other = Worker(server_url, queue=queue)

    @other.task
    async def nap(number: int, seconds: float) -> None:  # noqa: ARG001  # Of the same shape as there.
        seen.append(number)

    async with worker_process(server_url, queue, concurrency=2) as process:
        await worker.tasks["block"].push(1, 2)
        await process.line("start 1")
        await until_it_waits(server_url, queue)
        process.process.send_signal(signal.SIGTERM)
        await until_no_consumer_waits(server_url, queue)  # The line has given up its poll; the loop is still blocked.
        async with running(other) as found:
            await worker.tasks["nap"].push(2, 0)
            await found.ended(1)
        assert (await process.line("ended")).split() == ["ended", "1", "0", "0"]
    await worker.close()
    assert seen == [2]
