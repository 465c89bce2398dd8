"""What leaves the database without vacuum: child tables that are emptied, tables that are written anew."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from hark.clock import FakeClock
from tests.engine.driver import Driver, payloads

pytestmark = pytest.mark.fresh_database

DAY = 86400


async def ask(url: str, sql: str) -> Any:
    """One value, past the engine."""
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(sql)
    finally:
        await connection.close()


async def test_settled_messages_leave_with_their_child_table(here: Driver, clock: FakeClock, postgres_url: str) -> None:
    await here.collect()  # From here on the first child table has an age.
    await here.push("orders", "p1", 1, 2, 3)
    await here.drain("orders")
    clock.advance(8 * DAY)
    assert await here.collect() == 3
    assert await ask(postgres_url, "select count(*) from hark.messages") == 0
    assert await ask(postgres_url, "select pg_relation_size('hark.messages_0')") == 0
    assert await ask(postgres_url, "select slot from hark.rotation where name = 'messages'") != 0
    await here.push("orders", "p1", 4)
    [held] = await here.pop("orders")
    assert (held.payload, held.message.offset) == (4, 4)


async def test_the_few_that_are_still_needed_are_copied_forward(
    here: Driver, clock: FakeClock, postgres_url: str
) -> None:
    await here.collect()
    await here.push("orders", "p1", *range(20))
    kept = await here.push_id("orders", "p2", "kept", transaction_id="t1", priority=3)
    await here.ack_all(await here.pop("orders", "p1", batch=20))
    clock.advance(8 * DAY)
    assert await here.collect() == 20
    assert await ask(postgres_url, "select count(*) from hark.messages") == 1
    assert await ask(postgres_url, "select pg_relation_size('hark.messages_0')") == 0
    [again] = await here.push("orders", "p2", "kept", transaction_id="t1")
    assert (again.status, again.message_id) == ("duplicate", kept)
    [held] = await here.pop("orders", "p2")
    assert (held.payload, held.message.id, held.message.priority) == ("kept", kept, 3)


async def test_many_that_are_still_needed_stay_where_they_are(
    here: Driver, clock: FakeClock, postgres_url: str
) -> None:
    await here.collect()
    await here.push("orders", "p1", *range(10))
    await here.ack_all(await here.pop("orders", batch=5))
    clock.advance(8 * DAY)
    assert await here.collect() == 5
    assert await ask(postgres_url, "select count(*) from hark.messages_0") == 10
    assert await here.drain("orders") == [5, 6, 7, 8, 9]


async def test_a_live_lease_outlives_the_table_it_was_noted_in(here: Driver, there: Driver, clock: FakeClock) -> None:
    await here.configure("orders", lease_time=DAY)
    await here.push("orders", "p1", 1)
    got = await here.pop("orders")
    for _ in range(4):
        clock.advance(3600)
        await here.collect()
    assert (await there.renew(got.lease)).success
    assert (await there.ack(got[0])).success


async def test_a_compacted_table_has_the_same_rows_and_no_dead_ones(here: Driver, postgres_url: str) -> None:
    await here.push("orders", "p1", 1, 2, 3)
    [held] = await here.pop("orders")
    old, writer = await asyncpg.connect(postgres_url), await asyncpg.connect(postgres_url)
    snapshot = old.transaction(isolation="repeatable_read")
    await snapshot.start()
    await old.fetchval("select pg_current_xact_id()")
    try:
        for table in ("partitions", "tracks"):
            for _ in range(100):
                await writer.execute(f"update hark.{table} set touched = touched")
            before = await ask(postgres_url, f"select pg_relation_size('hark.{table}')")
            assert await ask(postgres_url, f"select hark.compact_v1('{table}')") == before
            assert await ask(postgres_url, f"select pg_relation_size('hark.{table}')") < before
    finally:
        await snapshot.rollback()
        await old.close()
        await writer.close()
    assert (await here.ack(held)).success
    await here.push("orders", "p2", 4)
    assert payloads(await here.pop("orders", "p1", batch=9)) == [2, 3]
    assert payloads(await here.pop("orders", "p2", batch=9)) == [4]
