"""The versions of the schema, and how a database comes from one to the next.

Steps are numbered and never change once released. The `pre` part of a step only adds: it runs when a server starts,
and servers of the version before go on beside it. The `post` part removes what only they needed; it runs when
an administrator runs `hark migrate --post`.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Literal, NamedTuple

import asyncpg

from hark.engine.postgres.pool import Pool
from hark.errors import EngineFailure, StoreUnusable
from hark.ids import TAG_BITS

Phase = Literal["pre", "post"]
_FILE = re.compile(r"(?P<number>\d{4})_(?P<name>\w+)(?P<post>\.post)?\.sql")
_LOCK = int.from_bytes(b"hark:sql", "big")
_PROCEDURES_CAME_WITH = 1
_LOCK_TIMEOUT = "10s"
_HOME = """
select hashtextextended(concat_ws(' ', c.system_identifier, d.oid, 'hark.meta'::regclass::oid), 0)
from pg_control_system() c, pg_database d where d.datname = current_database()
"""
"""Differs between a store and every restored dump of it. A failover to a standby does not change it: servers that keep
running must agree with those that start."""


class Script(NamedTuple):
    """A file of statements."""

    name: str
    sql: str


class Step(NamedTuple):
    """One part of one version of the schema."""

    number: int
    phase: Phase
    name: str
    scripts: tuple[Script, ...]
    """What to run, in this order."""

    def __str__(self) -> str:
        return f"{self.number:04} {self.name} ({self.phase})"


async def migrate(pool: Pool, *, post: bool = False, dry_run: bool = False) -> list[Step]:
    """Apply the steps that are missing, those of `post` only on request; raises `StoreUnusable`.

    The answer is what this call applied, or with `dry_run` would apply.
    """
    try:
        missing = await missing_steps(pool, post=post)
        if dry_run:
            return missing
        return [step for step in missing if await _apply(pool, step)]
    except EngineFailure as error:
        raise StoreUnusable(f"cannot migrate the schema of the database: {error.text}") from error


async def missing_steps(pool: Pool, *, post: bool) -> list[Step]:
    """Steps that this Hark has and the database has not; needs only the right to read."""
    async with pool.connection() as connection:
        known = all_steps()
        applied = await _applied(connection)
    newest = max(step.number for step in known)
    version = max((number for number, _ in applied), default=0)
    if version > newest:
        raise StoreUnusable(
            f"the database has schema version {version}, but this Hark supports versions up to {newest}; upgrade Hark"
        )
    return [step for step in known if (step.number, step.phase) not in applied and (post or step.phase == "pre")]


def all_steps() -> list[Step]:
    """Every step that this Hark has: all of `pre`, then all of `post`, by number."""
    folder = files(__package__) / "sql"
    steps = []
    for script in _scripts(folder / "migrations"):
        if (parts := _FILE.fullmatch(script.name)) is None:
            raise ValueError(f"{script.name} is not named like a migration")
        number = int(parts["number"])
        phase: Phase = "post" if parts["post"] else "pre"
        brings_procedures = (number, phase) == (_PROCEDURES_CAME_WITH, "pre")
        scripts = (script, *(_scripts(folder / "procedures") if brings_procedures else ()))
        steps.append(Step(number, phase, parts["name"], scripts))
    return sorted(steps, key=lambda step: (step.phase == "post", step.number))


def _scripts(folder: Traversable) -> Iterator[Script]:
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        if file.name.endswith(".sql"):
            yield Script(file.name, file.read_text())


async def _applied(connection: asyncpg.Connection) -> set[tuple[int, str]]:
    if await connection.fetchval("select to_regclass('hark.migrations')") is None:
        return set()
    return {
        (row["number"], row["phase"]) for row in await connection.fetch("select number, phase from hark.migrations")
    }


async def _apply(pool: Pool, step: Step) -> bool:
    """Apply a step in one transaction; False if another server was first."""
    async with pool.connection() as connection:
        await connection.execute("set local statement_timeout = 0")
        # Of servers that start together, one applies it and the others wait.
        await connection.execute(f"select pg_advisory_xact_lock({_LOCK})")
        if (step.number, step.phase) in await _applied(connection):
            return False
        # Calls queue behind a step that waits for a long transaction: better that the step fails.
        await connection.execute(f"set local lock_timeout = '{_LOCK_TIMEOUT}'")
        await connection.execute(
            "create schema if not exists hark;"
            "create table if not exists hark.migrations (number integer not null,"
            " phase text not null check (phase in ('pre', 'post')), name text not null,"
            " applied_at timestamptz not null default now(), primary key (number, phase))"
        )
        # Procedures call each other, whatever the order of their files: their bodies are checked when they are called.
        await connection.execute("set local check_function_bodies = off")
        for script in step.scripts:
            try:
                await connection.execute(script.sql)
            except asyncpg.PostgresError as error:
                raise StoreUnusable(f"schema migration {step} failed in {script.name}: {error}") from error
        if (step.number, step.phase) == (1, "pre"):
            await own_tag(connection)
        await connection.execute(
            f"insert into hark.migrations (number, phase, name) values ({step.number}, '{step.phase}', '{step.name}')"
        )
    return True


async def own_tag(connection: asyncpg.Connection) -> int:
    """The tag of this store's message ids. A restored dump gets a new one: else new messages would get the ids of those
    that came after the dump. In a transaction of the caller."""
    await connection.execute(f"select pg_advisory_xact_lock({_LOCK})")
    meta = dict(await connection.fetch("select key, value from hark.meta where key in ('tag', 'home')"))
    home = await connection.fetchval(_HOME)
    if meta.get("home") == home:
        return int(meta["tag"])
    tags = 1 << TAG_BITS
    tag: int = (meta.get("tag", 0) + 1 + secrets.randbelow(tags - 1)) % tags
    await connection.executemany(
        "insert into hark.meta (key, value) values ($1, $2) on conflict (key) do update set value = excluded.value",
        [("tag", tag), ("home", home)],
    )
    return tag
