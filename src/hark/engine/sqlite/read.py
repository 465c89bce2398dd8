"""What browsers read: messages in offset order, whatever groups have done with them. Nothing is changed by it."""

from __future__ import annotations

from collections.abc import Sequence

import apsw
import msgspec

from hark.engine.reading import read_bound
from hark.engine.sqlite.rows import NO_EXTRA, Extra, payload_of
from hark.engine.sqlite.sql import TAIL
from hark.engine.sqlite.store import scalar
from hark.ids import IdCodec
from hark.keys import decode_key
from hark.model import BrowseFrom, Position, Read, ReadResult, StoredMessage


class ReadRow(msgspec.Struct, array_like=True, gc=False):
    """A message as a browser reads it; `request` is the number of the request that asked for it."""

    request: int
    partition: int
    offset: int
    created_at: int
    priority: int
    deliver_at: int | None
    owner: int | None
    transaction_id: str | None
    extra: Extra | None
    bytes: int
    """The size of all payloads up to this one, wherever they are."""
    payload: msgspec.Raw


_decode_rows = msgspec.json.Decoder(list[ReadRow]).decode

_SIZE = "ifnull(message.extra ->> '$.r[2]', length(message.payload))"
# Each request walks from message to message along the index, until it has enough of them or of bytes (?2).
READ = f"""
with recursive wanted as (
    select request.key as request, request.value ->> 3 as room,
        (select first.seq from messages as first
         where first.partition = place.id and first.offset >= max(request.value ->> 2, place.floor + 1)
         order by first.offset limit 1) as seq
    from json_each(?1) as request
    cross join queues on queues.name = request.value ->> 0
    cross join partitions as place on place.queue = queues.id and place.name = request.value ->> 1
),
walk (request, room, partition, offset, seq, bytes) as (
    select wanted.request, wanted.room, message.partition, message.offset, message.seq, {_SIZE}
    from wanted
    cross join messages as message on message.seq = wanted.seq
    where wanted.room > 0
    union all
    select walk.request, walk.room - 1, message.partition, message.offset, message.seq,
        walk.bytes + {_SIZE}
    from walk
    cross join messages as message on message.seq = (
        select next.seq from messages as next
        where next.partition = walk.partition and next.offset > walk.offset
        order by next.offset limit 1)
    where walk.room > 1 and walk.bytes < ?2
)
select cast('[' || group_concat(
    '[' || walk.request || ',' || message.partition || ',' || message.offset || ',' || message.created_at
    || ',' || message.priority || ',' || ifnull(message.deliver_at, 'null') || ',' || ifnull(message.owner, 'null')
    || ',' || ifnull(json_quote(message.transaction_id), 'null') || ',' || ifnull(message.extra, 'null')
    || ',' || walk.bytes || ',' || message.payload || ']') || ']' as blob)
from walk
cross join messages as message on message.seq = walk.seq
"""

# Times never decrease with the offset: halving finds the last message created at or before a time.
_EARLY = """
(select message.created_at from messages as message
 where message.partition = halving.partition and message.offset >= (halving.low + halving.high + 1) / 2
 order by message.offset limit 1) <= :time
"""
_AFTER_TIME = f"""
with recursive halving (partition, name, low, high) as (
    select place.id, place.name, place.floor, {TAIL} {{places}}
    union all
    select partition, name, iif({_EARLY}, (low + high + 1) / 2, low), iif({_EARLY}, high, (low + high + 1) / 2 - 1)
    from halving where low < high
)
select name, low + 1 from halving where low = high order by name
"""
_PLACES = "from partitions as place where place.queue = (select id from queues where name = :queue)"


def read(connection: apsw.Connection, codec: IdCodec, requests: Sequence[Read]) -> list[ReadResult]:
    """An answer to each request."""
    bound = read_bound(len(requests))
    wanted = [(request.queue, request.partition, request.offset, request.limit) for request in requests]
    text = scalar(connection, READ, msgspec.json.encode(wanted).decode(), bound)
    found: list[list[ReadRow]] = [[] for _ in requests]
    for row in [] if text is None else _decode_rows(text):
        found[row.request].append(row)
    return [_result(codec, request, rows, bound) for request, rows in zip(requests, found, strict=True)]


def _result(codec: IdCodec, request: Read, rows: Sequence[ReadRow], bound: int) -> ReadResult:
    if not rows:
        return ReadResult((), request.offset, False)
    messages = [_delivery(codec, request, row) for row in rows if row.owner is None]
    return ReadResult(messages, rows[-1].offset + 1, len(rows) >= request.limit or rows[-1].bytes >= bound)


def _delivery(codec: IdCodec, request: Read, row: ReadRow) -> StoredMessage:
    extra = row.extra or NO_EXTRA
    message_id = codec.encode(row.partition, row.offset)
    return StoredMessage(
        id=message_id,
        transaction_id=row.transaction_id or message_id,
        trace_id=extra.t,
        payload=payload_of(row.payload, extra),
        sealed=extra.s,
        producer=extra.u,
        created_at=row.created_at,
        queue=request.queue,
        partition=request.partition,
        partition_id=codec.encode(row.partition, 0),
        offset=row.offset,
        priority=row.priority,
        attempt=0,
        trace_context=extra.c,
        deliver_at=row.deliver_at,
        expires_at=extra.x or None,
        backoff_ms=extra.b,
        undelivered_keys=tuple(decode_key(bytes.fromhex(key)) for key in extra.k),
    )


def positions(connection: apsw.Connection, queue: str, start: BrowseFrom, partition: str | None) -> list[Position]:
    """Where a browser starts in the partitions of a queue, or in one of them."""
    places = _PLACES if partition is None else f"{_PLACES} and place.name = :partition"
    if start == "head":
        sql = f"select place.name, place.floor + 1 {places} order by place.name"
    elif start == "tail":
        sql = f"select place.name, {TAIL} + 1 {places} order by place.name"
    else:
        sql = _AFTER_TIME.format(places=places)
    rows = connection.execute(sql, {"queue": queue, "partition": partition, "time": start})
    return [Position(str(name), int(str(offset))) for name, offset in rows]
