"""Scenarios of the official client: push, pop, consume, settle."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any


async def drain(builder: Any) -> list[Any]:
    """Pop until nothing is left, without acks; the payloads."""
    found = []
    while messages := await builder.wait(False).pop():
        found += [message["data"] for message in messages]
    return found


async def configure(queen: Any, queue: str) -> Any:
    """Create a queue with options, and without."""
    options = {"lease_time": 60, "retry_limit": 5, "priority": 7, "window_buffer": 0}
    made = await queen.queue(queue).namespace("ns").task("tk").config(options).create()
    plain = await queen.queue(f"{queue}-plain").create()
    return {"made": made, "plain": plain}


async def push_and_pop(queen: Any, queue: str) -> Any:
    """Push in all forms, with a duplicate; pop, ack, pop again."""
    duplicates: list[Any] = []

    async def on_duplicate(items: list[Any], _error: Exception) -> None:
        duplicates.extend(item["transactionId"] for item in items)

    trace = str(uuid.uuid4())
    items = [{"data": {"n": 1}, "transactionId": "t1", "traceId": trace}, {"payload": None}, {"n": 3}]
    pushed = await queen.queue(queue).partition("p").push(items)
    await queen.queue(queue).partition("p").push([{"data": 0, "transactionId": "t1"}]).on_duplicate(on_duplicate)
    none = await queen.queue(queue).push([])
    messages = await queen.queue(queue).partition("p").batch(10).wait(False).pop()
    again = await queen.queue(queue).partition("p").batch(10).wait(False).pop()
    acked = await queen.ack(messages[0])
    batch = await queen.ack(messages[1:])
    return {
        "pushed": [item["status"] for item in pushed],
        "none": none,
        "duplicates": duplicates,
        "data": [message["data"] for message in messages],
        "trace": messages[0]["traceId"] == trace,
        "while_leased": again,
        "acked": [acked["success"], batch["success"]],
        "left": await drain(queen.queue(queue)),
    }


async def names(queen: Any, queue: str) -> Any:
    """Names that the client does not encode in paths."""
    name = f"{queue} ünï cødé"
    await queen.queue(name).partition("p é 1").push({"data": 1})
    [message] = await queen.queue(name).partition("p é 1").group("g é").wait(False).pop()
    acked = await queen.ack(message, True, {"group": "g é"})
    deleted = await queen.queue(name).delete()
    return {"partition": message["partition"], "acked": acked["success"], "deleted": deleted["existed"]}


async def consume_with_concurrency(queen: Any, queue: str) -> Any:
    """Four workers with batches drain eight partitions, each in order."""
    for partition in range(8):
        await queen.queue(queue).partition(f"p{partition}").push([{"data": number} for number in range(10)])
    seen: dict[str, list[int]] = {}
    done = asyncio.Event()

    async def handle(messages: list[Any]) -> None:
        for message in messages:
            seen.setdefault(message["partition"], []).append(message["data"])
        if sum(map(len, seen.values())) >= 80:
            done.set()

    builder = queen.queue(queue).group("workers").concurrency(4).batch(5).timeout_millis(300)
    await builder.consume(handle, signal=done)
    return {"seen": seen, "left": await drain(queen.queue(queue).group("workers").batch(100))}


async def consume_each_with_limit(queen: Any, queue: str) -> Any:
    """Each mode and a limit: the rest stays."""
    await queen.queue(queue).push([{"data": number} for number in range(4)])
    seen = []

    async def handle(message: Any) -> None:
        seen.append(message["data"])

    await queen.queue(queue).batch(2).each().limit(2).timeout_millis(300).consume(handle)
    return {"seen": seen, "left": await drain(queen.queue(queue).batch(10))}


async def nack_and_retry(queen: Any, queue: str) -> Any:
    """A handler fails twice; the message comes again, in order, and then the next one."""
    await queen.queue(queue).push([{"data": "flaky"}, {"data": "next"}])
    seen = []

    async def handle(message: Any) -> None:
        seen.append(message["data"])
        if len(seen) <= 2:
            raise RuntimeError(f"attempt {len(seen)}")

    await queen.queue(queue).batch(1).limit(4).timeout_millis(300).consume(handle)
    dead = await queen.queue(queue).dlq().get()
    return {"seen": seen, "dead": dead["total"]}


async def failing_for_good(queen: Any, queue: str) -> Any:
    """A handler always fails: the message ends as a dead letter, and its neighbours do not."""
    await queen.queue(queue).config({"retry_limit": 2}).create()
    await queen.queue(queue).partition("bad").push({"data": "poison", "transactionId": "t"})
    await queen.queue(queue).partition("good").push({"data": "fine"})
    seen: list[str] = []
    done = asyncio.Event()

    async def handle(message: Any) -> None:
        seen.append(message["data"])
        if len(seen) == 4:
            done.set()
        if message["data"] == "poison":
            raise RuntimeError("boom")

    await queen.queue(queue).batch(1).timeout_millis(300).consume(handle, signal=done)
    everything = await queen.queue(queue).dlq().get()
    filtered = queen.queue(queue).partition("bad").dlq("__QUEUE_MODE__").limit(1).from_("2020-01-01T00:00:00Z")
    late = await queen.queue(queue).dlq().from_("2999-01-01T00:00:00Z").get()
    return {
        "seen": sorted(seen),
        "total": everything["total"],
        "letter": everything["messages"][0],
        "filtered": (await filtered.get())["total"],
        "paged": len((await queen.queue(queue).dlq().offset(1).get())["messages"]),
        "late": late["total"],
    }


async def ack_in_all_ways(queen: Any, queue: str) -> Any:
    """Single statuses, and a batch with a status of its own per message."""
    await queen.queue(queue).config({"retry_limit": 3}).create()
    await queen.queue(queue).push([{"data": number} for number in range(4)])
    messages = await queen.queue(queue).batch(4).wait(False).pop()
    for message, status in zip(messages, (True, False, "retry", "dlq"), strict=True):
        message["_status"] = status
    messages[3]["_error"] = "bad one"
    batch = await queen.ack(messages)
    redelivered = await queen.queue(queue).batch(10).wait(False).pop()
    stale = await queen.ack(messages[1], False, {"error": "late"})
    letters = (await queen.queue(queue).dlq().get())["messages"]
    return {
        "batch": [result["success"] for result in batch["results"]],
        "redelivered": [message["data"] for message in redelivered],
        "stale": stale["success"],
        "letters": [(letter["data"], letter["errorMessage"]) for letter in letters],
        "done": (await queen.ack(redelivered))["success"],
        "left": await drain(queen.queue(queue)),
    }


async def long_poll(queen: Any, queue: str) -> Any:
    """A waiting pop gets what is pushed while it waits; one without news ends empty."""
    waiting = asyncio.create_task(queen.queue(queue).batch(1).timeout_millis(20_000).pop())
    await queen.queue(queue).push({"data": "news"})
    [message] = await waiting
    empty = await queen.queue(f"{queue}-silent").batch(1).timeout_millis(100).pop()
    return {"data": message["data"], "empty": empty}


async def buffered_push(queen: Any, queue: str) -> Any:
    """Messages buffered by the client arrive in order: at its count, and at its flush."""
    options = {"message_count": 5, "time_millis": 60_000}
    answers = [await queen.queue(queue).buffer(options).push({"data": number}) for number in range(7)]
    await queen.flush_all_buffers()
    messages: list[Any] = []
    while len(messages) < 7:
        got = await queen.queue(queue).batch(10).timeout_millis(5000).pop()
        messages += [message["data"] for message in got]
        await queen.ack(got)
    return {"buffered": all(answer["buffered"] for answer in answers), "data": messages}


async def auto_ack_at_delivery(queen: Any, queue: str) -> Any:
    """Version 2.6 alone: messages are settled when they are delivered."""
    if not hasattr(queen.queue(queue), "commit_on_delivery"):
        return None
    await queen.queue(queue).push([{"data": 1}, {"data": 2}])
    messages = await queen.queue(queue).batch(10).commit_on_delivery().wait(False).pop()
    await queen.queue(queue).push({"data": 3})
    depth = await queen.admin.get_queue_depth(queue, "__QUEUE_MODE__")
    return {
        "data": [message["data"] for message in messages],
        "leases": [message["leaseId"] for message in messages],
        "left": await drain(queen.queue(queue)),
        "depth": depth,
    }
