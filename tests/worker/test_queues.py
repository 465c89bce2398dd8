"""Several queues of one worker: how they share its slots, and that none waits for another."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import Any
from uuid import uuid4

import httpx
import pytest

from hark.clock import SystemClock
from hark.engine.sqlite import SqliteEngine
from hark.errors import HarkError, InvalidInput
from hark.polling import PollingStrategy
from hark.testing import HarkServer
from hark.worker import RetryPolicy, Worker, current
from hark.worker.queues import Share, Shares
from tests.worker.workers import SECONDS, burst, running


@pytest.fixture
def names() -> tuple[str, str]:
    """Two queues of the test."""
    key = uuid4().hex[:8]
    return f"emails-{key}", f"reports-{key}"


# The division ----------------------------------------------------------------------------------------------


class Division:
    """Queues that want slots, and what they got."""

    def __init__(self, slots: int, **weights: int) -> None:
        self.by_name = {name: Share(name, weight) for name, weight in weights.items()}
        self.shares = Shares(list(self.by_name.values()), slots)

    async def grant(self, *wanting: str) -> dict[str, int]:
        """Let these queues want slots, and take what is free: all that they poll for arrives."""
        waiting = {name: asyncio.ensure_future(self.shares.want(self.by_name[name])) for name in wanting}
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        got = {}
        for name, one in waiting.items():
            if not one.done():
                one.cancel()
                await asyncio.gather(one, return_exceptions=True)
                continue
            got[name] = one.result()
            self.shares.polled(self.by_name[name], got[name], got[name])
        return got

    def end(self, name: str, count: int = 1) -> None:
        """Tasks of a queue end."""
        self.by_name[name].used -= count
        self.shares.release(count)


async def test_slots_are_divided_by_weight() -> None:
    assert await Division(8, emails=3, reports=1).grant("emails", "reports") == {"emails": 6, "reports": 2}


async def test_a_queue_without_work_leaves_all_slots_to_the_others() -> None:
    division = Division(8, emails=3, reports=1)
    assert await division.grant("reports") == {"reports": 8}
    assert await division.grant("emails", "reports") == {}  # All are busy.
    division.end("reports", 3)
    assert await division.grant("emails", "reports") == {"emails": 3}  # It had fewer than its part.


async def test_slots_of_a_poll_that_found_less_are_free_at_once() -> None:
    division = Division(4, emails=1, reports=1)
    emails = division.by_name["emails"]
    assert await division.shares.want(emails) == 4
    division.shares.polled(emails, 4, 1)
    assert await division.grant("reports") == {"reports": 3}
    assert division.shares.idle == 0


@pytest.mark.parametrize("slots", [1, 2])
async def test_no_queue_starves_with_fewer_slots_than_queues(slots: int) -> None:
    division = Division(slots, emails=10, reports=1, bills=1)
    taken: Counter[str] = Counter()
    running: list[str] = []
    for _ in range(360):
        for name, count in (await division.grant("emails", "reports", "bills")).items():
            taken[name] += count
            running += [name] * count
        division.end(running.pop(0))
    assert min(taken.values()) >= 30
    assert taken["emails"] == max(taken.values())
    if slots == 1:
        assert taken == {"emails": 300, "reports": 30, "bills": 30}  # Exactly by weight.


async def test_a_queue_that_comes_back_has_saved_nothing_up() -> None:
    division = Division(1, emails=1, reports=1)
    for _ in range(100):
        await division.grant("emails")
        division.end("emails")
    order = []
    for _ in range(6):
        (name,) = await division.grant("emails", "reports")
        order.append(name)
        division.end(name)
    assert sorted(order[:2]) == sorted(order[2:4]) == sorted(order[4:]) == ["emails", "reports"]


async def test_whoever_waits_for_slots_learns_of_the_stop() -> None:
    division = Division(1, emails=1, reports=1)
    await division.grant("emails")
    waiting = asyncio.ensure_future(division.shares.want(division.by_name["reports"]))
    await asyncio.sleep(0)
    division.shares.stop()
    assert await waiting == 0
    assert await division.shares.want(division.by_name["emails"]) == 0
    assert not division.shares.seize(division.by_name["emails"])


# Options ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "queue: must not be empty"),
        ({"queue": "a", "queues": ["b"]}, "queue: expected either a queue or queues, got both"),
        ({"queues": "a"}, "queues: expected a list or a dict with weights, got 'a'; or use queue='a'"),
        ({"queues": []}, "queues: must not be empty"),
        ({"queues": ["a", ""]}, "queues: expected names of queues, got ''"),
        ({"queues": {"a": 0}}, r"queues\['a'\]: expected an integer from 1 to 1000, got 0"),
        ({"queues": {"a": 1.5}}, r"queues\['a'\]: expected an integer from 1 to 1000, got 1.5"),
    ],
)
def test_wrong_queues_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        Worker(**options)


def test_a_task_names_a_queue_of_its_worker() -> None:
    worker = Worker(queues=["emails", "reports"])
    assert worker.queue == "emails"
    with pytest.raises(InvalidInput, match=r"expected a queue of the worker \('emails', 'reports'\), got 'bills'"):
        worker.task("pay", queue="bills")(lambda: None)


# Runs -------------------------------------------------------------------------------------------------------


async def test_tasks_go_to_their_queues_and_are_counted_there(server_url: str, names: tuple[str, str]) -> None:
    emails, reports = names
    async with Worker(server_url, queues=names) as worker:
        seen: list[tuple[str, int]] = []

        @worker.task
        async def mail(number: int) -> None:
            seen.append(("mail", number))

        @worker.task(queue=reports, retry=RetryPolicy.never())
        async def report(number: int) -> None:
            seen.append(("report", number))
            if number == 1:
                raise ValueError("no paper")

        pushed = [await mail.push(1), await report.push(1), await report.push(2)]
        assert [one.queue for one in pushed] == [emails, reports, reports]
        summary = await burst(worker)
        assert sorted(seen) == [("mail", 1), ("report", 1), ("report", 2)]
        assert (summary.queues[emails].done, summary.queues[reports].done, summary.queues[reports].dead) == (1, 1, 1)
        assert summary.totals.ended == 3


async def test_queues_with_work_share_the_slots_by_weight(server_url: str, names: tuple[str, str]) -> None:
    async with Worker(server_url, queues={names[0]: 3, names[1]: 1}, concurrency=8) as worker:
        full, go_on = asyncio.Event(), asyncio.Event()
        begun: Counter[str] = Counter()

        async def begin(name: str) -> None:
            begun[name] += 1
            if begun.total() == 8:
                full.set()
            await go_on.wait()

        emails = worker.task("email", queue=names[0])(begin)
        reports = worker.task("report", queue=names[1])(begin)
        for _ in range(10):
            await emails.push("emails")
            await reports.push("reports")
        async with running(worker) as run:
            async with asyncio.timeout(SECONDS):
                await full.wait()
            assert begun == {"emails": 6, "reports": 2}
            go_on.set()
            await run.ended(20)


async def test_progress_and_cancellation_reach_tasks_of_each_queue(server_url: str, names: tuple[str, str]) -> None:
    async with Worker(server_url, queues=names, lease=1) as worker:
        began = asyncio.Event()

        @worker.task(queue=names[1], result=True)
        async def long() -> None:
            current().progress(0.5)
            began.set()
            await asyncio.sleep(SECONDS)

        async with running(worker) as run:
            handle = await long.push()
            async with asyncio.timeout(SECONDS):
                await began.wait()
                while (await handle.state()).progress != 0.5:
                    pass  # The server stores it, which tells no event.
            assert await handle.cancel()
            (event,) = await run.ended(1)
            assert event.ending == "discarded"


async def test_several_queues_beside_an_engine_in_the_same_loop(names: tuple[str, str]) -> None:
    async with Worker(SqliteEngine(":memory:", clock=SystemClock()), queues=names, concurrency=2) as worker:

        @worker.task(queue=names[0])
        async def one() -> None:
            await two.push()

        @worker.task(queue=names[1])
        async def two() -> None: ...

        for _ in range(10):
            await one.push()
        assert (await burst(worker)).totals.done == 20
        async with running(worker) as run:
            await one.push()
            await run.ended(2)


async def test_a_burst_ends_only_when_all_queues_are_empty(server_url: str, names: tuple[str, str]) -> None:
    """Each task pushes the next one to the other queue, which may just have been found empty."""
    async with Worker(server_url, queues=names, concurrency=2) as worker:
        count = 0

        @worker.task(queue=names[0])
        async def ping(left: int) -> None:
            nonlocal count
            count += 1
            if left:
                await pong.push(left - 1)

        @worker.task(queue=names[1])
        async def pong(left: int) -> None:
            nonlocal count
            count += 1
            if left:
                await ping.push(left - 1)

        await ping.push(20)
        assert (await burst(worker)).totals.done == count == 21


@pytest.mark.parametrize("options", [{}, {"wait": False, "polling": PollingStrategy.fixed(interval_ms=5)}])
async def test_a_queue_with_work_does_not_keep_the_others_waiting(
    server_url: str, names: tuple[str, str], options: dict[str, Any]
) -> None:
    """One slot, always busy with one queue: a task of the other one comes next but few."""
    async with Worker(server_url, queues=names, concurrency=1) as worker:
        enough = asyncio.Event()
        order: list[str] = []

        @worker.task(queue=names[0])
        async def busy() -> None:
            order.append("busy")
            if not enough.is_set():
                await busy.push()

        @worker.task(queue=names[1])
        async def rare() -> None:
            order.append("rare")
            enough.set()

        async with running(worker, **options) as run:
            await busy.push()
            await busy.push()
            await run.ended(5)
            await rare.push()
            async with asyncio.timeout(SECONDS):
                await enough.wait()
        assert order.count("rare") == 1


async def test_a_queue_without_work_leaves_every_slot_to_the_other(server_url: str, names: tuple[str, str]) -> None:
    async with Worker(server_url, queues={names[0]: 1, names[1]: 9}, concurrency=4) as worker:
        everyone = asyncio.Barrier(4)

        @worker.task(queue=names[0])
        async def meet() -> None:
            await everyone.wait()

        async with running(worker) as run:
            for _ in range(4):
                await meet.push()
            await run.ended(4)
            stats = worker.stats
            assert stats is not None
            assert (stats.queues[names[0]].totals.done, stats.queues[names[0]].running) == (4, 0)


async def test_a_message_that_comes_while_all_slots_are_busy_goes_to_another_worker(
    server_url: str, names: tuple[str, str]
) -> None:
    """The idle queue waits at the server although the only slot is busy; its message must not wait for that slot."""
    first = Worker(server_url, queues=names, concurrency=1)
    second = Worker(server_url, queue=names[1])
    began, go_on, elsewhere = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @first.task(queue=names[0])
    async def long() -> None:
        began.set()
        await go_on.wait()

    @first.task("short", queue=names[1])
    async def short() -> None:
        raise AssertionError("the slot is busy")

    @second.task("short")
    async def short_elsewhere() -> None:
        elsewhere.set()

    async with first, second, running(first) as run:
        await long.push()
        async with asyncio.timeout(SECONDS):
            await began.wait()
        await short.push()
        async with running(second) as other:
            (event,) = await other.ended(1)
            assert event.attempt == 1  # What was released did not count.
        go_on.set()
        await run.ended(1)


async def test_threads_and_cancelled_tasks_give_their_slots_back(server_url: str, names: tuple[str, str]) -> None:
    async with Worker(server_url, queues=names, concurrency=2) as worker:
        go_on = threading.Event()

        @worker.task(queue=names[0], timeout=0.05, retry=RetryPolicy.never())
        def stuck() -> None:
            go_on.wait(SECONDS)

        @worker.task(queue=names[1])
        async def quick() -> None: ...

        async with running(worker) as run:
            await stuck.push()
            await stuck.push()
            await run.ended(2)  # Both timed out; their threads keep their slots.
            await quick.push()
            assert worker.stats is not None
            assert worker.stats.stuck == 2
            go_on.set()
            await run.ended(3)
        assert run.summary is not None
        assert run.summary.queues[names[1]].done == 1


async def test_a_stop_settles_and_releases_in_all_queues(server_url: str, names: tuple[str, str]) -> None:
    async with Worker(server_url, queues=names, concurrency=2) as worker:
        began: asyncio.Queue[str] = asyncio.Queue()

        @worker.task(queue=names[0])
        async def one() -> None:
            began.put_nowait("one")
            await asyncio.sleep(SECONDS)

        @worker.task(queue=names[1])
        async def two() -> None:
            began.put_nowait("two")
            await asyncio.sleep(SECONDS)

        async with running(worker, grace_seconds=0) as run:
            await one.push()
            await two.push()
            async with asyncio.timeout(SECONDS):
                assert {await began.get(), await began.get()} == {"one", "two"}
        assert run.summary is not None
        assert [run.summary.queues[name].handed_back for name in names] == [1, 1]


async def test_health_and_metrics_are_by_queue(server_url: str, names: tuple[str, str]) -> None:
    async with Worker(server_url, queues=names) as worker:
        began, go_on = asyncio.Event(), asyncio.Event()

        @worker.task(queue=names[1])
        async def long() -> None:
            began.set()
            await go_on.wait()

        async with running(worker, health=("127.0.0.1", 0)) as run:
            await long.push()
            async with asyncio.timeout(SECONDS):
                await began.wait()
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{worker.health_port}") as probe:
                health = (await probe.get("/health")).json()
                assert health["queue"] == ", ".join(names)
                assert health["queues"] == {names[0]: 0, names[1]: 1}
                go_on.set()
                await run.ended(1)
                metrics = (await probe.get("/metrics")).text
            assert f'worker_queue_running{{queue="{names[1]}"}} 0.0' in metrics
            assert f'worker_queue_tasks_total{{outcome="done",queue="{names[1]}"}} 1.0' in metrics


async def test_a_burst_without_a_server_ends_with_its_error() -> None:
    async with Worker("http://127.0.0.1:1", queues=["a", "b"]) as worker:
        with pytest.raises(HarkError, match=r"127\.0\.0\.1:1"):
            await burst(worker)


async def test_a_test_runs_a_worker_of_several_queues() -> None:
    worker = Worker(queues={"emails": 3, "reports": 1})
    done: list[str] = []

    @worker.task(queue="reports")
    async def report(name: str) -> None:
        done.append(name)

    with HarkServer() as server:
        async with server.serving(worker):
            await report.push("sales")
        server.assert_pushed("reports", task="report")
        assert (await server.run_worker(worker)).queues["reports"].done == 1
    assert done == ["sales"]
