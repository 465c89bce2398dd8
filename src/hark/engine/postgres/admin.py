"""The verbs that change queues, groups, single messages and the server's own notes."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import asyncpg
import msgspec

from hark.engine.api import Answers
from hark.engine.postgres import browse
from hark.engine.postgres.partitions import Directory
from hark.engine.postgres.pool import Pool
from hark.engine.postgres.push import Notifications, options_row, storable
from hark.engine.postgres.settle import Deliveries
from hark.engine.retries import compile_schedule
from hark.errors import Conflict, HarkError, NotFound
from hark.ids import IdCodec
from hark.model import (
    CancelOutcome,
    DeadLetterFilter,
    GroupDeletion,
    Hint,
    Limits,
    NewDeadLetter,
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
    addresses = [codec.decode(message_id) or (0, 0) for message_id in message_ids]
    removed: list[bool] = await pool.fetchval(
        "select hark.delete_messages_v1($1, $2::bigint[], $3::bigint[])",
        now,
        [partition for partition, _ in addresses],
        [offset for _, offset in addresses],
    )
    return removed


async def cancel(pool: Pool, codec: IdCodec, now: int | None, message_ids: Sequence[str]) -> list[CancelOutcome]:
    """Remove messages that nobody has been given yet."""
    addresses = [codec.decode(message_id) or (0, 0) for message_id in message_ids]
    codes: list[int] = await pool.fetchval(
        "select hark.cancel_v1($1, $2::bigint[], $3::bigint[])",
        now,
        [partition for partition, _ in addresses],
        [offset for _, offset in addresses],
    )
    return [_CANCELLED[code] for code in codes]


async def requeue(pool: Pool, codec: IdCodec, now: int | None, dead_letter: str) -> tuple[str, str, str]:
    """Put a dead letter back; the new message id, the queue and the group."""
    address = codec.decode(dead_letter)
    row = await pool.fetchrow(
        "select * from hark.requeue_v1($1, $2, $3, $4)",
        now,
        None if address is not None else _uuid(dead_letter),
        None if address is None else address.partition,
        None if address is None else address.offset,
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


_SEALING = 2


async def import_dead_letters(
    pool: Pool, codec: IdCodec, now: int | None, queue: str, letters: Sequence[NewDeadLetter]
) -> Sequence[bool | HarkError]:
    """Store dead letters of another store in one queue; False: it is there already."""
    codes: list[int] | None = await pool.fetchval(
        "select hark.import_dead_letters_v1($1, $2, $3::uuid[], $4::text[], $5::text[], $6::text[], $7::bigint[],"
        " $8::bigint[], $9::bigint[], $10::bytea[], $11::text[], $12::smallint[], $13::boolean[], $14::text[],"
        " $15::text[], $16::text[], $17::text[], $18::int[], $19::text[], $20::bigint[])",
        now,
        queue,
        *zip(*(_letter_row(codec, letter) for letter in letters), strict=True),
    )
    if codes is None:
        return [NotFound("Queue not found", code="queue_not_found") for _ in letters]
    return [
        Conflict("the encryption of the queue was changed during this request; retry", code="sealing_mismatch")
        if code == _SEALING
        else not code
        for code in codes
    ]


def _letter_row(codec: IdCodec, letter: NewDeadLetter) -> tuple[object, ...]:
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


class AdminVerbs(ABC):
    """What changes queues, groups, dead letters and single messages."""

    _pool: Pool
    _codec: IdCodec
    _directory: Directory
    _deliveries: Deliveries

    @property
    @abstractmethod
    def _now(self) -> int | None: ...

    @abstractmethod
    async def _applied(self) -> int | None: ...

    @abstractmethod
    def _hint(self, hints: Iterable[Hint]) -> None: ...

    # Messages ----------------------------------------------------------------------------------------------

    async def delete_messages(self, message_ids: Sequence[str]) -> list[bool]:
        """See `Engine.delete_messages`."""
        removed = await delete_messages(self._pool, self._codec, await self._applied(), message_ids)
        await self._notify_removed(one for one, gone in zip(message_ids, removed, strict=True) if gone)
        return removed

    async def cancel(self, message_ids: Sequence[str]) -> list[CancelOutcome]:
        """See `Engine.cancel`."""
        outcomes = await cancel(self._pool, self._codec, await self._applied(), message_ids)
        pairs = zip(message_ids, outcomes, strict=True)
        await self._notify_removed(one for one, outcome in pairs if outcome == "cancelled")
        return outcomes

    async def _notify_removed(self, message_ids: Iterable[str]) -> None:
        """What waited behind these messages need not wait for them."""
        decoded = [self._codec.decode(one) for one in message_ids]
        numbers = dict.fromkeys(one.partition for one in decoded if one is not None)
        await self._directory.load_partitions(numbers)
        notifications = Notifications(self._directory)
        known = self._directory.partitions_by_id
        notifications.removed(known[number] for number in numbers if number in known)
        self._hint(notifications.hints())

    # Queues ------------------------------------------------------------------------------------------------

    async def configure(self, specs: Sequence[QueueSpec]) -> Answers[QueueInfo]:
        """See `Engine.configure`."""
        infos = await configure(self._pool, self._codec, await self._applied(), specs)
        for spec in specs:
            self._look_again(spec.name)
        self._hint(Hint(spec.name) for spec in specs)
        return infos

    async def make_queues(self, specs: Sequence[QueueSpec]) -> None:
        """See `Engine.make_queues`."""
        await make_queues(self._pool, self._now, specs)

    def _look_again(self, queue: str) -> None:
        """What the groups of a queue wait for may have changed."""
        for group in self._directory.groups_of(queue):
            group.ready.forget()

    async def delete_queues(self, names: Sequence[str]) -> list[bool]:
        """See `Engine.delete_queues`."""
        distinct = list(dict.fromkeys(names))
        existed = await self._pool.fetchval("select hark.delete_queues_v1($1::text[])", distinct)
        for name in distinct:
            self._directory.forget_queue(name)
        answers = dict(zip(distinct, existed, strict=True))
        return [answers.pop(name, False) for name in names]

    async def purge(self, queue: str, group: str | None = None) -> int:
        """See `Engine.purge`."""
        now = await self._applied()
        number = int(await self._pool.fetchval("select hark.purge_v1($1, $2, $3)", now, queue, group))
        self._look_again(queue)
        return number

    async def pause(self, queue: str, group: str | None, paused: bool) -> bool:
        """See `Engine.pause`."""
        found = bool(await self._pool.fetchval("select hark.pause_v1($1, $2, $3)", queue, group, paused))
        if found and not paused:
            self._hint([Hint(queue, group)])
        return found

    # Groups ------------------------------------------------------------------------------------------------

    async def seek(self, requests: Sequence[Seek]) -> Answers[SeekOutcome]:
        """See `Engine.seek`."""
        answers: list[SeekOutcome | HarkError] = []
        for request in requests:
            try:
                outcome, left = await seek(self._pool, await self._applied(), request)
            except HarkError as error:
                answers.append(error)
                continue
            answers.append(outcome)
            self._deliveries.forget_completed()
            self._look_again(request.queue)
            where = None if request.partition is None else (request.partition,)
            group = self._directory.groups.get((request.queue, request.group))
            counts = () if where is None or group is None or group.shared is None else (max(1, left),)
            self._hint([Hint(request.queue, request.group, where, counts=counts)])
        return answers

    async def delete_group(self, group: str, queue: str | None, forget_subscription: bool) -> GroupDeletion:
        """See `Engine.delete_group`."""
        deletion, queues = await delete_group(self._pool, await self._applied(), group, queue, forget_subscription)
        self._deliveries.forget_completed()
        for name in queues:
            known = self._directory.groups.get((name, group))
            if known is not None:
                self._directory.forget_group(known)
        self._hint(Hint(name, group) for name in queues)
        return deletion

    async def limit_group(self, queue: str, group: str, limits: Limits) -> bool:
        """See `Engine.limit_group`."""
        found = await limit_group(self._pool, queue, group, limits)
        if found:
            self._hint([Hint(queue, group)])
        return found

    async def resubscribe(self, group: str, since: int) -> int:
        """See `Engine.resubscribe`."""
        rows = await self._pool.fetch("select * from hark.resubscribe_v1($1, $2, $3)", self._now, group, since)
        for _, queue in rows:
            self._look_again(queue)
        self._hint(Hint(queue, group) for _, queue in rows)
        return len(rows)

    # Dead letters ------------------------------------------------------------------------------------------

    async def requeue(self, ids: Sequence[str]) -> Answers[str]:
        """See `Engine.requeue`."""
        answers: list[str | HarkError] = []
        for dead_letter in ids:
            try:
                message_id, queue, group = await requeue(self._pool, self._codec, await self._applied(), dead_letter)
            except HarkError as error:
                answers.append(error)
                continue
            self._look_again(queue)
            await self._notify_requeued(message_id, queue, group)
            answers.append(message_id)
        return answers

    async def _notify_requeued(self, message_id: str, queue: str, group: str) -> None:
        """One group may take what came; the others, and browsers, only see that something did."""
        address = self._codec.decode(message_id)
        number = 0 if address is None else address.partition
        await self._directory.load_partitions([number])
        known = self._directory.partitions_by_id.get(number)
        where = None if known is None else (known.name,)
        excluded = tuple(one.name for one in self._directory.groups_of(queue))
        self._hint([Hint(queue, None, where, "message", excluded), Hint(queue, group, where)])

    async def import_dead_letters(self, letters: Sequence[NewDeadLetter]) -> Answers[bool]:
        """See `Engine.import_dead_letters`."""
        answers: list[bool | HarkError] = [False] * len(letters)
        queues: dict[str, list[int]] = {}
        for index, letter in enumerate(letters):
            queues.setdefault(letter.message.queue, []).append(index)
        for queue, addresses in queues.items():
            chosen = [letters[index] for index in addresses]
            found = await import_dead_letters(self._pool, self._codec, await self._applied(), queue, chosen)
            for index, answer in zip(addresses, found, strict=True):
                answers[index] = answer
            self._look_again(queue)
        return answers

    async def delete_dead_letters(self, where: DeadLetterFilter, limit: int | None = None) -> int:
        """See `Engine.delete_dead_letters`."""
        await self._applied()
        matching = browse.dead_letters_where(where, self._codec)
        found = f"select id from hark.dead_letters where {matching} limit ${len(matching.args) + 1}"
        return int(
            await self._pool.fetchval(
                f"with gone as (delete from hark.dead_letters where id in ({found}) returning 1) "
                "select count(*) from gone",
                *matching.args,
                limit,
            )
        )
