"""Messages that come for somebody who was cancelled meanwhile: they are given back at once, uncounted."""

from __future__ import annotations

import asyncio

import pytest

import hark
from hark.api.types.delivery import Delivered
from hark.client.builder import Choices, PopParams
from hark.client.calling import Answer, Request
from hark.client.client import Client
from hark.client.delivery import prefetcher
from hark.client.delivery.leases import Holds
from hark.client.delivery.prefetcher import ConsumerSession, PollSource, Prefetcher
from hark.client.delivery.settling import PiggybackedAcks
from hark.client.http import HttpTransport
from hark.polling import PollingStrategy
from tests.client.deliveries import attempts
from tests.client.transports import Recorder


class Slow(Recorder):
    """Holds the answers to pops back."""

    def __init__(self, url: str) -> None:
        super().__init__(HttpTransport(url))
        self.answered = asyncio.Event()
        self.deliver = asyncio.Event()

    async def send(self, request: Request) -> Answer:
        """Ask once, and wait with the answer."""
        answer = await super().send(request)
        if "/pop/" in request.path:
            self.answered.set()
            await self.deliver.wait()
        return answer


async def left_in(url: str, queue: str) -> list[tuple[object, int]]:
    """What another consumer gets at once."""
    async with hark.connect(url) as other:
        return attempts(await other.queue(queue).group("g").batch(10).pop())


@pytest.fixture(autouse=True)
def a_first_look_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetcher, "FIRST_LOOK_SECONDS", 60.0)


async def test_those_of_a_pop(url: str, queue: str) -> None:
    slow = Slow(url)
    async with Client(slow) as client:
        await client.queue(queue).push_many(range(2))
        popping = asyncio.ensure_future(client.queue(queue).group("g").batch(2).pop())
        await slow.answered.wait()
        popping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await popping
        slow.deliver.set()
    assert await left_in(url, queue) == [(0, 1), (1, 1)]


async def test_those_of_an_iteration_that_then_goes_on(url: str, queue: str) -> None:
    slow = Slow(url)
    async with Client(slow) as client:
        await client.queue(queue).push_many(range(2))
        async with client.queue(queue).group("g").batch(2).messages() as messages:
            step = asyncio.ensure_future(anext(messages))
            await slow.answered.wait()
            step.cancel()
            with pytest.raises(asyncio.CancelledError):
                await step
            slow.deliver.set()
            again = await anext(messages)
            assert (again.data, again.attempt) == (0, 1)


async def test_those_of_a_consumption_that_was_stopped(url: str, queue: str) -> None:
    slow = Slow(url)
    async with Client(slow) as client:
        await client.queue(queue).push(1)
        consumption = client.queue(queue).group("g").consume(print)
        running = asyncio.ensure_future(consumption.run())
        await slow.answered.wait()
        consumption.stop()
        slow.deliver.set()
        assert (await running).succeeded == 0
        assert await left_in(url, queue) == [(1, 1)]


async def test_those_of_an_iteration_whose_client_is_closed(url: str, queue: str) -> None:
    slow = Slow(url)
    client = Client(slow)
    await client.queue(queue).push(1)
    step = asyncio.ensure_future(anext(client.queue(queue).group("g").messages(), None))
    await slow.answered.wait()
    [prefetcher] = client._prefetchers
    closing = asyncio.ensure_future(client.close())
    while not prefetcher._interrupted:  # noqa: ASYNC110  # There is no event for it.
        await asyncio.sleep(0)
    slow.deliver.set()
    assert await step is None
    await closing
    assert await left_in(url, queue) == [(1, 1)]


async def test_a_pop_that_waits_for_long_ends_with_the_one_that_waited(
    url: str, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetcher, "FIRST_LOOK_SECONDS", 0.0)
    async with hark.connect(url) as client:
        waiting = asyncio.ensure_future(client.queue(queue).wait().pop())
        while not (await client.admin.consumers(queue=queue)).items:
            pass
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        while (await client.admin.consumers(queue=queue)).items:
            pass


class Late:
    """A source that gives what it took when the test says so."""

    def __init__(self, client: Client, queue: str) -> None:
        self._inner = PollSource(client.caller, PopParams(queue=queue, group="g", batch=9, wait=False))
        self.took = asyncio.Event()
        self.give = asyncio.Event()

    async def take(self, most: int, acks: PiggybackedAcks | None = None) -> list[Delivered]:
        """What is there, later."""
        delivered = await self._inner.take(most, acks)
        self.took.set()
        await self.give.wait()
        return delivered

    async def close(self) -> None:
        """Nothing to close."""


def prefetcher_of(client: Client, source: Late) -> Prefetcher:
    """A supply of the source, of batches of 9."""
    holds = Holds(client.caller.transport)
    session = ConsumerSession(client.caller, client.settler, holds)
    return Prefetcher(session, source, Choices(batch=9, renew=False), PollingStrategy.adaptive(), lambda _: None)


async def test_what_came_in_the_moment_of_a_cancellation_goes_back(client: Client, queue: str) -> None:
    await client.queue(queue).push_many([1, 2])
    source = Late(client, queue)
    prefetcher = prefetcher_of(client, source)
    taking = asyncio.ensure_future(prefetcher.batch(9))
    await source.took.wait()
    source.give.set()
    while not all(task.done() for task in prefetcher._taking):  # noqa: ASYNC110  # The very turn in which it is done.
        await asyncio.sleep(0)
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    assert attempts(await client.queue(queue).group("g").batch(9).pop()) == [(1, 1), (2, 1)]


async def test_an_interrupted_batch_is_empty(client: Client, queue: str) -> None:
    source = Late(client, queue)
    prefetcher = prefetcher_of(client, source)
    taking = asyncio.ensure_future(prefetcher.batch(9))
    await source.took.wait()
    prefetcher.interrupt()
    assert await taking == 0
    assert await prefetcher.batch(9) == 0
    await prefetcher.close()
    await prefetcher.close()
