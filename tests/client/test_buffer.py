"""Buffered pushes: they return at once, and what fails is told."""

from __future__ import annotations

import asyncio

import pytest

import hark
from hark.client.calling import Caller, CallPolicy
from hark.client.client import Client
from hark.client.producing.buffer import Buffer, FlushFailed
from hark.client.producing.pushing import Pusher, new_message
from hark.client.transport.api import Answer, ConnectionFailed, Request
from hark.client.transport.http import HttpTransport
from hark.errors import HarkError
from tests.client.deliveries import taken
from tests.client.transports import Recorder, problem, sizes

LONG = 3_600_000
AWAY = ConnectionFailed("no server", sent=False)


class Gate:
    """A way to the server that is open, closed, or makes those who come wait."""

    def __init__(self, url: str) -> None:
        self._transport = HttpTransport(url)
        self.url = url
        self.failure: Exception | Answer | None = None
        self.open = asyncio.Event()
        self.open.set()
        self.asked = asyncio.Event()

    async def send(self, request: Request) -> Answer:
        """Ask, if the gate is open."""
        self.asked.set()
        await self.open.wait()
        if isinstance(self.failure, Exception):
            raise self.failure
        return self.failure or await self._transport.send(request)

    def fork(self) -> None:
        """Not needed here."""

    async def close(self) -> None:
        """Hang up."""
        await self._transport.close()


def client_of(transport: Gate | Recorder) -> Client:
    """A client that asks once."""
    return Client(transport, retry=CallPolicy(attempts=1))


async def test_pushes_return_at_once_and_go_together_when_there_are_enough(url: str, queue: str) -> None:
    recorder = Recorder(HttpTransport(url))
    async with client_of(recorder) as client:
        orders = client.queue(queue).buffer(max_items=10, max_ms=LONG)
        for number in range(9):
            await orders.push(number)
        assert recorder.requests == []
        await orders.push(9)
        await client.buffers.of(queue, 10, LONG)._send()
        assert sizes(recorder.requests) == [10]
        assert await taken(client, queue) == list(range(10))


async def test_the_first_one_waits_only_so_long(url: str, queue: str) -> None:
    async with hark.connect(url) as client:
        waiting = asyncio.ensure_future(client.queue(queue).wait().pop())
        await client.queue(queue).buffer(max_ms=1).push("hello")
        [message] = await waiting
        assert message.data == "hello"


async def test_flush_sends_what_is_there(url: str, queue: str) -> None:
    async with hark.connect(url) as client:
        orders = client.queue(queue).buffer(max_ms=LONG).partition("p")
        await orders.push_many([1, client.queue(queue).partition("p").message(2, key="two")])
        await client.flush()
        assert await taken(client, queue) == [1, 2]
        await orders.push(3)
        await orders.flush()
        [*_, message] = await client.queue(queue).batch(3).pop()
        assert (message.data, message.partition) == (3, "p")


async def test_close_sends_what_is_there(url: str, queue: str) -> None:
    async with hark.connect(url) as client:
        await client.queue(queue).buffer(max_ms=LONG).push(1)
    async with hark.connect(url) as client:
        assert await taken(client, queue) == [1]


async def test_what_the_server_may_take_later_stays_in_order(url: str, queue: str) -> None:
    gate = Gate(url)
    async with client_of(gate) as client:
        orders = client.queue(queue).buffer(max_items=3, max_ms=LONG)
        await orders.push_many([1, 2])
        gate.failure = AWAY
        with pytest.raises(FlushFailed) as failed:
            await orders.flush()
        assert (failed.value.retryable, failed.value.kept, failed.value.refused) == (True, 2, ())
        await orders.push(3)
        gate.failure = None
        await orders.flush()
        assert await taken(client, queue) == [1, 2, 3]


async def test_a_failure_in_the_background_is_raised_by_the_next_push_which_is_not_taken(url: str, queue: str) -> None:
    gate = Gate(url)
    async with client_of(gate) as client:
        orders = client.queue(queue).buffer(max_items=2, max_ms=LONG)
        gate.failure = AWAY
        await orders.push_many([1, 2])
        await client.buffers.of(queue, 2, LONG)._send()
        with pytest.raises(FlushFailed, match="no server"):
            await orders.push("not taken")
        gate.failure = None
        await orders.push(3)
        await orders.flush()
        assert await taken(client, queue) == [1, 2, 3]


async def test_what_the_server_refuses_is_given_up_and_named(url: str, queue: str) -> None:
    gate = Gate(url)
    async with client_of(gate) as client:
        orders = client.queue(queue).buffer(max_ms=LONG)
        await orders.push(1, key="bad")
        gate.failure = problem(400, "invalid_input", "partition: too long")
        with pytest.raises(FlushFailed, match="partition: too long") as failed:
            await orders.flush()
        assert [message.transaction_id for message in failed.value.refused] == ["bad"]
        assert not failed.value.retryable
        gate.failure = None
        await orders.push(2)
        await orders.flush()
        assert await taken(client, queue) == [2]


async def test_closing_raises_what_could_not_be_sent(url: str, queue: str) -> None:
    gate = Gate(url)
    client = client_of(gate)
    await client.queue(queue).buffer(max_ms=LONG).push(1, key="one")
    gate.failure = AWAY
    with pytest.raises(FlushFailed) as failed:
        await client.close()
    assert [message.transaction_id for message in failed.value.refused] == ["one"]


async def test_a_full_buffer_makes_pushes_wait(url: str, queue: str) -> None:
    gate = Gate(url)
    async with client_of(gate) as client:
        gate.open.clear()
        orders = client.queue(queue).buffer(max_items=1, max_ms=LONG)
        await orders.push_many(range(10))
        waiting = asyncio.ensure_future(orders.push(10))
        await gate.asked.wait()
        assert len(client.buffers.of(queue, 1, LONG)) == 10
        assert not waiting.done()
        gate.open.set()
        await waiting
        await orders.flush()
        assert await taken(client, queue) == list(range(11))


async def test_what_failed_is_sent_again_by_itself(caller: Caller, queue: str) -> None:
    gate = Gate(caller.transport.url)
    slept: list[float] = []
    retried = asyncio.Event()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        gate.failure = None
        retried.set()

    buffer = Buffer(Pusher(Caller(gate, CallPolicy(attempts=1))), max_items=1, max_seconds=LONG, sleep=sleep)
    gate.failure = problem(503, "stopping", retry_after=7)
    await buffer.add(new_message(queue, 1))
    await retried.wait()
    await buffer.close()
    await gate.close()
    assert slept == [7]
    assert len(buffer) == 0


async def test_a_closed_client_takes_nothing_into_its_buffers(url: str, queue: str) -> None:
    client = hark.connect(url)
    orders = client.queue(queue).buffer()
    await client.close()
    with pytest.raises(HarkError, match="client is closed") as refused:
        await orders.push(1)
    assert refused.value.code == "client_closed"


async def test_whoever_waits_for_room_hears_that_the_client_was_closed(url: str, queue: str) -> None:
    gate = Gate(url)
    client = client_of(gate)
    gate.open.clear()
    orders = client.queue(queue).buffer(max_items=1, max_ms=LONG)
    await orders.push_many(range(10))
    waiting = asyncio.ensure_future(orders.push(10))
    await gate.asked.wait()
    closing = asyncio.ensure_future(client.close())
    await asyncio.sleep(0)
    gate.open.set()
    await closing
    with pytest.raises(HarkError, match="client is closed"):
        await waiting
    async with hark.connect(url) as other:
        assert await taken(other, queue) == list(range(10))
