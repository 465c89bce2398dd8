"""Scenarios of the official client, run against Hark in a process that has one version of it.

Usage: python -m tests.official_clients.scenarios URL VERSION. The last line printed is JSON: the names of all
scenarios, each with the traceback of its failure, or with nothing.
"""

from __future__ import annotations

import asyncio
import json
import sys
import traceback
import uuid
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from queen import Queen

SECONDS_PER_SCENARIO = 30
Scenario = Callable[[Any, str], Awaitable[None]]
SCENARIOS: list[Scenario] = []
OLD = sys.argv[2:] == ["0.15.0"]


def scenario(function: Scenario) -> Scenario:
    """Is to be run."""
    SCENARIOS.append(function)
    return function


def same(found: object, expected: object) -> None:
    """What was found is what was expected."""
    assert found == expected, f"\nfound    {found!r}\nexpected {expected!r}"


def all_of(messages: list[Any], field: str = "data") -> list[Any]:
    """One field of each."""
    return [message[field] for message in messages]


async def drain(builder: Any) -> list[Any]:
    """Pop until nothing is left, without acks; the payloads."""
    found = []
    while messages := await builder.wait(False).pop():
        found += all_of(messages)
    return found


# Push, pop, consume, settle --------------------------------------------------------------------------------


@scenario
async def configure(queen: Any, queue: str) -> None:
    """Create a queue with options, and without."""
    options = {"lease_time": 60, "retry_limit": 5, "priority": 7, "window_buffer": 0}
    made = await queen.queue(queue).namespace("ns").task("tk").config(options).create()
    same([made[name] for name in ("configured", "queue", "namespace", "task")], [True, queue, "ns", "tk"])
    same([made["options"][name] for name in ("leaseTime", "retryLimit", "priority")], [60, 5, 7])
    same(made["ignoredOptions"], [])
    plain = await queen.queue(f"{queue}-plain").create()
    same((plain["options"]["leaseTime"], plain["ignoredOptions"]), (300, []))


@scenario
async def push_and_pop(queen: Any, queue: str) -> None:
    """Push in all forms, with a duplicate; pop, ack, pop again."""
    duplicates: list[Any] = []

    async def on_duplicate(items: list[Any], _error: Exception) -> None:
        duplicates.extend(all_of(items, "transactionId"))

    trace = str(uuid.uuid4())
    items = [{"data": {"n": 1}, "transactionId": "t1", "traceId": trace}, {"payload": None}, {"n": 3}]
    pushed = await queen.queue(queue).partition("p").push(items)
    same(all_of(pushed, "status"), ["queued", "queued", "queued"])
    await queen.queue(queue).partition("p").push([{"data": 0, "transactionId": "t1"}]).on_duplicate(on_duplicate)
    same(duplicates, ["t1"])
    same(await queen.queue(queue).push([]), [])
    messages = await queen.queue(queue).partition("p").batch(10).wait(False).pop()
    same(all_of(messages), [{"n": 1}, None, {"n": 3}])
    same(messages[0]["traceId"], trace)
    same(await queen.queue(queue).partition("p").batch(10).wait(False).pop(), [])
    same([(await queen.ack(messages[0]))["success"], (await queen.ack(messages[1:]))["success"]], [True, True])
    same(await drain(queen.queue(queue)), [])


@scenario
async def names(queen: Any, queue: str) -> None:
    """Names with spaces and Unicode, that the client does not encode in paths."""
    name = f"{queue} ünï cødé"
    await queen.queue(name).partition("p é 1").push({"data": 1})
    [message] = await queen.queue(name).partition("p é 1").group("g é").wait(False).pop()
    same(message["partition"], "p é 1")
    same((await queen.ack(message, True, {"group": "g é"}))["success"], True)
    same((await queen.queue(name).delete())["existed"], True)


@scenario
async def consume_with_concurrency(queen: Any, queue: str) -> None:
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
    same(seen, {f"p{partition}": list(range(10)) for partition in range(8)})
    same(await drain(queen.queue(queue).group("workers").batch(100)), [])


@scenario
async def consume_each_with_limit(queen: Any, queue: str) -> None:
    """Each mode and a limit: the rest stays."""
    await queen.queue(queue).push([{"data": number} for number in range(4)])
    seen = []

    async def handle(message: Any) -> None:
        seen.append(message["data"])

    await queen.queue(queue).batch(2).each().limit(2).timeout_millis(300).consume(handle)
    same(seen, [0, 1])
    same(await drain(queen.queue(queue).batch(10)), [2, 3])


@scenario
async def nack_and_retry(queen: Any, queue: str) -> None:
    """A handler fails twice; the message comes again, in order, and then the next one."""
    await queen.queue(queue).push([{"data": "flaky"}, {"data": "next"}])
    seen = []

    async def handle(message: Any) -> None:
        seen.append(message["data"])
        if len(seen) <= 2:
            raise RuntimeError(f"attempt {len(seen)}")

    await queen.queue(queue).batch(1).limit(4).timeout_millis(300).consume(handle)
    same(seen, ["flaky", "flaky", "flaky", "next"])
    same((await queen.queue(queue).dlq().get())["total"], 0)


@scenario
async def always_failing(queen: Any, queue: str) -> None:
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
    same(sorted(seen), ["fine", "poison", "poison", "poison"])
    everything = await queen.queue(queue).dlq().get()
    same(everything["total"], 1)
    filtered = queen.queue(queue).partition("bad").dlq("__QUEUE_MODE__").limit(1).from_("2020-01-01T00:00:00Z")
    same((await filtered.get())["total"], 1)
    same((await queen.queue(queue).dlq().offset(1).get())["messages"], [])
    same((await queen.queue(queue).dlq().from_("2999-01-01T00:00:00Z").get())["total"], 0)
    [letter] = everything["messages"]
    same((letter["data"], letter["transactionId"], letter["partition"]), ("poison", "t", "bad"))
    same((letter["retryCount"], letter["consumerGroup"]), (2, "__QUEUE_MODE__"))
    same(OLD or letter["errorMessage"], OLD or "boom")


@scenario
async def a_message_of_a_batch_dies(queen: Any, queue: str) -> None:
    """One message of a batch is a dead letter: what the client left of the batch comes at once, not after the lease."""
    await queen.queue(queue).config({"retry_limit": 0, "lease_time": 300}).create()
    await queen.queue(queue).push([{"data": number} for number in range(6)])
    seen: list[int] = []
    done = asyncio.Event()

    async def handle(message: Any) -> None:
        seen.append(message["data"])
        if {0, 2, 3, 4, 5} <= set(seen):
            done.set()
        if message["data"] == 1:
            raise RuntimeError("boom")

    await queen.queue(queue).batch(3).each().timeout_millis(300).consume(handle, signal=done)
    same(list(dict.fromkeys(seen)), [0, 1, 2, 3, 4, 5])
    same(seen.count(1), 1)
    same(all_of((await queen.queue(queue).dlq().get())["messages"]), [1])
    await queen.queue(f"{queue}-acks").push([{"data": number} for number in range(3)])
    await queen.queue(f"{queue}-acks").config({"retry_limit": 0, "lease_time": 300}).create()
    messages = await queen.queue(f"{queue}-acks").batch(2).wait(False).pop()
    answer = await queen.ack(messages[0], False, {"error": "boom"})
    same((answer["success"], answer["dlq"], answer["leaseReleased"]), (True, True, True))
    same(await drain(queen.queue(f"{queue}-acks").batch(10)), [1, 2])


@scenario
async def ack_in_all_ways(queen: Any, queue: str) -> None:
    """Single statuses, and a batch with a status of its own per message."""
    await queen.queue(queue).config({"retry_limit": 3}).create()
    await queen.queue(queue).push([{"data": number} for number in range(4)])
    messages = await queen.queue(queue).batch(4).wait(False).pop()
    for message, status in zip(messages, (True, False, "retry", "dlq"), strict=True):
        message["_status"] = status
    messages[3]["_error"] = "bad one"
    same(all_of((await queen.ack(messages))["results"], "success"), [True, True, True, True])
    redelivered = await queen.queue(queue).batch(10).wait(False).pop()
    same(all_of(redelivered), [1, 2])
    same((await queen.ack(messages[1], False, {"error": "late"}))["success"], False)
    letters = (await queen.queue(queue).dlq().get())["messages"]
    same([(letter["data"], letter["errorMessage"]) for letter in letters], [(3, "bad one")])
    same((await queen.ack(redelivered))["success"], True)
    same(await drain(queen.queue(queue)), [])


@scenario
async def long_poll(queen: Any, queue: str) -> None:
    """A waiting pop gets what is pushed while it waits; one without news ends empty."""
    waiting = asyncio.create_task(queen.queue(queue).batch(1).timeout_millis(20_000).pop())
    await queen.queue(queue).push({"data": "news"})
    same(all_of(await waiting), ["news"])
    same(await queen.queue(f"{queue}-silent").batch(1).timeout_millis(100).pop(), [])


@scenario
async def buffered_push(queen: Any, queue: str) -> None:
    """Messages buffered by the client arrive in order: at its count, and at its flush."""
    options = {"message_count": 5, "time_millis": 60_000}
    answers = [await queen.queue(queue).buffer(options).push({"data": number}) for number in range(7)]
    same(all_of(answers, "buffered"), [True] * 7)
    await queen.flush_all_buffers()
    messages: list[Any] = []
    while len(messages) < 7:
        got = await queen.queue(queue).batch(10).timeout_millis(5000).pop()
        messages += all_of(got)
        await queen.ack(got)
    same(messages, list(range(7)))


@scenario
async def auto_ack_at_delivery(queen: Any, queue: str) -> None:
    """Version 2.6 alone: messages are settled when they are delivered."""
    same(hasattr(queen.queue(queue), "commit_on_delivery"), not OLD)
    if OLD:
        return
    await queen.queue(queue).push([{"data": 1}, {"data": 2}])
    messages = await queen.queue(queue).batch(10).commit_on_delivery().wait(False).pop()
    same((all_of(messages), all_of(messages, "leaseId")), ([1, 2], ["", ""]))
    await queen.queue(queue).push({"data": 3})
    depth = await queen.admin.get_queue_depth(queue, "__QUEUE_MODE__")
    same((depth["pending"], depth["partitionsPending"]), (1, 1))
    same(await drain(queen.queue(queue)), [3])


# Transactions, groups, leases, traces, administration ------------------------------------------------------


@scenario
async def transactions(queen: Any, queue: str) -> None:
    """An ack and pushes together; and a transaction that is refused leaves nothing behind."""
    out = f"{queue}-out"
    await queen.queue(queue).push([{"data": 1}, {"data": 2}])
    [first] = await queen.queue(queue).wait(False).batch(1).pop()
    committed = await queen.transaction().ack(first).queue(out).partition("p").push([{"data": "a"}, {"b": 1}]).commit()
    results = [(item["type"], item["success"]) for item in committed["results"]]
    same(results, [("ack", True), ("push", True), ("push", True)])
    [second] = await queen.queue(queue).wait(False).batch(1).pop()
    await queen.ack(second, "retry")
    try:
        await queen.transaction().ack(second).queue(out).push([{"data": "lost"}]).commit()
        refused = ""
    except Exception as error:
        refused = str(error)
    assert refused, "a settlement without a lease was accepted"
    [again] = await queen.queue(queue).wait(False).batch(1).pop()
    await queen.transaction().ack(again, "failed").commit()
    group = await queen.queue(queue).group("g").wait(False).batch(10).pop()
    same(all_of(group), [1, 2])
    await queen.transaction().ack(group, "completed", {"consumer_group": "g"}).commit()
    same(await drain(queen.queue(out).batch(10)), ["a", {"b": 1}])
    same(await drain(queen.queue(queue)), [2])
    same(await drain(queen.queue(queue).group("g")), [])


@scenario
async def subscriptions(queen: Any, queue: str) -> None:
    """Groups that start at all, at new, and at a time."""
    await queen.queue(queue).push({"data": "old"})
    same(await queen.queue(queue).group("new").subscription_mode("new").wait(False).pop(), [])
    [look] = await queen.queue(queue).group("look").wait(False).pop()
    await queen.queue(queue).push({"data": "fresh"})
    same(await drain(queen.queue(queue).group("new").subscription_mode("new").batch(10)), ["fresh"])
    same(await drain(queen.queue(queue).group("all").subscription_mode("all").batch(10)), ["old", "fresh"])
    same(await drain(queen.queue(queue).group("time").subscription_from(look["createdAt"]).batch(10)), ["fresh"])
    same(await drain(queen.queue(queue).batch(10)), ["old", "fresh"])
    same(await drain(queen.queue(queue).group("now").subscription_from("now").batch(10)), [])


@scenario
async def many_partitions(queen: Any, queue: str) -> None:
    """One pop over several partitions under one lease."""
    for partition in range(3):
        await queen.queue(queue).partition(f"p{partition}").push([{"data": partition}] * 2)
    messages = await queen.queue(queue).partitions(3).batch(10).wait(False).pop()
    same(sorted(all_of(messages)), [0, 0, 1, 1, 2, 2])
    same((len(set(all_of(messages, "leaseId"))), len(set(all_of(messages, "partitionId")))), (1, 3))
    same(all_of(await queen.renew(messages), "success"), [True])
    same((await queen.ack(messages))["success"], True)
    same(await drain(queen.queue(queue).partitions(3).batch(10)), [])


@scenario
async def lease_renewal(queen: Any, queue: str) -> None:
    """Renew by hand, and by the consumer while its handler works."""
    await queen.queue(queue).config({"lease_time": 20}).create()
    await queen.queue(queue).push([{"data": 1}, {"data": 2}])
    [message] = await queen.queue(queue).wait(False).batch(1).pop()
    by_hand = await queen.renew(message)
    same([by_hand["success"], bool(by_hand["newExpiresAt"])], [True, True])
    unknown = await queen.renew("0199aaaa-bbbb-7ccc-8ddd-eeeeffff0000")
    # The old client calls every answered renewal a success; only the missing time tells.
    same([unknown["success"], unknown["newExpiresAt"]], [OLD, None])
    await queen.ack(message)

    async def handle(working: Any) -> None:
        # The lease of 20 s becomes one of 60 s when the renewal of the background has arrived.
        left = timedelta()
        while left < timedelta(seconds=35):
            view = await queen.admin.get_message(working["partitionId"], working["transactionId"])
            left = datetime.fromisoformat(view["leaseExpiresAt"]) - datetime.now(UTC)
        assert left <= timedelta(seconds=60)

    builder = queen.queue(queue).batch(1).limit(1).renew_lease(True, 50).timeout_millis(300)
    await builder.consume(handle)
    same(await drain(queen.queue(queue)), [])


@scenario
async def deletions(queen: Any, queue: str) -> None:
    """Delete a group, move one's subscription, delete the queue."""
    await queen.queue(queue).push({"data": 1})
    group = f"{queue}-group"
    [message] = await queen.queue(queue).group(group).wait(False).pop()
    await queen.ack(message, True, {"group": group})
    same(await drain(queen.queue(queue).group(group)), [])
    same((await queen.delete_consumer_group(group))["success"], True)
    same(await drain(queen.queue(queue).group(group)), [1])
    moved = await queen.update_consumer_group_timestamp(group, "2020-01-01T00:00:00.000Z")
    same([moved[name] for name in ("success", "rowsUpdated", "newTimestamp")], [True, 1, "2020-01-01T00:00:00.000Z"])
    for existed in (True, False):
        deleted = await queen.queue(queue).delete()
        same((deleted["deleted"], deleted["existed"]), (True, existed))
    same(await drain(queen.queue(queue)), [])


@scenario
async def traces(queen: Any, queue: str) -> None:
    """Record events from a handler, and read them back."""
    name = f"{queue}-trace"
    await queen.queue(queue).push({"data": {"n": 1}})
    recorded = []
    handled: list[Any] = []

    async def handle(message: Any) -> None:
        recorded.append(await message["trace"]({"traceName": name, "eventType": "step", "data": {"a": 1}}))
        recorded.append(await message["trace"]({"data": {"b": 2}}))
        handled.append(message)

    await queen.queue(queue).batch(1).limit(1).timeout_millis(300).consume(handle)
    same(all_of(recorded, "success"), [True, True])
    [message] = handled
    of_message = await queen.admin.get_traces_for_message(message["partitionId"], message["transactionId"])
    found = [(trace["event_type"], trace["data"]) for trace in of_message["traces"]]
    same(found, [("step", {"a": 1}), ("info", {"b": 2})])
    by_name = await queen.admin.get_traces_by_name(name)
    same([(trace["data"], trace["message_payload"]) for trace in by_name["traces"]], [({"a": 1}, {"n": 1})])
    assert name in all_of((await queen.admin.get_trace_names(limit=1000))["trace_names"], "trace_name")


@scenario
async def pop_by_labels(queen: Any, queue: str) -> None:
    """Pop over queues by namespace and task."""
    await queen.queue(f"{queue}.billing.a").push({"data": "billing"})
    await queen.queue(f"{queue}.mail.b").push({"data": "mail"})
    [by_task] = await queen.queue().namespace(queue).task("mail").batch(1).wait(False).pop()
    same((by_task["data"], by_task["queue"]), ("mail", f"{queue}.mail.b"))
    same(all_of(await queen.queue().namespace(queue).batch(1).wait(False).pop()), ["billing"])


@scenario
async def administration(queen: Any, queue: str) -> None:
    """Every admin call whose route is in the contract."""
    admin, name, group = queen.admin, f"{queue}.task.x", f"{queue}-group"
    await queen.queue(name).push([{"data": 1, "transactionId": "t"}, {"data": 2}])
    [message] = await queen.queue(name).group(group).batch(1).wait(False).pop()
    await queen.ack(message, True, {"group": group})
    partition = message["partitionId"]
    assert (await admin.get_overview())["queues"] > 0
    assert queue in all_of((await admin.get_namespaces())["namespaces"], "namespace")
    assert "task" in all_of((await admin.get_tasks())["tasks"], "task")
    assert name in all_of((await admin.list_queues())["queues"], "name")
    same((await admin.get_queue(name))["totals"]["total"], 2)
    same(len((await admin.list_messages(queue=name))["messages"]), 2)
    same((await admin.get_message(partition, "t"))["payload"], 1)
    assert group in all_of(await admin.list_consumer_groups(), "name")
    same((await admin.get_consumer_group(group))[name]["partitions"][0]["offsetLag"], 1)
    assert name in all_of(await admin.get_lagging_consumers(0), "queue_name")
    assert await admin.refresh_consumer_stats()
    same((await admin.seek_consumer_group(group, name, {"toEnd": True}))["partitionsUpdated"], 1)
    same((await admin.delete_consumer_group_for_queue(group, name))["success"], True)
    same((await admin.delete_message(partition, "t"))["success"], True)
    same((await admin.health())["status"], "healthy")


async def main(url: str) -> None:
    """Run all of them, each on a queue of its own."""
    failures: dict[str, str] = {}
    queen = Queen(url)
    for run in SCENARIOS:
        name = getattr(run, "__name__", "?")
        failures[name] = ""
        try:
            async with asyncio.timeout(SECONDS_PER_SCENARIO):
                await run(queen, f"{name}-{uuid.uuid4().hex[:8]}")
        except Exception:
            failures[name] = traceback.format_exc()
    await queen.close()
    print(f"\n{json.dumps(failures)}", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
