"""Where handlers run: what a stop, a time limit and a thread's end make of each other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from hark.client.delivery.sources import Delivered
from hark.worker import RetryPolicy, Worker
from hark.worker.held import Ended, Held
from hark.worker.running import Workbench
from tests.worker.workers import SECONDS


class Bench:
    """A workbench with one task, and what it tells."""

    def __init__(self, function: Callable[[], Any], timeout: float | None = None) -> None:
        worker = Worker(queue="q")
        worker.task("t", timeout=timeout, retry=RetryPolicy.never())(function)
        self.told: asyncio.Queue[Ended] = asyncio.Queue()
        self.slots = 0
        self.bench = Workbench(worker.tasks, (), worker_id="w", concurrency=2, finished=self._finished)

    def start(self) -> None:
        """Receive a message of the task."""
        data = msgspec.Raw(b'{"task":"t"}')
        message = Delivered("id", "t", None, data, None, "", "p", "Default", "lease", "g", "q", 1, 0, 1)
        self.bench.receive(Held("lease", [message]))

    def _finished(self, ended: Sequence[Ended], slots: int) -> None:
        self.slots += slots
        for one in ended:
            self.told.put_nowait(one)

    async def ended(self) -> Ended:
        """The next that ended."""
        async with asyncio.timeout(SECONDS):
            return await self.told.get()


async def test_a_function_that_has_ended_is_done_although_the_worker_stops_at_that_moment() -> None:
    bench = Bench(lambda: None)
    bench.start()
    (job,) = bench.bench._jobs
    async with asyncio.timeout(SECONDS):
        while job.thread is None or not job.thread.done():  # noqa: ASYNC110  # The very turn in which it is done.
            await asyncio.sleep(0)
    bench.bench.cancel()
    assert (await bench.ended()).ending == "done"
    assert bench.bench.close() == 0
    assert bench.slots == 1


async def test_what_a_function_returns_to_be_awaited_has_the_time_limit_too() -> None:
    def work() -> Awaitable[None]:
        return asyncio.sleep(3600)

    bench = Bench(work, timeout=0.05)
    bench.start()
    ended = await bench.ended()
    assert (ended.ending, ended.error) == ("failed", "timed out after 0.05 s")
    assert bench.bench.close() == 0
    assert bench.slots == 1


async def test_a_slot_is_free_again_once_and_not_before_its_thread_has_ended() -> None:
    release = threading.Event()
    bench = Bench(lambda: release.wait(SECONDS), timeout=0.05)
    bench.start()
    assert (await bench.ended()).ending == "failed"
    assert bench.slots == 0
    release.set()
    async with asyncio.timeout(SECONDS):
        while not bench.slots:  # noqa: ASYNC110  # A thread's end is no event of this loop.
            await asyncio.sleep(0.001)
    bench.bench.close()
    assert bench.slots == 1
