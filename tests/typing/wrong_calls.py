"""Calls of tasks that type checkers must refuse, in exactly the lines that say so; nobody runs this."""

from __future__ import annotations

import hark
from hark.client.client import Client
from hark.worker import FlowHandle, Task, Worker, WorkerRunOptions, current

worker = Worker("http://localhost:6632", queue="emails")


@worker.task("send_email")
async def send_email(to: str, subject: str, copies: int = 1) -> int:
    """A task."""
    return copies * len(to + subject)


async def calls(client: Client) -> None:
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
    send_email.s(5, "hi")  # WRONG
    send_email.s("hi", ["three"])  # WRONG
    send_email.s(topic="x")  # WRONG
    send_email.si("a@b.c")  # WRONG
    send_email.options(delay=60).s("a@b.c", "hi", 3, 4)  # WRONG
    hark.chain(send_email)  # WRONG
    hark.group(send_email.s("a@b.c", "hi"), 5)  # WRONG
    count: FlowHandle[str] = await send_email.s("a@b.c", "hi").push()  # WRONG
    hark.group(send_email.s("a@b.c", "hi")) | send_email  # WRONG
    hark.group(send_email.s("a@b.c", "hi")) | send_email.s("hi", subject="twice", copies="three")  # WRONG
    counts: FlowHandle[int] = await hark.group(send_email.s("a@b.c", "hi")).push()  # WRONG
    await hark.chain(send_email.s("a@b.c", "hi")).push(result_ttl="1h")  # WRONG
    await hark.chain(send_email.s("a@b.c", "hi")).result()  # WRONG
    await send_email.push_many(["a@b.c", "hi"])  # WRONG
    await send_email.options(unique_key=5).push("a@b.c", "hi")  # WRONG
    worker.task("later", unique=True, unique_until="later")  # WRONG
    await send_email("a@b.c")  # WRONG
    text: str = await send_email("a@b.c", "hi")  # WRONG
    takes_a_task(send_email)  # WRONG
    Worker(queues={"emails": "high"})  # WRONG
    Worker(queues=3)  # WRONG
    worker.task("a", queue=3)  # WRONG
    worker.task("b", pool="fork")  # WRONG
    await worker.run(WorkerRunOptions(polling="adaptive"))  # WRONG
    worker.periodic(every=60)(send_email)  # WRONG
    worker.periodic(every=60)(send_email, "a@b.c", 5)  # WRONG
    worker.periodic(every=60)(send_email, "a@b.c", "hi", topic="x")  # WRONG
    worker.periodic(cron="@daily", overlap="never")(send_email, "a@b.c", "hi")  # WRONG
    worker.periodic(cron=5)(send_email, "a@b.c", "hi")  # WRONG
    worker.periodic(every="1h", catch_up="some")(send_email, "a@b.c", "hi")  # WRONG
    await client.schedules.put("a", "mails", every="1h", overlap="never")  # WRONG
    handle = await send_email.push("a@b.c", "hi")
    words: str = await handle.result()  # WRONG
    await handle.result(timeout="soon")  # WRONG
    number: int = handle.result()  # WRONG
    blocked: int = await send_email.push_sync("a@b.c", "hi").result()  # WRONG
    shown: str = client.handle(handle.id, handle.transaction_id, int).result()  # WRONG
    current().progress("half")  # WRONG
    current().client.queue("mails").push("x").wait()  # WRONG
    worker.task(result="yes")  # WRONG
    worker.task(result_ttl="1h")  # WRONG
    client.handle(handle.id)  # WRONG
    assert text and count and counts, (words, number, blocked, shown)


@worker.periodic(every=60)  # WRONG
@worker.task
def needs(to: str) -> None:
    """A periodic task without its argument."""


def takes_a_task(task: Task[[int], None]) -> None:
    """A task of another shape."""
    assert task.name
