"""The client as a whole: from open to close."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from itertools import count

import aiohttp
import pytest

import hark
from hark.client.calling import Request
from hark.client.client import Client
from hark.client.delivery.message import Message
from hark.client.delivery.socket import SocketSource
from hark.client.http import FailoverTransport, HttpTransport
from hark.client.io_thread import IoThread
from hark.clock import SystemClock
from hark.engine.sqlite import SqliteEngine
from hark.errors import HarkError
from tests.client.deliveries import attempts
from tests.client.transports import Script, until_waiting


async def test_the_example_of_the_readme(url: str, queue: str) -> None:
    charged = []
    async with hark.connect(url) as client:
        await client.queue(queue).partition("customer-7").push({"id": 1})
        async for message in client.queue(queue).group("billing").batch(10).messages():
            async with message:
                charged.append(message.data)
            break
    assert charged == [{"id": 1}]


async def test_it_works_without_a_context_and_a_closed_one_is_not_opened_again(url: str, queue: str) -> None:
    client = hark.connect(url)
    assert (await client.queue(queue).push(1)).status == "queued"
    unused = hark.connect(url)
    for one in (client, unused):
        await one.close()
        await one.close()
        with pytest.raises(HarkError, match="client is closed"):
            await one.queue(queue).pop()
        with pytest.raises(HarkError, match="client is closed"):
            async with one:
                pass


async def test_what_opens_is_opened_once() -> None:
    opened: list[int] = []

    async def open_up() -> None:
        opened.append(1)

    async with Client(HttpTransport("http://127.0.0.1:1"), on_open=open_up) as client:
        await client.open()
    assert opened == [1]


async def test_closing_hands_back_what_no_iteration_began(url: str, queue: str) -> None:
    client = hark.connect(url)
    await client.queue(queue).push_many(range(5))
    messages = client.queue(queue).group("g").batch(5).messages()
    first = await anext(messages)
    await first.ack()
    await client.close()
    with pytest.raises(StopAsyncIteration):
        await anext(messages)
    async with hark.connect(url) as other:
        rest = await other.queue(queue).group("g").batch(5).pop()
        assert attempts(rest) == [(1, 1), (2, 1), (3, 1), (4, 1)]


async def test_closing_ends_those_who_wait(url: str, queue: str) -> None:
    client = hark.connect(url)
    iterating = asyncio.ensure_future(anext(client.queue(queue).messages(), None))
    consuming = asyncio.ensure_future(client.queue(queue).concurrency(2).consume(print).run())
    await until_waiting(client.caller.transport, queue, 3)
    await client.close()
    assert await iterating is None
    assert (await consuming).succeeded == 0


@pytest.mark.parametrize("each", [True, False])
@pytest.mark.parametrize("scheme", ["http", "ws"])
async def test_closing_hands_back_what_no_handler_began(url: str, queue: str, scheme: str, each: bool) -> None:
    client = hark.connect(url.replace("http", scheme))
    for partition in "abc":
        await client.queue(queue).partition(partition).push(partition)
    begun: list[object] = []
    began, go_on = asyncio.Event(), asyncio.Event()

    async def handle(given: Message | list[Message]) -> None:
        begun.extend(message.data for message in (given if isinstance(given, list) else [given]))
        began.set()
        await go_on.wait()

    consuming = client.queue(queue).group("g").batch(3 if each else 2).partitions(3).each(each).concurrency(1 + each)
    running = asyncio.ensure_future(consuming.consume(handle).run())
    await began.wait()
    before = list(begun)
    await client.close()
    async with hark.connect(url) as other:
        rest = await other.queue(queue).group("g").batch(3).partitions(3).pop()
        assert attempts(rest) == [(data, 1) for data in "abc" if data not in before]
    go_on.set()
    done = await running
    assert (begun, done.succeeded, done.failed) == (before, len(before), 0)


@pytest.mark.parametrize("scheme", ["http", "ws"])
async def test_closing_waits_for_a_consumption_that_was_cancelled(
    url: str, queue: str, scheme: str, sessions: list[aiohttp.ClientSession]
) -> None:
    client = hark.connect(url.replace("http", scheme))
    running = [asyncio.ensure_future(client.queue(queue).concurrency(n).consume(print).run()) for n in (1, 2)]
    await until_waiting(client.caller.transport, queue, 3)
    for one in running:
        one.cancel()
    await asyncio.sleep(0)
    await client.close()
    assert [session for session in sessions if not session.closed] == []
    await asyncio.gather(*running, return_exceptions=True)


async def test_closing_ends_although_others_go_on_pushing_and_they_learn_what_is_stored(url: str, queue: str) -> None:
    client = hark.connect(url)
    stored: list[object] = []

    async def push(name: str) -> HarkError:
        for number in count():
            try:
                await client.queue(queue).push([name, number])
            except HarkError as error:
                return error
            stored.append([name, number])
        raise AssertionError("it never ends")

    pushing = [asyncio.ensure_future(push(name)) for name in "abc"]
    await client.queue(queue).push("first")
    async with asyncio.timeout(20):
        await client.close()
    assert {error.code for error in await asyncio.gather(*pushing)} == {"client_closed"}
    with pytest.raises(HarkError, match="client is closed"):
        await client.queue(queue).push_many([1])
    async with hark.connect(url) as other:
        found = [message.data async for message in other.queue(queue).batch(1000).auto_ack().idle(1).messages()]
    assert sorted(map(str, found)) == sorted(map(str, ["first", *stored]))


async def test_a_call_while_the_connections_are_closed_is_refused_as_one_after_it(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = HttpTransport(url)
    await transport.send(Request("GET", "/health"))
    assert transport._session is not None
    close, began, go_on = transport._session.close, asyncio.Event(), asyncio.Event()

    async def slowly() -> None:
        await close()
        began.set()
        await go_on.wait()

    monkeypatch.setattr(transport._session, "close", slowly)
    closing = asyncio.ensure_future(transport.close())
    await began.wait()
    with pytest.raises(HarkError, match="client is closed") as refused:
        await transport.send(Request("GET", "/health"))
    assert refused.value.code == "client_closed"
    go_on.set()
    await closing


async def test_the_thread_that_renews_ends_with_the_client_and_is_not_started_after_it(url: str, queue: str) -> None:
    before = set(threading.enumerate())
    async with hark.connect(url) as client:
        for partition in ("a", "b"):
            await client.queue(queue).partition(partition).push(1)
        [message], [late] = [await client.queue(queue).lease(30).pop() for _ in range(2)]
        assert set(threading.enumerate()) == before
        async with message:
            assert len(set(threading.enumerate()) - before) == 1
            assert client._holds.keeper().kept == 1
        assert client._holds.keeper().kept == 0
    assert set(threading.enumerate()) == before
    with pytest.raises(HarkError, match="client is closed"):
        await late.begin()
    assert set(threading.enumerate()) == before


@pytest.mark.parametrize("scheme", ["http", "ws"])
async def test_closing_that_is_cancelled_leaves_no_thread_and_no_connection(url: str, queue: str, scheme: str) -> None:
    """Unclosed sessions are warnings, and warnings are failures."""
    before = set(threading.enumerate())
    client = hark.connect([url.replace("http", scheme)])
    await client.queue(queue).push_many(range(3))
    messages = client.queue(queue).group("g").batch(3).messages()
    await anext(messages)
    assert set(threading.enumerate()) != before
    await client.queue(queue).buffer().push(4)
    closing = asyncio.ensure_future(client.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert set(threading.enumerate()) == before


async def for_ever(began: asyncio.Event) -> None:
    """Something that takes longer than anybody waits."""
    began.set()
    await asyncio.Event().wait()


async def cancelled_at(began: asyncio.Event, closing: Coroutine[object, object, None]) -> None:
    """Cancel what closes something when it has got somewhere."""
    task = asyncio.ensure_future(closing)
    async with asyncio.timeout(20):
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.mark.parametrize("where", ["handing back", "hanging up"])
async def test_an_iteration_whose_closing_is_cancelled_leaves_no_connection(
    url: str, queue: str, sessions: list[aiohttp.ClientSession], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    began = asyncio.Event()
    async with hark.connect(url.replace("http", "ws")) as client:
        await client.queue(queue).push_many(range(3))
        messages = client.queue(queue).group("g").batch(3).messages()
        await anext(messages)
        [prefetcher] = client._prefetchers
        assert isinstance(prefetcher._source, SocketSource)
        if where == "handing back":
            monkeypatch.setattr(prefetcher, "give_back", lambda _: for_ever(began))
        else:
            monkeypatch.setattr(prefetcher._source._connection, "close", lambda: for_ever(began))
        await cancelled_at(began, messages.aclose())
        assert [session.closed for session in sessions] == [False, True], "that of the requests, that of the socket"


async def test_an_io_thread_whose_closing_is_cancelled_leaves_no_thread_and_no_connection(
    url: str, sessions: list[aiohttp.ClientSession]
) -> None:
    io_thread = IoThread(HttpTransport(url))
    io_thread.start()
    await io_thread.run(lambda: io_thread.caller.call("GET", "/health"))
    here, began, ending = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()

    async def stubborn() -> None:
        here.call_soon_threadsafe(began.set)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            here.call_soon_threadsafe(ending.set)
            await asyncio.Event().wait()

    running = asyncio.ensure_future(io_thread.run(stubborn))
    await began.wait()
    await cancelled_at(ending, io_thread.close())
    await asyncio.gather(running, return_exceptions=True)
    assert [session.closed for session in sessions] == [True]
    assert "hark-io" not in {thread.name for thread in threading.enumerate()}


async def test_several_servers_are_all_hung_up_on_although_the_closing_is_cancelled() -> None:
    began, closed = asyncio.Event(), asyncio.Event()

    class Slow(Script):
        async def close(self) -> None:
            await (for_ever(began) if not began.is_set() else super().close())
            closed.set()

    await cancelled_at(began, FailoverTransport(["a", "b"], make=lambda _: Slow()).close())
    assert closed.is_set()


def test_one_that_is_used_in_another_loop_says_so(url: str, queue: str) -> None:
    engine = SqliteEngine(":memory:", clock=SystemClock())
    for client in (hark.connect(url), hark.connect(engine)):

        async def first(client: Client = client) -> None:
            await client.queue(queue).push(1)

        async def second(client: Client = client) -> None:
            for use in (client.queue(queue).push(2), client.queue(queue).pop()):
                with pytest.raises(HarkError, match="belongs to another event loop") as refused:
                    await use
                assert refused.value.code == "wrong_loop"

        with asyncio.Runner() as one, asyncio.Runner() as another:
            one.run(first())
            another.run(second())
            one.run(client.close())
