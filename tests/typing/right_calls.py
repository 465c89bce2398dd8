"""Calls of tasks that type checkers must accept; nobody runs this."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

from hark.worker import RetryPolicy, Task, TaskHandle, Worker, WorkerRunOptions

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


several = Worker(queues={"emails": 3, "reports": 1})


@several.task("report", queue="reports", pool="process", timeout=60, result=True)
def report(month: str) -> list[int]:
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
    assert_type(resize.push_sync(b"", width=5), TaskHandle[bytes])
    assert_type(await (await report.push("2030-01")).result(timeout=5), list[int])
    assert_type(several.queues, dict[str, int])
    await tidy_up.push()
    await tidy_up.push(delay=1)
    await worker.run(WorkerRunOptions(grace_seconds=5))


def takes_a_task(task: Task[[int], None]) -> None:
    """A task of a known shape."""
    assert task.name
