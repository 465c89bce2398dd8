"""Pops whose connection is lost while PostgreSQL runs them: whatever becomes of them there, no lease stays behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

import asyncpg
import pytest

from hark.clock import FakeClock
from hark.engine.postgres import PostgresEngine
from hark.engine.postgres.pool import Pool
from hark.engine.postgres.pop import GIVE_BACK, POP
from hark.errors import EngineFailure
from hark.model import GroupMode
from tests.engine.driver import Driver, payloads

from .pools import SOON, Proxy, opened, until_locked

MODES = pytest.mark.parametrize(("mode", "procedure"), [("ordered", "pop_v1"), ("shared", "share_v1")])
ROTATIONS = 4


@pytest.fixture
async def proxy(postgres_url: str) -> AsyncIterator[Proxy]:
    """The way of the server that loses its connections."""
    async with Proxy(postgres_url) as proxy:
        yield proxy


@pytest.fixture
async def cut_off(proxy: Proxy, clock: FakeClock) -> AsyncIterator[Driver]:
    """The server that loses its connections."""
    driver = Driver(lambda clock: PostgresEngine(proxy.url, clock=clock), clock)
    await driver.start()
    yield driver
    await driver.engine.close()


@asynccontextmanager
async def orphaned(
    pool: Pool, proxy: Proxy, cut_off: Driver, procedure: str, *, refuse: bool = False
) -> AsyncIterator[None]:
    """A pop that lost its connection and failed, and that PostgreSQL finishes afterwards."""
    async with pool.connection() as holder:
        await holder.execute("select * from hark.positions for update")
        pop = asyncio.create_task(cut_off.pop("orders", "p1", group="g"))
        await until_locked(pool, procedure)
        proxy.cut(refuse=refuse)
        with pytest.raises(EngineFailure) as caught:
            await pop
        assert caught.value.code == "outcome_unknown"
        yield
    running = "select count(*) from pg_stat_activity where state = 'active' and query like $1"
    async with asyncio.timeout(SOON):
        while await pool.fetchval(running, f"%hark.{procedure}%"):
            pass


async def prepare(cut_off: Driver, mode: GroupMode) -> None:
    """A message, and a group that has been at its partition."""
    await cut_off.push("orders", "p1", 1)
    got = await cut_off.pop("orders", "p1", group="g", group_mode=mode)
    await cut_off.engine.release([got.lease])


@MODES
async def test_rule_17_a_pop_that_is_given_back_before_it_commits_leases_nothing(
    proxy: Proxy, cut_off: Driver, there: Driver, postgres_url: str, mode: GroupMode, procedure: str
) -> None:
    await prepare(cut_off, mode)
    async with opened(postgres_url) as pool, orphaned(pool, proxy, cut_off, procedure):
        pass
    [leased] = await there.pop("orders", group="g")
    assert (leased.payload, leased.message.attempt) == (1, 1)
    assert (await there.ack(leased)).success
    assert await cut_off.pop("orders", group="g") == []


async def pop_without_commit(pool: Pool, connection: asyncpg.Connection, now: int, lease: list[object]) -> None:
    """Lease a message in a transaction that is still open."""
    [group] = await pool.fetch("select grp, partition from hark.positions")
    rows = await connection.fetch(
        POP, now, [1], [1], lease, [None], [False], [None], [1], [group[0]], [group[1]], [False], 1 << 20, [None]
    )
    assert len(rows) == 1


async def test_rule_17_a_pop_that_has_written_its_lease_is_waited_for_and_given_back(
    cut_off: Driver, there: Driver, clock: FakeClock, postgres_url: str
) -> None:
    await prepare(cut_off, "ordered")
    lease: list[object] = [uuid4()]
    async with opened(postgres_url) as pool:
        async with pool.connection() as stalled:
            await pop_without_commit(pool, stalled, clock.now(), lease)
            await pool.fetch("update hark.rotation set slot = 1 where name = 'leases'")
            giving_back = asyncio.create_task(pool.fetch(GIVE_BACK, clock.now(), lease))
            await until_locked(pool, "give_back_v1")
        await giving_back
    assert payloads(await there.pop("orders", group="g")) == [1]


@MODES
async def test_rule_17_what_could_not_be_given_back_is_when_the_database_is_there_again(
    proxy: Proxy, cut_off: Driver, there: Driver, postgres_url: str, mode: GroupMode, procedure: str
) -> None:
    await prepare(cut_off, mode)
    async with opened(postgres_url) as pool, orphaned(pool, proxy, cut_off, procedure, refuse=True):
        pass
    assert (await there.pop("orders", "p1", group="g")).reason in ("lease_held", "nothing_ready")
    cut_off.hints.clear()
    proxy.refuses = False
    await cut_off.hinted("orders", "g")
    assert payloads(await cut_off.pop("orders", group="g")) == [1]


@pytest.mark.fresh_database
async def test_a_failed_pop_leaves_nothing_behind_and_the_tables_of_leases_rotate_only_after_its_end(
    proxy: Proxy, cut_off: Driver, there: Driver, clock: FakeClock, postgres_url: str
) -> None:
    await prepare(cut_off, "ordered")
    current = "select slot from hark.rotation where name = 'leases'"
    async with opened(postgres_url) as pool:
        async with orphaned(pool, proxy, cut_off, "pop_v1"):
            before = await pool.fetchval(current)
            for _ in range(ROTATIONS):
                clock.advance(601)
                await there.collect()
            assert await pool.fetchval(current) == before
        assert payloads(await there.pop("orders", group="g", auto_ack=True)) == [1]
        for _ in range(ROTATIONS):
            clock.advance(601)
            await there.collect()
        assert await pool.fetchval(current) != before
        assert await pool.fetchval("select count(*) from hark.leases") == 0
