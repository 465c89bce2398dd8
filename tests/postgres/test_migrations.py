"""The schema: installed once, brought forward step by step, never backward."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from hark.engine.postgres import migrate as schema
from hark.engine.postgres.migrate import Script, Step, all_steps, migrate
from hark.engine.postgres.pool import Pool
from hark.errors import StoreUnusable
from hark.ids import TAG_BITS
from tests.postgres_server import PostgresServer

from .pools import opened, until_blocked

pytestmark = pytest.mark.fresh_database

INSTALLED = [str(step) for step in all_steps() if step.phase == "pre"]


@pytest.fixture
def empty_url(postgres_server: PostgresServer) -> Iterator[str]:
    """A database with nothing in it."""
    with postgres_server.fresh_database(installed=False) as url:
        yield url


def _know(monkeypatch: pytest.MonkeyPatch, *more: Step) -> None:
    """Be a Hark that has more steps than this one."""
    known = [*all_steps(), *more]
    monkeypatch.setattr(schema, "all_steps", lambda: known)


def _step(number: int, phase: schema.Phase, *sql: str) -> Step:
    return Step(number, phase, "later", tuple(Script(f"{at}.sql", text) for at, text in enumerate(sql)))


async def _tables(pool: Pool) -> int:
    count: int = await pool.fetchval("select count(*) from pg_class where relnamespace = to_regnamespace('hark')")
    return count


@pytest.mark.parametrize("prepared", [True, False])
async def test_an_empty_database_gets_the_schema_and_a_tag_of_its_own_once(empty_url: str, prepared: bool) -> None:
    async with opened(empty_url, prepared=prepared) as pool:
        assert [str(step) for step in await migrate(pool)] == INSTALLED
        tag = await pool.fetchval("select value from hark.meta where key = 'tag'")
        assert 0 <= tag < 1 << TAG_BITS
        assert await migrate(pool) == []
        assert await pool.fetchval("select value from hark.meta where key = 'tag'") == tag
        rows = await pool.fetch("select number, phase, name from hark.migrations order by number")
        assert tuple(rows[0]) == (1, "pre", "tables")
        await pool.fetch("drop schema hark cascade")
        await migrate(pool)
        assert await pool.fetchval("select value from hark.meta where key = 'tag'") != tag, "another store"


async def test_servers_that_come_during_a_migration_wait_for_it_and_install_it_once(empty_url: str) -> None:
    async with opened(empty_url) as first, opened(empty_url) as second:
        async with first.connection() as connection:
            await connection.execute(f"select pg_advisory_xact_lock({schema._LOCK})")
            waiting = [asyncio.create_task(migrate(second)) for _ in range(2)]
            await until_blocked(first, 2)
            assert await _tables(first) == 0
        applied = [[str(step) for step in steps] for steps in await asyncio.gather(*waiting)]
    assert sorted(applied) == [[], INSTALLED], "one of them installs it, the other finds it"


async def test_a_dry_run_names_the_steps_and_changes_nothing(empty_url: str) -> None:
    async with opened(empty_url) as pool:
        assert [str(step) for step in await migrate(pool, dry_run=True)] == INSTALLED
        assert await _tables(pool) == 0
        assert await pool.fetchval("select to_regnamespace('hark')") is None


async def test_an_older_schema_gets_the_steps_that_it_lacks(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    second = _step(2, "pre", "create table hark.second ()")
    third = _step(3, "pre", "create table hark.third ()")
    async with opened(postgres_url) as pool:
        _know(monkeypatch, second, third)
        assert await migrate(pool) == [second, third]
        assert await pool.fetchval("select to_regclass('hark.third') is not null")


async def test_what_older_servers_need_is_removed_only_on_demand_and_last(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = _step(2, "pre", "create table hark.second ()")
    after = _step(2, "post", "drop table hark.second")
    async with opened(postgres_url) as pool:
        _know(monkeypatch, before, after)
        assert await migrate(pool) == [before]
        assert await migrate(pool, dry_run=True, post=True) == [after]
        assert await pool.fetchval("select to_regclass('hark.second') is not null")
        assert await migrate(pool, post=True) == [after]
        assert await pool.fetchval("select to_regclass('hark.second') is null")
        assert await migrate(pool, post=True) == []


async def test_a_step_that_fails_leaves_nothing_and_names_its_file(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _know(monkeypatch, _step(2, "pre", "create table hark.second ()", "create table hark.meta ()"))
    async with opened(postgres_url) as pool:
        with pytest.raises(
            StoreUnusable, match=r"schema migration 0002 later \(pre\) failed in 1\.sql: relation .meta. already exists"
        ):
            await migrate(pool)
        assert await pool.fetchval("select to_regclass('hark.second') is null")
        assert await pool.fetchval("select max(number) from hark.migrations") == max(s.number for s in all_steps())


async def test_a_newer_schema_is_refused(postgres_url: str) -> None:
    async with opened(postgres_url) as pool:
        await pool.fetch("insert into hark.migrations (number, phase, name) values (9999, 'pre', 'future')")
        for dry_run in (True, False):
            with pytest.raises(StoreUnusable, match=r"version 9999, .*; upgrade Hark"):
                await migrate(pool, dry_run=dry_run)


async def test_a_user_without_rights_can_start_on_a_schema_that_is_there_but_not_make_one(
    postgres_server: PostgresServer, postgres_url: str, empty_url: str
) -> None:
    role = f"hark_test_{postgres_url[-12:]}"
    postgres_server.execute(f"create role {role} login password 'secret'")
    try:
        async with opened(postgres_url) as owner:
            await owner.fetch(f"grant usage on schema hark to {role}")
            await owner.fetch(f"grant select on hark.migrations to {role}")
        async with opened(_as(postgres_url, role)) as pool:
            assert await migrate(pool) == []
        async with opened(_as(empty_url, role)) as pool:
            with pytest.raises(StoreUnusable, match="permission denied for database"):
                await migrate(pool)
        async with opened(postgres_url) as owner:
            await owner.fetch(f"drop owned by {role}")
    finally:
        postgres_server.execute(f"drop role {role}")


def _as(url: str, role: str) -> str:
    """The URL of another user."""
    return f"postgresql://{role}:secret@{url.rpartition('@')[2]}"


def test_steps_are_numbered_without_gaps_and_named_well() -> None:
    before = [step.number for step in all_steps() if step.phase == "pre"]
    assert before == list(range(1, len(before) + 1))
    assert {step.number for step in all_steps()} == set(before)
