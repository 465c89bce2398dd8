"""Middleware: around every handler, and before every push."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from hark.errors import InvalidInput
from hark.worker import LoggingContext, Middleware, Outgoing, RetryPolicy, TaskContext, Worker, current
from hark.worker.middleware import CallNext, add_task_fields, current_or_none
from tests.worker.workers import burst, dead_letters


class Noting(Middleware):
    """Notes what it sees."""

    def __init__(self, name: str, seen: list[str]) -> None:
        self.name, self.seen = name, seen

    async def __call__(self, context: TaskContext, call_next: CallNext) -> Any:
        """Around."""
        self.seen.append(f"{self.name} before {context.task} {dict(context.arguments)}")
        result = await call_next()
        self.seen.append(f"{self.name} after {result}")
        return result


@pytest.mark.parametrize("in_thread", [False, True], ids=["async", "thread"])
async def test_the_first_middleware_is_the_outermost_and_sees_arguments_and_result(
    server_url: str, queue: str, in_thread: bool
) -> None:
    seen: list[str] = []
    worker = Worker(server_url, queue=queue, middleware=[Noting("a", seen), Noting("b", seen)])

    def double(value: int) -> int:
        seen.append("work")
        return 2 * value

    async def double_here(value: int) -> int:
        return double(value)

    await worker.task("work")(double if in_thread else double_here).push(4)
    await burst(worker)
    around = ["a before work {'value': 4}", "b before work {'value': 4}", "work", "b after 8", "a after 8"]
    assert seen == around


async def test_middleware_that_raises_fails_the_task(server_url: str, queue: str) -> None:
    async def refuse(context: TaskContext, call_next: CallNext) -> Any:  # noqa: ARG001  # It has to take them.
        raise PermissionError("not today")

    worker = Worker(server_url, queue=queue, middleware=[refuse])

    @worker.task(retry=RetryPolicy.never())
    async def work() -> None:
        raise AssertionError("must not run")

    await work.push()
    await burst(worker)
    (letter,) = await dead_letters(server_url, queue)
    assert letter["errorMessage"].startswith("PermissionError: not today")


class Heading(Middleware):
    """Adds a header to what is pushed."""

    def __init__(self, make: Callable[[Outgoing], Any]) -> None:
        self.make = make

    async def on_push(self, outgoing: Outgoing) -> None:
        """Add it."""
        outgoing.headers["header"] = self.make(outgoing)


async def test_headers_that_middleware_sets_at_push_arrive_with_the_task(server_url: str, queue: str) -> None:
    headers: list[object] = []
    heading = Heading(lambda outgoing: f"{outgoing.task}:{outgoing.arguments['value']}:{outgoing.delay}")
    worker = Worker(server_url, queue=queue, middleware=[heading])

    @worker.task
    async def work(value: int) -> None:
        headers.append((value, dict(current().headers)))

    await work.push(1)
    await work.options(delay=0).push(2)
    await burst(worker)
    assert sorted(headers, key=str) == [(1, {"header": "work:1:None"}), (2, {"header": "work:2:0.0"})]
    heading.make = lambda _: 5
    with pytest.raises(InvalidInput, match="header 'header' of task 'work': expected a string, got 5"):
        await work.push(3)


def parent(_outgoing: Outgoing) -> str:
    """The task that pushes."""
    found = current_or_none()
    return "nobody" if found is None else found.task


async def test_middleware_sees_which_task_pushes_from_a_loop_and_from_a_thread(server_url: str, queue: str) -> None:
    worker = Worker(server_url, queue=queue, middleware=[Heading(parent)])
    parents: list[str] = []

    @worker.task
    async def child() -> None:
        parents.append(current().headers["header"])

    @worker.task
    async def in_loop() -> None:
        await child.push()

    @worker.task
    def in_thread() -> None:
        child.push_sync()

    for task in (child, in_loop, in_thread):
        await task.push()
    await burst(worker)
    assert sorted(parents) == ["in_loop", "in_thread", "nobody"]


async def test_the_current_task_is_known_inside_of_it_only(queue: str, worker: Worker) -> None:
    seen: list[TaskContext] = []

    @worker.task
    async def work(value: int) -> None:  # noqa: ARG001  # The context has it.
        seen.append(current())

    pushed = await work.push(3)
    summary = await burst(worker)
    (context,) = seen
    assert (context.task, context.message_id, context.attempt) == ("work", pushed.id, 1)
    assert (context.arguments, context.queue, context.worker_id) == ({"value": 3}, queue, summary.worker_id)
    assert not context.is_lost
    with pytest.raises(LookupError, match="no task is running here"):
        current()


async def test_log_records_of_a_task_say_which_it_is(
    server_url: str, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger(f"test.{queue}")
    logger.setLevel(logging.DEBUG)
    worker = Worker(server_url, queue=queue, middleware=[LoggingContext(caplog.handler, logger=logger)])

    @worker.task
    def work() -> None:
        logger.info("in a thread")

    pushed = await work.push()
    await burst(worker)
    logger.info("outside")
    caplog.handler.removeFilter(add_task_fields)
    logged = [record for record in caplog.records if record.name == logger.name]
    assert [(r.getMessage(), *(r.__dict__[field] for field in ("task", "message_id", "attempt"))) for r in logged] == [
        ("task started", "work", pushed.id, 1),
        ("in a thread", "work", pushed.id, 1),
        ("task completed", "work", pushed.id, 1),
        ("outside", None, None, None),
    ]
