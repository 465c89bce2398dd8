"""Tasks run: what a handler does becomes what the server has, whatever a stop or a time limit makes of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from hark.api.types.delivery import Delivered
from hark.worker import Discard, Retry, RetryPolicy, Worker, current, executor
from hark.worker.executor import Executor, UnknownTask, UnknownTasks
from hark.worker.retrying import Ended, InFlight
from tests.worker.workers import SECONDS, ask, burst, dead_letters, push_raw, running, wire_message

AT_ONCE = RetryPolicy.schedule([0, 0])


def print_nothing() -> None:
    """A task."""


async def test_a_pushed_task_runs_with_its_arguments(worker: Worker) -> None:
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


async def test_functions_that_are_not_async_run_side_by_side_in_threads_with_their_context(
    server_url: str, queue: str
) -> None:
    worker = Worker(server_url, queue=queue, concurrency=3)
    together = threading.Barrier(3, timeout=10)
    seen: list[tuple[str, int, bool]] = []

    @worker.task
    def meet(value: int) -> None:
        together.wait()
        seen.append((current().task, value, threading.current_thread() is threading.main_thread()))

    await asyncio.gather(*(meet.push(number) for number in range(3)))
    assert (await burst(worker)).totals.done == 3
    assert sorted(seen) == [("meet", number, False) for number in range(3)]


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


NEVER = RetryPolicy.never()
IN_AN_HOUR = RetryPolicy.schedule([3600])
BUSY = Retry(after=0, reason="the line is busy")

RAISED: dict[str, tuple[RetryPolicy, list[BaseException | None], list[int], dict[str, int], str]] = {
    # What it raises, the attempts that it is run as, what is counted, and how the text of its dead letter begins.
    "an error": (AT_ONCE, [ValueError("no")], [1, 2, 3], {"failed": 3, "retried": 2, "dead": 1}, "ValueError: no\n"),
    "an error that is never retried": (NEVER, [ValueError("no")], [1], {"failed": 1, "dead": 1}, "ValueError: no\n"),
    "an error that is retried in an hour": (IN_AN_HOUR, [ValueError("no")], [1], {"failed": 1, "retried": 1}, ""),
    "an error, once": (AT_ONCE, [ValueError("no"), None], [1, 2], {"failed": 1, "retried": 1, "done": 1}, ""),
    "a retry at once": (IN_AN_HOUR, [BUSY], [1, 2], {"retried": 1, "dead": 1}, "Retry: the line is busy"),
    "a retry that is not counted": (
        NEVER, [Retry(after=0, counted=False)] * 3 + [None], [1, 1, 1, 1], {"retried": 3, "done": 1}, "",
    ),
    "a discard": (AT_ONCE, [Discard("the user is gone")], [1], {"discarded": 1}, ""),
    "a timeout of its own": (NEVER, [TimeoutError("late")], [1], {"failed": 1, "dead": 1}, "TimeoutError: late"),
    "its own cancellation": (NEVER, [asyncio.CancelledError()], [1], {"handed_back": 1}, ""),
    "an exit": (NEVER, [SystemExit(3)], [1], {"failed": 1, "dead": 1}, "SystemExit: 3"),
}  # fmt: skip


@pytest.mark.parametrize("in_thread", [False, True], ids=["async", "thread"])
@pytest.mark.parametrize("case", RAISED)
async def test_what_a_handler_raises_decides_what_becomes_of_its_task(
    server_url: str, queue: str, worker: Worker, case: str, in_thread: bool
) -> None:
    policy, raised, attempts, counted, text = RAISED[case]
    seen: list[int] = []

    def work() -> None:
        seen.append(current().attempt)
        error = raised[min(len(seen), len(raised)) - 1]
        if error is not None:
            raise error

    async def work_here() -> None:
        work()

    task = worker.task("work", retry=policy, timeout=30)(work if in_thread else work_here)
    await task.push()
    totals = (await burst(worker)).totals
    assert seen == attempts
    names = ("done", "discarded", "retried", "failed", "dead", "handed_back", "lost")
    assert {name: getattr(totals, name) for name in names if getattr(totals, name)} == counted
    letters = await dead_letters(server_url, queue)
    assert len(letters) == counted.get("dead", 0)
    for letter in letters:
        assert letter["errorMessage"].startswith(text)
        assert "Traceback (most recent call last):" in letter["errorMessage"]
        assert "in work" in letter["errorMessage"]
        assert letter["data"] == {"task": "work", "arguments": {}}


NO_TASKS: list[tuple[object, str]] = [
    ({"task": "greet", "arguments": {"name": 5}}, "argument 'name': expected `str`, got `int`"),
    ({"task": "greet"}, "argument 'name' is missing"),
    ({"task": "greet", "arguments": {"name": "a", "x": 1}}, "unknown argument 'x'"),
    ({"hello": "world"}, "the payload is not a task"),
    ([1, 2], "the payload is not a task"),
    (None, "the payload is not a task"),
]


async def test_what_can_never_run_is_a_dead_letter_at_once(server_url: str, queue: str, worker: Worker) -> None:

    @worker.task
    async def greet(name: str) -> None: ...

    fine = {"task": "greet", "arguments": {"name": "a"}}
    for payload, _ in NO_TASKS:
        await push_raw(server_url, queue, payload, fine)
    totals = (await burst(worker)).totals
    assert (totals.failed, totals.dead, totals.done) == (6, 6, 6), "their neighbours are not disturbed"
    letters = {str(letter["data"]): letter["errorMessage"] for letter in await dead_letters(server_url, queue)}
    assert [text in letters[str(payload)] for payload, text in NO_TASKS] == [True] * 6


async def test_what_this_worker_can_not_run_fails_alone_and_says_why(
    server_url: str, queue: str, worker: Worker
) -> None:

    @worker.task
    async def greet(person: Person) -> None: ...

    worker.task("second")(print_nothing)
    arguments: list[Any] = [{"person": {"name": ""}}, {"person": {"name": "Ada"}}]
    payloads = [{"task": "greet", "arguments": one} for one in arguments]
    await push_raw(server_url, queue, *payloads, backoffSchedule=[])
    totals = (await burst(worker)).totals
    assert (totals.done, totals.failed, totals.dead) == (1, 1, 1)
    [unreadable] = [letter["errorMessage"] for letter in await dead_letters(server_url, queue)]
    assert unreadable.startswith("LookupError: nobody")


def unknown_task(task: str = "third", id: str = "m") -> tuple[Delivered, UnknownTask]:
    """A message of a task that the worker does not have, and its error."""
    message = msgspec.json.decode(msgspec.json.encode(wire_message(id)), type=Delivered)
    return message, UnknownTask(task, ["greet", "second"])


def test_an_unknown_task_is_handed_back_with_a_growing_delay_and_then_dead_lettered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 0.0
    unknown = UnknownTasks(600, lambda: now)
    delays: list[int] = []
    while (decision := unknown.refuse(*unknown_task())).status == "retry":
        assert decision.delay_ms is not None
        delays.append(decision.delay_ms)
        now += decision.delay_ms / 1000
    assert (delays[:8], set(delays[8:])) == ([1000, 2000, 4000, 8000, 16000, 32000, 60000, 60000], {60000})
    assert (decision.status, 600 <= now < 661) == ("dlq", True)
    assert decision.error == (
        "UnknownTask: this worker has no task 'third' (it has: greet, second); run a worker that has it; no worker "
        "with it received the message in 600 s"
    )
    warned = [record for record in caplog.records if "has no task 'third'" in record.getMessage()]
    assert len(warned) == 10, "once a minute"
    unknown.refuse(*unknown_task("other", "n"))
    assert "has no task 'other'" in caplog.records[-1].getMessage()


def test_more_unknown_tasks_than_a_worker_remembers_come_seldom_and_all_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "MAX_UNKNOWN", 2)
    now = 0.0
    unknown = UnknownTasks(600, lambda: now)
    due = dict.fromkeys("abcde", 0.0)
    received = dict.fromkeys(due, 0)
    unknown.refuse(*unknown_task(id="settled by another worker"))
    while due:
        id = min(due, key=lambda one: due[one])
        now = max(now, due[id])
        assert now < 3600
        received[id] += 1
        decision = unknown.refuse(*unknown_task(id=id))
        if decision.status == "dlq":
            del due[id]
        else:
            due[id] = now + (decision.delay_ms or 0) / 1000
    assert max(received.values()) <= 60 + 6


async def test_a_task_of_another_worker_waits_for_it_without_using_an_attempt(
    server_url: str, queue: str, worker: Worker
) -> None:
    attempts: list[int] = []

    @worker.task
    async def new() -> None:
        attempts.append(current().attempt)

    await new.push()
    old = Worker(server_url, queue=queue)
    old.task("old")(print_nothing)
    assert (await burst(old)).totals.handed_back == 1
    async with running(worker) as run:
        await run.ended(1)
    assert attempts == [1]


async def test_the_time_for_unknown_tasks_is_a_setting(
    server_url: str, queue: str, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARK_WORKER_UNKNOWN_TASK_SECONDS", "0")
    await push_raw(server_url, queue, {"task": "third", "arguments": {}})
    assert (await burst(worker)).totals.dead == 1
    [letter] = await dead_letters(server_url, queue)
    assert letter["errorMessage"].startswith("UnknownTask: this worker has no task 'third'")


async def test_an_async_handler_that_takes_too_long_is_cancelled_and_fails(
    server_url: str, queue: str, worker: Worker
) -> None:
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


async def test_a_burst_also_runs_what_its_tasks_push(worker: Worker) -> None:
    seen: list[int] = []

    @worker.task
    async def count(left: int) -> None:
        seen.append(left)
        if left:
            await count.push(left - 1)

    await count.push(3)
    await burst(worker)
    assert seen == [3, 2, 1, 0]


class Person(msgspec.Struct):
    """A type with a check of its own, which raises what it should not."""

    name: str

    def __post_init__(self) -> None:
        if not self.name:
            raise LookupError("nobody")


# Where handlers run: what a stop, a time limit and a thread's end make of each other ---------------------------


class Bench:
    """A workbench with one task, and what it tells."""

    def __init__(self, function: Callable[[], Any], timeout: float | None = None) -> None:
        worker = Worker(queue="q")
        worker.task("t", timeout=timeout, retry=RetryPolicy.never())(function)
        self.reports: asyncio.Queue[Ended] = asyncio.Queue()
        self.slots = 0
        self.bench = Executor(worker.tasks, (), worker_id="w", concurrency=2, finished=self._finished)

    def start(self) -> None:
        """Receive a message of the task."""
        data = msgspec.Raw(b'{"task":"t"}')
        message = Delivered("id", "t", None, data, None, "", "p", "Default", "lease", "g", "q", 1, 0, 1)
        self.bench.receive(InFlight("lease", [message]))

    def _finished(self, ended: Sequence[Ended], slots: int) -> None:
        self.slots += slots
        for one in ended:
            self.reports.put_nowait(one)

    async def ended(self) -> Ended:
        """The next that ended."""
        async with asyncio.timeout(SECONDS):
            return await self.reports.get()


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
    bench = Bench(lambda: asyncio.sleep(3600), timeout=0.05)
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
