"""Scenarios of the official client: transactions, groups, leases, traces, administration."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from tests.official_clients.messaging import drain


async def transactions(queen: Any, queue: str) -> Any:
    """An ack and pushes together; and a transaction that is refused leaves nothing behind."""
    out = f"{queue}-out"
    await queen.queue(queue).push([{"data": 1}, {"data": 2}])
    [first] = await queen.queue(queue).wait(False).batch(1).pop()
    committed = await queen.transaction().ack(first).queue(out).partition("p").push([{"data": "a"}, {"b": 1}]).commit()
    [second] = await queen.queue(queue).wait(False).batch(1).pop()
    await queen.ack(second, "retry")
    try:
        await queen.transaction().ack(second).queue(out).push([{"data": "lost"}]).commit()
        refused = ""
    except Exception as error:
        refused = str(error)
    [again] = await queen.queue(queue).wait(False).batch(1).pop()
    await queen.transaction().ack(again, "failed").commit()
    group = await queen.queue(queue).group("g").wait(False).batch(10).pop()
    await queen.transaction().ack(group, "completed", {"consumer_group": "g"}).commit()
    return {
        "committed": [(item["type"], item["success"]) for item in committed["results"]],
        "out": await drain(queen.queue(out).batch(10)),
        "refused": refused,
        "failed_comes_again": await drain(queen.queue(queue)),
        "group": [message["data"] for message in group],
        "group_left": await drain(queen.queue(queue).group("g")),
    }


async def subscriptions(queen: Any, queue: str) -> Any:
    """Groups that start at all, at new, and at a time."""
    await queen.queue(queue).push({"data": "old"})
    early = await queen.queue(queue).group("new").subscription_mode("new").wait(False).pop()
    [look] = await queen.queue(queue).group("look").wait(False).pop()
    await queen.queue(queue).push({"data": "fresh"})
    by_time = queen.queue(queue).group("time").subscription_from(look["createdAt"]).batch(10)
    return {
        "early": early,
        "new": await drain(queen.queue(queue).group("new").subscription_mode("new").batch(10)),
        "all": await drain(queen.queue(queue).group("all").subscription_mode("all").batch(10)),
        "time": await drain(by_time),
        "default": await drain(queen.queue(queue).batch(10)),
        "now": await drain(queen.queue(queue).group("now").subscription_from("now").batch(10)),
    }


async def many_partitions(queen: Any, queue: str) -> Any:
    """One pop over several partitions under one lease."""
    for partition in range(3):
        await queen.queue(queue).partition(f"p{partition}").push([{"data": partition}] * 2)
    messages = await queen.queue(queue).partitions(3).batch(10).wait(False).pop()
    renewed = await queen.renew(messages)
    acked = await queen.ack(messages)
    return {
        "data": sorted(message["data"] for message in messages),
        "leases": len({message["leaseId"] for message in messages}),
        "partitions": len({message["partitionId"] for message in messages}),
        "renewed": [result["success"] for result in renewed],
        "acked": acked["success"],
        "left": await drain(queen.queue(queue).partitions(3).batch(10)),
    }


async def lease_renewal(queen: Any, queue: str) -> Any:
    """Renew by hand, and by the consumer while its handler works."""
    await queen.queue(queue).config({"lease_time": 20}).create()
    await queen.queue(queue).push([{"data": 1}, {"data": 2}])
    [message] = await queen.queue(queue).wait(False).batch(1).pop()
    by_hand = await queen.renew(message)
    unknown = await queen.renew("0199aaaa-bbbb-7ccc-8ddd-eeeeffff0000")
    await queen.ack(message)
    ends: list[str] = []

    async def handle(working: Any) -> None:
        # The lease of 20 s becomes one of 60 s when the renewal of the background has arrived.
        while len(set(ends)) < 2:
            view = await queen.admin.get_message(working["partitionId"], working["transactionId"])
            ends.append(view["leaseExpiresAt"])

    builder = queen.queue(queue).batch(1).limit(1).renew_lease(True, 50).timeout_millis(300)
    await builder.consume(handle)
    first, last = (datetime.fromisoformat(end) for end in (ends[0], ends[-1]))
    return {
        "by_hand": [by_hand["success"], bool(by_hand["newExpiresAt"])],
        "unknown": [unknown["success"], unknown["newExpiresAt"]],
        "moved_seconds": (last - first).total_seconds(),
        "left": await drain(queen.queue(queue)),
    }


async def deletions(queen: Any, queue: str) -> Any:
    """Delete a group, move one's subscription, delete the queue."""
    await queen.queue(queue).push({"data": 1})
    group = f"{queue}-group"
    [message] = await queen.queue(queue).group(group).wait(False).pop()
    await queen.ack(message, True, {"group": group})
    done = await drain(queen.queue(queue).group(group))
    deleted_group = await queen.delete_consumer_group(group)
    anew = await drain(queen.queue(queue).group(group))
    moved = await queen.update_consumer_group_timestamp(group, "2020-01-01T00:00:00.000Z")
    deleted = await queen.queue(queue).delete()
    again = await queen.queue(queue).delete()
    return {
        "done": done,
        "deleted_group": deleted_group["success"],
        "anew": anew,
        "moved": [moved["success"], moved["rowsUpdated"], moved["newTimestamp"]],
        "deleted": [deleted["deleted"], deleted["existed"], again["deleted"], again["existed"]],
        "left": await drain(queen.queue(queue)),
    }


async def traces(queen: Any, queue: str) -> Any:
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
    [message] = handled
    of_message = await queen.admin.get_traces_for_message(message["partitionId"], message["transactionId"])
    by_name = await queen.admin.get_traces_by_name(name)
    all_names = await queen.admin.get_trace_names(limit=1000)
    return {
        "recorded": [result["success"] for result in recorded],
        "of_message": [(trace["event_type"], trace["data"]) for trace in of_message["traces"]],
        "by_name": [(trace["data"], trace["message_payload"]) for trace in by_name["traces"]],
        "named": name in [item["trace_name"] for item in all_names["trace_names"]],
    }


async def pop_by_labels(queen: Any, queue: str) -> Any:
    """Pop over queues by namespace and task."""
    await queen.queue(f"{queue}.billing.a").push({"data": "billing"})
    await queen.queue(f"{queue}.mail.b").push({"data": "mail"})
    by_task = await queen.queue().namespace(queue).task("mail").batch(1).wait(False).pop()
    by_namespace = await queen.queue().namespace(queue).batch(1).wait(False).pop()
    return {
        "by_task": [message["data"] for message in by_task],
        "by_namespace": [message["data"] for message in by_namespace],
        "queue": by_task[0]["queue"] == f"{queue}.mail.b",
    }


async def administration(queen: Any, queue: str) -> Any:
    """Every admin call whose route is in the contract."""
    admin, name, group = queen.admin, f"{queue}.task.x", f"{queue}-group"
    await queen.queue(name).push([{"data": 1, "transactionId": "t"}, {"data": 2}])
    [message] = await queen.queue(name).group(group).batch(1).wait(False).pop()
    await queen.ack(message, True, {"group": group})
    partition = message["partitionId"]
    return {
        "overview": (await admin.get_overview())["queues"] > 0,
        "namespaces": queue in [item["namespace"] for item in (await admin.get_namespaces())["namespaces"]],
        "tasks": "task" in [item["task"] for item in (await admin.get_tasks())["tasks"]],
        "queues": name in [item["name"] for item in (await admin.list_queues())["queues"]],
        "queue": (await admin.get_queue(name))["totals"]["total"],
        "messages": len((await admin.list_messages(queue=name))["messages"]),
        "message": (await admin.get_message(partition, "t"))["payload"],
        "groups": group in [item["name"] for item in await admin.list_consumer_groups()],
        "group": (await admin.get_consumer_group(group))[name]["partitions"][0]["offsetLag"],
        "lagging": any(item["queue_name"] == name for item in await admin.get_lagging_consumers(0)),
        "refresh": bool(await admin.refresh_consumer_stats()),
        "seek": (await admin.seek_consumer_group(group, name, {"toEnd": True}))["partitionsUpdated"],
        "forgotten": (await admin.delete_consumer_group_for_queue(group, name))["success"],
        "deleted": (await admin.delete_message(partition, "t"))["success"],
        "health": (await admin.health())["status"],
    }
