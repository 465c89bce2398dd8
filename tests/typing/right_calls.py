"""Calls of tasks that type checkers must accept; nobody runs this."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

import asyncpg

import hark
import hark.sync
from hark import postgres
from hark.worker import (
    Flow,
    FlowHandle,
    RetryPolicy,
    SyncTaskHandle,
    Task,
    TaskHandle,
    Worker,
    WorkerRunOptions,
    current,
)

worker = Worker("http://localhost:6632", queue="emails", concurrency=20)


@worker.task("send_email", retry=RetryPolicy.never(), timeout=5, unique=("to",), unique_until="started", priority=3)
async def send_email(to: str, subject: str, copies: int = 1) -> int:
    """Named."""
    return copies * len(to + subject)


@worker.task
def resize(image: bytes, *, width: int) -> bytes:
    """Not named, not async."""
    return image[:width]


@worker.periodic(every="1h", overlap="skip")
@worker.task()
async def tidy_up() -> None:
    """Without arguments."""


@worker.periodic(cron="0 8 * * MON-FRI", timezone="Europe/Berlin", name="reports", catch_up="all", jitter=30)
@worker.task
async def report(kind: str = "daily", *, limit: int = 10) -> int:
    """With defaults."""
    return limit + len(kind)


worker.periodic(every=timedelta(days=1), name="weekly")(report, "weekly", limit=3)
worker.periodic(cron="@daily", name="images")(resize, b"", width=5)


@worker.task(result=True)
def add(a: int, b: int) -> float:
    """With a result."""
    current().progress(0.5, "adding")
    assert_type(current().sync_client.queue("sums"), hark.sync.Queue)
    assert_type(current().client.queue("sums"), hark.Queue)
    return a + b


async def other_process(client: hark.Client, blocking: hark.sync.Client) -> None:
    """Handles from ids."""
    assert_type(client.handle("id", "key", float), TaskHandle[float])
    assert_type(client.handle("id", "key"), TaskHandle[Any])
    assert_type(blocking.handle("id", "key", list[int]).result(), list[int])


@worker.task
async def total(sizes: list[bytes]) -> int:
    """After a group."""
    return len(sizes)


several = Worker(queues={"emails": 3, "reports": 1})


@several.task("monthly", queue="reports", pool="process", timeout=60, result=True)
def monthly(month: str) -> list[int]:
    """In a process."""
    return [len(month)]


@Worker(queues=["emails", "reports"]).task(pool="thread")
def greet(name: str) -> str:
    """In a thread."""
    return name


async def calls() -> None:
    """All of it."""
    assert_type(await send_email("a@b.c", "hi"), int)
    assert_type(resize(b"", width=5), bytes)
    assert_type(await send_email.push("a@b.c", "hi"), TaskHandle[int])
    assert_type(await send_email.push(to="a@b.c", subject="hi", copies=2), TaskHandle[int])
    assert_type(await send_email.push(to="a@b.c", subject="hi", delay=60), TaskHandle[Any])
    await send_email.push("a@b.c", subject="hi", delay=timedelta(minutes=1))
    await send_email.options(delay=60, priority=5, key="k").push("a@b.c", "hi", 3)
    await send_email.options(deliver_at=datetime.now(UTC), ttl=60, partition="p").push(to="a@b.c", subject="hi")
    await send_email.options(retry=RetryPolicy.schedule([1, 2])).push("a@b.c", "hi")
    assert_type(await (await resize.push(b"", width=5)).result(timeout=5), bytes)
    assert_type(await (await send_email.push("a@b.c", "hi")).result(), int)
    assert_type(await send_email.options(priority=1).push("a@b.c", "hi"), TaskHandle[int])
    assert_type(resize.push_sync(b"", width=5), SyncTaskHandle[bytes])
    assert_type(await (await add.push(1, 2)).result(), float)
    assert_type(await (await add.options(delay=1).push(1, 2)).cancel(), bool)
    assert_type((await (await add.push(1, 2)).state()).progress, float | None)
    assert_type(resize.push_sync(b"", width=5).result(timeout=timedelta(seconds=1)), bytes)
    assert_type(await send_email.push_many([("a@b.c", "hi"), {"to": "d@e.f", "subject": "hi"}]), list[TaskHandle[int]])
    assert_type(await resize.options(priority=1).push_many([]), list[TaskHandle[bytes]])
    await send_email.options(unique_key="k").push("a@b.c", "hi")
    assert_type(await (await monthly.push("2030-01")).result(timeout=5), list[int])
    assert_type(several.queues, dict[str, int])
    await tidy_up.push()
    assert_type(send_email.s("a@b.c", "hi"), Flow[int])
    assert_type(hark.chain(resize.s(b"", width=5), send_email.s("hi", 2), tidy_up.si()), Flow[None])
    assert_type(hark.group(resize.s(b"", width=5), resize.s(b"", width=6)), Flow[list[bytes]])
    assert_type(hark.group(resize.s(b"", width=5)) | total.s(), Flow[int])
    assert_type(await hark.chain(tidy_up.s(), resize.options(delay=5).s(width=5)).push(), FlowHandle[bytes])
    assert_type(await (await send_email.s("a@b.c", "hi").push(id="order-17")).result(timeout=5), int)
    await tidy_up.push(delay=1)
    assert_type(await report(), int)
    await report.push("weekly", limit=3)
    await worker.run(WorkerRunOptions(grace_seconds=5))


def takes_a_task(task: Task[[int], None]) -> None:
    """A task of a known shape."""
    assert task.name


async def in_a_transaction(connection: asyncpg.Connection, blocking: postgres.Connection) -> None:
    """In the transaction of the program."""
    assert_type(await postgres.send(connection, "orders", {"id": 1}, key="k", delay=60), str)
    assert_type(postgres.send_sync(blocking, "orders", {"id": 1}, partition="p"), str)
    assert_type(await send_email.push_in(connection, "a@b.c", subject="hi"), str)
    assert_type(await send_email.options(delay=60).push_in(connection, "a@b.c", "hi", 3), str)
    assert_type(resize.push_in_sync(blocking, b"", width=5), str)
