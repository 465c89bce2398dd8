"""The pool: connections as they are needed, one transaction per call, and honest words when things break."""

from __future__ import annotations

import asyncio
import errno
import os
import re

import asyncpg
import pytest

from hark.engine.postgres import pool as pool_module
from hark.engine.postgres.pool import Pool
from hark.errors import DiskFull, EngineFailure, HarkError, InvalidSetting, StoreUnusable
from tests.postgres_server import OwnPostgresServer, PostgresServer

from .pools import SOON, Proxy, opened, soon, until, until_blocked

WAYS = pytest.mark.parametrize("prepared", [True, False], ids=["prepared", "through a pooler"])

FAILS_AT_FIRST = """
    create sequence public.tries;
    create function public.fails_at_first(times int) returns bigint language plpgsql as $$
    declare try bigint := nextval('public.tries');
    begin
        if try <= times then
            raise 'not now' using errcode = 'deadlock_detected';
        end if;
        return try;
    end $$;
"""

# Calls -----------------------------------------------------------------------------------------------------


@WAYS
async def test_a_call_gives_rows_or_the_first_row_or_its_first_value(postgres_url: str, prepared: bool) -> None:
    async with opened(postgres_url, prepared=prepared) as pool:
        rows = await pool.fetch("select n, $2::bigint[] as list from generate_series(1, $1) n", 2, [3, 4])
        assert [dict(row) for row in rows] == [{"n": 1, "list": [3, 4]}, {"n": 2, "list": [3, 4]}]
        row = await pool.fetchrow("select 1 as one, 2 as two")
        assert row is not None
        assert dict(row) == {"one": 1, "two": 2}
        assert await pool.fetchval("select 5") == 5
        assert await pool.fetchrow("select 1 where false") is None
        assert await pool.fetchval("select 1 where false") is None


@WAYS
async def test_a_call_is_one_transaction_that_a_failure_undoes(postgres_url: str, prepared: bool) -> None:
    async with opened(postgres_url, prepared=prepared) as pool:
        added = "with added as (insert into hark.meta values ('a', $1) returning value)"
        with pytest.raises(EngineFailure, match="division by zero; the request had no effect"):
            await pool.fetchval(f"{added} select 1 / (value - 1) from added", 1)
        assert await pool.fetchval("select count(*) from hark.meta where key = 'a'") == 0
        await pool.fetch("insert into hark.meta values ('a', 1)")
    async with opened(postgres_url) as another:
        assert await another.fetchval("select value from hark.meta where key = 'a'") == 1


@WAYS
async def test_a_statement_that_takes_too_long_is_ended_and_its_connection_used_again(
    postgres_url: str, prepared: bool
) -> None:
    async with opened(postgres_url, statement_timeout_ms=1000, prepared=prepared) as pool:
        with pytest.raises(EngineFailure, match=r"longer than postgres\.statement_timeout_ms") as caught:
            await pool.fetch("select pg_sleep(30)")
        assert (caught.value.status, caught.value.retry_after) == (503, 1)
        assert await pool.fetchval("select 1") == 1
        assert pool.connects == 1


@WAYS
async def test_a_value_of_the_wrong_type_is_a_failure_that_costs_no_connection(
    postgres_url: str, prepared: bool
) -> None:
    async with opened(postgres_url, prepared=prepared) as pool:
        with pytest.raises(EngineFailure):
            await pool.fetch("select $1::int", "one")
        with pytest.raises(EngineFailure) as caught:
            await pool.fetch("select $1::int")
        assert caught.value.code == "internal"
        assert await pool.fetchval("select $1::int", 1) == 1
        assert pool.connects == 1


@WAYS
@pytest.mark.fresh_database
async def test_a_deadlock_is_tried_again_but_not_for_ever(postgres_url: str, prepared: bool) -> None:
    async with opened(postgres_url, prepared=prepared) as pool:
        async with pool.connection() as connection:
            await connection.execute(FAILS_AT_FIRST)
        assert await pool.fetchval("select public.fails_at_first(5)") == 6
        with pytest.raises(EngineFailure, match="not now"):
            await pool.fetchval("select public.fails_at_first(100)")
        assert await pool.fetchval("select last_value from public.tries") == 6 + 6


async def test_through_a_pooler_nothing_is_left_in_the_session(postgres_url: str) -> None:
    async with opened(postgres_url, statement_timeout_ms=1234, prepared=False) as pool:
        limits = "select setting, reset_val from pg_settings where name = $1"
        for name, value, unset in (("statement_timeout", "1234", "0"), ("jit", "off", "on")):
            row = await pool.fetchrow(limits, name)
            assert row is not None
            assert tuple(row) == (value, unset)
        assert await pool.fetchval("select count(*) from pg_prepared_statements") == 0
        async with pool.connection() as connection:
            assert await connection.fetchval("show statement_timeout") == "1234ms"


# Several statements ----------------------------------------------------------------------------------------


async def test_what_is_done_on_a_connection_is_one_transaction_that_any_error_undoes(postgres_url: str) -> None:
    async with opened(postgres_url) as pool:
        with pytest.raises(EngineFailure, match="division by zero"):
            async with pool.connection() as connection:
                await connection.execute("insert into hark.meta values ('a', 1)")
                await connection.execute("select 1 / 0")
        assert await pool.fetchval("select count(*) from hark.meta where key = 'a'") == 0
        assert pool.connects == 1
        with pytest.raises(KeyError):
            async with pool.connection() as connection:
                await connection.execute("insert into hark.meta values ('a', 1)")
                raise KeyError
        assert await pool.fetchval("select count(*) from hark.meta where key = 'a'") == 0


# Handing out -----------------------------------------------------------------------------------------------


async def test_connections_are_made_when_they_are_needed_and_the_last_one_is_used_first(postgres_url: str) -> None:
    async with opened(postgres_url) as pool:
        assert (pool.size, pool.idle, pool.connects) == (1, 1, 1)
        async with pool.connection() as first:
            async with pool.connection() as second:
                assert (pool.size, pool.idle) == (2, 0)
                last = second.get_server_pid()
            assert first.get_server_pid() != last
            assert await pool.fetchval("select pg_backend_pid()") == last
        assert (pool.size, pool.idle, pool.connects) == (2, 2, 2)
        assert await pool.fetchval("select pg_backend_pid()") == first.get_server_pid()


async def test_many_calls_at_once_share_the_connections_that_may_be(postgres_url: str) -> None:
    async with opened(postgres_url, size=3) as pool:
        assert await asyncio.gather(*(pool.fetchval("select $1::int", n) for n in range(50))) == list(range(50))
        await until(lambda: pool.idle == 3)
        assert (pool.size, pool.waiting) == (3, 0)


async def test_a_call_that_gets_no_connection_in_time_is_refused(postgres_url: str) -> None:
    async with opened(postgres_url, size=1, wait_ms=50) as pool, pool.connection():
        with pytest.raises(EngineFailure, match=r"busy for 0\.05 s; the request had no effect") as caught:
            await pool.fetchval("select 1")
        assert (caught.value.status, caught.value.retry_after, pool.waiting) == (503, 1, 0)


async def test_a_caller_that_stops_waiting_for_a_connection_is_forgotten(postgres_url: str) -> None:
    async with opened(postgres_url, size=1) as pool:
        async with pool.connection():
            caller = asyncio.create_task(pool.fetchval("select 1"))
            await until(lambda: pool.waiting == 1)
            caller.cancel()
            with pytest.raises(asyncio.CancelledError):
                await caller
            assert pool.waiting == 0
        assert (pool.idle, await pool.fetchval("select 2")) == (1, 2)


async def test_a_caller_that_is_cancelled_as_it_gets_a_connection_gives_it_back(postgres_url: str) -> None:
    async with opened(postgres_url, size=1) as pool:
        async with pool.connection():
            caller = asyncio.create_task(pool.fetchval("select 1"))
            await until(lambda: pool.waiting == 1)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert pool.idle == 1


async def test_a_call_whose_caller_is_gone_is_finished_before_the_pool_closes(postgres_url: str) -> None:
    async with opened(postgres_url) as watcher:
        async with opened(postgres_url) as pool, watcher.connection() as holder:
            await holder.execute("select pg_advisory_xact_lock(1)")
            insert = "insert into hark.meta select 'late', 1 from (select pg_advisory_xact_lock(1)) locked"
            caller = asyncio.create_task(pool.fetch(insert))
            await until_blocked(watcher)
            caller.cancel()
            with pytest.raises(asyncio.CancelledError):
                await caller
            assert (pool.size, pool.idle) == (1, 0)
        assert await watcher.fetchval("select count(*) from hark.meta where key = 'late'") == 1


async def test_a_pool_that_closes_refuses_what_waits_and_what_comes(postgres_url: str) -> None:
    pool = Pool(postgres_url, size=1)
    await pool.open()
    async with pool.connection() as connection:
        waiting = asyncio.create_task(pool.fetchval("select 1"))
        await until(lambda: pool.waiting == 1)
        closing = asyncio.create_task(pool.close())
        with pytest.raises(EngineFailure) as caught:
            await waiting
        assert caught.value.code == "stopping"
        assert await connection.fetchval("select 2") == 2
    await closing
    assert pool.size == 0
    with pytest.raises(EngineFailure, match="shutting down"):
        await pool.fetchval("select 1")


# When things break -----------------------------------------------------------------------------------------


@WAYS
async def test_a_connection_that_is_lost_in_the_middle_is_an_unknown_outcome(
    postgres_server: PostgresServer, postgres_url: str, prepared: bool
) -> None:
    back = asyncio.Event()
    async with opened(postgres_url, prepared=prepared, on_return=back.set) as pool, opened(postgres_url) as watcher:
        async with watcher.connection() as holder:
            await holder.execute("select pg_advisory_xact_lock(1)")
            call = asyncio.create_task(pool.fetchval("select pg_advisory_xact_lock(1)"))
            await until_blocked(watcher)
            [row] = await watcher.fetch("select pid from pg_locks where locktype = 'advisory' and not granted")
            postgres_server.execute(f"select pg_terminate_backend({row['pid']})")
            with pytest.raises(EngineFailure, match="unknown") as caught:
                await call
        assert (caught.value.code, caught.value.status) == ("outcome_unknown", 503)
        await soon(back)
        assert await pool.fetchval("select 1") == 1
        assert (pool.size, pool.connects) == (1, 2)


async def test_connections_that_die_unused_are_replaced_and_no_call_fails(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    back = asyncio.Event()
    async with opened(postgres_url, on_return=back.set) as pool:
        async with pool.connection(), pool.connection():
            pass
        postgres_server.terminate_backends(postgres_url)
        await soon(back)
        await until(lambda: pool.idle == 2)
        assert (pool.connects, await pool.fetchval("select 1")) == (4, 1)


async def test_one_lost_connection_of_several_is_no_return_of_the_database(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    returns: list[None] = []
    async with opened(postgres_url, on_return=lambda: returns.append(None)) as pool:
        async with pool.connection() as one, pool.connection():
            pid = one.get_server_pid()
        postgres_server.execute(f"select pg_terminate_backend({pid})")
        await until(lambda: pool.connects == 3)
        assert returns == []


async def test_a_transaction_whose_user_is_cancelled_costs_its_connection_only(postgres_url: str) -> None:
    async def use(pool: Pool, inside: asyncio.Event) -> None:
        async with pool.connection() as connection:
            await connection.execute("insert into hark.meta values ('a', 1)")
            inside.set()
            await asyncio.Event().wait()

    async with opened(postgres_url) as pool:
        inside = asyncio.Event()
        user = asyncio.create_task(use(pool, inside))
        await soon(inside)
        user.cancel()
        with pytest.raises(asyncio.CancelledError):
            await user
        assert await pool.fetchval("select count(*) from hark.meta where key = 'a'") == 0


async def test_rule_29_while_no_connection_works_calls_are_refused_at_once_and_the_first_that_does_opens_the_way(
    own_postgres_server: OwnPostgresServer,
) -> None:
    back = asyncio.Event()
    server = own_postgres_server
    async with opened(server.url, wait_ms=600_000, on_return=back.set) as pool:
        await asyncio.to_thread(server.stop, "immediate")
        for _ in range(100):
            with pytest.raises(EngineFailure, match="PostgreSQL") as caught:
                await pool.fetchval("select 1")
            assert caught.value.code in ("store_unavailable", "outcome_unknown")
        assert (caught.value.code, caught.value.retry_after) == ("store_unavailable", 1)
        await asyncio.to_thread(server.start)
        await asyncio.wait_for(back.wait(), 4)
        assert await pool.fetchval("select 2") == 2


class Attempts:
    """Attempts to connect: how many run at once, and how they end."""

    def __init__(self) -> None:
        self.running = self.most = self.begun = 0
        self.answers = False

    async def connect(self) -> asyncpg.Connection:
        """Hang, until the database answers again with a refusal."""
        self.begun += 1
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            while not self.answers:  # noqa: ASYNC110  # nothing to wait for
                await asyncio.sleep(0)
        finally:
            self.running -= 1
        raise OSError("on purpose")


async def test_rule_29_one_attempt_at_a_time_tries_a_database_that_is_away_or_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool_module, "_ATTEMPT_SECONDS", 0.01)
    monkeypatch.setattr(pool_module, "_PROBE_SECONDS", (0.01,))
    monkeypatch.setattr(pool_module, "_PROBE_PAUSES", (0.0,))
    attempts = Attempts()
    pool = Pool("", wait_ms=600_000)
    monkeypatch.setattr(pool, "_connect", attempts.connect)
    keeper = asyncio.create_task(pool._keep())
    takers = [asyncio.create_task(pool.fetch("select 1")) for _ in range(8)]
    refused = await asyncio.gather(*takers, return_exceptions=True)
    assert {one.code for one in refused if isinstance(one, EngineFailure)} == {"store_unavailable"}
    assert len(refused) == 8
    await until(lambda: attempts.begun > 5)
    attempts.answers = True
    await until(lambda: attempts.begun > 20)
    assert attempts.most == 1
    keeper.cancel()


async def test_a_stopped_database_behind_a_socket_is_called_that(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def connect() -> asyncpg.Connection:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    pool = Pool("", wait_ms=600_000)
    monkeypatch.setattr(pool, "_connect", connect)
    keeper = asyncio.create_task(pool._keep())
    with pytest.raises(EngineFailure) as caught:
        await pool.fetch("select 1")
    keeper.cancel()
    words = "no server listens on its socket"
    assert caught.value.text.startswith(f"PostgreSQL is unavailable ({words}); ")
    assert f"cannot connect to PostgreSQL; retrying: {words}" in caplog.messages


async def test_a_network_that_falls_silent_ends_the_call_and_the_connections_that_knew_nothing(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "_GRACE_SECONDS", 0.1)
    back = asyncio.Event()
    async with (
        Proxy(postgres_url) as proxy,
        opened(proxy.url, statement_timeout_ms=500, on_return=back.set) as pool,
    ):
        async with pool.connection(), pool.connection():
            pass
        proxy.silence()
        with pytest.raises(EngineFailure) as caught:
            await pool.fetchval("select 1")
        assert caught.value.code == "outcome_unknown"
        await soon(back)
        assert await pool.fetchval("select 2") == 2


# The first connection --------------------------------------------------------------------------------------


def _changed(url: str, *, password: str = "", name: str = "", port: str = "") -> str:
    head, _, tail = url.rpartition("@")
    user = head.removeprefix("postgresql://").partition(":")[0]
    host, _, rest = tail.partition(":")
    old_port, _, old_name = rest.partition("/")
    secret = password or head.rpartition(":")[2]
    return f"postgresql://{user}:{secret}@{host}:{port or old_port}/{name or old_name}"


async def _refusal(url: str) -> HarkError:
    with pytest.raises((StoreUnusable, InvalidSetting)) as caught:
        await Pool(url).open()
    assert "s3cret" not in caught.value.text
    return caught.value


async def test_a_first_connection_that_fails_says_what_to_do(own_postgres_server: OwnPostgresServer) -> None:
    url = own_postgres_server.url
    for wrong, words in (
        (_changed(url, password="s3cret"), "password authentication failed.*check the user, the password"),
        (_changed(url, name="nowhere"), "/nowhere: the database does not exist"),
        (
            _changed(url, password="s3cret", port="1"),
            "127.0.0.1:1/postgres is not reachable.*check that PostgreSQL is running",
        ),
        (
            "postgresql:///postgres?host=/nowhere&user=x",
            r"is not reachable \(no server listens on its socket\); check that PostgreSQL is running",
        ),
    ):
        error = await _refusal(wrong)
        assert isinstance(error, StoreUnusable)
        assert re.search(words, error.text)
    error = await _refusal(_changed(url, password="s3cret", port="port"))
    assert isinstance(error, InvalidSetting)
    assert error.text.startswith("engine: expected postgresql://")


async def test_a_server_that_is_too_old_is_refused(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "OLDEST_SERVER", 99)
    error = await _refusal(postgres_url)
    assert error.text.endswith("upgrade it to 99 or newer")


async def test_a_pooler_that_refuses_settings_at_the_start_is_explained() -> None:
    refused = asyncio.Event()

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer as pgbouncer does to a client that wants to set something."""
        await reader.read(1)
        fields = b"SFATAL\0VFATAL\0C08P01\0Munsupported startup parameter: statement_timeout\0\0"
        writer.write(b"E" + (len(fields) + 4).to_bytes(4, "big") + fields)
        writer.close()
        refused.set()

    pooler = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with pooler:
        port = pooler.sockets[0].getsockname()[1]
        error = await asyncio.wait_for(_refusal(f"postgresql://u:s3cret@127.0.0.1:{port}/d?sslmode=disable"), SOON)
    assert "set postgres.prepared to false" in error.text


async def test_a_full_disk_of_the_database_is_an_error_of_its_own(postgres_url: str) -> None:
    async with opened(postgres_url) as pool:
        with pytest.raises(DiskFull, match="had no effect") as failure:
            await pool.fetch("do $$ begin raise exception 'no space left' using errcode = 'disk_full'; end $$")
        assert (failure.value.status, failure.value.code, failure.value.retry_after) == (507, "disk_full", 10)
