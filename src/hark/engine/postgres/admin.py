"""The verbs that change queues, groups, single messages and the server's own notes."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import asyncpg
import msgspec

from hark.engine.postgres.pool import Pool
from hark.engine.postgres.push import storable
from hark.engine.retries import compile_schedule
from hark.errors import Conflict, HarkError, NotFound
from hark.ids import IdCodec
from hark.model import (
    CancelOutcome,
    GroupDeletion,
    Limits,
    NewTrace,
    QueueInfo,
    QueueOptions,
    QueueSpec,
    Seek,
    SeekOutcome,
)

_OPTIONS = tuple(field.name for field in msgspec.structs.fields(QueueOptions))
_FLAG = "flag:"
_CONFIGURE = "select * from hark.configure_v1($1, $2, $3, $4, jsonb_populate_record(null::hark.queues, $5::jsonb), $6)"
_CANCELLED: tuple[CancelOutcome, ...] = ("cancelled", "not_found", "leased", "settled")


# Queues ----------------------------------------------------------------------------------------------------


async def configure(pool: Pool, codec: IdCodec, now: int | None, specs: Sequence[QueueSpec]) -> list[QueueInfo]:
    """Make queues, or replace all options of those that exist."""
    partitions = {}
    for spec in specs:
        row = await pool.fetchrow(_CONFIGURE, now, *_arguments(spec), False)
        assert row is not None
        partitions[spec.name] = codec.encode(row["o_partition"], 0)
    infos = {info.name: info for info in await queue_infos(pool, list(partitions))}
    return [msgspec.structs.replace(infos[spec.name], partition_id=partitions[spec.name]) for spec in specs]


async def make_queues(pool: Pool, now: int | None, specs: Sequence[QueueSpec]) -> None:
    """Make those queues that do not exist."""
    known = await pool.fetchval(
        "select array_agg(name) from hark.queues where name = any ($1::text[])", [spec.name for spec in specs]
    )
    for spec in specs:
        if spec.name not in (known or ()):
            await pool.fetchrow(_CONFIGURE, now, *_arguments(spec), True)


def _arguments(spec: QueueSpec) -> tuple[str, str, str, str]:
    options = msgspec.structs.asdict(spec.options) | {"schedule": compile_schedule(spec.options)}
    return spec.name, spec.namespace, spec.task, msgspec.json.encode(options).decode()


async def queue_infos(pool: Pool, names: Sequence[str] | None) -> list[QueueInfo]:
    """The named queues that exist, or all of them."""
    rows = await pool.fetch(
        "select * from hark.queues where $1::text[] is null or name = any ($1) order by id",
        None if names is None else list(names),
    )
    return [info_of(row) for row in rows]


def info_of(row: asyncpg.Record) -> QueueInfo:
    """A queue, of a row that has all columns of `hark.queues`."""
    return QueueInfo(
        id=str(row["uid"]),
        name=row["name"],
        namespace=row["namespace"],
        task=row["task"],
        options=QueueOptions(**{name: row[name] for name in _OPTIONS}),
        created_at=row["created_at"],
        paused=row["paused"],
    )


# Groups ----------------------------------------------------------------------------------------------------


async def seek(pool: Pool, now: int | None, request: Seek) -> tuple[SeekOutcome, int]:
    """Move a group, and about how many messages the last partition has for it; raises when there is nothing to move."""
    row = await pool.fetchrow(
        "select * from hark.seek_v1($1, $2, $3, $4, $5, $6, $7)",
        now,
        request.queue,
        request.group,
        request.partition,
        request.to_end,
        request.timestamp,
        request.offset or 1,
    )
    assert row is not None
    if row["o_number"] is None:
        raise NotFound(f"queue {request.queue!r} does not exist", code="queue_not_found")
    if row["o_number"] < 0:
        raise NotFound(f"queue {request.queue!r} has no partition {request.partition!r}", code="partition_not_found")
    return SeekOutcome(row["o_number"], row["o_next"]), row["o_left"] or 0


async def limit_group(pool: Pool, queue: str, group: str, limits: Limits) -> bool:
    """Bound what a group may take. False: there is no such group."""
    found = await pool.fetchval(
        "select hark.limit_group_v1($1, $2, $3, $4, $5)",
        queue,
        group,
        limits.max_in_flight,
        limits.rate_limit,
        limits.rate_burst,
    )
    return bool(found)


async def delete_group(
    pool: Pool, now: int | None, group: str, queue: str | None, forget: bool
) -> tuple[GroupDeletion, list[str]]:
    """Drop a group's places, and its start if asked; also the queues that it was in."""
    row = await pool.fetchrow("select * from hark.delete_group_v1($1, $2, $3, $4)", now, group, queue, forget)
    assert row is not None
    queues = list(row["o_queues"] or ())
    return GroupDeletion(row["o_partitions"], len(queues) if forget else 0), queues


# Messages --------------------------------------------------------------------------------------------------


async def delete_messages(pool: Pool, codec: IdCodec, now: int | None, message_ids: Sequence[str]) -> list[bool]:
    """Remove messages."""
    places = [codec.decode(message_id) or (0, 0) for message_id in message_ids]
    removed: list[bool] = await pool.fetchval(
        "select hark.delete_messages_v1($1, $2::bigint[], $3::bigint[])",
        now,
        [partition for partition, _ in places],
        [offset for _, offset in places],
    )
    return removed


async def cancel(pool: Pool, codec: IdCodec, now: int | None, message_ids: Sequence[str]) -> list[CancelOutcome]:
    """Remove messages that nobody has been given yet."""
    places = [codec.decode(message_id) or (0, 0) for message_id in message_ids]
    codes: list[int] = await pool.fetchval(
        "select hark.cancel_v1($1, $2::bigint[], $3::bigint[])",
        now,
        [partition for partition, _ in places],
        [offset for _, offset in places],
    )
    return [_CANCELLED[code] for code in codes]


async def requeue(pool: Pool, codec: IdCodec, now: int | None, dead_letter: str) -> tuple[str, str, str]:
    """Put a dead letter back; the new message id, the queue and the group."""
    place = codec.decode(dead_letter)
    row = await pool.fetchrow(
        "select * from hark.requeue_v1($1, $2, $3, $4)",
        now,
        None if place is not None else _uuid(dead_letter),
        None if place is None else place.partition,
        None if place is None else place.offset,
    )
    assert row is not None
    if not row["o_found"]:
        raise NotFound(f"dead letter {dead_letter} does not exist", code="dead_letter_not_found")
    if row["o_found"] > 1:
        raise Conflict(
            f"message {dead_letter} is a dead letter in {row['o_found']} groups; pass the id of the dead letter",
            code="ambiguous",
        )
    return codec.encode(row["o_partition"], row["o_offset"]), row["o_queue"], row["o_group"]


def _uuid(text: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(text)
    except ValueError:
        return None


async def trace(pool: Pool, codec: IdCodec, now: int | None, traces: Sequence[NewTrace]) -> list[str | HarkError]:
    """Record events about messages; their ids."""
    partitions, own = [], []
    for item in traces:
        partition, message = codec.decode(item.partition_id), codec.decode(item.transaction_id)
        number = 0 if partition is None else partition.partition
        partitions.append(number)
        own.append(message.offset if message is not None and message.partition == number else None)
    names = [(number, storable(name)) for number, item in enumerate(traces, 1) for name in item.names]
    uids = await pool.fetchval(
        "select hark.trace_v1($1, $2::bigint[], $3::text[], $4::bigint[], $5::text[], $6::text[], $7::bytea[],"
        " $8::int[], $9::text[])",
        now,
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


# The server's own notes ------------------------------------------------------------------------------------


async def read_flags(pool: Pool) -> dict[str, bool]:
    """Switches that outlive a restart."""
    rows: list[Any] = await pool.fetch("select key, value from hark.meta where key like 'flag:%'")
    return {key.removeprefix(_FLAG): bool(value) for key, value in rows}


async def write_flag(pool: Pool, name: str, value: bool) -> None:
    """Set such a switch."""
    await pool.fetch(
        "insert into hark.meta (key, value) values ($1, $2) on conflict (key) do update set value = excluded.value",
        _FLAG + name,
        int(value),
    )
