"""Tasks pushed: what is sent, what is refused, and what is sent only once."""

from __future__ import annotations

import asyncio

import pytest

from hark.errors import HarkError, InvalidInput
from hark.worker import RetryPolicy, Worker, WrongArguments
from tests.worker.workers import ask, burst


def print_nothing() -> None:
    """A task."""


async def test_a_task_called_is_the_function_itself(server_url: str, queue: str) -> None:
    worker = Worker(server_url, queue=queue)

    @worker.task
    async def double(value: int) -> int:
        return 2 * value

    @worker.task
    def triple(value: int) -> int:
        return 3 * value

    assert await double(2) == 4
    assert triple(2) == 6
    assert sorted(worker.tasks) == ["double", "triple"]


async def test_wrong_arguments_send_nothing(server_url: str, queue: str) -> None:
    async with Worker(server_url, queue=queue) as worker:

        @worker.task
        async def greet(name: str) -> None: ...

        with pytest.raises(WrongArguments, match="'name'"):
            await greet.push(name=5)  # type: ignore[call-overload]  # That is the point.
        with pytest.raises(WrongArguments, match="'nome'"):
            await greet.push(delay=1, nome="x")
        assert (await burst(worker)).totals.done == 0
        # Not even the queue was made.
        assert queue not in [one["name"] for one in (await ask(server_url, "resources/queues"))["queues"]]


async def test_two_tasks_of_one_name_are_refused(server_url: str, queue: str) -> None:
    worker = Worker(server_url, queue=queue)
    worker.task("same")(print_nothing)
    with pytest.raises(InvalidInput, match="'same' already"):
        worker.task("same")(print_nothing)


async def test_a_push_can_have_a_policy_of_its_own(server_url: str, queue: str) -> None:
    worker = Worker(server_url, queue=queue)

    @worker.task(retry=RetryPolicy.schedule([3600]))
    async def explode() -> None:
        raise ValueError

    await explode.options(retry=RetryPolicy.schedule([0])).push()
    summary = await burst(worker)
    assert (summary.totals.failed, summary.totals.dead) == (2, 1)


async def test_a_delayed_task_waits_on_the_server(server_url: str, queue: str) -> None:
    worker = Worker(server_url, queue=queue)
    worker.task("later")(print_nothing)
    await worker.tasks["later"].push(delay=3600)
    await worker.tasks["later"].options(delay=3600).push()
    assert (await burst(worker)).totals.done == 0


async def test_unique_tasks_are_pushed_once_while_they_are_kept(server_url: str, queue: str) -> None:
    worker = Worker(server_url, queue=queue)

    @worker.task(unique=True)
    async def greet(name: str, times: int = 1) -> None: ...

    @worker.task(unique=("name",))
    async def invite(name: str, day: int) -> None: ...

    assert (await greet.push("Ada")).status == "queued"
    assert (await greet.push(name="Ada", times=1)).status == "duplicate"
    assert (await greet.push("Ada", times=2)).status == "queued"
    assert (await invite.push("Ada", 1)).status == "queued"
    assert (await invite.push("Ada", 2)).status == "duplicate"
    assert (await burst(worker)).totals.done == 3
    # Done, but kept: it still counts.
    assert (await greet.push("Ada")).status == "duplicate"
    await worker.close()


async def test_a_unique_task_without_arguments_is_pushed_once(server_url: str, queue: str) -> None:
    async with Worker(server_url, queue=queue) as worker:
        clean_up = worker.task("clean_up", unique=True)(print_nothing)
        assert [(await clean_up.push()).status for _ in range(2)] == ["queued", "duplicate"]


async def test_a_unique_task_whose_default_has_no_place_in_json_is_refused(queue: str) -> None:
    with pytest.raises(InvalidInput, match="task 'greet': unique by 'name', whose default can't be written as JSON"):

        @Worker(queue=queue).task(unique=True)
        async def greet(name: object = object()) -> None: ...


async def test_unique_by_an_argument_that_there_is_not_is_refused(queue: str) -> None:
    with pytest.raises(InvalidInput, match="unique names 'nome', expected one of name"):

        @Worker(queue=queue).task(unique=("nome",))
        async def greet(name: str) -> None: ...


async def test_priority_goes_first(server_url: str, queue: str) -> None:
    worker = Worker(server_url, queue=queue, concurrency=1)
    seen: list[str] = []

    @worker.task
    async def low(name: str) -> None:
        seen.append(name)

    @worker.task(priority=5)
    async def high(name: str) -> None:
        seen.append(name)

    await low.push("low")
    await high.push("high")
    await low.options(priority=9).push("highest")
    await burst(worker)
    assert seen == ["highest", "high", "low"]


async def test_a_function_in_a_thread_can_push(server_url: str, queue: str) -> None:
    worker = Worker(server_url, queue=queue)
    seen: list[int] = []

    @worker.task
    def count(left: int) -> None:
        seen.append(left)
        if left:
            count.options(priority=1).push_sync(left - 1)

    await asyncio.to_thread(count.push_sync, 2)  # No worker runs yet: a connection of its own.
    await burst(worker)
    assert seen == [2, 1, 0]
    with pytest.raises(HarkError, match=r"await task\.push"):
        count.push_sync(1)
