"""Supplies: what came when nobody wanted it any more goes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

import hark
from hark.client.choices import Choices
from hark.client.client import Client
from hark.client.delivery.desk import Desk
from hark.client.delivery.holding import Holds
from hark.client.delivery.sources import Delivered, PollSource, Wish
from hark.client.delivery.supplying import Supply
from hark.polling import PollingStrategy
from tests.client.deliveries import attempts


class Slow:
    """A source that gives what it took when the test says so."""

    def __init__(self, client: Client, queue: str) -> None:
        self._inner = PollSource(client.caller, Wish(queue=queue, group="g", batch=9, wait=False))
        self.took = asyncio.Event()
        self.give = asyncio.Event()

    async def take(self, most: int) -> list[Delivered]:
        """What is there, later."""
        delivered = await self._inner.take(most)
        self.took.set()
        await self.give.wait()
        return delivered

    async def close(self) -> None:
        """Nothing to close."""


@pytest.fixture
async def client(url: str) -> AsyncIterator[Client]:
    async with hark.connect(url) as opened:
        yield opened


def supply_of(client: Client, source: Slow) -> Supply:
    """A supply of the source, of batches of 9."""
    holds = Holds(client.caller.transport)
    desk = Desk(client.caller, client.settler, holds)
    return Supply(desk, source, Choices(batch=9, renew=False), None, PollingStrategy.adaptive(), lambda _: None)


async def test_what_came_in_the_moment_of_a_cancellation_goes_back(client: Client, queue: str) -> None:
    await client.queue(queue).push_many([1, 2])
    source = Slow(client, queue)
    supply = supply_of(client, source)
    taking = asyncio.ensure_future(supply.batch(9))
    await source.took.wait()
    source.give.set()
    while not all(task.done() for task in supply._taking):  # noqa: ASYNC110  # The very turn in which it is done.
        await asyncio.sleep(0)
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    assert attempts(await client.queue(queue).group("g").batch(9).pop()) == [(1, 1), (2, 1)]


async def test_an_interrupted_batch_is_empty(client: Client, queue: str) -> None:
    source = Slow(client, queue)
    supply = supply_of(client, source)
    taking = asyncio.ensure_future(supply.batch(9))
    await source.took.wait()
    supply.interrupt()
    assert await taking == []
    assert await supply.batch(9) == []
    await supply.close()
    await supply.close()
