"""Handlers that can't work are refused, and never mistaken for ones that did."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

import hark.sync
from hark.client.client import Client
from hark.client.delivery.consuming import Consumed, Consumption
from hark.client.delivery.message import Message
from hark.client.transport.http import HttpTransport
from hark.errors import InvalidInput


def consumption() -> Consumption:
    return Client(HttpTransport("http://127.0.0.1:1")).queue("q").consume(print)


def test_what_is_no_function_is_no_handler() -> None:
    client = Client(HttpTransport("http://127.0.0.1:1"))
    with pytest.raises(InvalidInput, match="handler: expected a function, got None"):
        client.queue("q").consume(None)  # type: ignore[arg-type]  # On purpose.
    with pytest.raises(InvalidInput, match="on_success: expected a function, got 5"):
        consumption().on_success(5)  # type: ignore[arg-type]  # On purpose.
    with pytest.raises(InvalidInput, match="on_error: expected a function, got 5"):
        consumption().on_error(5)  # type: ignore[arg-type]  # On purpose.


async def test_a_handler_that_yields_was_not_run_and_its_message_fails(url: str, queue: str) -> None:
    async def steps(_message: Message) -> AsyncIterator[int]:
        yield 1

    def plain_steps(_message: Message) -> Iterator[int]:
        yield 1

    heard: list[str] = []
    async with hark.connect(url) as client:
        await client.queue(queue).configure(retry_limit=5)
        await client.queue(queue).push(1)
        for handler in (steps, plain_steps):
            consuming = client.queue(queue).limit(1).consume(handler)
            consumed = await consuming.on_error(lambda _, error: heard.append(str(error)))
            assert consumed == Consumed(succeeded=0, failed=1)
    assert heard == ["steps yields, so that calling it runs nothing: a handler returns", *heard[1:]]
    assert heard[1].startswith("plain_steps yields")


def test_an_async_handler_needs_the_async_client(url: str, queue: str) -> None:
    async def handle(_message: object) -> None: ...

    with hark.sync.connect(url) as client:
        with pytest.raises(InvalidInput, match="handler: handle is async; use the async client"):
            client.queue(queue).consume(handle)
        client.queue(queue).push(1)
        heard: list[str] = []
        hidden = client.queue(queue).limit(1).consume(lambda _: handle(None))
        consumed = hidden.on_error(lambda _, error: heard.append(str(error))).run()
        assert consumed == Consumed(succeeded=0, failed=1)
        assert heard == ["<lambda> is async; use the async client (hark.connect)"]


def test_a_handler_that_yields_was_not_run_in_a_thread_either(url: str, queue: str) -> None:
    def steps(_message: object) -> Iterator[int]:
        yield 1

    with hark.sync.connect(url) as client:
        client.queue(queue).push(1)
        assert client.queue(queue).limit(1).consume(steps).run() == Consumed(succeeded=0, failed=1)


def test_options_of_a_client_are_checked_when_it_is_made() -> None:
    with pytest.raises(InvalidInput, match=r"retry: expected a hark\.CallPolicy, got int"):
        hark.connect("http://127.0.0.1:1", retry=3)  # type: ignore[arg-type]  # On purpose.
    with pytest.raises(InvalidInput, match=r"polling: expected a hark\.PollingStrategy, got str"):
        hark.connect("http://127.0.0.1:1", polling="fixed")  # type: ignore[arg-type]  # On purpose.
    with pytest.raises(InvalidInput, match=r"headers: expected texts, got 5 for 'a'"):
        hark.connect("http://127.0.0.1:1", headers={"a": 5})  # type: ignore[dict-item]  # On purpose.
    with pytest.raises(InvalidInput, match="attempts: expected an integer from 1 on, got '3'"):
        hark.CallPolicy(attempts="3")  # type: ignore[arg-type]  # On purpose.
    with pytest.raises(InvalidInput, match="max_delay: expected seconds from 0 on, got None"):
        hark.CallPolicy(max_delay=None)  # type: ignore[arg-type]  # On purpose.
