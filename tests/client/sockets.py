"""What the tests of WebSocket consumers share: sources, and what the server says of their streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec

from hark.client.calling import Caller, path
from hark.client.delivery.socket import SocketSource
from hark.client.delivery.sources import Delivered, Wish

PATIENCE = 20.0
"""Seconds after which a test gives up on what should come at once."""


def payloads(messages: list[Delivered]) -> list[object]:
    """What the messages say."""
    return [msgspec.json.decode(message.data) for message in messages]


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
    async with asyncio.timeout(PATIENCE):
        while True:
            if await condition():
                return
            await asyncio.sleep(0)


async def until_room(caller: Caller, queue: str) -> None:
    """Wait until the server knows that a consumer has room."""

    async def has_room() -> bool:
        return any(
            one.credit > one.unsettled and not one.paused and not one.draining for one in await streams(caller, queue)
        )

    await until(has_room)


@asynccontextmanager
async def source_of(caller: Caller, wish: Wish, linger: float = 1.0) -> AsyncIterator[SocketSource]:
    """A source that is closed at the end."""
    source = SocketSource(caller, wish, linger=linger)
    try:
        yield source
    finally:
        await source.close()


async def until_not(condition: Callable[[], bool]) -> None:
    """Wait until something is no longer so."""

    async def is_over() -> bool:
        return not condition()

    await until(is_over)
