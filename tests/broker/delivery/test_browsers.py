"""Browsers: each message once, in order, whatever consumers, stores and clients do meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hark.broker.delivery.browsers import Browser
from hark.engine.api import Answers
from hark.engine.hints import MANY
from hark.errors import EngineFailure
from hark.model import NewMessage, Read, ReadResult

from .harness import QUEUE, Server, SharedEngine, serving, turns


async def push(server: Server, partition: str, *payloads: int) -> None:
    """Numbered messages."""
    await server.broker.push([NewMessage(QUEUE, partition, str(payload).encode()) for payload in payloads])


async def seen(browser: Browser, number: int) -> list[tuple[str, int]]:
    """The next so many messages."""
    got: list[tuple[str, int]] = []
    while len(got) < number:
        got += [(message.partition, int(bytes(message.payload))) for message in await browser.next()]
    return got


async def test_a_browser_sees_each_message_once_in_the_order_of_its_partition(server: Server) -> None:
    await push(server, "a", *range(250))
    await push(server, "b", *range(250))
    browser = await server.delivery.browsers.open(QUEUE, None, "head")
    reading = asyncio.create_task(seen(browser, 1000))
    for start in range(250, 500, 50):
        await push(server, "a", *range(start, start + 50))
        await push(server, "b", *range(start, start + 50))
    got = await reading
    for partition in "ab":
        assert [payload for name, payload in got if name == partition] == list(range(500))


async def test_a_browser_may_start_at_the_tail_at_a_time_or_in_one_partition_and_sees_pushes_into_many(
    server: Server,
) -> None:
    await push(server, "a", 1)
    await server.advance(1)
    time = server.clock.now()
    await server.advance(1)
    await push(server, "a", 2)
    tail = await server.delivery.browsers.open(QUEUE, None, "tail")
    since = await server.delivery.browsers.open(QUEUE, None, time)
    one = await server.delivery.browsers.open(QUEUE, "b", "head")
    await push(server, "a", 3)
    await push(server, "b", 4)
    assert sorted(await seen(tail, 2)) == [("a", 3), ("b", 4)]
    assert sorted(await seen(since, 3)) == [("a", 2), ("a", 3), ("b", 4)]
    assert await seen(one, 1) == [("b", 4)]
    await server.push(*(f"p{number}" for number in range(MANY + 1)), payload=b"1")  # More than a hint names.
    assert len(set(await seen(tail, MANY + 1))) == MANY + 1
    for browser in (tail, since, one):
        browser.close()
    server.is_clean()


async def test_a_browser_that_gives_up_waiting_and_comes_again_misses_nothing(server: Server) -> None:
    browser = await server.delivery.browsers.open(QUEUE, None, "tail")
    for step in range(8):
        await push(server, "a", step)
        waiting = asyncio.create_task(seen(browser, 1))
        await turns(step)
        if waiting.done():
            assert waiting.result() == [("a", step)]
        else:
            waiting.cancel()
            await turns()
            assert await seen(browser, 1) == [("a", step)]


class Stumbling(SharedEngine):
    """Fails one read of many."""

    reads = 0

    async def read(self, requests: Sequence[Read]) -> Answers[ReadResult]:
        """Fail as a whole first, then for one of the partitions."""
        self.reads += 1
        if self.reads == 1:
            raise EngineFailure("the store is away")
        answers = await super().read(requests)
        return [EngineFailure("broken") if self.reads == 2 and index else one for index, one in enumerate(answers)]


async def test_a_read_that_failed_is_repeated_and_nothing_is_missed() -> None:
    async with serving(engine=Stumbling) as server:
        await push(server, "a", 1)
        await push(server, "b", 2)
        browser = await server.delivery.browsers.open(QUEUE, None, "head")
        reading = asyncio.create_task(seen(browser, 2))
        await server.quiet()
        assert not reading.done()
        await server.advance(3)
        assert sorted(await reading) == [("a", 1), ("b", 2)]


async def test_a_browser_finds_what_came_without_a_word() -> None:
    async with serving(engine=SharedEngine) as server:
        browser = await server.delivery.browsers.open(QUEUE, None, "tail")
        server.engine.is_silent = True
        await push(server, "a", 1)
        reading = asyncio.create_task(seen(browser, 1))
        await server.quiet()
        assert not reading.done()
        await server.advance(0.2)
        assert await reading == [("a", 1)]


async def test_a_queue_that_is_made_anew_is_seen_from_its_beginning(server: Server) -> None:
    await push(server, "a", 1, 2, 3)
    browser = await server.delivery.browsers.open(QUEUE, None, "head")
    await seen(browser, 3)
    await server.engine.delete_queues([QUEUE])
    await push(server, "a", 4)
    assert await seen(browser, 1) == [("a", 4)]


async def test_i5_a_browser_changes_nothing_for_those_who_take(server: Server) -> None:
    browser = await server.delivery.browsers.open(QUEUE, None, "head")
    pop = await server.parked()
    await push(server, "a", 1)
    assert await seen(browser, 1) == [("a", 1)]
    await server.quiet()
    assert [message.attempt for message in (await pop).messages] == [1]
    assert server.empty_wakes() == 0
