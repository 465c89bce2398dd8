"""HTTP: what an answer is, what a failure is, and whether the request may have had its effect."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import msgspec
import pytest

from hark.client.transport.api import ConnectionFailed, Query, Request
from hark.client.transport.http import HttpTransport
from tests.client.transports import Proxy, pop_of, push_of, until_waiting


@pytest.fixture
async def transport(url: str) -> AsyncIterator[HttpTransport]:
    transport = HttpTransport(url)
    yield transport
    await transport.close()


def closed_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


async def test_any_status_is_an_answer(transport: HttpTransport) -> None:
    assert (await transport.send(Request("GET", "/health"))).status == 200
    assert (await transport.send(Request("GET", "/no/such/route"))).status == 404


async def test_queries_are_encoded_and_absent_ones_left_out(transport: HttpTransport, queue: str) -> None:
    query: Query = {"queue": queue, "wait": False, "batch": 2, "consumerGroup": "a&b=ü", "partition": None}
    assert (await transport.send(Request("GET", "/api/v1/pop", query))).status == 204
    answer = await transport.send(Request("GET", "/api/v1/pop", {"queue": queue, "batch": "two&wait=true"}))
    assert answer.status == 400
    assert "two&wait=true" in msgspec.json.decode(answer.body)["error"]


async def test_a_name_with_a_slash_stays_one_segment(transport: HttpTransport, queue: str) -> None:
    assert (await transport.send(push_of(f"{queue}/x", 1))).status == 201
    assert (await transport.send(pop_of(f"{queue}%2Fx"))).status == 200


async def test_nobody_at_the_address_means_that_nothing_was_sent() -> None:
    transport = HttpTransport(f"http://127.0.0.1:{closed_port()}")
    with pytest.raises(ConnectionFailed, match="is it running") as failed:
        await transport.send(Request("GET", "/health"))
    assert not failed.value.sent
    await transport.close()


async def test_no_answer_in_time_means_that_it_may_have_been_sent(url: str) -> None:
    async with Proxy(url) as proxy:
        proxy.fall_silent()
        transport = HttpTransport(proxy.url)
        with pytest.raises(ConnectionFailed, match="no answer from") as failed:
            await transport.send(Request("GET", "/health", timeout=0.05))
        assert failed.value.sent
        await transport.close()


async def test_a_lost_reply_means_that_it_may_have_been_sent(url: str) -> None:
    async with Proxy(url) as proxy:
        transport = HttpTransport(proxy.url)
        proxy.lose_replies(1)
        with pytest.raises(ConnectionFailed, match="broke") as failed:
            await transport.send(Request("POST", "/api/v1/push", None, b'{"items": []}'))
        assert failed.value.sent
        assert (await transport.send(Request("GET", "/health"))).status == 200
        await transport.close()


async def test_a_request_is_sent_once_also_over_a_connection_that_was_used_before(url: str, queue: str) -> None:
    async with Proxy(url) as proxy:
        transport = HttpTransport(proxy.url)
        await transport.send(push_of(queue, 1, 2))
        proxy.lose_replies(1)
        with pytest.raises(ConnectionFailed):
            await transport.send(pop_of(queue, autoAck=True))
        answer = await transport.send(pop_of(queue, autoAck=True))
        assert [message["data"] for message in msgspec.json.decode(answer.body)["messages"]] == [2]
        await transport.close()


async def test_a_pop_that_is_cancelled_takes_nothing(transport: HttpTransport, queue: str) -> None:
    waiting = asyncio.create_task(transport.send(pop_of(queue, wait=True)))
    await until_waiting(transport, queue)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await transport.send(push_of(queue, 1))
    assert (await transport.send(pop_of(queue, wait=True))).status == 200


async def test_a_fork_is_another_connection_to_the_same_place(transport: HttpTransport) -> None:
    fork = transport.fork()
    assert fork.url == transport.url
    assert (await fork.send(Request("GET", "/health"))).status == 200
    await fork.close()
    assert (await transport.send(Request("GET", "/health"))).status == 200
