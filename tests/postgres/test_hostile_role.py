"""A role that may create functions and operators in `public` gets nothing run with the rights of Hark's role."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest

from hark.clock import FakeClock
from hark.engine.postgres import PostgresEngine
from hark.engine.postgres.migrate import migrate
from tests.engine.driver import Driver
from tests.postgres_server import PostgresServer

from .pools import opened

pytestmark = pytest.mark.fresh_database

# PostgreSQL prefers these to its own, which take any array and any range, wherever `public` is in the path.
HOSTILE = """
create table public.stolen (by text, what text);
grant insert on public.stolen to public;
create function public.cardinality(bigint[]) returns integer language plpgsql as
    $$ begin insert into public.stolen values (current_user, 'cardinality'); return 0; end $$;
create function public.cardinality(integer[]) returns integer language plpgsql as
    $$ begin insert into public.stolen values (current_user, 'cardinality'); return 0; end $$;
create function public.isempty(int8multirange) returns boolean language plpgsql as
    $$ begin insert into public.stolen values (current_user, 'isempty'); return true; end $$;
create function public.unnest(bigint[]) returns setof bigint language plpgsql as
    $$ begin insert into public.stolen values (current_user, 'unnest'); return; end $$;
create function public.inside(bigint, int8multirange) returns boolean language plpgsql as
    $$ begin insert into public.stolen values (current_user, 'inside'); return false; end $$;
create operator public.<@ (function = public.inside, leftarg = bigint, rightarg = int8multirange);
"""


@pytest.fixture
def hostile_url(postgres_server: PostgresServer) -> Iterator[str]:
    """A database in which another role has put its functions before Hark came."""
    role = "hark_test_hostile"
    with postgres_server.fresh_database(installed=False) as url:
        postgres_server.execute(f"drop role if exists {role}")
        postgres_server.execute(f"create role {role} login password 'secret'")
        yield url
    postgres_server.execute(f"drop role {role}")


@pytest.fixture
async def owner(hostile_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A session with the path that PostgreSQL gives to all, on a database with the hostile functions."""
    connection = await asyncpg.connect(hostile_url)
    await connection.execute("grant create, usage on schema public to hark_test_hostile")
    hostile = await asyncpg.connect(f"postgresql://hark_test_hostile:secret@{hostile_url.rpartition('@')[2]}")
    await hostile.execute(HOSTILE)
    await hostile.close()
    yield connection
    await connection.close()


async def stolen(owner: asyncpg.Connection) -> list[str]:
    """What ran, with the rights of whom."""
    return [f"{row['what']} as {row['by']}" for row in await owner.fetch("select distinct by, what from public.stolen")]


@pytest.mark.parametrize("prepared", [True, False], ids=["session", "transaction"])
async def test_no_call_of_the_engine_runs_them(owner: asyncpg.Connection, hostile_url: str, prepared: bool) -> None:
    clock = FakeClock()
    driver = Driver(lambda clock: PostgresEngine(hostile_url, clock=clock, prepared=prepared), clock)
    await driver.start()
    try:
        await driver.configure("orders", max_size=100)
        await driver.push("orders", "p1", 1, 2, 3)
        [leased] = await driver.pop("orders")
        await driver.fail(leased)
        await driver.ack_all(await driver.pop("orders", batch=9))
        await driver.pop("orders", group="workers", group_mode="shared", batch=9)
        await driver.engine.offsets("orders", "head")
        await driver.stats("orders")
        clock.advance(8 * 86400)
        await driver.collect()
        found = await stolen(owner)
    finally:
        await driver.engine.close()
    assert found == []


async def test_no_procedure_runs_them_whatever_session_calls_it(owner: asyncpg.Connection, hostile_url: str) -> None:
    async with opened(hostile_url) as pool:
        await migrate(pool)
    assert await owner.fetchval("show search_path") == '"$user", public'
    assert await owner.fetchval("select cardinality(array[1::bigint])") == 0, "this session would run them"
    await owner.execute("delete from public.stolen")
    await owner.fetch("select hark.delete_messages_v1(null, array[1, 2], array[1, 2])")
    await owner.fetch("select * from hark.renew_v1(null, array[gen_random_uuid()], array[1])")
    await owner.fetch("select * from hark.collect_v1(null, 0, 0, 0, 10, 1, 1, 20)")
    await owner.fetch("select * from hark.discover_v1(null, 1, 1, 0)")
    assert await stolen(owner) == []


async def test_every_procedure_has_its_own_path(postgres_url: str) -> None:
    async with opened(postgres_url) as pool:
        rows = await pool.fetch(
            "select p.proname, l.lanname from pg_proc p join pg_language l on l.oid = p.prolang"
            " where p.pronamespace = 'hark'::regnamespace"
            " and coalesce(array_to_string(p.proconfig, ' '), '') not like '%search_path=pg_catalog, pg_temp%'"
        )
    assert {row["lanname"] for row in rows} <= {"sql"}, "only what is put in the place of its call has none"
    assert len(rows) < 25
