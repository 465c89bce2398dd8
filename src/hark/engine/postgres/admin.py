"""The verbs that change queues, groups, single messages and flags; retention and metrics of the store."""

from __future__ import annotations

import logging
import secrets
import uuid
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any

import asyncpg
import msgspec

from hark import model
from hark.engine.api import Answers
from hark.engine.hints import struct_of
from hark.engine.postgres import browse
from hark.engine.postgres.partitions import Store
from hark.engine.postgres.pool import Pool
from hark.engine.postgres.push import Notifications, options_row, storable
from hark.engine.postgres.settle import lease_uuid
from hark.engine.retries import compile_schedule
from hark.errors import Conflict, HarkError, NotFound
from hark.ids import IdCodec

log = logging.getLogger(__name__)

_CONFIGURE = "select * from hark.configure_v1($1, $2, $3, $4, jsonb_populate_record(null::hark.queues, $5::jsonb), $6)"
_CANCELLED: tuple[model.CancelOutcome, ...] = ("cancelled", "not_found", "leased", "settled")
_IMPORT = (
    "select hark.import_dead_letters_v1($1, $2, $3::uuid[], $4::text[], $5::text[], $6::text[], $7::bigint[],"
    " $8::bigint[], $9::bigint[], $10::bytea[], $11::text[], $12::smallint[], $13::boolean[], $14::text[],"
    " $15::text[], $16::text[], $17::text[], $18::int[], $19::text[], $20::bigint[])"
)
_SEALING = 2
"""Code of `import_dead_letters_v1`: the encryption of the queue was changed."""


# Queues ----------------------------------------------------------------------------------------------------


async def configure(store: Store, specs: Sequence[model.QueueSpec]) -> Answers[model.QueueInfo]:
    """Make queues, or replace all options of those that exist."""
    partitions = {}
    for spec in specs:
        [row] = await store.pool.call(_CONFIGURE, *_arguments(spec), False)
        partitions[spec.name] = store.codec.encode(row["o_partition"], 0)
    infos = {info.name: info for info in await queue_infos(store, list(partitions))}
    for spec in specs:
        store.forget_ready(spec.name)
    store.hint(model.Hint(spec.name) for spec in specs)
    return [msgspec.structs.replace(infos[spec.name], partition_id=partitions[spec.name]) for spec in specs]


async def make_queues(store: Store, specs: Sequence[model.QueueSpec]) -> None:
    """Make those queues that do not exist."""
    known = await store.pool.fetchval(
        "select array_agg(name) from hark.queues where name = any ($1::text[])", [spec.name for spec in specs]
    )
    for spec in specs:
        if spec.name not in (known or ()):
            await store.pool.call(_CONFIGURE, *_arguments(spec), True)


def _arguments(spec: model.QueueSpec) -> tuple[str, str, str, str]:
    options = msgspec.structs.asdict(spec.options) | {"schedule": compile_schedule(spec.options)}
    return spec.name, spec.namespace, spec.task, msgspec.json.encode(options).decode()


async def queue_infos(store: Store, names: Sequence[str] | None = None) -> list[model.QueueInfo]:
    """The named queues that exist, or all of them."""
    sql = "select * from hark.queues where $1::text[] is null or name = any ($1) order by id"
    rows = await store.pool.fetch(sql, None if names is None else list(names))
    return [info_of(row) for row in rows]


def info_of(row: asyncpg.Record) -> model.QueueInfo:
    """A queue, of a row that has all columns of `hark.queues`."""
    return struct_of(model.QueueInfo, row, id=str(row["uid"]), options=struct_of(model.QueueOptions, row))


async def delete_queues(store: Store, names: Sequence[str]) -> list[bool]:
    """Delete queues; whether each existed."""
    distinct = list(dict.fromkeys(names))
    existed = await store.pool.fetchval("select hark.delete_queues_v1($1::text[])", distinct)
    for name in distinct:
        store.forget_queue(name)
    answers = dict(zip(distinct, existed, strict=True))
    return [answers.pop(name, False) for name in names]


async def purge(store: Store, queue: str, group: str | None = None) -> int:
    """Remove messages, for one group or for all; the number of them."""
    [[number]] = await store.pool.call("select hark.purge_v1($1, $2, $3)", queue, group)
    store.forget_ready(queue)
    return int(number)


async def pause(store: Store, queue: str, group: str | None, paused: bool) -> bool:
    """Pause or resume a queue or a group; False: it does not exist."""
    found = bool(await store.pool.fetchval("select hark.pause_v1($1, $2, $3)", queue, group, paused))
    if found and not paused:
        store.hint([model.Hint(queue, group)])
    return found


# Groups ----------------------------------------------------------------------------------------------------


async def seek(store: Store, requests: Sequence[model.Seek]) -> Answers[model.SeekOutcome]:
    """Move groups."""
    return [await _seek(store, request) for request in requests]


async def _seek(store: Store, to: model.Seek) -> model.SeekOutcome | HarkError:
    sql = "select * from hark.seek_v1($1, $2, $3, $4, $5, $6, $7)"
    try:
        [row] = await store.pool.call(sql, to.queue, to.group, to.partition, to.to_end, to.timestamp, to.offset or 1)
    except HarkError as error:
        return error
    if row["o_number"] is None:
        return NotFound(f"queue {to.queue!r} does not exist", code="queue_not_found")
    if row["o_number"] < 0:
        return NotFound(f"queue {to.queue!r} has no partition {to.partition!r}", code="partition_not_found")
    store.deliveries.forget_completed()
    store.forget_ready(to.queue)
    where = None if to.partition is None else (to.partition,)
    group = store.groups.get((to.queue, to.group))
    counts = () if where is None or group is None or group.shared is None else (max(1, row["o_left"] or 0),)
    store.hint([model.Hint(to.queue, to.group, where, counts=counts)])
    return model.SeekOutcome(row["o_number"], row["o_next"])


async def limit_group(store: Store, queue: str, group: str, limits: model.Limits) -> bool:
    """Limit what a group may take; False: it does not exist."""
    sql = "select hark.limit_group_v1($1, $2, $3, $4, $5, $6, $7, $8)"
    found = bool(await store.pool.fetchval(sql, queue, group, *msgspec.structs.astuple(limits)))
    if found:
        known = store.groups.get((queue, group))
        if known is not None:
            known.ready.forget()
        store.hint([model.Hint(queue, group)])
    return found


async def delete_group(store: Store, group: str, queue: str | None, forget_subscription: bool) -> model.GroupDeletion:
    """Delete a group's positions, and its subscription if asked."""
    sql = "select * from hark.delete_group_v1($1, $2, $3, $4)"
    [row] = await store.pool.call(sql, group, queue, forget_subscription)
    queues = list(row["o_queues"] or ())
    store.deliveries.forget_completed()
    for name in queues:
        known = store.groups.get((name, group))
        if known is not None:
            store.forget_group(known)
    store.hint(model.Hint(name, group) for name in queues)
    return model.GroupDeletion(row["o_partitions"], len(queues) if forget_subscription else 0)


async def resubscribe(store: Store, group: str, since: int) -> int:
    """Let a group begin at a time in the partitions that it has not read; the number of its queues."""
    rows = await store.pool.call("select * from hark.resubscribe_v1($1, $2, $3)", group, since)
    for _, queue in rows:
        store.forget_ready(queue)
    store.hint(model.Hint(queue, group) for _, queue in rows)
    return len(rows)


# Messages --------------------------------------------------------------------------------------------------


async def delete_messages(store: Store, message_ids: Sequence[str]) -> list[bool]:
    """Remove messages; whether each existed."""
    removed: list[bool] = await _remove(store, "delete_messages_v1", message_ids)
    await _hint_removed(store, (one for one, gone in zip(message_ids, removed, strict=True) if gone))
    return removed


async def cancel(store: Store, message_ids: Sequence[str]) -> list[model.CancelOutcome]:
    """Remove messages that have not been delivered yet."""
    codes: list[int] = await _remove(store, "cancel_v1", message_ids)
    outcomes = [_CANCELLED[code] for code in codes]
    pairs = zip(message_ids, outcomes, strict=True)
    await _hint_removed(store, (one for one, outcome in pairs if outcome == "cancelled"))
    return outcomes


async def _remove(store: Store, procedure: str, message_ids: Sequence[str]) -> Any:
    addresses = [store.codec.decode(message_id) or (0, 0) for message_id in message_ids]
    sql = f"select hark.{procedure}($1, $2::bigint[], $3::bigint[])"
    [[answers]] = await store.pool.call(
        sql, [address[0] for address in addresses], [address[1] for address in addresses]
    )
    return answers


async def _hint_removed(store: Store, message_ids: Iterable[str]) -> None:
    """Send the hints for what waited behind these messages."""
    decoded = [store.codec.decode(one) for one in message_ids]
    numbers = dict.fromkeys(one.partition for one in decoded if one is not None)
    await store.load_partitions(numbers)
    notifications = Notifications(store=store)
    notifications.removed(store.partitions_by_id[number] for number in numbers if number in store.partitions_by_id)
    notifications.send()


async def trace(store: Store, traces: Sequence[model.NewTrace]) -> list[str | HarkError]:
    """Record events about messages; their ids."""
    partitions, own = [], []
    for item in traces:
        partition, message = store.codec.decode(item.partition_id), store.codec.decode(item.transaction_id)
        number = 0 if partition is None else partition.partition
        partitions.append(number)
        own.append(message.offset if message is not None and message.partition == number else None)
    names = [(number, storable(name)) for number, item in enumerate(traces, 1) for name in item.names]
    [[uids]] = await store.pool.call(
        "select hark.trace_v1($1, $2::bigint[], $3::text[], $4::bigint[], $5::text[], $6::text[], $7::bytea[],"
        " $8::int[], $9::text[])",
        partitions,
        [storable(item.transaction_id) for item in traces],
        own,
        [storable(item.group) for item in traces],
        [storable(item.event) for item in traces],
        [item.data for item in traces],
        [number for number, _ in names],
        [name for _, name in names],
    )
    return [NotFound("Message not found", code="message_not_found") if uid is None else str(uid) for uid in uids]


# Dead letters ----------------------------------------------------------------------------------------------


async def requeue(store: Store, ids: Sequence[str]) -> Answers[str]:
    """Put dead letters back; their new message ids."""
    return [await _requeue(store, dead_letter) for dead_letter in ids]


async def _requeue(store: Store, dead_letter: str) -> str | HarkError:
    address = store.codec.decode(dead_letter)
    which: tuple[object, ...] = (lease_uuid(dead_letter), None, None) if address is None else (None, *address)
    try:
        [row] = await store.pool.call("select * from hark.requeue_v1($1, $2, $3, $4)", *which)
    except HarkError as error:
        return error
    if not row["o_found"]:
        return NotFound(f"dead letter {dead_letter} does not exist", code="dead_letter_not_found")
    if row["o_found"] > 1:
        return Conflict(
            f"message {dead_letter} is a dead letter in {row['o_found']} groups; pass the id of the dead letter",
            code="ambiguous",
        )
    queue, number = row["o_queue"], row["o_partition"]
    store.forget_ready(queue)
    await store.load_partitions([number])
    known = store.partitions_by_id.get(number)
    where = None if known is None else (known.name,)
    # One group may take the message. The other groups, and browsers, only see that one arrived.
    notified = tuple(one.name for one in store.groups_of.get(queue, {}).values())
    store.hint([model.Hint(queue, None, where, "message", notified), model.Hint(queue, row["o_group"], where)])
    return store.codec.encode(number, row["o_offset"])


async def import_dead_letters(store: Store, letters: Sequence[model.NewDeadLetter]) -> Answers[bool]:
    """Store dead letters of another store; False: it is there already."""
    answers: list[bool | HarkError] = [False] * len(letters)
    queues: dict[str, list[int]] = {}
    for index, letter in enumerate(letters):
        queues.setdefault(letter.message.queue, []).append(index)
    for queue, indexes in queues.items():
        rows = zip(*(_letter_row(store.codec, letters[index]) for index in indexes), strict=True)
        [[codes]] = await store.pool.call(_IMPORT, queue, *rows)
        for index, code in zip(indexes, codes or repeat(None), strict=False):
            if code is None:
                answers[index] = NotFound("Queue not found", code="queue_not_found")
            elif code == _SEALING:
                text = "the encryption of the queue was changed during this request; retry"
                answers[index] = Conflict(text, code="sealing_mismatch")
            else:
                answers[index] = not code
        store.forget_ready(queue)
    return answers


def _letter_row(codec: IdCodec, letter: model.NewDeadLetter) -> tuple[object, ...]:
    message = letter.message
    own = codec.decode(message.transaction_id or "") or (None, None)
    _, _, _, _, backoff, *rest = options_row(0, message)
    return (
        uuid.UUID(letter.id),
        message.partition,
        letter.group,
        message.transaction_id,
        *own,
        letter.created_at,
        message.payload,
        backoff,
        *rest,
        letter.attempts,
        storable(letter.error),
        letter.failed_at,
    )


async def delete_dead_letters(store: Store, where: model.DeadLetterFilter, limit: int | None = None) -> int:
    """Delete dead letters; the number of them."""
    matching = browse.dead_letters_where(where, store.codec)
    found = f"select id from hark.dead_letters where {matching} limit ${len(matching.args) + 1}"
    sql = f"with gone as (delete from hark.dead_letters where id in ({found}) returning 1) select count(*) from gone"
    return int(await store.pool.fetchval(sql, *matching.args, limit))


# Flags and the secret of the servers -----------------------------------------------------------------------

_FLAG = "flag:"
_SECRET = "peer_secret:"
_SECRET_NUMBERS = 4
_NUMBER_BYTES = 8

# Of servers that start together one makes it, and all read what that one made.
_MAKE_SECRET = """
insert into hark.meta as known (key, value) select * from unnest($1::text[], $2::bigint[])
on conflict (key) do update set value = known.value
returning key, value
"""


async def peer_secret(store: Store) -> bytes:
    """32 random bytes in the database, made where there are none; as numbers, which is what `meta` has."""
    keys = [f"{_SECRET}{number}" for number in range(_SECRET_NUMBERS)]
    rows = await store.pool.fetch("select key, value from hark.meta where key = any ($1::text[])", keys)
    if len(rows) < len(keys):
        numbers = [int.from_bytes(secrets.token_bytes(_NUMBER_BYTES), signed=True) for _ in keys]
        rows = await store.pool.fetch(_MAKE_SECRET, keys, numbers)
    values = {row["key"]: row["value"] for row in rows}
    return b"".join(values[key].to_bytes(_NUMBER_BYTES, signed=True) for key in keys)


async def read_flags(store: Store) -> dict[str, bool]:
    """Switches that outlive a restart."""
    rows: list[Any] = await store.pool.fetch("select key, value from hark.meta where key like 'flag:%'")
    return {key.removeprefix(_FLAG): bool(value) for key, value in rows}


async def write_flag(store: Store, name: str, value: bool) -> None:
    """Set a switch."""
    sql = "insert into hark.meta (key, value) values ($1, $2) on conflict (key) do update set value = excluded.value"
    await store.pool.fetch(sql, _FLAG + name, int(value))


# Metrics ---------------------------------------------------------------------------------------------------

# What holds the oldest snapshot may be a session, a replica that is behind, or a prepared transaction. Of sessions of
# other roles PostgreSQL shows nothing to a role that is not in pg_monitor. A snapshot of this call is always new.
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
    [row] = await pool.fetch(_METRICS)
    return {
        **row,
        "pool_connections": pool.size,
        "pool_idle": pool.idle,
        "pool_waiting": pool.waiting,
        "pool_connects": pool.connects,
        "pool_failures": pool.failures,
    }


# Retention -------------------------------------------------------------------------------------------------

# Messages and leases leave with their child tables, whatever vacuum can do. Dead versions of rows that are updated in
# place are left to autovacuum, which never stops a push: Hark's tables are not shortened by it (`vacuum_truncate`).


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
"""Bytes that are moved in one transaction: settlements may have to wait for it."""
_LEASE_SLOT_SECONDS = 600
_LEASE_SLOT_BYTES = 64 << 20
_LOCK_TIMEOUT = "40ms"
"""Calls queue behind a statement that waits for a whole table: it gives up, and the next run repeats it. Longer than a
step of retention, which reads these tables."""
_ONE_AT_A_TIME = 0x4861726C
"""The advisory lock of the server that rotates."""


class Retention:
    """Goes through the partitions, remembering where it stopped."""

    def __init__(self, store: Store, completed_seconds: int, idle_group_seconds: int) -> None:
        self._store = store
        self._completed_seconds = completed_seconds
        self._idle_group_seconds = idle_group_seconds
        self._after = 0
        self._offset = 0
        self._expired = 0

    async def step(self, limit: int) -> model.Collected:
        """Examine the next messages and remove the expired ones; at the end of a pass, empty child tables."""
        sql = "select * from hark.collect_v1($1, $2, $3, $4, $5, $6, $7, $8)"
        reached = self._after, self._offset, self._expired
        kept = self._completed_seconds, self._idle_group_seconds
        [row] = await self._store.pool.call(sql, *reached, limit, *kept, _STEP_MS)
        self._after, self._offset, self._expired = row["o_after"], row["o_offset"], row["o_expired"]
        if not row["o_more"]:
            await self.rotate()
        if row["o_removed"]:
            notifications = Notifications(store=self._store)
            notifications.looked_behind()
            notifications.send()
        return model.Collected(row["o_examined"], row["o_removed"], row["o_more"])

    async def rotate(self) -> None:
        """Begin new child tables and empty old ones, as far as it is time for that (see rotate.sql)."""
        seconds = max(_SHORTEST_SLOT, self._completed_seconds // _SLOT_SHARE)
        begin = "select hark.begin_slot_v1($1, $2, $3, $4)"
        await self._alone(begin, self._store.pool.time, "messages", seconds, _SLOT_BYTES)
        await self._alone(begin, self._store.pool.time, "leases", _LEASE_SLOT_SECONDS, _LEASE_SLOT_BYTES)
        closed = await self._store.pool.fetch("select name, slot from hark.slots")
        if not closed:
            return
        await self._find_horizon()
        for table, slot in closed:
            await self._move_survivors(table, slot)
        await self._find_horizon()
        for table, slot in closed:
            if await self._alone("select hark.truncate_slot_v1($1, $2::smallint)", table, slot) is None:
                return  # Calls have waited for it: not for the next one as well.

    async def _move_survivors(self, table: str, slot: int) -> None:
        """Move what still counts out of a child table, if that is little, and note when nothing does any more."""
        sql = "select * from hark.survivors_v1($1, $2, $3::smallint, $4, $5)"
        share = _SURVIVING_PERCENT[table]
        found = await self._alone(sql, self._store.pool.time, table, slot, share, _SURVIVORS[table])
        if found is None or not found["o_rows"]:
            return
        for rows in _in_chunks(found["o_rows"], found["o_bytes"]):
            move = "select hark.move_rows_v1($1, $2::smallint, $3::tid[])"
            if await self._alone(move, table, slot, rows) is None:
                return
        await self._alone(sql, self._store.pool.time, table, slot, share, _SURVIVORS[table])

    async def _find_horizon(self) -> None:
        """Store which transactions have ended for all snapshots, which only vacuum knows."""
        await self._store.pool.run_alone("vacuum (freeze, skip_locked, truncate off) hark.slots")

    async def _alone(self, sql: str, *args: object) -> asyncpg.Record | None:
        """Run what may lock a whole table; None if another server is at it or the table is in use for long."""
        try:
            async with self._store.pool.connection() as connection:
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
