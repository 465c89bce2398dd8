"""A server in this process behaves as one behind a socket does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from hark.client.transport.api import ConnectionFailed, Request
from hark.client.transport.inprocess import AsgiTransport, Receive, Scope, Send
from hark.clock import SystemClock
from hark.connecting import in_process
from hark.engine.sqlite import SqliteEngine
from hark.errors import HarkError, StoreUnusable
from hark.settings import Settings
from tests.client.transports import pop_of, push_of, until_waiting


@pytest.fixture
async def transport() -> AsyncIterator[AsgiTransport]:
    transport = in_process(SqliteEngine(":memory:", clock=SystemClock()))
    yield transport
    await transport.close()


async def test_a_message_goes_in_and_comes_out(transport: AsgiTransport, queue: str) -> None:
    assert (await transport.send(push_of(queue, {"id": 1}))).status == 201
    answer = await transport.send(pop_of(queue))
    assert msgspec.json.decode(answer.body)["messages"][0]["data"] == {"id": 1}


async def test_routes_beside_the_hot_ones_work_too(transport: AsgiTransport) -> None:
    assert (await transport.send(Request("GET", "/health"))).status == 200
    assert (await transport.send(Request("GET", "/no/such/route"))).status == 404


async def test_names_and_queries_are_encoded_as_over_http(transport: AsgiTransport, queue: str) -> None:
    await transport.send(push_of(f"{queue}/ü", 1))
    assert (await transport.send(pop_of(f"{queue}%2F%C3%BC", consumerGroup="a&b=ü"))).status == 200
    assert (await transport.send(pop_of(queue, batch="two"))).status == 400


async def test_a_refusal_says_when_to_come_back(transport: AsgiTransport, queue: str) -> None:
    maintenance = Request("POST", "/api/v1/system/maintenance", None, b'{"enabled": true}')
    assert (await transport.send(maintenance)).status == 200
    refused = await transport.send(push_of(queue, 1))
    assert (refused.status, refused.retry_after) == (503, 5.0)


async def test_a_waiting_pop_gets_what_is_pushed_meanwhile(transport: AsgiTransport, queue: str) -> None:
    waiting = asyncio.create_task(transport.send(pop_of(queue, wait=True)))
    await until_waiting(transport, queue)
    await transport.send(push_of(queue, 1))
    assert (await waiting).status == 200


async def test_a_pop_that_is_cancelled_takes_nothing(transport: AsgiTransport, queue: str) -> None:
    waiting = asyncio.create_task(transport.send(pop_of(queue, wait=True)))
    await until_waiting(transport, queue)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await transport.send(push_of(queue, 1))
    # The server may be about to serve it when it learns that nobody waits; then it is given back.
    assert (await transport.send(pop_of(queue, wait=True))).status == 200


async def test_a_pop_that_is_cancelled_while_it_is_served_gives_its_messages_back(
    transport: AsgiTransport, queue: str
) -> None:
    await transport.send(push_of(queue, 1))
    hasty = asyncio.create_task(transport.send(pop_of(queue, wait=True)))
    await asyncio.sleep(0)  # It has been asked, and there is no answer yet.
    hasty.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hasty
    assert (await transport.send(pop_of(queue, wait=True))).status == 200


async def test_no_answer_in_time_means_that_it_may_have_been_done(transport: AsgiTransport, queue: str) -> None:
    with pytest.raises(ConnectionFailed) as failed:
        await transport.send(pop_of(queue, timeout=0.01, wait=True))
    assert failed.value.sent


async def test_there_is_no_way_from_another_loop(transport: AsgiTransport) -> None:
    assert transport.fork() is None  # type: ignore[func-returns-value]  # None is what it says.


async def test_the_server_starts_once_and_closes_with_the_transport() -> None:
    events: list[str] = []

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        events.append("asked")
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ab", "more_body": True})
        await send({"type": "http.response.body", "body": b"c"})

    async def note(event: str) -> None:
        await asyncio.sleep(0)
        events.append(event)

    transport = AsgiTransport(app, on_open=lambda: note("open"), on_close=lambda: note("close"))
    answers = await asyncio.gather(*(transport.send(Request("GET", "/")) for _ in range(2)))
    assert [answer.body for answer in answers] == [b"abc", b"abc"]
    await transport.close()
    await transport.close()
    assert events == ["open", "asked", "asked", "close"]


async def test_what_was_never_used_has_nothing_to_close() -> None:
    async def never() -> None:
        raise AssertionError

    async def app(_scope: Scope, _receive: Receive, _send: Send) -> None:
        raise AssertionError

    await AsgiTransport(app, on_open=never, on_close=never).close()


async def test_closing_hangs_up_on_those_who_wait(queue: str) -> None:
    transport = in_process(SqliteEngine(":memory:", clock=SystemClock()))
    waiting = asyncio.create_task(transport.send(pop_of(queue, wait=True)))
    await until_waiting(transport, queue)
    await transport.close()
    with pytest.raises(ConnectionFailed, match="closed"):
        await waiting
    with pytest.raises(HarkError, match="connect again"):
        await transport.send(Request("GET", "/health"))


async def test_a_store_that_can_not_be_opened_is_the_error_of_every_request() -> None:
    transport = in_process(SqliteEngine("/dev/null/hark.db", clock=SystemClock()), Settings())
    for _ in range(2):
        with pytest.raises(StoreUnusable):
            await transport.send(Request("GET", "/health"))
    await transport.close()


async def test_an_application_that_fails_is_an_error_with_its_cause() -> None:
    async def app(_scope: Scope, _receive: Receive, _send: Send) -> None:
        raise ZeroDivisionError("oops")

    transport = AsgiTransport(app)
    with pytest.raises(HarkError, match="oops") as failed:
        await transport.send(Request("GET", "/"))
    assert isinstance(failed.value.__cause__, ZeroDivisionError)
    await transport.close()


async def test_an_application_that_does_not_answer_is_an_error() -> None:
    async def app(_scope: Scope, _receive: Receive, _send: Send) -> None:
        return

    transport = AsgiTransport(app)
    with pytest.raises(HarkError, match="did not answer"):
        await transport.send(Request("GET", "/"))
    await transport.close()
