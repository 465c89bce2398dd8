"""What administrators see: counts of queues, partitions and groups."""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg

from hark.clock import SECOND
from hark.engine.postgres.pool import Pool
from hark.engine.postgres.query import NOW, Where, can_be_stored
from hark.ids import IdCodec
from hark.model import Counts, GroupStats, Limits, PartitionStats, Subscription, TrackStats

# How many messages a group holds at a place.
PROCESSING = f"""case
    when standing.shared then (
        select count(*) from hark.exceptions as exception
        where exception.grp = standing.grp and exception.partition = standing.partition and exception.until > {NOW})
    when standing.lease_until > {NOW} then hark.size_v1(standing.held)
    else 0
end"""

# When the first message was created that a group has open at a place: there is one at each open offset.
OLDEST = """
left join lateral (
    select message.created_at as oldest from hark.messages as message
    where message.partition = standing.partition and message."offset" = case
        when standing.shared then (select min(open) from hark.unsettled_v1(standing.t, standing.p) as open)
        else lower(standing.open)
    end
    limit 1
) as waiting on true
"""

# Sorted first: the oldest message is looked up for those places only that are needed to fill the page.
_TRACKS = f"""
select standing.group_name, standing.queue, standing.name, standing.partition, standing.cursor, standing.lag,
    standing.settled_at, standing.lease, standing.lease_until, waiting.oldest,
    standing.lease_until > {NOW} as leased
from (
    select * from hark.standings_v1 as standing
    where standing.wanted and {{places}}
    order by standing.queue, standing.name, standing.grp
) as standing
{OLDEST}
where {{late}}
order by standing.queue, standing.name, standing.grp
limit $2
"""
# How many messages are open costs more to tell than which places come first. More groups than those of a place may be
# among them; such rows come after all that are wanted.
_FIRST_PLACES = """
standing.partition = any (array(select chosen.partition from chosen)) and standing.grp = any (
    array(select chosen.grp from chosen))
"""
_CHOSEN = """
with chosen as materialized (
    select grp.id as grp, place.id as partition
    from hark.groups as grp
    join hark.queues as queue on queue.name = grp.queue
    join hark.partitions as place on place.queue = queue.id
    left join hark.tracks as track on track.grp = grp.id and track.partition = place.id
    where (track.grp is not null or grp.since is null or place.id > grp.highest_partition
        or place.last_created > grp.since) and {where}
    order by grp.queue, place.name, grp.id
    limit $2
)
"""


async def partition_stats(
    pool: Pool, codec: IdCodec, now: int | None, queue: str, search: str | None, limit: int, offset: int
) -> list[PartitionStats]:
    """A page of a queue's partitions by name, with counts."""
    where = Where(now, limit, offset)
    where.also("place.queue = (select id from hark.queues where name = {})", queue)
    where.also("strpos(place.name, {}) > 0", search)
    rows = await pool.fetch(
        f"""
        with page as materialized (
            select place.*, {stored("queue", "place")} as total
            from hark.partitions as place
            join hark.queues as queue on queue.id = place.queue
            where {where} order by place.name limit $2 offset $3
        ),
        worst as (
            select distinct on (standing.partition) standing.partition, standing.lag as open,
                {PROCESSING} as processing
            from hark.standings_v1 as standing
            where standing.wanted and standing.partition = any (array(select page.id from page))
            order by standing.partition, standing.lag desc, standing.group_name
        )
        select page.id, page.name, page.created_at, page.total,
            coalesce(worst.open, page.total) as open, coalesce(worst.processing, 0) as processing,
            (select count(*) from hark.dead_letters where dead_letters.partition = page.id) as dead_letter,
            (select count(*) from hark.queues
                join hark.groups on groups.queue = queues.name
                join hark.retries on retries.grp = groups.id and retries.partition = page.id
                where queues.id = page.queue and retries.attempts > 0)
            + (select count(*) from hark.queues
                join hark.groups on groups.queue = queues.name
                join hark.exceptions on exceptions.grp = groups.id and exceptions.partition = page.id
                where queues.id = page.queue and exceptions.attempts > 0) as failed,
            {_edge("asc")} as oldest, {_edge("desc")} as newest
        from page
        left join worst on worst.partition = page.id
        order by page.name
        """,
        *where.args,
    )
    return [
        PartitionStats(
            id=codec.encode(row["id"], 0),
            name=row["name"],
            created_at=row["created_at"],
            counts=counts_of(row),
            oldest=row["oldest"],
            newest=row["newest"],
        )
        for row in rows
    ]


def stored(queue: str, place: str) -> str:
    """How many messages a partition has; where what is settled is dropped, offsets do not say."""
    return f"""case when {queue}.drop_settled then (
        select count(*) from hark.messages as message
        where message.partition = {place}.id and message."offset" > {place}.floor
    ) else {place}.tail - {place}.floor end"""


def _edge(order: str) -> str:
    """When the first or the last message of a partition was created that is still there."""
    return f"""(
        select message.created_at from hark.messages as message
        where message.partition = page.id and message."offset" > page.floor
        order by message."offset" {order} limit 1
    )"""


def counts_of(row: asyncpg.Record) -> Counts:
    """Messages by state, of a row that has what is stored, open, held, failed and dead."""
    total, open_, processing, dead = row["total"], row["open"], row["processing"], row["dead_letter"]
    return Counts(
        total=total,
        pending=max(0, open_ - processing),
        processing=processing,
        completed=max(0, total - open_ - dead),
        failed=row["failed"],
        dead_letter=dead,
    )


async def track_stats(
    pool: Pool,
    codec: IdCodec,
    now: int | None,
    group: str | None,
    queue: str | None,
    min_lag_seconds: int,
    limit: int,
    partitions: Sequence[str] | None = None,
) -> list[TrackStats]:
    """Places of groups in partitions; those where a message has been open so long, if a number of seconds is given."""
    named = None if partitions is None else list(filter(can_be_stored, partitions))
    where = Where(now, limit)
    names = ("standing.group_name", "standing.queue", "standing.name")
    if not min_lag_seconds:
        names = ("grp.name", "grp.queue", "place.name")
    where.also(f"{names[0]} = {{}}", group)
    where.also(f"{names[1]} = {{}}", queue)
    where.also(f"{names[2]} = any ({{}})", named)
    late = Where(*where.args)
    late.also(f"waiting.oldest <= {NOW} - {{}}", min_lag_seconds * SECOND or None)
    if min_lag_seconds:
        sql = _TRACKS.format(places=where, late=late)
    else:
        sql = _CHOSEN.format(where=where) + _TRACKS.format(places=_FIRST_PLACES, late=late)
    rows = await pool.fetch(sql, *late.args)
    return [
        TrackStats(
            group=row["group_name"],
            queue=row["queue"],
            partition=row["name"],
            partition_id=codec.encode(row["partition"], 0),
            cursor=row["cursor"],
            lag=row["lag"],
            oldest_waiting=row["oldest"],
            last_settled=row["settled_at"],
            lease_id=str(row["lease"]) if row["leased"] else None,
            lease_expires_at=row["lease_until"] if row["leased"] else None,
        )
        for row in rows
    ]


async def group_stats(pool: Pool, now: int | None, group: str | None, queue: str | None) -> list[GroupStats]:
    """Groups, one entry per (group, queue)."""
    where = Where(now)
    where.also("groups.name = {}", group)
    where.also("groups.queue = {}", queue)
    rows = await pool.fetch(
        f"""
        with chosen as (select * from hark.groups where {where}),
        behind as (
            select standing.grp, sum(standing.lag)::bigint as lag, count(*) as partitions,
                min(waiting.oldest) as oldest
            from hark.standings_v1 as standing
            {OLDEST}
            where standing.wanted and standing.lag > 0 and standing.grp = any (array(select chosen.id from chosen))
            group by standing.grp
        )
        select chosen.*, coalesce(behind.lag, 0) as lag, coalesce(behind.partitions, 0) as partitions_with_lag,
            behind.oldest,
            held.leases + single.leases as leases, held.messages + single.messages as in_flight
        from chosen
        left join behind on behind.grp = chosen.id
        cross join lateral (
            select count(*) as leases, coalesce(sum(hark.size_v1(track.held)), 0)::bigint as messages
            from hark.tracks as track where track.grp = chosen.id and track.lease_until > {NOW}
        ) as held
        cross join lateral (
            select count(distinct exception.lease) as leases, count(*) as messages
            from hark.exceptions as exception where exception.grp = chosen.id and exception.until > {NOW}
        ) as single
        order by chosen.name, chosen.queue
        """,
        *where.args,
    )
    return [
        GroupStats(
            group=row["name"],
            queue=row["queue"],
            mode=row["mode"],
            subscription=Subscription(row["subscription"], row["since"]),
            created_at=row["created_at"],
            last_seen=row["last_seen"],
            paused=row["paused"],
            lag=row["lag"],
            partitions_with_lag=row["partitions_with_lag"],
            oldest_waiting=row["oldest"],
            leases=row["leases"],
            in_flight=row["in_flight"],
            limits=Limits(
                max_in_flight=row["max_in_flight"], rate_limit=row["rate_limit"], rate_burst=row["rate_burst"]
            ),
        )
        for row in rows
    ]
