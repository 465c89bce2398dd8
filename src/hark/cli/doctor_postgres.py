"""The checks of `hark doctor` for a PostgreSQL database."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from hark.cli.check import Check
from hark.errors import HarkError
from hark.settings import Settings

if TYPE_CHECKING:
    from hark.engine.postgres.pool import Pool

OLD_TRANSACTION_SECONDS = 600
MANY_DEAD, DEAD_PER_LIVE = 10_000, 10


def database_checks(settings: Settings) -> list[Check]:
    """Check a database as a server would use it; changes nothing."""
    return asyncio.run(_checks(settings))


async def _checks(settings: Settings) -> list[Check]:
    try:
        from hark.engine.postgres.failures import shown
        from hark.engine.postgres.pool import Pool

        about = settings.postgres
        pool = Pool(settings.engine, size=1, wait_ms=about.wait_ms, prepared=about.prepared)
        await pool.open()
    except HarkError as error:
        return [_failed("database", error)]
    try:
        version = await pool.fetchval("select current_setting('server_version')")
        return [
            Check("database", "ok", f"connected to {shown(settings.engine)}, PostgreSQL {version}"),
            await _guarded("schema", _schema, pool),
            await _guarded("connections", lambda pool: _connections(pool, settings), pool),
            await _guarded("transactions", _transactions, pool),
            await _guarded("dead rows", _dead_rows, pool),
        ]
    except HarkError as error:
        return [_failed("database", error)]
    finally:
        await pool.close()


async def _guarded(name: str, check: Callable[[Pool], Awaitable[Check]], pool: Pool) -> Check:
    try:
        return await check(pool)
    except HarkError as error:
        return _failed(name, error)


def _failed(name: str, error: HarkError) -> Check:
    detail, _, advice = error.text.partition("; ")
    return Check(name, "fail", detail, advice or "check the log of PostgreSQL")


async def _schema(pool: Pool) -> Check:
    """Compare the schema with the one that this version of Hark needs."""
    from hark.engine.postgres.migrate import all_steps, missing_steps

    missing = await missing_steps(pool, post=True)
    needed = [step for step in missing if step.phase == "pre"]
    if needed:
        return Check(
            "schema",
            "warn",
            f"migration {needed[0]} is not applied",
            "run hark migrate, or start a server, which applies it",
        )
    detail = f"version {max(step.number for step in all_steps())}"
    if missing:
        advice = "once no server of an older version is running, run hark migrate --post"
        return Check("schema", "ok", f"{detail}; migration {missing[0]} is not applied yet", advice)
    return Check("schema", "ok", detail)


async def _connections(pool: Pool, settings: Settings) -> Check:
    """Check that PostgreSQL allows enough connections for all server processes."""
    row: Any = await pool.fetchrow(
        "select current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int,"
        " (select count(*) from pg_stat_activity where backend_type = 'client backend' and application_name <> 'hark')"
    )
    allowed, others = row
    wanted = settings.workers * settings.postgres.pool_size
    detail = f"one hark serve uses up to {wanted}; {allowed} allowed, {others} used by other programs"
    if wanted + others > allowed:
        return Check("connections", "warn", detail, "raise max_connections, or lower postgres.pool_size or workers")
    return Check("connections", "ok", detail)


async def _transactions(pool: Pool) -> Check:
    """Check for old transactions, which keep PostgreSQL from removing dead rows."""
    row: Any = await pool.fetchrow(
        "select coalesce(extract(epoch from max(now() - xact_start)), 0)::bigint,"
        " coalesce(max(age(backend_xmin)), 0)::bigint from pg_stat_activity where pid <> pg_backend_pid()"
    )
    seconds, behind = row
    detail = f"oldest transaction {seconds} s; oldest snapshot {behind} transactions behind"
    if seconds >= OLD_TRANSACTION_SECONDS:
        advice = (
            "end the old transaction, because the database grows until then; to find it: "
            "select * from pg_stat_activity order by xact_start"
        )
        return Check("transactions", "warn", detail, advice)
    return Check("transactions", "ok", detail)


async def _dead_rows(pool: Pool) -> Check:
    """Check the number of dead rows."""
    row: Any = await pool.fetchrow(
        "select coalesce(sum(n_dead_tup), 0)::bigint, coalesce(sum(n_live_tup), 0)::bigint"
        " from pg_stat_user_tables where schemaname = 'hark' and relname in ('partitions', 'tracks')"
    )
    dead, live = row
    detail = f"{dead:,} dead and {live:,} live rows in the tables that Hark updates in place"
    if dead > MANY_DEAD and dead > DEAD_PER_LIVE * live:
        advice = "end old transactions (see the check above), then check the log of the servers, which remove dead rows"
        return Check("dead rows", "warn", detail, advice)
    return Check("dead rows", "ok", detail)
