"""Messages for tests, pushed and popped by plain calls, and what the server says of those who take them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import msgspec

from hark.api.types.delivery import Delivered
from hark.client.calling import Caller, decode
from hark.client.client import Client
from hark.client.delivery.message import Message
from hark.client.delivery.socket import SocketSource
from hark.client.delivery.sources import PopParams
from hark.client.pushing import Pushed, new_message
from hark.model import QUEUE_MODE
from tests.client.transports import path

WAIT_SECONDS = 20.0
"""Seconds after which a test gives up on what should come at once."""


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


class _Settled(msgspec.Struct):
    success: bool


async def push(caller: Caller, queue: str, *data: object, partition: str | None = None) -> list[Pushed]:
    """Push some messages into one partition."""
    items = [new_message(queue, one, partition=partition) for one in data]
    return await caller.read(list[Pushed], "POST", path("push"), body={"items": items}, safe=True)


async def spread(caller: Caller, queue: str, *data: object) -> None:
    """Push some messages, each into a partition of its own."""
    items = [new_message(queue, one, partition=f"p{index}") for index, one in enumerate(data)]
    await caller.call("POST", path("push"), body={"items": items}, safe=True)


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


async def dead_letter(caller: Caller, queue: str, *data: object, group: str = QUEUE_MODE) -> list[Delivery]:
    """Make dead letters, in this order."""
    await push(caller, queue, *data)
    deliveries = await pop(caller, queue, group)
    assert [one.data for one in deliveries] == list(data)
    for one in deliveries:
        await settle(caller, one, "dlq", f"no good: {one.data}")
    return deliveries


async def configure(caller: Caller, queue: str, **options: object) -> None:
    """Set options of a queue."""
    await caller.call("POST", path("configure"), body={"queue": queue, "options": options})


async def taken(client: Client, queue: str, group: str = "probe", batch: int = 100) -> list[object]:
    """What another consumer of the group gets now."""
    messages = await client.queue(queue).group(group).batch(batch).partitions(100).pop()
    return [message.data for message in messages]


def attempts(messages: Sequence[Message]) -> list[tuple[object, int]]:
    """Payloads and how often they were tried."""
    return [(message.data, message.attempt) for message in messages]


def payloads(messages: list[Delivered]) -> list[object]:
    """What the messages say."""
    return [msgspec.json.decode(message.data) for message in messages]


# Consumers over WebSockets -------------------------------------------------------------------------------------


class Stream(msgspec.Struct, rename="camel"):
    kind: str
    unsettled: int = 0
    paused: bool = False
    draining: bool = False
    credit: int = 0


class _Consumers(msgspec.Struct):
    consumers: list[Stream]


async def streams(caller: Caller, queue: str) -> list[Stream]:
    """The streams that the server knows."""
    answer = await caller.read(_Consumers, "GET", path("consumers"), query={"queue": queue})
    return [consumer for consumer in answer.consumers if consumer.kind == "stream"]


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Ask again and again until it is so."""
    async with asyncio.timeout(WAIT_SECONDS):
        while not await condition():
            pass


async def until_room(caller: Caller, queue: str) -> None:
    """Wait until the server knows that a consumer has room."""

    async def has_room() -> bool:
        return any(
            one.credit > one.unsettled and not one.paused and not one.draining for one in await streams(caller, queue)
        )

    await until(has_room)


async def until_paused(caller: Caller, queue: str) -> None:
    """Wait until the server knows that its only consumer takes nothing more for now."""

    async def is_paused() -> bool:
        return [one.paused for one in await streams(caller, queue)] == [True]

    await until(is_paused)


@asynccontextmanager
async def source_of(caller: Caller, params: PopParams, linger: float = 1.0) -> AsyncIterator[SocketSource]:
    """A source that is closed at the end."""
    source = SocketSource(caller, params, linger=linger)
    try:
        yield source
    finally:
        await source.close()
