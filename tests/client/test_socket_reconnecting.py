"""WebSocket consumers whose servers come and go."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from hark.client.calling import Caller
from hark.client.delivery.settling import Settled, Verdict
from hark.client.delivery.socket import SocketSource
from hark.client.delivery.sources import PollSource, Wish
from hark.client.transport.api import ConnectionFailed
from hark.client.transport.failover import FailoverTransport
from hark.client.transport.http import HttpTransport
from hark.errors import HarkError
from tests.client.lossy import configure, no_sleep, push
from tests.client.sockets import payloads, source_of, until_not, until_room
from tests.crash.server import Server, running


async def test_without_a_server_the_time_is_up_with_the_reason() -> None:
    transport = HttpTransport("http://127.0.0.1:1")
    times = iter([0.0, 0.0, 0.3, 1.1])
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    source = SocketSource(
        Caller(transport), Wish(queue="q", timeout_ms=1000), monotonic=lambda: next(times), sleep=sleep
    )
    with pytest.raises(ConnectionFailed, match="no server at"):
        await source.take(1)
    assert len(pauses) == 2
    assert pauses[0] < pauses[1]
    await source.close()


async def test_a_route_that_is_no_websocket_is_no_reason_to_wait(url: str) -> None:
    source = SocketSource(Caller(HttpTransport(f"{url}/elsewhere")), Wish(queue="q"))
    with pytest.raises(HarkError, match="404"):
        await source.take(1)
    await source.close()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "stopped"])
async def test_a_consumer_outlives_its_server(tmp_path: Path, queue: str, how: signal.Signals) -> None:
    server = Server("--data", str(tmp_path / "data"))
    transport = HttpTransport(server.url)
    caller = Caller(transport)
    async with running(server), source_of(caller, Wish(queue=queue, batch=2, timeout_ms=60_000)) as source:
        await push(caller, queue, ["before"])
        [before] = await source.take(1)
        assert await source.settler.settle(Verdict(before)) == Settled(True)
        waiting = asyncio.create_task(source.take(1))
        await until_room(caller, queue)
        await server.end(how)
        await until_not(lambda: source.connected)
        await server.start()
        await push(caller, queue, ["after"])
        [after] = await waiting
        assert payloads([after]) == ["after"]
        assert await source.settler.settle(Verdict(after)) == Settled(True)
    await transport.close()


async def test_what_is_held_outlives_the_connection(caller: Caller, queue: str) -> None:
    await push(caller, queue, ["held", "next"])
    async with source_of(caller, Wish(queue=queue)) as source:
        [held] = await source.take(1)
        assert source._connection is not None
        await source._connection.close()
        assert not source.connected
        [other] = await source.take(1)
        assert source.connected
        assert {*payloads([held]), *payloads([other])} == {"held", "next"}
        assert await PollSource(caller, Wish(queue=queue, wait=False)).take(1) == []
        assert await source.settler.settle_many([Verdict(held), Verdict(other)]) == [Settled(True)] * 2


async def test_a_consumer_of_two_servers_goes_to_the_other_one(tmp_path: Path, url: str, queue: str) -> None:
    first = Server("--data", str(tmp_path / "data"))
    transport = FailoverTransport([first.url, url])
    caller, there = Caller(transport, sleep=no_sleep), HttpTransport(url)
    async with running(first), source_of(caller, Wish(queue=queue, timeout_ms=60_000)) as source:
        await configure(caller, queue)
        waiting = asyncio.create_task(source.take(1))
        await until_room(caller, queue)
        await first.end(signal.SIGKILL)
        await push(Caller(there), queue, ["elsewhere"])
        assert payloads(await waiting) == ["elsewhere"]
    await there.close()
    await transport.close()
