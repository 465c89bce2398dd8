"""Calls of tasks that type checkers must accept; nobody runs this."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import assert_type

import asyncpg

from hark import postgres
from hark.client.pushing import Pushed
from hark.worker import RetryPolicy, Task, Worker, WorkerRunOptions

worker = Worker("http://localhost:6632", queue="emails", concurrency=20)


@worker.task("send_email", retry=RetryPolicy.never(), timeout=5, unique=("to",), priority=3)
async def send_email(to: str, subject: str, copies: int = 1) -> int:
    """Named."""
    return copies * len(to + subject)


@worker.task
def resize(image: bytes, *, width: int) -> bytes:
    """Not named, not async."""
    return image[:width]


@worker.task()
async def tidy_up() -> None:
    """Without arguments."""


async def calls() -> None:
    """All of it."""
    assert_type(await send_email("a@b.c", "hi"), int)
    assert_type(resize(b"", width=5), bytes)
    assert_type(await send_email.push("a@b.c", "hi"), Pushed)
    assert_type(await send_email.push(to="a@b.c", subject="hi", copies=2), Pushed)
    assert_type(await send_email.push(to="a@b.c", subject="hi", delay=60), Pushed)
    await send_email.push("a@b.c", subject="hi", delay=timedelta(minutes=1))
    await send_email.options(delay=60, priority=5, key="k").push("a@b.c", "hi", 3)
    await send_email.options(deliver_at=datetime.now(UTC), ttl=60, partition="p").push(to="a@b.c", subject="hi")
    await send_email.options(retry=RetryPolicy.schedule([1, 2])).push("a@b.c", "hi")
    await resize.push(b"", width=5)
    await tidy_up.push()
    await tidy_up.push(delay=1)
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
