"""A real PostgreSQL for the tests: the one that `HARK_TEST_POSTGRES` names, or one that is started for them.

A test has a database for itself. Most get one that was used before and emptied (a few milliseconds), and must leave no
session and no object behind in it. Tests that migrate, rotate, restart or look at statistics get a fresh copy of a
template in which Hark's schema was installed once (170 ms).
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import subprocess
import time
import uuid
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from typing import Literal, NamedTuple, TypeVar
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from hark.engine.postgres.migrate import migrate
from hark.engine.postgres.pool import Pool
from tests.postgres_programs import Programs, programs

T = TypeVar("T")
StopMode = Literal["fast", "immediate"]
PREFIX = "hark_test_"
CLOSING_SECONDS = 10.0
"""How long the backends of closed connections may take to end; usually it is less than a millisecond."""
SESSIONS = """
    select coalesce(nullif(query, ''), state, 'no statement') as query from pg_stat_activity
    where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'
    union all select 'prepared transaction ' || gid from pg_prepared_xacts where database = current_database()
"""
OBJECTS = """
    with own as (select oid, nspname from pg_namespace where nspname !~ '^pg_' and nspname <> 'information_schema')
    select concat(nspname, '.', relname, ' (', relkind, coalesce(' ' || array_to_string(reloptions, ' '), ''), ')')
    from pg_class join own on own.oid = relnamespace where relkind <> 't'
    union all select nspname || '.' || proname || ' ' || md5(prosrc) from pg_proc join own on own.oid = pronamespace
    union all select concat('column ', attrelid::regclass, '.', attname, ' ', format_type(atttypid, atttypmod))
    from pg_attribute join pg_class on pg_class.oid = attrelid join own on own.oid = relnamespace
    where attnum > 0 and not attisdropped and relkind in ('r', 'p')
    union all select concat('constraint ', conrelid::regclass, '.', conname)
    from pg_constraint join own on own.oid = connamespace
    union all select concat('trigger ', tgrelid::regclass, '.', tgname, ' ', tgenabled)
    from pg_trigger join pg_class on pg_class.oid = tgrelid join own on own.oid = relnamespace where not tgisinternal
    union all select 'schema ' || nspname from own
    union all select 'setting ' || unnest(setconfig) from pg_db_role_setting
    where setdatabase = (select oid from pg_database where datname = current_database())
"""
TABLES = "select oid::regclass::text from pg_class where relnamespace = 'hark'::regnamespace and relkind = 'r'"
EMPTY = """
do $$ declare used text; begin
    select string_agg(oid::regclass::text, ', ') into used from pg_class
    where relnamespace = 'hark'::regnamespace and relkind = 'r' and pg_relation_size(oid) > 0;
    if used is not null then execute 'truncate ' || used; end if;
    perform setval(oid::regclass, seqstart, false) from pg_class join pg_sequence on seqrelid = oid
    where relnamespace = 'hark'::regnamespace;
end $$
"""
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "256MB",
    "max_prepared_transactions": "5",
    # The machine does not lose its power during a test; processes may be killed all the same.
    "fsync": "off",
    "full_page_writes": "off",
}


class Template(NamedTuple):
    """A database with Hark's schema that others are copied from."""

    name: str
    objects: set[str]
    empty: str
    """SQL that gives a used copy the rows of the template."""


class PostgresServer:
    """A server on which tests make databases."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._used: list[str] = []
        """Names of emptied databases that no test has at the moment."""

    @contextmanager
    def database(self) -> Iterator[str]:
        """The URL of an empty database with Hark's schema; fails if a session or an object is left behind in it."""
        name = self._used.pop() if self._used else self._create(self._template.name)
        clean = False
        try:
            yield self._url_of(name)
            _apart(self._emptied(name))
            clean = True
        finally:
            if clean:
                self._used.append(name)
            else:
                self.execute(f"drop database {name} with (force)")

    async def _emptied(self, name: str) -> None:
        """Empty a database, or fail with what is left in it beside rows."""
        connection = await asyncpg.connect(self._url_of(name))
        try:
            deadline = time.monotonic() + CLOSING_SECONDS
            while sessions := [row["query"] for row in await connection.fetch(SESSIONS)]:
                if time.monotonic() > deadline:
                    pytest.fail(f"this test leaves open sessions in its database; their last statements: {sessions}")
                await asyncio.sleep(0.001)
            objects = {row[0] for row in await connection.fetch(OBJECTS)}
            if changed := objects ^ self._template.objects:
                pytest.fail(f"this test leaves its database with other objects than before: {sorted(changed)}")
            await connection.execute(self._template.empty)
        finally:
            await connection.close()

    @contextmanager
    def fresh_database(self, *, installed: bool = True) -> Iterator[str]:
        """The URL of a new database, with Hark's schema or with nothing in it; dropped at the end."""
        name = self._create(self._template.name if installed else "template1")
        try:
            yield self._url_of(name)
        finally:
            self.execute(f"drop database {name} with (force)")

    def execute(self, sql: str) -> list[asyncpg.Record]:
        """Run one statement as the superuser, from inside an event loop or from outside of one."""

        async def work() -> list[asyncpg.Record]:
            connection = await asyncpg.connect(self.url)
            try:
                return list(await connection.fetch(sql))
            finally:
                await connection.close()

        return _apart(work())

    def terminate_backends(self, url: str) -> int:
        """End every connection to a database as an administrator would; how many there were."""
        name = urlsplit(url).path.removeprefix("/")
        return len(self.execute(f"select pg_terminate_backend(pid) from pg_stat_activity where datname = '{name}'"))

    def drop_all(self) -> None:
        """Leave nothing behind on a server that goes on."""
        names = [*self._used, *([self._template.name] if "_template" in self.__dict__ else [])]
        for name in names:
            self.execute(f"drop database {name} with (force)")

    @cached_property
    def _template(self) -> Template:
        name = self._create("template1")
        try:
            return Template(name, *_apart(_install(self._url_of(name))))
        except BaseException:
            self.execute(f"drop database {name} with (force)")
            raise

    @cached_property
    def _strategy(self) -> str:
        """Copying files makes a small database in half the time; PostgreSQL 14 knows no other way."""
        [row] = self.execute("select current_setting('server_version_num')::int >= 150000 as has_choice")
        return "strategy file_copy" if row["has_choice"] else ""

    def _create(self, template: str) -> str:
        name = f"{PREFIX}{uuid.uuid4().hex}"
        self.execute(f"create database {name} template {template} {self._strategy}")
        return name

    def _url_of(self, database: str) -> str:
        return urlunsplit(urlsplit(self.url)._replace(path=f"/{database}"))


class OwnPostgresServer(PostgresServer):
    """A server that was started for the tests and can be stopped by them; it ends when this process does."""

    def __init__(self, programs: Programs) -> None:
        self._programs = programs
        self._data = programs.directory / "data"
        self._log = programs.directory / "log"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        password = secrets.token_hex(16)
        super().__init__(f"postgresql://postgres:{password}@127.0.0.1:{port}/postgres")
        self._initialize(password)
        with (self._data / "postgresql.conf").open("a") as settings:
            settings.writelines(f"{name} = '{value}'\n" for name, value in (SETTINGS | {"port": str(port)}).items())
        self.start()

    def _initialize(self, password: str) -> None:
        secret = self._programs.directory / "password"
        secret.write_text(password)
        secret.chmod(0o644)
        self._programs.run(
            "initdb",
            f"--pgdata={self._data}",
            "--username=postgres",
            "--auth=password",
            f"--pwfile={secret}",
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
        )

    def start(self) -> None:
        """Start, and wait until it takes connections."""
        self._control("start", f"--log={self._log}")

    def stop(self, mode: StopMode) -> None:
        """Stop: connections end at once; `immediate` is a crash, and the next start recovers from it."""
        self._control("stop", f"--mode={mode}")

    def restart(self, mode: StopMode) -> None:
        """Stop and start again."""
        self.stop(mode)
        self.start()

    def _control(self, verb: str, *arguments: str) -> None:
        try:
            self._programs.run("pg_ctl", verb, f"--pgdata={self._data}", "--wait", "--silent", *arguments)
        except subprocess.CalledProcessError as error:
            error.add_note(self._log.read_text() if self._log.exists() else "PostgreSQL wrote no log")
            raise


@contextmanager
def own_server() -> Iterator[OwnPostgresServer]:
    """Start a server."""
    with programs() as found:
        yield OwnPostgresServer(found)


@contextmanager
def any_server(url: str | None) -> Iterator[PostgresServer]:
    """The server with that URL, or one that is started."""
    if url is None:
        with own_server() as started:
            yield started
    else:
        server = PostgresServer(url)
        try:
            yield server
        finally:
            server.drop_all()


async def _install(url: str) -> tuple[set[str], str]:
    """Install Hark's schema as a server does; the objects that are there then, and how to get back to its rows."""
    pool = Pool(url)
    await pool.open()
    try:
        await migrate(pool)
    finally:
        await pool.close()
    connection = await asyncpg.connect(url)
    try:
        objects = {row[0] for row in await connection.fetch(OBJECTS)}
        statements = [EMPTY]
        for [table] in await connection.fetch(TABLES):
            rows = await connection.fetchval(f"select quote_literal(json_agg(one)) from {table} one")
            if rows is not None:
                statements.append(f"insert into {table} select * from json_populate_recordset(null::{table}, {rows})")
    finally:
        await connection.close()
    return objects, ";\n".join(statements)


def _apart(work: Coroutine[object, object, T]) -> T:
    """Run on an event loop of its own: callers may be inside of one or not."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()
