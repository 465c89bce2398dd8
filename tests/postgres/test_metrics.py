"""What the metrics say about the database: old snapshots, dead rows, child tables and connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from hark.engine.postgres.admin import store_metrics
from hark.engine.postgres.pool import Pool

from .pools import SOON, opened

pytestmark = pytest.mark.fresh_database

MAKE = "insert into hark.partitions (queue, name, created_at) select 1, 'p' || n, 0 from generate_series(1, 1000) n"


@pytest.fixture
async def pool(postgres_url: str) -> AsyncIterator[Pool]:
    """One connection to an empty store."""
    async with opened(postgres_url, size=1) as pool:
        yield pool


async def test_an_old_snapshot_is_seen_and_its_age_grows(pool: Pool, postgres_url: str) -> None:
    assert (await store_metrics(pool))["oldest_xmin_seconds"] == 0
    forgotten = await asyncpg.connect(postgres_url)
    try:
        await forgotten.execute("begin isolation level repeatable read; select 1")
        before = await store_metrics(pool)
        for _ in range(10):
            await pool.fetch("update hark.rotation set since = since + 1 where name = 'leases'")
        after = await store_metrics(pool)
    finally:
        await forgotten.close()
    assert after["oldest_xmin_transactions"] >= before["oldest_xmin_transactions"] + 10
    assert after["oldest_xmin_seconds"] > before["oldest_xmin_seconds"] > 0


async def test_dead_rows_are_counted(pool: Pool) -> None:
    await pool.fetch(MAKE)
    await pool.fetch("update hark.partitions set tail = 1")
    async with asyncio.timeout(SOON):
        # PostgreSQL writes its counts down about once a second.
        while (numbers := await store_metrics(pool))["dead_tuples"] < 1000:
            pass
    assert numbers["live_tuples"] >= 1000
    assert (numbers["partitions_dead_tuples"], numbers["positions_dead_tuples"]) == (1000, 0)


async def test_child_tables_count_when_there_is_something_in_them(pool: Pool) -> None:
    before = await store_metrics(pool)
    await pool.fetch(
        'insert into hark.messages (slot, partition, "offset", created_at, payload)'
        " select slot, 1, slot + 1, 0, '{}' from generate_series(0, 2) slot"
    )
    after = await store_metrics(pool)
    assert (before["message_slots"], after["message_slots"], after["lease_slots"]) == (0, 3, 0)
    assert after["table_bytes"] > before["table_bytes"]


async def test_the_pool_is_counted(pool: Pool) -> None:
    numbers = await store_metrics(pool)
    assert {name: number for name, number in numbers.items() if name.startswith("pool_")} == {
        "pool_connections": 1,
        "pool_idle": 1,
        "pool_waiting": 0,
        "pool_connects": 1,
        "pool_failures": 0,
    }
