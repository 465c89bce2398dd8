"""Results, progress and cancellation on each road to a server; handles of other processes; the client of a handler."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

import hark.sync
from hark.client.delivery.settling import PiggybackedAcks
from hark.clock import SystemClock
from hark.connecting import connect
from hark.engine.sqlite import SqliteEngine
from hark.errors import HarkError, InvalidInput
from hark.testing import HarkServer
from hark.worker import ResultMissing, RetryPolicy, TaskCancelled, TaskFailed, Worker, current
from tests.engine.engines import LocalBucket
from tests.worker.workers import SECONDS, burst, running

Opened = Callable[[], AbstractAsyncContextManager[Worker]]


@pytest.fixture(params=["http", "websocket", "sqlite", "s3"])
def road(request: pytest.FixtureRequest, queue: str) -> Opened:
    """A worker that reaches its server, or its store, by this road."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Worker]:
        target: object
        match request.param:
            case "sqlite":
                target = SqliteEngine(":memory:", clock=SystemClock())
            case "s3":
                target = LocalBucket().open(SystemClock())
            case scheme:
                url: str = request.getfixturevalue("server_url")
                target = url if scheme == "http" else url.replace("http", "ws", 1)
        async with Worker(target, queue=queue, concurrency=2) as worker:
            yield worker

    return opened


async def test_results_failures_and_cancellation_work_on_each_road(road: Opened) -> None:
    async with road() as worker:
        began = asyncio.Event()

        @worker.task(result=True)
        async def add(a: int, b: int) -> int:
            return a + b

        @worker.task(result=True, retry=RetryPolicy.never())
        def explode() -> int:
            raise ValueError("no fuel")

        @worker.task(result=True)
        async def sleep() -> None:
            current().progress(0.5, "asleep")
            began.set()
            await asyncio.sleep(SECONDS)

        async with running(worker):
            sums = await asyncio.gather(*(add.push(number, 1) for number in range(10)))
            assert [await one.result(timeout=SECONDS) for one in sums] == list(range(1, 11))
            with pytest.raises(TaskFailed, match="no fuel"):
                await (await explode.push()).result(timeout=SECONDS)
            handle = await sleep.push()
            await asyncio.wait_for(began.wait(), SECONDS)
            async with asyncio.timeout(SECONDS):
                while (await handle.state()).progress is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)  # Another process stores it, which tells no event.
            assert (await handle.state()).note == "asleep"
            assert await handle.cancel()
            with pytest.raises(TaskCancelled):
                await handle.result(timeout=SECONDS)


async def test_flows_work_on_each_road(road: Opened) -> None:
    async with road() as worker:

        @worker.task
        async def double(number: int) -> int:
            return 2 * number

        @worker.task
        def total(numbers: list[int]) -> int:
            return sum(numbers)

        handle = await (hark.group(double.s(1), hark.chain(double.s(2), double.s())) | total.s()).push()
        cancelled = await hark.chain(double.options(delay=3600).s(1), double.s()).push()
        assert await cancelled.cancel()
        await burst(worker)
        assert await handle.result(timeout=SECONDS) == 10
        with pytest.raises(TaskCancelled):
            await cancelled.result(timeout=SECONDS)
        assert {step.state for step in (await cancelled.steps()).values()} == {"cancelled"}


async def test_results_travel_with_the_next_poll(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    carried: list[bytes] = []
    answered = PiggybackedAcks.answered

    def note(acks: PiggybackedAcks, line: bytes) -> None:
        carried.append(acks.body)
        answered(acks, line)

    monkeypatch.setattr(PiggybackedAcks, "answered", note)

    @worker.task(result=True)
    async def echo(text: str) -> str:
        return text

    worker._concurrency = 1
    handles = [await echo.push(f"text {number}") for number in range(5)]
    async with running(worker):
        assert [await one.result(timeout=SECONDS) for one in handles] == [f"text {number}" for number in range(5)]
    assert any(b"text " in body for body in carried), "some settlements and their results were carried by a poll"


async def test_a_requeued_task_ends_the_wait_of_its_first_handle(worker: Worker, server_url: str, queue: str) -> None:
    fuel: list[str] = []

    @worker.task(result=True, retry=RetryPolicy.never())
    async def start() -> str:
        if not fuel:
            raise ValueError("no fuel")
        current().progress(0.9)
        return fuel[0]

    async with connect(server_url) as client, running(worker):
        handle = await start.push()
        with pytest.raises(TaskFailed):
            await handle.result(timeout=SECONDS)
        [letter] = (await client.dlq(queue).list()).items
        fuel.append("diesel")
        await client.dlq(queue).requeue(letter.id)
        assert await handle.result(timeout=SECONDS) == "diesel"


async def test_the_handle_of_a_duplicate_is_that_of_the_first_and_of_a_later_push_its_own(
    worker: Worker, server_url: str, queue: str
) -> None:
    numbers = iter(range(10))

    @worker.task(result=True, unique=True)
    async def count(name: str) -> int:
        assert name
        return next(numbers)

    async with connect(server_url) as client:
        await client.queue(queue).admin.configure(drop_settled=True)
    first, second = await count.push("a"), await count.push("a")
    assert (first.status, second.status, first.id) == ("queued", "duplicate", second.id)
    await burst(worker)
    assert (await first.result(), await second.result()) == (0, 0)
    third = await count.push("a")
    assert third.status == "queued", "the first one is settled, and dropped"
    assert (await third.state()).state == "pending"
    await burst(worker)
    assert await third.result() == 1


# Other processes and threads -----------------------------------------------------------------------------------


async def test_another_process_makes_the_handle_from_two_ids(worker: Worker, server_url: str) -> None:
    @worker.task(result=True)
    async def add(a: int, b: int) -> int:
        return a + b

    pushed = await add.push(1, 2)
    later = await add.options(delay=3600).push(1, 2)

    def blocking() -> tuple[int, str, bool]:
        with hark.sync.connect(server_url) as client:
            other = client.handle(later.id, later.transaction_id)
            state = other.state().state
            return client.handle(pushed.id, pushed.transaction_id, int).result(SECONDS), state, other.cancel()

    async with connect(server_url) as client, running(worker):
        handle = client.handle(pushed.id, pushed.transaction_id, int)
        assert await handle.result(timeout=SECONDS) == 3
        assert (handle.partition_id, handle.queue, handle.task) == (pushed.partition_id, "", "")
        with pytest.raises(InvalidInput, match="not of its declared type"):
            await client.handle(pushed.id, pushed.transaction_id, str).result()
        with pytest.raises(InvalidInput, match="id: expected the id of a message"):
            client.handle("no id", "t")
        assert await asyncio.to_thread(blocking) == (3, "scheduled", True)
        with pytest.raises(TaskCancelled, match=r"^the task "):
            await client.handle(later.id, later.transaction_id).result(timeout=SECONDS)


async def test_a_handle_of_push_sync_blocks(worker: Worker) -> None:
    @worker.task(result=True)
    def double(number: int) -> int:
        return 2 * number

    @worker.task(result=True)
    def ask() -> int:
        return double.push_sync(21).result(timeout=SECONDS)

    async with running(worker):
        assert await (await ask.push()).result(timeout=SECONDS) == 42, "in a thread of a handler"

    def outside() -> tuple[str, bool, str]:
        handle = double.options(delay=60).push_sync(4)
        found = handle.state().state, handle.cancel(), handle.status
        assert handle.id == handle.pushed.id and handle.transaction_id and handle.partition_id and handle.queue
        assert handle.task == "double" and "double" in repr(handle)
        return found

    assert await asyncio.to_thread(outside) == ("scheduled", True, "queued")


# The client of a handler ----------------------------------------------------------------------------------------


async def test_a_handler_has_the_client_of_its_server(worker: Worker, queue: str) -> None:
    errors: list[str] = []

    @worker.task(result=True)
    async def note(text: str) -> str:
        await current().client.queue(f"{queue}-notes").push(text)
        try:
            current().sync_client.queue(f"{queue}-notes").push(text)
        except HarkError as error:
            errors.append(error.text)
        return text

    @worker.task(result=True)
    def note_in_thread(text: str) -> str:
        context = current()
        context.sync_client.queue(f"{queue}-notes").push(text)
        with context.sync_client as client:
            assert client is context.sync_client, "the same for all handlers"
        try:
            context.client.queue(f"{queue}-notes")
        except HarkError as error:
            errors.append(error.text)
        return text

    async with running(worker):
        assert await (await note.push("async")).result(timeout=SECONDS) == "async"
        assert await (await note_in_thread.push("thread")).result(timeout=SECONDS) == "thread"
        notes = await worker.client.queue(f"{queue}-notes").auto_ack().batch(10).pop()
        assert [message.data for message in notes] == ["async", "thread"]
    assert errors == [
        "a sync client cannot be used on its own event loop; use the async client there",
        "current().client belongs to the event loop of the worker; use current().sync_client here",
    ]


async def test_in_tests_it_is_that_of_the_test_server(hark_server: HarkServer) -> None:
    worker = Worker("http://127.0.0.1:9", queue="orders")

    @worker.task(result=True)
    async def order(number: int) -> int:
        await current().client.queue("bills").push(number)
        return number

    @worker.task
    def tell(number: int) -> None:
        current().sync_client.queue("mails").push(number)

    async with hark_server.serving(worker):
        await order.push(1)
        await tell.push(1)
    await hark_server.run_worker(worker)
    hark_server.assert_pushed("bills", 1)
    hark_server.assert_pushed("mails", 1)


# The testing kit ------------------------------------------------------------------------------------------------


async def test_results_follow_the_clock_of_the_testing_kit(hark_server: HarkServer) -> None:
    worker = Worker("http://127.0.0.1:9", queue="images")

    @worker.task(result_ttl=60, retry=RetryPolicy.schedule([30]))
    async def resize(width: int) -> int:
        if current().attempt == 1:
            raise ValueError("not yet")
        current().progress(0.4, "resizing")
        return width // 2

    async with hark_server.serving(worker):
        handle = await resize.push(100)
        doomed = await resize.options(delay=3600).push(1)
        await burst(worker)
        with pytest.raises(TimeoutError, match="it is scheduled"):
            await handle.result(timeout=0.05)
        hark_server.clock.advance(30)
        await burst(worker)
        assert await handle.result(timeout=SECONDS) == 50
        hark_server.clock.advance(61)
        with pytest.raises(ResultMissing):
            await handle.result()
        assert await doomed.cancel()
        assert (await doomed.state()).state == "cancelled"
