"""Messages for tests of what is done with them: pushed and popped by plain calls."""

from __future__ import annotations

import msgspec

from hark.client.calling import Caller, decode, path
from hark.client.producing.pushing import Pushed, new_message
from hark.model import QUEUE_MODE


class Delivery(msgspec.Struct, frozen=True, rename="camel"):
    """What a transaction or a trace needs to know of a delivered message."""

    id: str
    transaction_id: str
    partition_id: str
    lease_id: str
    consumer_group: str
    data: object


class Wrapper(msgspec.Struct, frozen=True):
    """A message as the client hands it out: around its delivery."""

    delivered: Delivery


class _Popped(msgspec.Struct):
    messages: list[Delivery]


async def push(caller: Caller, queue: str, *data: object, partition: str | None = None) -> list[Pushed]:
    """Push some messages."""
    items = [new_message(queue, one, partition=partition) for one in data]
    return await caller.read(list[Pushed], "POST", path("push"), body={"items": items}, safe=True)


async def pop(
    caller: Caller, queue: str, group: str = QUEUE_MODE, batch: int = 100, consumer: str | None = None
) -> list[Delivery]:
    """Take what is ready in one partition."""
    route = path("pop", "queue", queue)
    answer = await caller.call("GET", route, query={"consumerGroup": group, "batch": batch, "consumer": consumer})
    return [] if answer.status == 204 else decode(answer.body, _Popped).messages


async def settle(caller: Caller, delivery: Delivery, status: str = "completed", error: str | None = None) -> None:
    """Settle a message, which must be possible."""
    body = {
        "transactionId": delivery.transaction_id,
        "partitionId": delivery.partition_id,
        "leaseId": delivery.lease_id,
        "consumerGroup": delivery.consumer_group,
        "status": status,
        "error": error,
    }
    [answer] = await caller.read(list[_Settled], "POST", path("ack"), body=body)
    assert answer.success


async def bury(caller: Caller, queue: str, *data: object, group: str = QUEUE_MODE) -> list[Delivery]:
    """Make dead letters, in this order."""
    await push(caller, queue, *data)
    deliveries = await pop(caller, queue, group)
    assert [one.data for one in deliveries] == list(data)
    for one in deliveries:
        await settle(caller, one, "dlq", f"no good: {one.data}")
    return deliveries


class _Settled(msgspec.Struct):
    success: bool
