"""Handlers that can't work are refused, and never mistaken for ones that did."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

import hark.sync
from hark.client.delivery.consuming import Consumed
from hark.client.delivery.message import Message
from hark.errors import InvalidInput


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
