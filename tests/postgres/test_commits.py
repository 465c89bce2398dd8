"""What shares a transaction: at most `batching.max_items`; a push that is alone waits for nothing. Callers that go."""

from __future__ import annotations

import asyncio

import pytest

from hark.broker import Broker
from hark.clock import FakeClock
from hark.engine.postgres import PostgresEngine
from hark.model import NewMessage
from hark.settings import Batching, Settings
from tests.engine.driver import Driver

from .pools import SOON, opened, until, until_locked


async def test_a_transaction_has_no_more_messages_than_the_setting_says_unless_one_request_has(
    postgres_url: str, clock: FakeClock
) -> None:
    settings = Settings(batching=Batching(max_items=10, max_wait_ms=10_000))
    broker = Broker(PostgresEngine(postgres_url, clock=clock), settings, clock)
    await broker.start()

    async def push(number: int, size: int = 1) -> None:
        await broker.push([NewMessage("orders", f"p{number % 7}", b"1")] * size)

    async with asyncio.timeout(SOON):
        await push(0)  # Nothing else is there: it does not wait for others.
        await asyncio.gather(push(1, 25), *(push(number) for number in range(300)))
    async with opened(postgres_url) as pool:
        rows = await pool.fetch("select count(*) from hark.messages group by xmin::text order by 1 desc")
    sizes = [row[0] for row in rows]
    assert (sizes[:2], sum(sizes)) == ([25, 10], 326)
    assert len(sizes) <= 1 + 1 + 31, "full ones, as long as more wait"
    await broker.close()


async def test_a_push_whose_caller_is_cancelled_is_finished_and_its_hints_are_sent(
    here: Driver, postgres_url: str
) -> None:
    async def push() -> None:
        await here.engine.push([[NewMessage("orders", "p1", b"2")]])

    await here.push("orders", "p1", 1)
    here.hints.clear()
    async with opened(postgres_url) as watcher:
        async with watcher.connection() as holder:
            await holder.execute("select from hark.partitions for update")
            caller = asyncio.create_task(push())
            await until_locked(watcher, "push_v1")
            caller.cancel()
            with pytest.raises(asyncio.CancelledError):
                await caller
            assert here.hints == []
        await until(lambda: bool(here.hints))
    assert await here.drain("orders") == [1, 2]
