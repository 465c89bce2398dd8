"""What leaves the database: messages whose time is over, tables that held them, dead versions of rows.

Nothing here depends on vacuum, which can do nothing while some transaction in the database is old: messages and leases
leave with their child tables, and tables whose rows are updated in place are written anew when they have grown.
"""

from __future__ import annotations

import asyncio
import logging

import asyncpg

from hark.engine.postgres.pool import Pool
from hark.errors import HarkError
from hark.model import Collected

log = logging.getLogger(__name__)

_SLOT_BYTES = 1 << 30
_SLOT_SHARE = 3
"""A child table takes messages for at most a third of the time that settled ones are kept."""
_SHORTEST_SLOT = 60
_SURVIVORS = 20_000
_SURVIVING_PERCENT = 10
_LEASE_SLOT_SECONDS = 600
_LEASE_SLOT_BYTES = 64 << 20
_LOCK_TIMEOUT = "200ms"
"""Whoever waits for a whole table makes everybody else wait behind it: then rather later."""

_COMPACT_EVERY = 1.0
_COMPACT_BYTES = 4 << 20
_COMPACT_GROWTH = 4
_UPDATED_IN_PLACE = ("partitions", "tracks", "exceptions")
_ONE_AT_A_TIME = 0x4861726C
"""The advisory lock of the server that rotates or compacts."""


class Retention:
    """Goes through the partitions, remembering where it stopped."""

    def __init__(self, pool: Pool, completed_seconds: int, idle_group_seconds: int) -> None:
        self._pool = pool
        self._completed_seconds = completed_seconds
        self._idle_group_seconds = idle_group_seconds
        self._after = 0
        self._offset = 0
        self._expired = 0

    async def step(self, now: int | None, limit: int) -> Collected:
        """Look at the next messages and remove those whose time is over; at the end of a pass, empty child tables."""
        row = await self._pool.fetchrow(
            "select * from hark.collect_v1($1, $2, $3, $4, $5, $6, $7)",
            now,
            self._after,
            self._offset,
            self._expired,
            limit,
            self._completed_seconds,
            self._idle_group_seconds,
        )
        assert row is not None
        self._after, self._offset, self._expired = row["o_after"], row["o_offset"], row["o_expired"]
        if not row["o_more"]:
            await self.rotate(now)
        return Collected(row["o_examined"], row["o_removed"], row["o_more"])

    async def rotate(self, now: int | None) -> None:
        """Begin new child tables and empty old ones, if it is time and nobody else is at it."""
        seconds = max(_SHORTEST_SLOT, self._completed_seconds // _SLOT_SHARE)
        await self._one_table("select hark.begin_slot_v1($1, 'messages', $2, $3)", now, seconds, _SLOT_BYTES)
        slots = await self._pool.fetch("select slot from hark.slots_v1('messages') where not is_current and bytes > 0")
        for (slot,) in slots:
            sql = "select hark.empty_messages_v1($1::smallint, $2, $3)"
            await self._one_table(sql, slot, _SURVIVING_PERCENT, _SURVIVORS)
        await self._one_table("select hark.empty_leases_v1($1)", now)
        await self._one_table(
            "select hark.begin_slot_v1($1, 'leases', $2, $3)", now, _LEASE_SLOT_SECONDS, _LEASE_SLOT_BYTES
        )

    async def _one_table(self, sql: str, *args: object) -> None:
        await with_table_lock(self._pool, sql, *args)


async def with_table_lock(pool: Pool, sql: str, *args: object) -> None:
    """Run what locks a whole table, unless another server is at it or the table is in use for long."""
    try:
        async with pool.connection() as connection:
            if not await connection.fetchval(f"select pg_try_advisory_xact_lock({_ONE_AT_A_TIME})"):
                return
            await connection.execute(f"set local lock_timeout = '{_LOCK_TIMEOUT}'")
            await connection.execute(sql, *args)
    except HarkError as error:
        if not isinstance(error.__cause__, asyncpg.LockNotAvailableError):
            raise
        log.debug("a table is in use; retrying later: %s", sql)


async def keep_compact(pool: Pool) -> None:
    """Rewrite tables whose rows are updated in place, when dead row versions have made them large."""
    while True:
        await asyncio.sleep(_COMPACT_EVERY)
        try:
            for table in _UPDATED_IN_PLACE:
                if await _has_grown(pool, table):
                    await with_table_lock(pool, "select hark.compact_v1($1)", table)
        except HarkError as error:
            log.debug("cannot compact the tables; retrying later: %s", error)


async def _has_grown(pool: Pool, table: str) -> bool:
    grown = await pool.fetchval(
        "select pg_relation_size(('hark.' || $1)::regclass) > greatest($2, $3 * coalesce("
        "(select value from hark.meta where key = 'compacted:' || $1), 0))",
        table,
        _COMPACT_BYTES,
        _COMPACT_GROWTH,
    )
    return bool(grown)
