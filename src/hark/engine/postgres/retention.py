"""Expiry of leases, retention of messages, and metrics of the store."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import asyncpg

from hark.clock import SECOND, Clock
from hark.engine.postgres.discovery import RUNNING, Late
from hark.engine.postgres.partitions import Directory, Group
from hark.engine.postgres.pool import Pool
from hark.engine.postgres.push import Notifications
from hark.engine.postgres.settle import NO_LEASE, Deliveries, lease_ends, lease_uuid
from hark.errors import HarkError
from hark.model import Collected, Expired, Hint, Renewal, RenewOutcome

_EXPIRE = f"select *, {RUNNING} as running from hark.expire_v1($1, $2, $3, $4)"
_OVERLAP = 1 * SECOND
_LATE = 60 * SECOND
"""A lease may become visible late: each search looks again at the last second, and now and then at the last minute."""


class Expirer:
    """Ends leases for one engine, whoever gave them."""

    def __init__(self, pool: Pool, directory: Directory, deliveries: Deliveries, clock: Clock, late: Late) -> None:
        self._pool = pool
        self._directory = directory
        self._deliveries = deliveries
        self._clock = clock
        self._late = late
        self._skew = 0
        """What the local clock is ahead of the database's."""
        self._done = (0, NO_LEASE)
        """The end and the id of the last lease that was looked at."""
        self._looked = self._looked_back = 0
        self._late_end = late.newest
        self.behind = False
        """Whether the last call did not get to the end of what is due."""
        self.ended = 0
        """How many leases it has ended."""
        self.dead_lettered = 0
        """How many messages that made dead letters."""

    def now(self) -> int:
        """The database's time, as far as can be said from here."""
        return self._clock.now() - self._skew

    def to_local(self, time: int) -> int:
        """A time of the database by the local clock."""
        return time + self._skew

    def from_local(self, time: int) -> int:
        """A time of the local clock by the database's."""
        return time - self._skew

    async def expire(self, given: int | None, limit: int) -> tuple[Expired, list[Hint]]:
        """End what is due, at most `limit` leases, and say when to look next and whom to tell."""
        look = self._late.look()
        row = await self._pool.fetchrow(_EXPIRE, given, *self._done, limit)
        assert row is not None
        now: int = row["o_now"]
        self._late.note(row["running"], look, now)
        if given is None:
            self._skew = self._clock.now() - now
        next_due: int | None = now
        self.behind = True
        if row["o_examined"] >= limit:
            self._done = row["o_last"], row["o_last_id"]
        elif self._late.newest is not self._late_end:
            # A long transaction has ended, which may have made leases that are over by now.
            self._late_end = self._late.newest
            self._done, self._looked = (self._late.since(self._looked, reach=0), NO_LEASE), now
        else:
            self.behind = False
            self._looked = now
            late = now - self._looked_back >= _LATE
            self._looked_back = now if late else self._looked_back
            self._done = now - (_LATE + _OVERLAP if late else _OVERLAP), NO_LEASE
            next_due = self._deliveries.next_end(now)
        hints = self.free(zip(row["o_grps"], row["o_partitions"], row["o_ended"], row["o_counts"], strict=True))
        self.ended += row["o_leases"]
        self.dead_lettered += row["o_dead_lettered"]
        return Expired(row["o_leases"], None if next_due is None else self.to_local(next_due)), hints

    def free(self, positions: Iterable[Any]) -> list[Hint]:
        """The hints for positions and messages that are free again, with the leases that ended."""
        found = list(positions)
        if not found:
            return []
        groups: dict[int, Group] = {group.id: group for group in self._directory.groups.values()}
        notifications = Notifications(self._directory)
        for number, partition, lease, messages in found:
            group = groups.get(number)
            if group is None:
                continue
            if group.shared is None:
                notifications.free(group, (partition,))
            else:
                notifications.given_back(group, partition, messages)
            notifications.ended(group, str(lease))
            notifications.has_room(group)
        return notifications.hints()

    async def lease_ends(self, lease_ids: Sequence[str], given: int | None) -> list[int | None]:
        """When leases end, by the local clock."""
        ends = await lease_ends(self._pool, given, lease_ids)
        return [None if end is None else self.to_local(end) for end in ends]

    async def shorten(self, lease_ids: Sequence[str], microseconds: int, given: int | None) -> None:
        """Let leases end sooner."""
        rows = await self._pool.fetch(
            "select * from hark.shorten_v1($1, $2::uuid[], $3)",
            given,
            [lease_uuid(lease_id) for lease_id in lease_ids],
            microseconds,
        )
        for row in rows:
            self._deliveries.renew(str(row["o_lease"]), row["o_until"])

    async def renew(self, requests: Sequence[Renewal], given: int | None) -> list[RenewOutcome | HarkError]:
        """Hold leases longer."""
        row = await self._pool.fetchrow(
            "select * from hark.renew_v1($1, $2::uuid[], $3::bigint[])",
            given,
            [lease_uuid(request.lease_id) for request in requests],
            [request.seconds for request in requests],
        )
        assert row is not None
        answers: list[RenewOutcome | HarkError] = []
        for request, until, code in zip(requests, row["o_until"], row["o_codes"], strict=True):
            if not code:
                self._deliveries.renew(request.lease_id, until)
                answers.append(RenewOutcome(True, self.to_local(until)))
            elif code == 4:
                answers.append(RenewOutcome(False, None, "lease_expired", "Lease already expired"))
            else:
                answers.append(RenewOutcome(False, None, "lease_not_found", "Lease not found"))
        return answers


# What holds the oldest snapshot may be a session, a replica that is behind, or a prepared transaction. Of sessions of
# other roles PostgreSQL tells nothing to those who are not in pg_monitor. A snapshot of this call is always new.
_METRICS = """
with tables as (
    select coalesce(sum(n_dead_tup), 0) as dead, coalesce(sum(n_live_tup), 0) as live,
        coalesce(sum(n_dead_tup) filter (where relname = 'partitions'), 0) as dead_partitions,
        coalesce(sum(n_dead_tup) filter (where relname = 'positions'), 0) as dead_positions,
        coalesce(sum(pg_total_relation_size(relid)), 0) as bytes
    from pg_stat_user_tables where schemaname = 'hark'
), sessions as (
    select max(age(backend_xmin)) as transactions,
        max(clock_timestamp() - xact_start) filter (where backend_xmin is not null or backend_xid is not null) as time
    from pg_stat_activity
    where pid <> pg_backend_pid() and (datname is null or datname = current_database())
), prepared as (
    select max(age(transaction)) as transactions, max(clock_timestamp() - prepared) as time
    from pg_prepared_xacts where database = current_database()
), replicas as (
    select max(age(xmin)) as transactions from pg_replication_slots
)
select t.dead::float8 as dead_tuples, t.live::float8 as live_tuples,
    t.dead_partitions::float8 as partitions_dead_tuples, t.dead_positions::float8 as positions_dead_tuples,
    t.bytes::float8 as table_bytes,
    greatest(s.transactions, p.transactions, r.transactions, 0)::float8 as oldest_xmin_transactions,
    greatest(extract(epoch from greatest(s.time, p.time)), 0)::float8 as oldest_xmin_seconds,
    (select count(*) from hark.slots_v1('messages') where bytes > 0)::float8 as message_slots,
    (select count(*) from hark.slots_v1('leases') where bytes > 0)::float8 as lease_slots
from tables t, sessions s, prepared p, replicas r
"""


async def store_metrics(pool: Pool) -> dict[str, float]:
    """Numbers by name; counts of rows are PostgreSQL's estimates, and some seconds old."""
    row = await pool.fetchrow(_METRICS)
    assert row is not None
    return {
        **row,
        "pool_connections": pool.size,
        "pool_idle": pool.idle,
        "pool_waiting": pool.waiting,
        "pool_connects": pool.connects,
        "pool_failures": pool.failures,
    }


# Messages and leases leave with their child tables, whatever vacuum can do. Dead versions of rows that are updated in
# place are left to autovacuum, which never stops a push: Hark's tables are not shortened by it (`vacuum_truncate`).


log = logging.getLogger(__name__)

_STEP_MS = 25
"""Pushes may wait for a step of retention: it ends after this time."""
_SLOT_BYTES = 1 << 30
_SLOT_SHARE = 3
"""A child table takes messages for at most a third of the time that settled ones are kept."""
_SHORTEST_SLOT = 60
_SURVIVORS = {"messages": 20_000, "leases": 200_000}
_SURVIVING_PERCENT = {"messages": 10, "leases": 100}
_MOVED_ROWS = 500
_MOVED_BYTES = 4 << 20
"""What is moved in one transaction: those who settle may have to wait for it."""
_LEASE_SLOT_SECONDS = 600
_LEASE_SLOT_BYTES = 64 << 20
_LOCK_TIMEOUT = "40ms"
"""Calls queue behind a statement that waits for a whole table: it gives up, and the next run repeats it. Longer than a
step of retention, which reads these tables."""
_ONE_AT_A_TIME = 0x4861726C
"""The advisory lock of the server that rotates."""


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
            "select * from hark.collect_v1($1, $2, $3, $4, $5, $6, $7, $8)",
            now,
            self._after,
            self._offset,
            self._expired,
            limit,
            self._completed_seconds,
            self._idle_group_seconds,
            _STEP_MS,
        )
        assert row is not None
        self._after, self._offset, self._expired = row["o_after"], row["o_offset"], row["o_expired"]
        if not row["o_more"]:
            await self.rotate(now)
        return Collected(row["o_examined"], row["o_removed"], row["o_more"])

    async def rotate(self, now: int | None) -> None:
        """Begin new child tables and empty old ones, as far as it is time for that (see rotate.sql)."""
        seconds = max(_SHORTEST_SLOT, self._completed_seconds // _SLOT_SHARE)
        begin = "select hark.begin_slot_v1($1, $2, $3, $4)"
        await self._alone(begin, now, "messages", seconds, _SLOT_BYTES)
        await self._alone(begin, now, "leases", _LEASE_SLOT_SECONDS, _LEASE_SLOT_BYTES)
        closed = await self._pool.fetch("select name, slot from hark.slots")
        if not closed:
            return
        await self._find_horizon()
        for table, slot in closed:
            await self._move_survivors(now, table, slot)
        await self._find_horizon()
        for table, slot in closed:
            if await self._alone("select hark.truncate_slot_v1($1, $2::smallint)", table, slot) is None:
                return  # Calls have waited for it: not for the next one as well.

    async def _move_survivors(self, now: int | None, table: str, slot: int) -> None:
        """Move what still counts out of a child table, if that is little, and note when nothing does any more."""
        sql = "select * from hark.survivors_v1($1, $2, $3::smallint, $4, $5)"
        share = _SURVIVING_PERCENT[table]
        found = await self._alone(sql, now, table, slot, share, _SURVIVORS[table])
        if found is None or not found["o_rows"]:
            return
        for rows in _in_chunks(found["o_rows"], found["o_bytes"]):
            move = "select hark.move_rows_v1($1, $2::smallint, $3::tid[])"
            if await self._alone(move, table, slot, rows) is None:
                return
        await self._alone(sql, now, table, slot, share, _SURVIVORS[table])

    async def _find_horizon(self) -> None:
        """Write down which transactions are over for everybody, which only vacuum knows."""
        await self._pool.run_alone("vacuum (freeze, skip_locked, truncate off) hark.slots")

    async def _alone(self, sql: str, *args: object) -> asyncpg.Record | None:
        """Run what may lock a whole table; None if another server is at it or the table is in use for long."""
        try:
            async with self._pool.connection() as connection:
                if not await connection.fetchval(f"select pg_try_advisory_xact_lock({_ONE_AT_A_TIME})"):
                    return None
                # It may read a gigabyte, beside pushes. Ended by the usual limit, it would start again at every run.
                await connection.execute(f"set local lock_timeout = '{_LOCK_TIMEOUT}'; set local statement_timeout = 0")
                return await connection.fetchrow(sql, *args)
        except HarkError as error:
            if not isinstance(error.__cause__, asyncpg.LockNotAvailableError):
                raise
            log.debug("a table is in use; retrying later: %s", sql)
            return None


def _in_chunks(rows: Sequence[object], sizes: Sequence[int]) -> Iterator[list[object]]:
    """Few enough to be moved at once."""
    chunk: list[object] = []
    size = 0
    for row, length in zip(rows, sizes, strict=True):
        if chunk and (len(chunk) >= _MOVED_ROWS or size + length > _MOVED_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(row)
        size += length
    if chunk:
        yield chunk
