"""The ack of a batch and the pop of the next one are on their way together, and never hurt each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import hark
from hark.client.client import Client
from hark.client.transport.api import Answer, Request
from hark.client.transport.http import HttpTransport

ACK = "/api/v1/ack/batch"


class Gate(HttpTransport):
    """Keeps acks back until the next pop has been asked for."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.order: list[str] = []
        self.popped = asyncio.Event()
        self.held_back = True

    async def send(self, request: Request) -> Answer:
        """Note what is asked and answered, and in which order."""
        name = "ack" if request.path == ACK else "pop" if "/pop/" in request.path else ""
        if name:
            self.order.append(name)
        if name == "pop":
            self.popped.set()
        while name == "ack" and self.held_back and self.order.count("pop") <= self.order.count("ack"):
            self.popped.clear()
            await self.popped.wait()
        answer = await super().send(request)
        if name == "ack":
            self.order.append("acked")
        return answer


@asynccontextmanager
async def letting_go(gate: Gate) -> AsyncIterator[None]:
    """Keep nothing back after the block, whatever the test found: a client that closes waits for its acks."""
    try:
        yield
    finally:
        gate.held_back = False
        gate.popped.set()


async def test_the_next_batch_is_asked_for_while_the_last_one_is_acked(url: str, queue: str) -> None:
    gate = Gate(url)
    seen: list[object] = []
    async with hark.connect(url) as producer, Client(gate) as client:
        await producer.queue(queue).push_many(range(3))

        async def handle(message: hark.Message) -> None:
            seen.append(message.data)
            gate.held_back = message.data != 2  # Nothing is asked for behind the limit.

        async with letting_go(gate), asyncio.timeout(20):
            done = await client.queue(queue).group("g").limit(3).consume(handle)
        assert (seen, done.succeeded) == ([0, 1, 2], 3)
        assert await producer.queue(queue).group("g").pop() == []
    assert gate.order[0] == "pop"
    assert sorted(gate.order[1:3]) == ["ack", "pop"]
    assert gate.order[3] == "acked"


async def test_a_batch_is_begun_when_the_one_before_it_is_settled(url: str, queue: str) -> None:
    gate = Gate(url)
    begun_at: list[int] = []
    async with hark.connect(url) as producer, Client(gate) as client:
        for partition in ("a", "b"):
            await producer.queue(queue).partition(partition).push(partition)

        async def handle(_message: hark.Message) -> None:
            begun_at.append(gate.order.count("acked"))
            gate.held_back = len(begun_at) < 2

        async with letting_go(gate), asyncio.timeout(20):
            await client.queue(queue).group("g").limit(2).consume(handle)
    assert begun_at == [0, 1]


async def test_what_succeeded_is_acked_before_what_failed_behind_it(url: str, queue: str) -> None:
    async with hark.connect(url) as client:
        await client.queue(queue).push_many(range(4))

        async def handle(message: hark.Message) -> None:
            if message.data == 2:
                raise ValueError("no")

        consumption = client.queue(queue).group("g").batch(4).each().limit(3).consume(handle)
        assert (await consumption).failed == 1
        left = await client.queue(queue).group("g").batch(10).pop()
        assert [(message.data, message.attempt) for message in left] == [(2, 2), (3, 1)]


async def test_a_poll_that_does_not_wait_comes_after_the_ack(url: str, queue: str) -> None:
    gate = Gate(url)
    gate.held_back = False
    async with hark.connect(url) as producer, Client(gate) as client:
        await producer.queue(queue).push_many(range(2))
        plain = client.queue(queue).group("g").polling(True).poll_interval(10).limit(2)
        await plain.consume(lambda _message: None)
    assert gate.order == ["pop", "ack", "acked", "pop", "ack", "acked"]
