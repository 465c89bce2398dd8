"""What administrators see: single messages, and what each group has done with them."""

from __future__ import annotations

import asyncpg
import msgspec

from hark.engine.postgres.pool import Pool
from hark.engine.postgres.query import NOW, can_be_stored
from hark.ids import IdCodec
from hark.model import GroupView, MessageFilter, MessageState, MessageView

_decode_groups = msgspec.json.Decoder(list[GroupView]).decode

# Of the groups of a message's queue, what each says of it; one that was requeued is the business of one group only.
_GROUPS = f"""(
    select json_agg(json_build_object(
        'group', grp.name,
        'state', case
            when dead.id is not null then 'dead_letter'
            when front."offset" is null and case
                when track.grp is null then grp.since is not null and message.partition <= grp.highest_partition
                    and message.created_at <= grp.since
                when track.plain is not null then exception."offset" is null and (message.owner is not null
                    or hark.passed_v1(track, message."offset", message.priority, message.deliver_at))
                else message."offset" <= track.cursor or track.settled @> message."offset"
            end then 'completed'
            when holding.until is not null then 'processing'
            else 'pending'
        end,
        'attempts', coalesce(dead.attempts, retry.attempts, exception.attempts, 0),
        'error', case when dead.id is null then coalesce(retry.error, exception.error) else dead.error end,
        'lease_expires_at', holding.until) order by grp.name)
    from hark.groups as grp
    left join hark.tracks as track on track.grp = grp.id and track.partition = message.partition
    left join hark.retries as retry
        on retry.grp = grp.id and retry.partition = message.partition and retry."offset" = message."offset"
    left join hark.exceptions as exception
        on exception.grp = grp.id and exception.partition = message.partition
        and exception."offset" = message."offset"
    left join hark.fronts as front
        on front.grp = grp.id and front.partition = message.partition and front."offset" = message."offset"
    left join hark.dead_letters as dead
        on dead.partition = message.partition and dead."offset" = message."offset" and dead.grp = grp.name
    cross join lateral (
        select case
            when exception.until > {NOW} then exception.until
            when track.held @> message."offset" and track.lease_until > {NOW} then track.lease_until
        end
    ) as holding (until)
    where grp.queue = queue.name and (message.owner is null or message.owner = grp.id)
) as groups"""

# The messages at wanted places, which have an order (n).
_MESSAGES = f"""
select message.partition, message."offset", message.created_at, message.transaction_id, message.trace_id,
    message.producer, message.priority, message.deliver_at, message.sealed, queue.name as queue,
    place.name as partition_name, queue.namespace, queue.task, queue.priority as queue_priority, {_GROUPS}
"""
_FROM = """
cross join lateral (
    select * from hark.messages as message
    where message.partition = wanted.partition and message."offset" = wanted."offset"
    offset 0
) as message
join hark.partitions as place on place.id = wanted.partition
join hark.queues as queue on queue.id = place.queue
order by wanted.n
"""

_NEWEST = f"""
{_MESSAGES}
from (
    select * from hark.newest_messages_v1({NOW}, $2, $3, $4, $5, $6, $7, $8, $9) order by n offset $10
) as wanted
{_FROM}
"""

_ONE = f"""
{_MESSAGES}, message.payload
from (select 1 as n, $2::bigint as partition, hark.find_message_v1($2, $3, $4) as "offset") as wanted
{_FROM}
"""


async def messages(pool: Pool, codec: IdCodec, now: int | None, where: MessageFilter) -> list[MessageView]:
    """A page of messages, newest first, without payloads."""
    names = (where.queue, where.partition, where.namespace, where.task)
    if not can_be_stored(*names):
        return []
    rows = await pool.fetch(
        _NEWEST,
        now,
        *names,
        where.state,
        where.since,
        where.until,
        where.offset + where.limit,
        where.offset,
    )
    return [_view(row, codec) for row in rows]


async def message(
    pool: Pool, codec: IdCodec, now: int | None, partition_id: str, transaction_id: str
) -> MessageView | None:
    """One message with its payload, by transaction id or message id."""
    place = codec.decode(partition_id)
    if place is None or not can_be_stored(transaction_id):
        return None
    own = codec.decode(transaction_id)
    offset = own.offset if own is not None and own.partition == place.partition else None
    row = await pool.fetchrow(_ONE, now, place.partition, transaction_id, offset)
    if row is None:
        return None
    view = _view(row, codec)
    view.payload = msgspec.Raw(row["payload"])
    return view


def _view(row: asyncpg.Record, codec: IdCodec) -> MessageView:
    message_id = codec.encode(row["partition"], row["offset"])
    groups = [] if row["groups"] is None else _decode_groups(row["groups"])
    return MessageView(
        id=message_id,
        transaction_id=row["transaction_id"] or message_id,
        partition_id=codec.encode(row["partition"], 0),
        queue=row["queue"],
        partition=row["partition_name"],
        namespace=row["namespace"],
        task=row["task"],
        offset=row["offset"],
        state=_overall(groups),
        trace_id=row["trace_id"],
        producer=row["producer"],
        priority=row["priority"] or 0,
        queue_priority=row["queue_priority"],
        created_at=row["created_at"],
        deliver_at=row["deliver_at"],
        groups=groups,
        sealed=bool(row["sealed"]),
    )


def _overall(groups: list[GroupView]) -> MessageState:
    """One word for a message: the most urgent of what its groups say."""
    states = {group.state for group in groups}
    for state in ("dead_letter", "processing", "pending"):
        if state in states:
            return state
    return "completed" if states else "pending"
