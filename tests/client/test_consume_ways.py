"""Consuming over every kind of transport, and through a restart of the server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

import hark
from hark.clock import SystemClock
from hark.engine.sqlite import SqliteEngine
from hark.errors import Forbidden
from tests.client.deliveries import attempts
from tests.conftest import running_server


async def test_it_consumes_over_a_socket(url: str, queue: str) -> None:
    seen = []
    async with hark.connect(url.replace("http", "ws")) as client:
        await client.queue(queue).push_many(range(10))
        done = await client.queue(queue).group("g").batch(4).each().limit(6).consume(lambda one: seen.append(one.data))
        assert (seen, done.succeeded) == ([0, 1, 2, 3, 4, 5], 6)
        async for message in client.queue(queue).group("g").batch(4).messages():
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
    with running_server(tmp_path, engine="sqlite:///store.db") as url:
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
    with running_server(tmp_path, engine="sqlite:///store.db", arguments=["--port", port]):
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
