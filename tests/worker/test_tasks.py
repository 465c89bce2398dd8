"""Tasks run: what a handler does becomes what the server has."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import msgspec
import pytest

from hark.worker import Discard, Retry, RetryPolicy, Worker, current
from tests.worker.workers import ask, burst, dead_letters, push_raw, running

AT_ONCE = RetryPolicy.schedule([0, 0])


def print_nothing() -> None:
    """A task."""


async def test_a_pushed_task_runs_with_its_arguments(server_url: str, queue: str) -> None:
    worker = Worker(server_url, queue=queue)
    seen: list[tuple[str, int]] = []

    @worker.task("greet")
    async def greet(name: str, times: int = 1) -> None:
        seen.append((name, times))

    await greet.push("Ada", times=2)
    await greet.push(name="Bob")
    summary = await burst(worker)
    assert sorted(seen) == [("Ada", 2), ("Bob", 1)]
    assert summary.totals.done == 2
    assert summary.tasks["greet"].done == 2


async def test_a_function_that_is_not_async_runs_in_a_thread_with_the_context(server_url: str, queue: str) -> None:
    worker = Worker(server_url, queue=queue)
    seen: list[tuple[str, int, bool]] = []

    @worker.task
    def work(value: int) -> None:
        context = current()
        seen.append((context.task, value, threading.current_thread() is threading.main_thread()))

    await work.push(7)
    await burst(worker)
    assert seen == [("work", 7, False)]


@pytest.mark.parametrize("name", ["mailer", "m" * 300])
async def test_the_lease_of_a_task_names_its_worker(server_url: str, queue: str, name: str) -> None:
    worker = Worker(server_url, queue=queue, name=name)
    seen: list[tuple[str, str]] = []

    @worker.task
    async def look() -> None:
        [lease] = (await ask(server_url, "leases", queue=queue))["leases"]
        seen.append((lease["consumer"], current().worker_id))

    await look.push()
    await burst(worker)
    [(consumer, worker_id)] = seen
    assert consumer == worker_id[-255:]


async def test_functions_in_threads_run_side_by_side(server_url: str, queue: str) -> None:
    worker = Worker(server_url, queue=queue, concurrency=3)
    together = threading.Barrier(3, timeout=10)

    @worker.task
    def meet() -> None:
        together.wait()

    await asyncio.gather(*(meet.push() for _ in range(3)))
    assert (await burst(worker)).totals.done == 3


async def test_a_failure_is_tried_again_and_ends_in_the_dead_letters_with_its_traceback(
    server_url: str, queue: str
) -> None:
    worker = Worker(server_url, queue=queue)
    attempts: list[int] = []

    @worker.task(retry=AT_ONCE)
    async def explode(what: str) -> None:
        attempts.append(current().attempt)
        raise ValueError(f"no {what}")

    await explode.push("fuel")
    summary = await burst(worker)
    assert attempts == [1, 2, 3]
    assert (summary.totals.failed, summary.totals.retried, summary.totals.dead) == (3, 2, 1)
    (letter,) = await dead_letters(server_url, queue)
    assert letter["errorMessage"].startswith("ValueError: no fuel\nTraceback (most recent call last):")
    assert "in explode" in letter["errorMessage"]
    assert letter["data"] == {"task": "explode", "arguments": {"what": "fuel"}}


async def test_never_retry_means_one_attempt(server_url: str, queue: str) -> None:
    worker = Worker(server_url, queue=queue)

    @worker.task(retry=RetryPolicy.never())
    async def explode() -> None:
        raise ValueError

    await explode.push()
    summary = await burst(worker)
    assert (summary.totals.failed, summary.totals.dead) == (1, 1)


async def test_the_delay_of_a_retry_is_the_policys(server_url: str, queue: str) -> None:
    worker = Worker(server_url, queue=queue)

    @worker.task(retry=RetryPolicy.schedule([3600]))
    async def explode() -> None:
        raise ValueError

    await explode.push()
    # The burst ends after the first attempt: the second is not due for an hour.
    summary = await burst(worker)
    assert (summary.totals.failed, summary.totals.retried) == (1, 1)


async def test_retry_after_comes_again_and_uses_an_attempt(server_url: str, queue: str) -> None:
    worker = Worker(server_url, queue=queue)
    attempts: list[int] = []

    @worker.task(retry=RetryPolicy.schedule([3600]))
    async def later() -> None:
        attempts.append(current().attempt)
        raise Retry(after=0, reason="the line is busy")

    await later.push()
    summary = await burst(worker)
    assert attempts == [1, 2]
    assert (summary.totals.retried, summary.totals.dead, summary.totals.failed) == (1, 1, 0)
    (letter,) = await dead_letters(server_url, queue)
    assert letter["errorMessage"].startswith("Retry: the line is busy")


async def test_an_uncounted_retry_uses_no_attempt(server_url: str, queue: str) -> None:
    worker = Worker(server_url, queue=queue)
    attempts: list[int] = []

    @worker.task(retry=RetryPolicy.never())
    async def later() -> None:
        attempts.append(current().attempt)
        if len(attempts) < 4:
            raise Retry(after=0, counted=False)

    await later.push()
    summary = await burst(worker)
    assert attempts == [1, 1, 1, 1]
    assert (summary.totals.done, summary.totals.retried) == (1, 3)


async def test_discard_is_done_for_good(server_url: str, queue: str) -> None:
    worker = Worker(server_url, queue=queue)

    @worker.task
    async def obsolete() -> None:
        raise Discard("the user is gone")

    await obsolete.push()
    summary = await burst(worker)
    assert (summary.totals.discarded, summary.totals.done, summary.totals.failed) == (1, 0, 0)
    assert await dead_letters(server_url, queue) == []
    assert (await burst(worker)).totals.discarded == 0


async def test_an_unknown_task_fails_and_says_which_there_are(server_url: str, queue: str) -> None:
    worker = Worker(server_url, queue=queue)
    worker.task("first")(print_nothing)
    worker.task("second")(print_nothing)
    await push_raw(server_url, queue, {"task": "third", "arguments": {}}, backoffSchedule=[])
    assert (await burst(worker)).totals.failed == 1
    (letter,) = await dead_letters(server_url, queue)
    assert letter["errorMessage"] == "UnknownTask: this worker has no task 'third'; it has: first, second"


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        ({"task": "greet", "arguments": {"name": 5}}, "argument 'name': expected `str`, got `int`"),
        ({"task": "greet"}, "argument 'name' is missing"),
        ({"task": "greet", "arguments": {"name": "a", "x": 1}}, "there is no argument 'x'"),
        ({"hello": "world"}, "this message is no task"),
        ([1, 2], "this message is no task"),
        (None, "this message is no task"),
    ],
    ids=["type", "missing", "unknown", "other-object", "list", "null"],
)
async def test_what_can_never_run_is_a_dead_letter_at_once(
    server_url: str, queue: str, payload: object, text: str
) -> None:
    worker = Worker(server_url, queue=queue)

    @worker.task
    async def greet(name: str) -> None: ...

    await push_raw(server_url, queue, payload)
    summary = await burst(worker)
    assert (summary.totals.failed, summary.totals.dead, summary.totals.done) == (1, 1, 0)
    (letter,) = await dead_letters(server_url, queue)
    assert text in letter["errorMessage"]


async def test_a_message_that_fits_no_task_does_not_disturb_its_neighbours(server_url: str, queue: str) -> None:
    worker = Worker(server_url, queue=queue)

    @worker.task
    async def greet(name: str) -> None: ...

    payloads: list[Any] = [{"task": "greet", "arguments": {"name": "a"}}, "?", {"task": "x"}] * 3
    await push_raw(server_url, queue, *payloads, backoffSchedule=[])
    summary = await burst(worker)
    assert (summary.totals.done, summary.totals.dead) == (3, 6)


async def test_an_async_handler_that_takes_too_long_is_cancelled_and_fails(server_url: str, queue: str) -> None:
    worker = Worker(server_url, queue=queue)
    cancelled = asyncio.Event()

    @worker.task(timeout=0.05, retry=RetryPolicy.never())
    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    await slow.push()
    summary = await burst(worker)
    assert cancelled.is_set()
    assert summary.totals.dead == 1
    (letter,) = await dead_letters(server_url, queue)
    assert letter["errorMessage"].startswith("timed out after 0.05 s")
    assert "in slow" in letter["errorMessage"]  # Where it was.


async def test_a_timeout_of_the_handlers_own_is_an_error_like_any_other(server_url: str, queue: str) -> None:
    worker = Worker(server_url, queue=queue)

    @worker.task(timeout=30, retry=RetryPolicy.never())
    async def slow() -> None:
        raise TimeoutError("the bank did not answer")

    await slow.push()
    await burst(worker)
    (letter,) = await dead_letters(server_url, queue)
    assert letter["errorMessage"].startswith("TimeoutError: the bank did not answer")


async def test_a_function_in_a_thread_that_takes_too_long_fails_at_once_and_keeps_its_slot(
    server_url: str, queue: str
) -> None:
    worker = Worker(server_url, queue=queue, concurrency=1)
    release = threading.Event()
    saw_the_end: list[bool] = []

    @worker.task(timeout=0.05, retry=RetryPolicy.never())
    def slow() -> None:
        release.wait(20)
        saw_the_end.append(current().is_lost)

    @worker.task
    async def after() -> None:
        assert release.is_set()

    await slow.push()
    async with running(worker) as found:
        (event,) = await found.ended(1)
        assert (event.task, event.ending, event.dead) == ("slow", "failed", True)
        await after.push()
        release.set()
        await found.ended(2)
    assert found.summary is not None
    assert found.summary.totals.done == 1
    assert saw_the_end == [True]


async def test_a_handler_that_cancels_itself_hands_its_task_back(server_url: str, queue: str) -> None:
    worker = Worker(server_url, queue=queue)

    @worker.task(retry=RetryPolicy.never())
    async def cancel() -> None:
        raise asyncio.CancelledError

    await cancel.push()
    summary = await burst(worker)
    assert (summary.totals.handed_back, summary.totals.dead) == (1, 0)


async def test_a_handler_that_calls_exit_fails_and_the_worker_goes_on(server_url: str, queue: str) -> None:
    worker = Worker(server_url, queue=queue)

    @worker.task(retry=RetryPolicy.never())
    def leave() -> None:
        raise SystemExit(3)

    @worker.task(retry=RetryPolicy.never())
    async def leave_too() -> None:
        raise SystemExit(3)

    await leave.push()
    await leave_too.push()
    assert (await burst(worker)).totals.dead == 2


async def test_a_burst_also_runs_what_its_tasks_push(server_url: str, queue: str) -> None:
    worker = Worker(server_url, queue=queue)
    seen: list[int] = []

    @worker.task
    async def count(left: int) -> None:
        seen.append(left)
        if left:
            await count.push(left - 1)

    await count.push(3)
    await burst(worker)
    assert seen == [3, 2, 1, 0]


async def test_a_type_that_fails_to_be_read_fails_its_task_alone(server_url: str, queue: str) -> None:
    worker = Worker(server_url, queue=queue)

    @worker.task
    async def greet(person: Person) -> None: ...

    await push_raw(
        server_url,
        queue,
        {"task": "greet", "arguments": {"person": {"name": ""}}},
        {"task": "greet", "arguments": {"person": {"name": "Ada"}}},
        backoffSchedule=[],
    )
    summary = await burst(worker)
    assert (summary.totals.done, summary.totals.dead) == (1, 1)
    (letter,) = await dead_letters(server_url, queue)
    assert letter["errorMessage"].startswith("LookupError: nobody")


class Person(msgspec.Struct):
    """A type with a check of its own, which raises what it should not."""

    name: str

    def __post_init__(self) -> None:
        if not self.name:
            raise LookupError("nobody")
