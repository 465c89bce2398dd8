"""Schedules that a worker declares with `@worker.periodic`."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from hark import Worker, WorkerRunOptions
from hark.client.calling import ConnectionFailed
from hark.errors import InvalidInput
from hark.settings import Settings
from hark.testing import HarkServer
from hark.worker.periodic import declare
from hark.worker.task import WrongArguments

OPTIONS = WorkerRunOptions(handle_signals=False, grace_seconds=5)


async def test_a_declared_task_runs_at_its_due_times_with_its_arguments() -> None:
    ran: list[tuple[str, int]] = []
    with HarkServer() as server:
        worker = Worker(server.url, queue="mails")

        @worker.periodic(every=timedelta(hours=1))
        @worker.task
        async def report(kind: str = "hourly", limit: int = 10) -> None:
            ran.append((kind, limit))

        worker.periodic(cron="0 8 * * *", timezone="Europe/Berlin", name="daily", overlap="skip")(
            report, "daily", limit=3
        )
        async with worker, server.connect() as client:
            await worker.declare_schedules()
            first = await client.schedules.list()
            assert [(one.name, one.queue, one.overlap) for one in first] == [
                ("daily", "mails", "skip"),
                ("mails.report", "mails", "allow"),
            ]
            await worker.declare_schedules()
            assert await client.schedules.list() == first
            arguments: dict[str, object] = {"daily": {"kind": "daily", "limit": 3}, "mails.report": {}}
            # The daily run is due before the hourly one or after several of them: it depends on the time of the day.
            for due, name in sorted((one.next_run_at, one.name) for one in first if one.next_run_at is not None):
                server.clock.advance_to(due + timedelta(seconds=1))
                server.assert_pushed("mails", task="report", arguments=arguments[name])
            hours = len(server.pushed("mails")) - 1
            summary = await worker.run(WorkerRunOptions(burst=True, handle_signals=False))
            assert summary.totals.done == hours + 1
            assert ran.count(("hourly", 10)) == hours
            assert ran.count(("daily", 3)) == 1


async def test_many_workers_declare_the_same_schedule_at_their_start() -> None:
    with HarkServer() as server:
        workers = []
        for _ in range(4):
            worker = Worker(server.url, queue="q")

            @worker.periodic(every="1m")
            @worker.task
            async def tick() -> None: ...

            workers.append(worker)
        runs = [asyncio.create_task(worker.run(OPTIONS)) for worker in workers]
        for worker in workers:
            await worker.ready()
        async with server.connect() as client:
            assert (await client.schedules.get("q.tick")).every == 60
        server.clock.advance(300)
        server.assert_pushed("q", task="tick", times=5)
        for worker in workers:
            await worker.stop()
        await asyncio.gather(*runs)


async def test_a_schedule_that_the_server_refuses_ends_the_run_with_the_error() -> None:
    with HarkServer() as server:
        for burst in (False, True):
            worker = Worker(server.url, queue="q")

            @worker.periodic(cron="every day")
            @worker.task
            async def tick() -> None: ...

            options = WorkerRunOptions(handle_signals=False, grace_seconds=5, burst=burst)
            with pytest.raises(InvalidInput, match="cron: expected five fields"):
                await worker.run(options)
            await worker.close()


async def test_the_declaration_is_repeated_while_the_server_is_unavailable() -> None:
    with HarkServer(Settings()) as server:
        worker = Worker(server.url, queue="q")

        @worker.periodic(every=1)
        @worker.task
        async def tick() -> None: ...

        async with worker, server.connect() as client:
            outcomes: list[Exception | None] = [ConnectionFailed("no server", sent=False), None]
            pauses = []

            class Unreliable:
                """A client whose first call fails."""

                def __getattr__(self, name: str) -> object:
                    """Raise, or return what the client has."""
                    if (failure := outcomes.pop(0)) is not None:
                        raise failure
                    return getattr(client.schedules, name)

            async def pause(seconds: float) -> None:
                pauses.append(seconds)

            await declare(worker.schedules, Unreliable, until_stored=True, sleep=pause)  # type: ignore[arg-type]
            assert pauses == [5.0]
            assert (await client.schedules.get("q.tick")).runs == 0


def test_wrong_declarations_are_rejected_at_once() -> None:
    worker = Worker("http://127.0.0.1:9", queue="q")

    @worker.task
    async def send(to: str) -> None: ...

    with pytest.raises(InvalidInput, match="exactly one of cron and every"):
        worker.periodic()
    with pytest.raises(WrongArguments, match="'to' is missing"):
        worker.periodic(every=5)(send)  # type: ignore[call-arg]
    with pytest.raises(WrongArguments, match="'to'"):
        worker.periodic(every=5)(send, 3)  # type: ignore[arg-type]
    worker.periodic(every=5)(send, "ada")
    with pytest.raises(InvalidInput, match=r"already has a schedule 'q\.send'"):
        worker.periodic(every=5)(send, "bob")
    worker.periodic(every=5, name="bob")(send, "bob")
    with pytest.raises(InvalidInput, match=r"expected a task; write @worker\.periodic"):
        worker.periodic(every=5)(len)  # type: ignore[arg-type]
    assert set(worker.schedules) == {"q.send", "bob"}


async def test_a_start_in_the_future_counts() -> None:
    with HarkServer() as server:
        worker = Worker(server.url, queue="q")
        start = server.clock.now().replace(microsecond=0) + timedelta(days=1)

        @worker.periodic(every="1h", start_at=start, jitter="10s", catch_up="all", partition="p")
        @worker.task(priority=3, retry=2)
        async def tick() -> None: ...

        async with worker, server.connect() as client:
            await worker.declare_schedules()
            shown = await client.schedules.get("q.tick")
            assert (shown.next_run_at, shown.start_at) == (start.astimezone(UTC), start.astimezone(UTC))
            assert (shown.jitter, shown.catch_up, shown.partition, shown.priority) == (10, "all", "p", 3)
            assert shown.backoff_schedule is not None
            assert len(shown.backoff_schedule) == 2
            assert isinstance(shown.next_run_at, datetime)
            server.clock.advance_to(start + timedelta(seconds=10))
            [message] = server.assert_pushed("q", task="tick", partition="p")
            assert message.data["task"] == "tick"


async def test_a_schedule_pushes_to_the_queue_of_its_task() -> None:
    with HarkServer() as server:
        worker = Worker(server.url, queues=["mails", "reports"])

        @worker.periodic(every="1h")
        @worker.task(queue="reports")
        async def sales() -> None: ...

        async with worker:
            await worker.declare_schedules()
        server.clock.advance(3600)
        server.assert_pushed("reports", task="sales", arguments={})
        assert set(worker.schedules) == {"reports.sales"}


async def test_the_result_of_a_scheduled_run_is_stored_if_its_task_asks_for_one() -> None:
    with HarkServer() as server:
        worker = Worker(server.url, queue="q")

        @worker.periodic(every="1h")
        @worker.task(result=True)
        async def count() -> int:
            return 7

        async with worker, server.connect() as client:
            await worker.declare_schedules()
            run = await client.schedules.run("q.count")
            await worker.run(WorkerRunOptions(burst=True, handle_signals=False))
            assert run.message_id is not None
            assert await client.handle(run.message_id, run.transaction_id, int).result(timeout=10) == 7
