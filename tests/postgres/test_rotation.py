"""What leaves the database without vacuum: child tables that are emptied, which no older snapshot may notice."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

import asyncpg
import pytest

from hark.clock import FakeClock
from hark.engine.postgres import PostgresEngine, retention
from tests.engine.driver import Driver
from tests.postgres_programs import client_program

from .pools import opened

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
    [leased] = await here.pop("orders")
    assert (leased.payload, leased.message.offset) == (4, 4)


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
    [leased] = await here.pop("orders", "p2")
    assert (leased.payload, leased.message.id, leased.message.priority) == ("kept", kept, 3)


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


async def test_a_table_that_is_in_use_is_emptied_later_without_an_error(
    here: Driver, clock: FakeClock, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    await here.collect()
    await here.push("orders", "p1", 1, 2, 3)
    await here.drain("orders")
    clock.advance(8 * DAY)
    size = "select pg_relation_size('hark.messages_0')"
    async with opened(postgres_url) as pool:
        async with pool.connection() as holder:
            await holder.execute("lock table hark.messages in access share mode")
            assert await here.collect() == 3
            assert await pool.fetchval(size) > 0
        await here.collect()
        assert await pool.fetchval(size) == 0
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


async def test_a_large_table_is_emptied_though_the_search_in_it_takes_longer_than_a_statement_may(
    clock: FakeClock, postgres_url: str
) -> None:
    q = Driver(lambda time: PostgresEngine(postgres_url, clock=time, statement_timeout_ms=300), clock)
    await q.start()
    await q.collect()
    await q.push("orders", "p1", 1, 2, 3)
    await q.drain("orders")
    # The search asks this once, as its first step.
    slow = (
        "create or replace function hark.is_past_v1(p_transaction xid8) returns boolean language plpgsql as $$ begin "
    )
    await ask(postgres_url, f"{slow} perform pg_sleep(0.4); return p_transaction < hark.horizon_v1(); end $$")
    clock.advance(8 * DAY)
    await q.collect()
    assert await ask(postgres_url, "select pg_relation_size('hark.messages_0')") == 0
    await q.engine.close()


# Older snapshots -------------------------------------------------------------------------------------------

TABLES = ("messages", "leases", "partitions", "positions")
DUMPS = 4


@asynccontextmanager
async def snapshot(url: str) -> AsyncIterator[asyncpg.Connection]:
    """A transaction that sees the database as it is now, and has not read any table yet."""
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            await connection.fetchval("select 1")
            yield connection
    finally:
        await connection.close()


async def counts(connection: asyncpg.Connection) -> dict[str, int]:
    """How many rows the connection sees."""
    return {table: await connection.fetchval(f"select count(*) from hark.{table}") for table in TABLES}


async def one_round(here: Driver, clock: FakeClock) -> None:
    """Messages that are settled and over, so that their tables can be emptied."""
    await here.push("orders", "p1", *range(20))
    await here.ack_all(await here.pop("orders", "p1", batch=20))
    clock.advance(8 * DAY)
    await here.collect()


async def test_an_older_snapshot_sees_all_that_was_there(here: Driver, clock: FakeClock, postgres_url: str) -> None:
    await here.collect()
    await here.configure("kept", lease_time=30 * DAY)
    await here.push("kept", "p2", "kept")
    await here.pop("kept", "p2")
    await here.push("orders", "p1", *range(20))
    await here.ack_all(await here.pop("orders", "p1", batch=20))
    async with snapshot(postgres_url) as reader:
        before = await counts(reader)
    assert before == {"messages": 21, "leases": 2, "partitions": 3, "positions": 2}
    async with snapshot(postgres_url) as reader:
        clock.advance(8 * DAY)
        await here.collect()
        await one_round(here, clock)
        assert await counts(reader) == before
    await here.collect()
    for table in ("messages_0", "leases_0"):
        assert await ask(postgres_url, f"select pg_relation_size('hark.{table}')") == 0, "when it is gone"
    assert await ask(postgres_url, "select count(*) from hark.messages") == 1


async def test_a_snapshot_from_between_the_steps_sees_what_counts(
    here: Driver, clock: FakeClock, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await here.collect()
    await here.push("orders", "p2", "kept")
    found: list[int] = []

    async def look(self: retention.Retention) -> None:
        """Before each step that depends on who is reading: begin to read, and look when it is over."""
        async with snapshot(postgres_url) as reader:
            await find_horizon(self)
            await self._alone("select hark.truncate_slot_v1('messages', 0::smallint)")
            found.append(
                await reader.fetchval(
                    "select count(*) from hark.messages m join hark.partitions p on p.id = m.partition"
                    ' where m."offset" > p.floor'
                )
            )
        await find_horizon(self)

    find_horizon = retention.Retention._find_horizon
    monkeypatch.setattr(retention.Retention, "_find_horizon", look)
    await one_round(here, clock)
    assert found == [1, 1]
    assert await ask(postgres_url, "select pg_relation_size('hark.messages_0')") == 0


async def test_what_a_call_that_began_earlier_puts_into_a_closed_table_is_kept(
    here: Driver, clock: FakeClock, postgres_url: str
) -> None:
    await here.collect()
    await here.push("orders", "p1", 1)
    await here.drain("orders")
    clock.advance(8 * DAY)
    late = await asyncpg.connect(postgres_url)
    try:
        async with late.transaction():
            await late.execute(
                'insert into hark.messages (slot, partition, "offset", created_at, payload)'
                " select 0, id, tail + 1, 0, 'null' from hark.partitions"
            )
            await here.collect()
            assert await ask(postgres_url, "select slot from hark.slots where name = 'messages'") == 0, "closed"
            await late.execute("update hark.partitions set tail = tail + 1")
    finally:
        await late.close()
    await here.collect()
    [leased] = await here.pop("orders")
    assert (leased.payload, leased.message.offset) == (None, 2)


async def test_a_dump_has_everything_beside_load_and_tables_that_are_emptied(
    here: Driver, clock: FakeClock, postgres_url: str
) -> None:
    await here.collect()
    for number in range(50):
        await here.push("kept", f"p{number}", number)
    stop = asyncio.Event()

    async def load() -> int:
        rounds = 0
        while not stop.is_set():
            await one_round(here, clock)
            rounds += 1
        return rounds

    loading = asyncio.create_task(load())
    for _ in range(DUMPS):
        dump = await asyncio.create_subprocess_exec(
            client_program("pg_dump"),
            "--data-only",
            "--schema=hark",
            postgres_url,
            stdout=asyncio.subprocess.PIPE,
        )
        text, _ = await dump.communicate()
        assert dump.returncode == 0
        kept = set(re.findall(r"^(\d+)\t\d+\tp\d+\t", copied(text.decode(), "partitions"), re.M))
        messages = re.findall(r"^\d\t(\d+)\t1\t", copied(text.decode(), "messages_\\d"), re.M)
        assert len(kept) >= 50
        assert len(set(messages) & kept) >= 50
        assert len(messages) == len(set(messages)), "none is in two tables"
    stop.set()
    assert await loading > 0


def copied(dump: str, table: str) -> str:
    """The rows of tables in a dump."""
    return "\n".join(re.findall(rf"^COPY hark\.{table} .*?;\n(.*?)^\\\.$", dump, re.M | re.S))


def test_nothing_else_empties_or_rewrites_a_table() -> None:
    folder = files("hark.engine.postgres") / "sql" / "procedures"
    texts = {file.name: re.sub(r"--.*", "", file.read_text()) for file in folder.iterdir()}
    pattern = r"(?i)\b(truncate|cluster|access exclusive|vacuum|reindex|drop table|alter table)\b"
    found = [(name, word) for name, text in texts.items() for word in re.findall(pattern, text)]
    assert found == [("rotate.sql", "truncate")]
