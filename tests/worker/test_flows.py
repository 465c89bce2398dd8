"""Flows: chains, groups, chords; what each step gets; failures, cancellation, and the state of each step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

import hark
from hark.client.client import Client
from hark.connecting import connect
from hark.errors import InvalidInput
from hark.testing import HarkServer
from hark.worker import Discard, RetryPolicy, TaskCancelled, TaskFailed, Worker, WrongArguments
from tests.worker.workers import SECONDS, burst, running


@pytest.fixture
async def client(server_url: str) -> AsyncIterator[Client]:
    """A client of the shared server."""
    async with connect(server_url) as made:
        yield made


async def test_a_chain_hands_each_result_to_the_next_step(worker: Worker) -> None:
    @worker.task
    async def start(number: int) -> int:
        return number + 1

    @worker.task
    def double(number: int, times: int = 2) -> int:
        return number * times

    @worker.task
    async def tell(number: int, *, unit: str) -> str:
        return f"{number} {unit}"

    async with running(worker):
        handle = await hark.chain(start.s(1), double.s(times=5), tell.s(unit="kg")).push()
        assert await handle.result(timeout=SECONDS) == "10 kg"
        steps = await handle.steps()
        assert [(path, step.task, step.state) for path, step in steps.items()] == [
            ("0", "start", "done"),
            ("1", "double", "done"),
            ("2", "tell", "done"),
        ]
        other = await (start.s(2) | double.s() | double.s(3)).push()
        assert await other.result(timeout=SECONDS) == 18


async def test_a_group_gives_the_list_of_its_results_in_order(worker: Worker) -> None:
    @worker.task
    async def square(number: int) -> int:
        await asyncio.sleep(0.01 * (5 - number))
        return number * number

    @worker.task
    async def total(numbers: list[int]) -> int:
        return sum(numbers)

    async with running(worker):
        plain = await hark.group(*(square.s(number) for number in range(5))).push()
        assert await plain.result(timeout=SECONDS) == [0, 1, 4, 9, 16]
        chord = await (hark.group(square.s(3), square.s(4)) | total.s()).push()
        assert await chord.result(timeout=SECONDS) == 25


async def test_groups_nest_and_members_can_be_chains(worker: Worker) -> None:
    @worker.task
    async def one() -> int:
        return 1

    @worker.task
    async def add(number: int, more: int) -> int:
        return number + more

    @worker.task
    async def total(numbers: list[int]) -> int:
        return sum(numbers)

    async with running(worker):
        # 1 -> [113, 7] -> [120, 120]
        inner = hark.group(add.s(1), hark.chain(add.s(10), add.s(100))) | total.s()
        flow = (
            one.s() | hark.group(inner, hark.group(add.s(2), add.s(3)) | total.s()) | hark.group(total.s(), total.s())
        )
        handle = await flow.push()
        assert await handle.result(timeout=SECONDS) == [120, 120]
        nested = await hark.group(hark.group(one.s(), one.s()), one.s()).push()
        assert await nested.result(timeout=SECONDS) == [[1, 1], 1]


async def test_an_immutable_step_takes_no_result(worker: Worker) -> None:
    @worker.task
    async def first() -> str:
        return "ignored"

    @worker.task
    async def second() -> str:
        return "own"

    async with running(worker):
        handle = await hark.chain(first.s(), second.si()).push()
        assert await handle.result(timeout=SECONDS) == "own"
    with pytest.raises(WrongArguments, match=r"no positional parameter for the result of the step before"):
        await hark.chain(first.s(), second.s()).push()


async def test_wrong_arguments_of_any_step_are_named_before_anything_is_sent(worker: Worker) -> None:
    @worker.task
    async def add(number: int, more: int) -> int:
        return number + more

    text = "argument 'more' is missing; it takes number, more; 'number' is the result of the step before"
    with pytest.raises(WrongArguments, match=text):
        await hark.chain(add.s(1, 2), add.s()).push()  # type: ignore[call-overload]
    with pytest.raises(WrongArguments, match="argument 'more': expected `int`, got `str`"):
        await hark.chain(add.s(1, 2), add.s("x")).push()  # type: ignore[call-overload]
    with pytest.raises(WrongArguments, match="argument 'number' was given twice; 'number' is the result"):
        await hark.chain(add.s(1, 2), add.s(number=3, more=4)).push()
    with pytest.raises(WrongArguments, match="takes 2 positional arguments, 3 were given; 'number' is the result"):
        await hark.chain(add.s(1, 2), add.s(3, 4)).push()
    with pytest.raises(InvalidInput, match="group: expected at least one step"):
        hark.group()
    with pytest.raises(InvalidInput, match=r"expected a step such as task.s\(1\)"):
        hark.group(add)  # type: ignore[arg-type]


async def test_a_failed_step_is_named_and_its_requeue_continues_the_chain(worker: Worker, client: Client) -> None:
    broken = True

    @worker.task
    async def first() -> int:
        return 7

    @worker.task(retry=RetryPolicy.never())
    async def second(number: int) -> int:
        if broken:
            raise ValueError("no fuel")
        return number + 1

    @worker.task
    async def third(number: int) -> int:
        return number * 10

    async with running(worker):
        handle = await hark.chain(first.s(), second.s(), third.s()).push()
        with pytest.raises(TaskFailed, match=r"step 1 \(second\) failed: ValueError: no fuel") as failed:
            await handle.result(timeout=SECONDS)
        assert 'raise ValueError("no fuel")' in failed.value.traceback
        states = {path: step.state for path, step in (await handle.steps()).items()}
        assert states == {"0": "done", "1": "failed", "2": "waiting"}
        broken = False
        [letter] = (await client.dlq(worker.queue).list()).items
        await client.dlq(worker.queue).requeue(letter.id)
        assert await handle.result(timeout=SECONDS) == 80


async def test_a_discarded_step_ends_the_flow(worker: Worker) -> None:
    @worker.task
    async def first() -> int:
        raise Discard("not needed")

    @worker.task
    async def second(number: int) -> int:
        return number

    async with running(worker):
        handle = await hark.chain(first.s(), second.s()).push()
        with pytest.raises(TaskCancelled):
            await handle.result(timeout=SECONDS)
        assert [step.state for step in (await handle.steps()).values()] == ["cancelled", "cancelled"]


async def test_cancel_stops_what_runs_and_what_comes_after(worker: Worker) -> None:
    began, cancelled = asyncio.Event(), asyncio.Event()

    @worker.task
    async def long() -> int:
        began.set()
        try:
            await asyncio.sleep(SECONDS)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return 1

    @worker.task
    async def later(number: int) -> int:
        return number

    async with running(worker):
        handle = await hark.chain(long.s(), later.s()).push()
        await asyncio.wait_for(began.wait(), SECONDS)
        assert await handle.cancel()
        await asyncio.wait_for(cancelled.wait(), SECONDS)
        with pytest.raises(TaskCancelled):
            await handle.result(timeout=SECONDS)
        assert not await handle.cancel()
    waiting = await hark.chain(long.options(delay=3600).s(), later.s()).push()
    assert [step.state for step in (await waiting.steps()).values()] == ["scheduled", "waiting"]
    assert await waiting.cancel()
    assert [step.state for step in (await waiting.steps()).values()] == ["cancelled", "cancelled"]


async def test_steps_can_be_tasks_of_other_queues(worker: Worker, server_url: str) -> None:
    other = Worker(server_url, queue=f"{worker.queue}-other")

    @worker.task
    async def first() -> int:
        return 1

    @other.task
    async def second(number: int) -> int:
        return number + 1

    async with other, running(worker), running(other):
        handle = await hark.chain(first.s(), second.s(), first.si(), second.s()).push()
        assert await handle.result(timeout=SECONDS) == 2
        assert handle.queue == worker.queue


async def test_the_same_id_is_pushed_once(worker: Worker) -> None:
    calls = 0

    @worker.task
    async def count() -> int:
        nonlocal calls
        calls += 1
        return calls

    async with running(worker):
        handle = await count.s().push(id="order-17")
        assert (handle.status, await handle.result(timeout=SECONDS)) == ("queued", 1)
        again = await count.s().push(id="order-17")
        assert (again.status, await again.result(timeout=SECONDS)) == ("duplicate", 1)


async def test_a_group_of_a_thousand(worker: Worker) -> None:
    @worker.task
    async def one(number: int) -> int:
        return number

    @worker.task
    async def total(numbers: list[int]) -> int:
        return sum(numbers)

    async with running(worker, concurrency=500):
        handle = await (hark.group(*(one.s(number) for number in range(1000))) | total.s()).push()
        assert await handle.result(timeout=120) == 499_500


async def test_flows_run_in_the_testing_kit_with_its_clock() -> None:
    with HarkServer() as server:
        worker = Worker(server.url, queue="images")

        @worker.task
        async def first() -> int:
            return 1

        @worker.task
        async def second(number: int) -> int:
            return number + 1

        async with worker:
            handle = await (first.s() | second.options(delay=3600).s()).push()
            await burst(worker)
            assert [step.state for step in (await handle.steps()).values()] == ["done", "scheduled"]
            await asyncio.to_thread(server.clock.advance, 3600)
            await burst(worker)
            assert await handle.result(timeout=SECONDS) == 2
