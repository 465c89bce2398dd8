"""Retention beside producers: what is pushed while messages are removed stays."""

from __future__ import annotations

import asyncio

import asyncpg

from hark.clock import FakeClock
from hark.engine.postgres.push import OPTIONS, PUSH
from tests.engine.driver import Driver, payloads

_WAITS = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like '%collect_v1%'"


async def test_a_push_that_commits_while_its_partition_is_emptied_is_kept(
    here: Driver, clock: FakeClock, postgres_url: str
) -> None:
    await here.push("orders", "p1", 1, 2, 3)
    await here.drain("orders")
    clock.advance(8 * 86400)
    producer, observer = await asyncpg.connect(postgres_url), await asyncpg.connect(postgres_url)
    try:
        partition = await producer.fetchval("select id from hark.partitions where name = 'p1'")
        transaction = producer.transaction()
        await transaction.start()
        nothing = [None] * (2 + OPTIONS)
        await producer.fetchrow(PUSH, clock.now(), [partition], None, None, [1], [1], [1], [b"4"], *nothing)
        collecting = asyncio.create_task(here.collect())
        async with asyncio.timeout(10):
            while not await observer.fetchval(_WAITS):
                pass  # Each question lets the others go on.
        await transaction.commit()
        assert await collecting == 3
    finally:
        await producer.close()
        await observer.close()
    assert payloads(await here.pop("orders", batch=9)) == [4]
