"""The verbs explain, leases and queues_of: what the database knows of messages, and of who holds them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import asyncpg
import msgspec

from hark.clock import SECOND
from hark.engine.api import Answers
from hark.engine.hints import struct_of
from hark.engine.postgres.admin import info_of
from hark.engine.postgres.browse import NOW, Where, can_be_stored
from hark.engine.postgres.partitions import Store
from hark.errors import NotFound
from hark.model import (
    Ahead,
    CurrentLease,
    DeadFacts,
    Ending,
    Explain,
    Facts,
    GroupFacts,
    LeaseFilter,
    LeasePart,
    Leases,
    Limited,
    MessageFacts,
    QueueOptions,
    Retrying,
)

Ranges = Sequence[tuple[int, int]]
"""First and last offsets."""
_LOOK_AT_MOST = 1000
"""How many of the messages before one are looked at for what is in its way."""

_MESSAGE = f"""
select queue.*, {NOW} as now, partition.name as partition_name, partition.last_created, message."offset",
    message.created_at as message_created_at, message.transaction_id, message.deliver_at, message.expires_at,
    message.owner, owner.name as owner_name,
    message.priority as message_priority,
    cardinality(coalesce(message.backoff, queue.schedule)) as allowed
from hark.partitions as partition
join hark.queues as queue on queue.id = partition.queue
left join lateral (
    select * from hark.messages as one
    where one.partition = partition.id and one."offset" = $3 and one."offset" > partition.floor offset 0
) as message on true
left join hark.groups as owner on owner.id = message.owner
where partition.id = $2 and $3 between 1 and partition.tail
"""
_DEAD = """
select grp, uid, attempts, error, failed_at, transaction_id, created_at, priority from hark.dead_letters
where partition = $1 and "offset" = $2 order by grp
"""
_GROUPS = "select * from hark.explain_v1($1, $2, $3, $4)"
_FIRST = "select * from hark.first_of_v1($1, $2, $3, $4::bigint[], $5::bigint[], $6, $7, $8)"
_LIMIT = "select * from hark.reached_limit_v1($1, $2, $3)"


async def explain(store: Store, requests: Sequence[Explain]) -> Answers[Facts]:
    """What is in the way of messages."""
    explainer = Explainer(store)
    # The text does not contain the id, so that it is the same for a message that the client has no permission for.
    text = "no message with this id has ever existed; check that it is the message id, not the transaction id"
    unknown = NotFound(text, code="message_not_found")
    return [await explainer.facts(request) or unknown for request in requests]


class Explainer:
    """Answers for one engine, at one moment."""

    def __init__(self, store: Store) -> None:
        self._pool = store.pool
        self._codec = store.codec
        self._time = store.pool.time

    async def facts(self, request: Explain) -> Facts | None:
        """The facts of one message; None: it has never existed."""
        address = self._codec.decode(request.message_id)
        row = None if address is None else await self._pool.fetchrow(_MESSAGE, self._time, *address)
        if address is None or row is None:
            return None
        # All that follows is of the moment that the first answer was.
        now: int = row["now"]
        dead = {one["grp"]: one for one in await self._pool.fetch(_DEAD, *address)}
        rows = []
        if can_be_stored(request.group):
            rows = await self._pool.fetch(_GROUPS, now, *address, request.group)
        options = info_of(row).options
        groups = [await self._group(address.partition, row, options, one, dead.get(one["name"])) for one in rows]
        if request.group is not None and not groups:
            groups = [GroupFacts(group=request.group, dead=_letter(dead.get(request.group)))]
        return Facts(
            at=now,
            message=self._message(address.partition, address.offset, row, next(iter(dead.values()), None)),
            options=options,
            queue_paused=row["paused"],
            groups=groups,
        )

    def _message(self, partition: int, offset: int, row: Any, dead: Any) -> MessageFacts:
        message_id = self._codec.encode(partition, offset)
        facts = MessageFacts(
            id=message_id,
            queue=row["name"],
            partition=row["partition_name"],
            partition_id=self._codec.encode(partition, 0),
            offset=offset,
            namespace=row["namespace"],
            task=row["task"],
            stored=row["offset"] is not None,
            retries_allowed=row["allowed"],
        )
        if row["offset"] is None:
            if dead is None:
                return facts
            return msgspec.structs.replace(
                facts,
                transaction_id=dead["transaction_id"] or message_id,
                created_at=dead["created_at"],
                priority=dead["priority"] or 0,
            )
        return msgspec.structs.replace(
            facts,
            transaction_id=row["transaction_id"] or message_id,
            created_at=row["message_created_at"],
            priority=row["message_priority"] or 0,
            deliver_at=row["deliver_at"],
            expires_at=_expiry(row),
            owner=None if row["owner"] is None else row["owner_name"] or "",
        )

    # Groups ------------------------------------------------------------------------------------------------

    async def _group(self, partition: int, row: Any, options: QueueOptions, group: Any, dead: Any) -> GroupFacts:
        facts = GroupFacts(
            group=group["name"],
            mode=group["mode"],
            paused=group["paused"],
            last_seen=group["last_seen"],
            begins_after=group["begins_after"],
            settled=group["settled"],
            settled_at=group["settled_at"],
            dead=_letter(dead),
            ending=_ending(row, group),
        )
        if facts.settled or row["owner"] not in (None, group["grp"]):
            return facts
        shared = group["mode"] == "shared"
        waiting = _shared(row, options, group) if shared else await self._ordered(partition, row, options, group)
        limited = await self._pool.fetchrow(_LIMIT, row["now"], group["grp"], partition)
        return msgspec.structs.replace(facts, limited=_limited(limited), **waiting)

    async def _ordered(self, partition: int, row: Any, options: QueueOptions, group: Any) -> dict[str, Any]:
        facts: dict[str, Any] = {"retry": _retrying(group)}
        if group["leased"]:
            return facts | {"lease": _current_lease(group)}
        before, number = _before(group, row["offset"])
        facts["ahead_messages"] = number
        if group["blocked"]:
            first = group["first_leased"]
            if first is None:
                return facts
            leased = Ahead(message_id=self._codec.encode(partition, first), offset=first, lease=_current_lease(group))
            return facts | {"ahead": leased}
        head = await self._first(partition, row, group, [*before, (row["offset"], row["offset"])], options, False)
        facts["window_until"] = _window(row, options, head)
        blocker = await self._first(partition, row, group, before, options, True)
        if blocker is not None:
            facts["ahead"] = self._waiting(partition, blocker, options)
        elif head is not None and head["offset"] != row["offset"]:
            facts["ahead"] = Ahead(message_id=self._codec.encode(partition, head["offset"]), offset=head["offset"])
        return facts

    async def _first(
        self, partition: int, row: Any, group: Any, ranges: Ranges, options: QueueOptions, waiting: bool
    ) -> asyncpg.Record | None:
        firsts, lasts = [first for first, _ in ranges], [last for _, last in ranges]
        delayed, ttl = options.delayed_processing, options.ttl
        return await self._pool.fetchrow(
            _FIRST, row["now"], group["grp"], partition, firsts, lasts, waiting, delayed, ttl
        )

    def _waiting(self, partition: int, row: Any, options: QueueOptions) -> Ahead:
        old_enough = row["created_at"] + options.delayed_processing * SECOND if options.delayed_processing else 0
        return Ahead(
            message_id=self._codec.encode(partition, row["offset"]),
            offset=row["offset"],
            retry=_retrying(row),
            deliver_at=max(row["deliver_at"] or 0, old_enough) or None,
        )


def _shared(row: Any, options: QueueOptions, group: Any) -> dict[str, Any]:
    retry = _retrying(group)
    # One that was never given back is passed because it fell due before it was old enough, or is on a lease.
    came = max(row["deliver_at"] or 0, row["message_created_at"] + options.delayed_processing * SECOND)
    is_retry = retry is not None and (retry.attempts > 0 or retry.due > came)
    window = group["window_until"]
    return {
        "lease": _current_lease(group) if group["leased"] else None,
        "retry": retry if is_retry else None,
        "window_until": window if window is not None and window > row["now"] else None,
    }


def _expiry(row: Any) -> int | None:
    expires: int | None = row["expires_at"]
    if row["owner"] is not None or expires:
        return expires
    created: int = row["message_created_at"]
    return created + row["ttl"] * SECOND if row["ttl"] else None


def _current_lease(group: Any) -> CurrentLease:
    return CurrentLease(str(group["lease"]), group["consumer"], group["since"], group["lease_until"])


def _retrying(row: Any) -> Retrying | None:
    return None if row["attempts"] is None else Retrying(row["attempts"], row["due"], row["error"])


def _letter(dead: Any) -> DeadFacts | None:
    return None if dead is None else DeadFacts(str(dead["uid"]), dead["attempts"], dead["error"], dead["failed_at"])


def _ending(row: Any, group: Any) -> Ending | None:
    if group["ending"] is None:
        return None
    at: int = group["ended_at"]
    if group["ending"] == "expired" and row["offset"] is not None:  # Noted is when the group came by.
        at = min(at, _expiry(row) or at)
    return Ending(group["ending"], at, group["ended_attempts"], group["ended_error"])


def _limited(row: Any) -> Limited | None:
    if row is None:
        return None
    if row["in_flight"]:
        return Limited(reason="max_in_flight", scope=row["scope"], limit=row["bound"], in_flight=row["number"])
    return Limited(reason="rate_limited", scope=row["scope"], limit=row["bound"], until=row["until"])


def _window(row: Any, options: QueueOptions, head: Any) -> int | None:
    window = options.window_buffer * SECOND
    if not window or head is None:
        return None
    young = head["created_at"] + options.delayed_processing * SECOND
    due: int = min(row["last_created"] + window, max(young, head["deliver_at"] or 0, head["due"] or 0) + 10 * window)
    return due if due > row["now"] else None


def _before(group: Any, offset: int) -> tuple[list[tuple[int, int]], int]:
    """The first unsettled offsets before a message in the order of delivery, as ranges; and how many there are."""
    ranges: list[tuple[int, int]] = []
    number = 0
    for first, last in _until(group, offset):
        if number < _LOOK_AT_MOST:
            ranges.append((first, min(last, first + _LOOK_AT_MOST - number - 1)))
        number += last - first + 1
    return ranges, number


def _until(group: Any, offset: int) -> Iterator[tuple[int, int]]:
    requeued = [(one.lower, one.upper - 1) for one in group["requeued"]]
    for first, last in requeued:
        if first <= offset <= last:
            if first < offset:
                yield first, offset - 1
            return
        yield first, last
    for one in group["open"]:
        if one.lower >= offset:
            return
        yield one.lower, min(one.upper, offset) - 1


# Leases ----------------------------------------------------------------------------------------------------

# What leases hold: of ordered groups in their positions, of shared ones message by message. Leases that gave
# their partition back (claims) block no other.
_LEASED = f"""
with leased as (
    select position.lease, position.grp, position.partition, position.lease_until as until,
        hark.size_v1(position.leased)::integer as messages, lower(position.leased) as first
    from hark.positions as position where position.lease_until > {NOW} and not isempty(position.leased)
    union all
    select one.lease, one.grp, one.partition, max(one.until), count(*)::integer, min(one."offset")
    from hark.outstanding as one where one.until > {NOW} and one.lease is not null
    group by one.lease, one.grp, one.partition
)
select leased.lease::text as lease_id, leased.partition as number, leased.until, leased.messages, leased.first,
    queue.name as queue, partition.name as partition, grp.name as "group", grp.mode, lease.since,
    coalesce(lease.consumer, '') as consumer
from leased
join hark.groups as grp on grp.id = leased.grp
join hark.partitions as partition on partition.id = leased.partition
join hark.queues as queue on queue.id = partition.queue
left join lateral (select * from hark.leases as x where x.id = leased.lease limit 1) as lease on true
"""


async def leases(store: Store, where: LeaseFilter) -> Leases:
    """A page of the live leases, oldest first."""
    wanted = Where(store.pool.time)
    wanted.also("queue.name = {}", where.queue)
    wanted.also("partition.name = {}", where.partition)
    wanted.also("grp.name = {}", where.group)
    total = await store.pool.fetchval(f"select count(*) from ({_LEASED} where {wanted}) as matching", *wanted.args)
    page, args = wanted.page(where.limit, where.offset)
    rows = await store.pool.fetch(
        f"{_LEASED} where {wanted} order by lease.since, leased.lease, queue.name, partition.name {page}", *args
    )
    encode = store.codec.encode
    parts = [
        struct_of(
            LeasePart, row, partition_id=encode(row["number"], 0), first_message_id=encode(row["number"], row["first"])
        )
        for row in rows
    ]
    return Leases(parts, total)


async def queues_of(store: Store, ids: Sequence[str]) -> list[str | None]:
    """The queues of partitions, or of the partitions of messages."""
    addresses = [store.codec.decode(one) for one in ids]
    numbers = [address.partition for address in addresses if address is not None]
    rows = await store.pool.fetch(
        "select partition.id, queue.name from hark.partitions as partition"
        " join hark.queues as queue on queue.id = partition.queue"
        " where partition.id = any ($1::bigint[])",
        numbers,
    )
    names = {row["id"]: row["name"] for row in rows}
    return [None if address is None else names.get(address.partition) for address in addresses]
