"""Results of tasks: stored with the settlement, waited for without polling; progress; cancellation."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from hark.errors import InvalidInput
from hark.worker import Discard, ResultMissing, RetryPolicy, TaskCancelled, TaskFailed, Worker, current
from tests.worker.workers import SECONDS, running


async def test_a_result_has_the_type_of_the_function(worker: Worker) -> None:
    @worker.task(result=True)
    async def divide(a: int, b: int) -> tuple[int, int]:
        return divmod(a, b)

    @worker.task(result_ttl=60)
    def shout(text: str) -> dict[str, str]:
        return {"text": text.upper()}

    async with running(worker):
        division, shouted = await divide.push(7, 2), await shout.push("hi")
        assert await division.result(timeout=SECONDS) == (3, 1)
        assert await shouted.result(timeout=SECONDS) == {"text": "HI"}
        assert (await division.state()).state == "done"


async def test_a_failed_task_raises_with_the_traceback_of_the_worker(worker: Worker) -> None:
    @worker.task(result=True, retry=RetryPolicy.never())
    async def explode() -> int:
        raise ValueError("no fuel")

    async with running(worker):
        handle = await explode.push()
        with pytest.raises(TaskFailed, match="ValueError: no fuel") as failed:
            await handle.result(timeout=SECONDS)
    assert 'raise ValueError("no fuel")' in failed.value.traceback
    assert (await handle.state()).state == "failed"


async def test_a_task_without_results_says_what_to_add(worker: Worker) -> None:
    @worker.task
    async def plain() -> int:
        return 1

    handle = await plain.push()
    with pytest.raises(InvalidInput, match=r"stores no results; declare it with @worker.task\('plain', result=True\)"):
        await handle.result()


async def test_a_wait_ends_in_time_and_says_how_the_task_is(worker: Worker) -> None:
    @worker.task(result=True)
    async def never() -> None: ...

    handle = await never.push()
    with pytest.raises(TimeoutError, match="has not ended: it is pending"):
        await handle.result(timeout=0)


async def test_a_result_that_cannot_be_stored_is_a_dead_letter(worker: Worker) -> None:
    @worker.task(result=True)
    async def wrong() -> object:
        return object()

    @worker.task(result=True)
    async def large() -> str:
        return "x" * 1_000_000

    @worker.task(result=True)
    async def many() -> list[int]:
        return list(range(100_000))

    async with running(worker):
        unknown, long, list_of_many = await wrong.push(), await large.push(), await many.push()
        with pytest.raises(TaskFailed, match="cannot be encoded as JSON"):
            await unknown.result(timeout=SECONDS)
        with pytest.raises(TaskFailed, match="at most 900000 are allowed"):
            await long.result(timeout=SECONDS)
        assert await list_of_many.result(timeout=SECONDS) == list(range(100_000))


async def test_a_discarded_task_has_no_result(worker: Worker) -> None:
    @worker.task(result=True)
    async def drop() -> int:
        raise Discard("not needed")

    async with running(worker):
        with pytest.raises(TaskCancelled):
            await (await drop.push()).result(timeout=SECONDS)


async def test_progress_is_shown_while_the_task_runs(worker: Worker) -> None:
    reported, go_on = asyncio.Event(), threading.Event()

    @worker.task(result=True)
    async def resize() -> str:
        current().progress(0.4, "resizing")
        reported.set()
        await asyncio.to_thread(go_on.wait, SECONDS)
        return "resized"

    async with running(worker):
        handle = await resize.push()
        await asyncio.wait_for(reported.wait(), SECONDS)
        state = await handle.state()
        async with asyncio.timeout(SECONDS):
            while state.progress is None:  # Another process stores it, which tells no event.
                state = await handle.state()
        assert (state.state, state.progress, state.note) == ("running", 0.4, "resizing")
        go_on.set()
        assert await handle.result(timeout=SECONDS) == "resized"


@pytest.mark.parametrize(
    ("progress", "note", "text"),
    [
        (2, None, "progress: expected a number from 0 to 1, got 2"),
        ("half", None, "progress: expected a number from 0 to 1, got 'half'"),
        (0.5, 7, "note: expected a text, got 7"),
    ],
)
async def test_wrong_progress_is_named(worker: Worker, progress: Any, note: Any, text: str) -> None:
    @worker.task(result=True)
    async def resize() -> str:
        try:
            current().progress(progress, note)
        except InvalidInput as error:
            return str(error)
        return "accepted"

    async with running(worker):
        assert text in await (await resize.push()).result(timeout=SECONDS)


async def test_a_pending_task_is_removed(worker: Worker) -> None:
    @worker.task(result=True)
    async def later() -> None: ...

    handle = await later.push(delay=3600)
    assert await handle.cancel()
    with pytest.raises(TaskCancelled):
        await handle.result(timeout=SECONDS)
    assert not await handle.cancel()


async def test_a_running_task_is_cancelled_with_the_next_renewal(worker: Worker) -> None:
    began, cancelled = asyncio.Event(), asyncio.Event()

    @worker.task(result=True)
    async def long() -> None:
        began.set()
        try:
            await asyncio.sleep(SECONDS)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    seen = threading.Event()

    @worker.task(result=True)
    def thread() -> str:
        while not current().cancelled:
            seen.wait(0.01)
        return "stopped early"

    async with running(worker) as run:
        handle, other = await long.push(), await thread.push()
        await asyncio.wait_for(began.wait(), SECONDS)
        assert await handle.cancel()
        assert await other.cancel()
        with pytest.raises(TaskCancelled):
            await handle.result(timeout=SECONDS)
        assert cancelled.is_set()
        assert await other.result(timeout=SECONDS) == "stopped early"
        assert sorted(event.ending for event in await run.ended(2)) == ["discarded", "done"]
        assert not await handle.cancel()


async def test_an_expired_result_is_named(worker: Worker) -> None:
    @worker.task(result_ttl=1)
    async def brief() -> int:
        return 1

    async with running(worker):
        handle = await brief.push()
        assert await handle.result(timeout=SECONDS) == 1
        async with asyncio.timeout(SECONDS):
            while True:
                try:
                    await handle.result(timeout=SECONDS)
                except ResultMissing:
                    return
                await asyncio.sleep(0.1)
