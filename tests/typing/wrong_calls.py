"""Calls of tasks that type checkers must refuse, in exactly the lines that say so; nobody runs this."""

from __future__ import annotations

from hark.worker import Task, Worker, WorkerRunOptions

worker = Worker("http://localhost:6632", queue="emails")


@worker.task("send_email")
async def send_email(to: str, subject: str, copies: int = 1) -> int:
    """A task."""
    return copies * len(to + subject)


async def calls() -> None:
    """Each line is wrong."""
    await send_email.push("a@b.c")  # WRONG
    await send_email.push(to="a@b.c", subject=5)  # WRONG
    await send_email.push("a@b.c", "hi", "three")  # WRONG
    await send_email.push("a@b.c", "hi", 3, 4)  # WRONG
    await send_email.push(to="a@b.c", subject="hi", topic="x")  # WRONG
    await send_email.push(to="a@b.c", subject="hi", delay="soon")  # WRONG
    await send_email.options(delay=60).push("a@b.c")  # WRONG
    await send_email.options(delay=60).push("a@b.c", subject=5)  # WRONG
    await send_email.options(delay=60).push("a@b.c", "hi", topic="x")  # WRONG
    await send_email.options(delay="soon").push("a@b.c", "hi")  # WRONG
    await send_email.options(later=60).push("a@b.c", "hi")  # WRONG
    await send_email("a@b.c")  # WRONG
    text: str = await send_email("a@b.c", "hi")  # WRONG
    takes_a_task(send_email)  # WRONG
    Worker(queues={"emails": "high"})  # WRONG
    Worker(queues=3)  # WRONG
    worker.task("a", queue=3)  # WRONG
    worker.task("b", pool="fork")  # WRONG
    await worker.run(WorkerRunOptions(polling="adaptive"))  # WRONG
    assert text


def takes_a_task(task: Task[[int], None]) -> None:
    """A task of another shape."""
    assert task.name
