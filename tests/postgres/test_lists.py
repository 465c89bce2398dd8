"""Lists beside the queue: they take a bounded part of the connections, and equal ones are looked up once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from hark.engine.postgres import PostgresEngine
from hark.errors import EngineFailure, HarkError
from hark.model import DeadLetterFilter, MessageFilter, NewMessage, PopRequest

from .pools import SOON

CONNECTIONS = 4
WAITING = "select count(*) from pg_locks where not granted and relation = 'hark.dead_letters'::regclass"


@asynccontextmanager
async def stuck(url: str) -> AsyncIterator[asyncpg.Connection]:
    """Whoever looks at dead letters waits inside of this."""
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            await connection.execute("lock table hark.dead_letters in access exclusive mode")
            yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def started(url: str, wait_ms: int = 10_000) -> AsyncIterator[PostgresEngine]:
    """An engine with few connections."""
    engine = PostgresEngine(url, pool_size=CONNECTIONS, wait_ms=wait_ms)
    await engine.start(lambda _hints: None)
    try:
        yield engine
    finally:
        await engine.close()


async def until_waiting(connection: asyncpg.Connection, number: int) -> None:
    """Wait until so many look at dead letters."""
    async with asyncio.timeout(SOON):
        while await connection.fetchval(WAITING) < number:
            pass


async def test_pushes_find_a_connection_however_many_lists_there_are(postgres_url: str) -> None:
    async with started(postgres_url) as engine:
        async with stuck(postgres_url) as other:
            lists = [
                asyncio.create_task(engine.dead_letters(DeadLetterFilter(limit=number + 1)))
                for number in range(3 * CONNECTIONS)
            ]
            await until_waiting(other, 1)
            async with asyncio.timeout(SOON):
                [outcomes] = await engine.push([[NewMessage("orders")]])
            assert not isinstance(outcomes, HarkError)
            assert [one.status for one in outcomes] == ["queued"]
            assert await other.fetchval(WAITING) == 1
        assert [page.total for page in await asyncio.gather(*lists)] == [0] * len(lists)


async def test_equal_lists_share_the_next_look(postgres_url: str) -> None:
    async with started(postgres_url) as engine:
        async with stuck(postgres_url) as other:
            first = asyncio.create_task(engine.dead_letters(DeadLetterFilter()))
            await until_waiting(other, 1)
            others = [asyncio.create_task(engine.dead_letters(DeadLetterFilter())) for _ in range(10)]
            await asyncio.sleep(0)
        pages = await asyncio.gather(*others)
        assert all(page is pages[0] for page in pages), "one look for all that came while another ran"
        assert await first is not pages[0], "which began before they asked"


async def test_a_list_whose_turn_does_not_come_is_refused(postgres_url: str) -> None:
    async with started(postgres_url, wait_ms=50) as engine:
        async with stuck(postgres_url) as other:
            first = asyncio.create_task(engine.dead_letters(DeadLetterFilter()))
            await until_waiting(other, 1)
            with pytest.raises(EngineFailure, match="too many lists") as caught:
                await engine.dead_letters(DeadLetterFilter(limit=1))
            assert caught.value.status == 503
        await first


async def test_a_message_that_can_be_delivered_is_pending_by_the_clock_of_the_database(postgres_url: str) -> None:
    async with started(postgres_url) as engine:
        await engine.push([[NewMessage("orders")]])
        await engine.pop([PopRequest(queue="orders", partition="none", group="g")])
        [view] = await engine.messages(MessageFilter())
        assert [(group.state, group.due_at) for group in view.groups] == [("pending", None)]
