"""What browsers read: messages in offset order, whatever groups have done with them. Nothing is changed by it."""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg
import msgspec

from hark.engine.postgres.discovery import BUCKET, LATE
from hark.engine.postgres.handing import NO_OPTIONS, decode_options
from hark.engine.postgres.pool import Pool
from hark.engine.postgres.query import can_be_stored
from hark.engine.reading import read_bound
from hark.ids import IdCodec
from hark.keys import decode_key
from hark.model import BrowseFrom, Position, Read, ReadResult, StoredMessage

READ = "select * from hark.read_v1($1::text[], $2::text[], $3::bigint[], $4::int[], $5)"
POSITIONS = "select * from hark.positions_v1($1, $2, $3, $4, $5)"


async def read(pool: Pool, codec: IdCodec, requests: Sequence[Read]) -> list[ReadResult]:
    """An answer to each request."""
    bound = read_bound(len(requests))
    possible = {n: one for n, one in enumerate(requests) if can_be_stored(one.queue, one.partition)}
    rows = await pool.fetch(
        READ,
        [one.queue for one in possible.values()],
        [one.partition for one in possible.values()],
        [one.offset for one in possible.values()],
        [one.limit for one in possible.values()],
        bound,
    )
    found: dict[int, list[asyncpg.Record]] = {}
    numbers = list(possible)
    for row in rows:
        found.setdefault(numbers[row["request"] - 1], []).append(row)
    return [_result(codec, request, found.get(n, ()), bound) for n, request in enumerate(requests)]


def _result(codec: IdCodec, request: Read, rows: Sequence[asyncpg.Record], bound: int) -> ReadResult:
    if not rows:
        return ReadResult((), request.offset, False)
    messages = [_delivery(codec, request, row) for row in rows if not row["requeued"]]
    return ReadResult(messages, rows[-1]["offset"] + 1, len(rows) >= request.limit or rows[-1]["bytes"] >= bound)


def _delivery(codec: IdCodec, request: Read, row: asyncpg.Record) -> StoredMessage:
    options = NO_OPTIONS if row["options"] is None else decode_options(row["options"])
    message_id = codec.encode(row["partition"], row["offset"])
    return StoredMessage(
        id=message_id,
        transaction_id=row["transaction_id"] or message_id,
        trace_id=options.t,
        payload=msgspec.Raw(row["payload"]),
        sealed=options.s,
        producer=options.u,
        created_at=row["created_at"],
        queue=request.queue,
        partition=request.partition,
        partition_id=codec.encode(row["partition"], 0),
        offset=row["offset"],
        priority=options.p,
        attempt=0,
        trace_context=options.c,
        deliver_at=row["deliver_at"],
        expires_at=row["expires_at"],
        backoff_ms=None if row["backoff"] is None else tuple(row["backoff"]),
        undelivered_keys=tuple(map(decode_key, row["undelivered"] or ())),
    )


async def positions(
    pool: Pool, queue: str, start: BrowseFrom, partition: str | None, touched_since: int | None
) -> list[Position]:
    """Where a browser starts in the partitions of a queue, or in one of them."""
    if not can_be_stored(queue, partition):
        return []
    time = start if isinstance(start, int) else None
    touched = None if touched_since is None else max(0, touched_since - LATE) // BUCKET
    rows = await pool.fetch(POSITIONS, queue, partition, start == "tail", time, touched)
    return [Position(name, offset) for name, offset in rows]
