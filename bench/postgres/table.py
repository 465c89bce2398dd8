"""Hark's tables in PostgreSQL, with nothing around them."""

from __future__ import annotations

from typing import Any

import asyncpg

from hark.engine.postgres.migrate import migrate
from hark.engine.postgres.pool import Pool

Connection = Any
"""An asyncpg connection; asyncpg has no types of its own."""
SESSION = {"jit": "off", "plan_cache_mode": "force_generic_plan"}
"""As the connections of the engine have it."""


async def open_tables(url: str) -> Connection:
    """A connection to a database, in which the tables are made first."""
    pool = Pool(url, size=1)
    await pool.open()
    try:
        await migrate(pool)
    finally:
        await pool.close()
    return await asyncpg.connect(url, server_settings=SESSION)


async def make_partitions(connection: Connection, names: list[str]) -> list[int]:
    """The ids of new partitions."""
    query = (
        "insert into hark.partitions (queue, name, created_at) select 1, n, 0 from unnest($1::text[]) n returning id"
    )
    rows = await connection.fetch(query, names)
    return [row["id"] for row in rows]
