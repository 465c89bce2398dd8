"""Consuming over every kind of transport, with acks and pops under way together, and through a restart of a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

import hark
from hark.client.administration.results import WaitingStream
from hark.client.client import Client
from hark.client.transport.api import Answer, Request
from hark.client.transport.http import HttpTransport
from hark.clock import SystemClock
from hark.engine.sqlite import SqliteEngine
from hark.errors import Forbidden
from tests.client.deliveries import attempts
from tests.servers import server_process


async def test_it_consumes_over_a_socket(url: str, queue: str) -> None:
    seen = []
    async with hark.connect(url.replace("http", "ws")) as client:
        await client.queue(queue).push_many(range(10))
        done = await client.queue(queue).group("g").batch(4).each().limit(6).consume(lambda one: seen.append(one.data))
        assert (seen, done.succeeded) == ([0, 1, 2, 3, 4, 5], 6)
        async for message in client.queue(queue).group("g").batch(4).messages():
            assert [type(one) for one in (await client.admin.consumers(queue=queue)).items] == [WaitingStream]
            async with message:
                seen.append(message.data)
            if message.data == 8:
                break
    assert seen == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    async with hark.connect(url) as other:
        assert attempts(await other.queue(queue).group("g").pop()) == [(9, 1)]


async def test_sockets_are_opened_with_the_headers_that_were_given(queue: str) -> None:
    keys = []

    async def refuse(request: web.Request) -> web.Response:
        keys.append(request.headers.get("X-Key"))
        return web.json_response({"error": "no", "code": "forbidden"}, status=403)

    app = web.Application()
    app.router.add_get("/api/v1/consume", refuse)
    async with TestServer(app) as server:
        client = hark.connect(f"ws://{server.host}:{server.port}", headers={"X-Key": "secret"})
        with pytest.raises(Forbidden):
            await anext(client.queue(queue).messages())
        await client.close()
    assert keys == ["secret"]


async def test_it_consumes_from_an_engine_in_this_process(queue: str) -> None:
    async with hark.connect(SqliteEngine(":memory:", clock=SystemClock())) as client:
        await client.queue(queue).push_many([1, 2, 3])
        seen = [message.data async for message in client.queue(queue).auto_ack().limit(3).messages()]
    assert seen == [1, 2, 3]


async def test_consumers_go_on_by_themselves_after_a_restart_of_the_server(tmp_path: Path, queue: str) -> None:
    seen: asyncio.Queue[tuple[str, object]] = asyncio.Queue()
    clients = []
    with server_process(tmp_path, engine="sqlite:///store.db") as url:
        for scheme in ("http", "ws"):
            client = hark.connect(url.replace("http", scheme))
            consumption = (
                client.queue(queue)
                .group(scheme)
                .consume(lambda message, scheme=scheme: seen.put((scheme, message.data)))
            )
            clients.append((client, consumption, asyncio.ensure_future(consumption.run())))
        await clients[0][0].queue(queue).push("before")
        assert {await seen.get(), await seen.get()} == {("http", "before"), ("ws", "before")}
        for scheme in ("http", "ws"):
            while (await clients[0][0].queue(queue).group(scheme).depth()).pending:
                pass
    port = url.rpartition(":")[2]
    with server_process(tmp_path, engine="sqlite:///store.db", arguments=["--port", port]):
        await clients[0][0].queue(queue).push("after")
        assert {await seen.get(), await seen.get()} == {("http", "after"), ("ws", "after")}
        for client, consumption, running in clients:
            consumption.stop()
            assert (await running).succeeded == 2
            await client.close()


@pytest.mark.parametrize("scheme", ["http", "ws"])
async def test_a_wait_of_no_time_looks_once(url: str, queue: str, scheme: str) -> None:
    async with hark.connect(url.replace("http", scheme)) as client:
        await client.queue(queue).push(1)
        seen: list[object] = []
        async with asyncio.timeout(10):
            await client.queue(queue).timeout(0).limit(1).consume(lambda message: seen.append(message.data))
        assert seen == [1]


# The ack of a batch and the pop of the next one are on their way together, and never hurt each other ----------


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
