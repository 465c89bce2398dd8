"""Consuming over every kind of transport, with acks and pops under way together, and through a restart of a server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

import hark
from hark.api.types.groups import WaitingStream
from hark.client.calling import Answer, ConnectionFailed, Request
from hark.client.client import Client
from hark.client.http import HttpTransport
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


# The ack of a batch travels with the pop of the next one ----------------------------------------------------


NEXT = "/api/v1/next"
ROUTES = {"/api/v1/ack/batch": "ack", NEXT: "next"}


class Gate(HttpTransport):
    """Notes what is asked, and lets a test spoil the requests that settle and pop."""

    def __init__(self, url: str, spoil: Callable[[int], bool | None] = lambda _number: None) -> None:
        super().__init__(url)
        self.order: list[str] = []
        self._spoil = spoil

    async def send(self, request: Request) -> Answer:
        """Send it, or fail: before it is sent (False), or after it was answered (True)."""
        name = ROUTES.get(request.path, "pop" if "/pop/" in request.path else "")
        if not name:
            return await super().send(request)
        self.order.append(name)
        sent = self._spoil(self.order.count("next")) if name == "next" else None
        if sent is None:
            return await super().send(request)
        if sent:
            await super().send(msgspec.structs.replace(request, first_line=None))
        raise ConnectionFailed("spoiled", sent=sent)


async def test_an_ack_travels_with_the_next_pop_and_the_last_one_by_itself(url: str, queue: str) -> None:
    gate = Gate(url)
    seen: list[object] = []
    async with hark.connect(url) as producer, Client(gate) as client:
        await producer.queue(queue).push_many(range(3))
        done = await client.queue(queue).group("g").limit(3).consume(lambda message: seen.append(message.data))
        assert (seen, done.succeeded) == ([0, 1, 2], 3)
        assert await producer.queue(queue).group("g").pop() == []
    assert gate.order == ["pop", "next", "next", "ack"]


async def test_an_ack_is_answered_while_its_pop_waits(url: str, queue: str) -> None:
    """Otherwise the server would go on to hold the message, and the client to renew its lease."""
    gate = Gate(url)
    async with hark.connect(url) as producer, Client(gate) as client:
        await producer.queue(queue).push(1)
        handled = asyncio.Event()
        settled: list[hark.Message] = []

        async def handle(message: hark.Message) -> None:
            settled.append(message)
            handled.set()

        consumption = client.queue(queue).group("g").consume(handle)
        running = asyncio.ensure_future(consumption.run())
        async with asyncio.timeout(20):
            await handled.wait()
            while settled[0].settled != "completed":  # noqa: ASYNC110  # The message has no event.
                await asyncio.sleep(0.001)
            assert gate.order == ["pop", "next"]
            assert not running.done()
            consumption.stop()
            assert (await running).succeeded == 1
        assert (await producer.queue(queue).group("g").depth()).pending == 0


@pytest.mark.parametrize("sent", [False, True])
async def test_acks_survive_a_pop_that_fails(url: str, queue: str, sent: bool) -> None:
    gate = Gate(url, lambda number: sent if number == 2 else None)
    seen: list[object] = []
    async with hark.connect(url) as producer, Client(gate) as client:
        # With a reply that was lost, its messages are redelivered after their lease.
        await producer.queue(queue).configure(lease_time=1)
        await producer.queue(queue).push_many(range(4))
        consuming = client.queue(queue).group("g").renew_lease(False).limit(4)
        async with asyncio.timeout(20):
            await consuming.consume(lambda message: seen.append(message.data))
        assert seen == [0, 1, 2, 3]
        assert (await producer.queue(queue).group("g").depth()).pending == 0


async def test_what_succeeded_is_acked_before_what_failed_behind_it(url: str, queue: str) -> None:
    async with hark.connect(url) as client:
        await client.queue(queue).configure(retry_max_delay=0)
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
    async with hark.connect(url) as producer, Client(gate) as client:
        await producer.queue(queue).push_many(range(2))
        plain = client.queue(queue).group("g").polling(True).poll_interval(10).limit(2)
        await plain.consume(lambda _message: None)
    assert gate.order == ["pop", "ack", "pop", "ack"]
