"""What administrators see: dead letters, and the events that consumers recorded about messages."""

from __future__ import annotations

import uuid

import asyncpg
import msgspec

from hark.engine.postgres.browse import message
from hark.engine.postgres.pool import Pool
from hark.engine.postgres.query import Where
from hark.ids import IdCodec
from hark.model import DeadLetter, DeadLetterFilter, DeadLetters, Trace, TraceName

# Dead letters ----------------------------------------------------------------------------------------------


_COLUMNS = """uid, queue, partition, partition_name, grp, "offset", transaction_id, created_at, sealed, trace_id,
    producer, attempts, error, failed_at"""
_BY_ID = """id in (
    select id from hark.dead_letters where uid = any({}::uuid[])
    union
    select letter.id from unnest({}::bigint[], {}::bigint[]) as place (partition, "offset")
    join hark.dead_letters as letter using (partition, "offset")
)"""


def dead_letters_where(where: DeadLetterFilter, codec: IdCodec) -> Where:
    """The conditions on rows of `hark.dead_letters` that a filter stands for."""
    conditions = Where()
    conditions.also("queue = {}", where.queue)
    conditions.also("grp = {}", where.group)
    conditions.also("partition_name = {}", where.partition)
    conditions.also("failed_at >= {}", where.since)
    conditions.also("failed_at <= {}", where.until)
    conditions.also('position(lower({} collate "C") in lower(error collate "C")) > 0', where.search)
    if where.ids is not None:
        # The id of a message never looks like that of a dead letter.
        places = [place for one in where.ids if (place := codec.decode(one)) is not None]
        uids = [uid for one in where.ids if (uid := _uuid(one)) is not None]
        conditions.also(_BY_ID, uids, [place.partition for place in places], [place.offset for place in places])
    return conditions


def _uuid(text: str) -> uuid.UUID | None:
    """What an id stands for; None unless it is written as ids are."""
    try:
        value = uuid.UUID(text)
    except ValueError:
        return None
    return value if str(value) == text else None


async def dead_letters(pool: Pool, codec: IdCodec, where: DeadLetterFilter) -> DeadLetters:
    """A page of dead letters, newest failure first, and how many there are in all."""
    matching = dead_letters_where(where, codec)
    total = await pool.fetchval(f"select count(*) from hark.dead_letters where {matching}", *matching.args)
    page, args = matching.page(where.limit, where.offset)
    payload = "payload" if where.payloads else "'null'::bytea as payload"
    rows = await pool.fetch(
        f"select {_COLUMNS}, {payload} from hark.dead_letters where {matching} order by failed_at desc, id desc {page}",
        *args,
    )
    return DeadLetters([_dead_letter(row, codec) for row in rows], total)


def _dead_letter(row: asyncpg.Record, codec: IdCodec) -> DeadLetter:
    message_id = codec.encode(row["partition"], row["offset"])
    return DeadLetter(
        id=str(row["uid"]),
        message_id=message_id,
        transaction_id=row["transaction_id"] or message_id,
        partition_id=codec.encode(row["partition"], 0),
        queue=row["queue"],
        partition=row["partition_name"],
        group=row["grp"],
        payload=msgspec.Raw(row["payload"]),
        sealed=bool(row["sealed"]),
        producer=row["producer"],
        trace_id=row["trace_id"],
        attempts=row["attempts"],
        error=row["error"],
        created_at=row["created_at"],
        failed_at=row["failed_at"],
    )


# Traces ----------------------------------------------------------------------------------------------------

# Events go with their message, and what is below the floor of its partition is gone.
_TRACES = """
hark.traces as trace
join hark.partitions as place on place.id = trace.partition and place.floor < trace."offset"
join hark.queues as queue on queue.id = place.queue
"""


async def traces(
    pool: Pool,
    codec: IdCodec,
    partition_id: str | None,
    transaction_id: str | None,
    name: str | None,
    limit: int,
    offset: int,
) -> tuple[list[Trace], int]:
    """Events of one message, oldest first, or of one name, newest first; and how many there are in all."""
    where = Where()
    if name is not None:
        order = "desc"
        where.also("trace.id in (select trace_names.trace from hark.trace_names where trace_names.name = {})", name)
    else:
        order = "asc"
        view = await message(pool, codec, None, partition_id or "", transaction_id or "")
        place = None if view is None else codec.decode(view.id)
        if place is None:
            return [], 0
        where.also('trace.partition = {} and trace."offset" = {}', *place)
    total = await pool.fetchval(f"select count(*) from {_TRACES} where {where}", *where.args)
    page, args = where.page(limit, offset)
    rows = await pool.fetch(
        f"""
        select page.*, message.transaction_id, message.payload, message.sealed,
            array(select trace_names.name from hark.trace_names where trace_names.trace = page.id order by 1) as names
        from (
            select trace.*, queue.name as queue, place.name as partition_name
            from {_TRACES} where {where} order by trace.id {order} {page}
        ) as page
        cross join lateral (
            select * from hark.messages as message
            where message.partition = page.partition and message."offset" = page."offset"
            offset 0
        ) as message
        order by page.id {order}
        """,
        *args,
    )
    return [_trace(row, codec) for row in rows], total


def _trace(row: asyncpg.Record, codec: IdCodec) -> Trace:
    return Trace(
        id=str(row["uid"]),
        event=row["event"],
        data=msgspec.Raw(row["data"]),
        group=row["grp"],
        created_at=row["created_at"],
        names=row["names"],
        transaction_id=row["transaction_id"] or codec.encode(row["partition"], row["offset"]),
        partition_id=codec.encode(row["partition"], 0),
        queue=row["queue"],
        partition=row["partition_name"],
        payload=msgspec.Raw(row["payload"]),
        sealed=bool(row["sealed"]),
    )


async def trace_names(pool: Pool, limit: int, offset: int) -> tuple[list[TraceName], int]:
    """Names of events, the last used first, and how many there are."""
    named = f"hark.trace_names join ({_TRACES}) on trace.id = trace_names.trace"
    total = await pool.fetchval(f"select count(distinct trace_names.name) from {named}")
    rows = await pool.fetch(
        f"""
        select trace_names.name, count(*) as traces, count(distinct (trace.partition, trace."offset")) as messages,
            max(trace.created_at) as last_seen
        from {named}
        group by trace_names.name order by max(trace.id) desc limit $1 offset $2
        """,
        limit,
        offset,
    )
    return [TraceName(*row) for row in rows], total
