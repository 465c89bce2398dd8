"""Pages of queues with counts, and the look at all partitions in steps that each cost little."""

from __future__ import annotations

from hark.engine.postgres.admin import info_of
from hark.engine.postgres.pool import Pool
from hark.engine.postgres.query import NOW, Where, can_be_stored
from hark.engine.postgres.views import OLDEST, PROCESSING, counts_of, stored
from hark.model import Census, Depth, QueueFilter, QueuePage, QueueStats, Survey

_ORDERS = {"newest": "id desc", "name": "name"}

# The index on (queue, name) has the partitions of a queue beside each other. Queue 0 was deleted.
_AFTER = "place.queue > 0 and (place.queue, place.name) > ($1::integer, $2::text)"
_SURVEY = f"""
with step as materialized (
    select place.* from hark.partitions as place where {_AFTER} order by place.queue, place.name limit $3::bigint
),
stored as (
    select step.queue as id, null as grp, count(*) as partitions, sum({stored("queue", "step")})::bigint as messages,
        min(case when not exists (select 1 from hark.groups where groups.queue = queue.name) then (
            select message.created_at from hark.messages as message
            where message.partition = step.id and message."offset" > step.floor
            order by message."offset" limit 1
        ) end) as oldest
    from step join hark.queues as queue on queue.id = step.queue
    group by step.queue
),
open as (
    select (standing.p).queue as id, standing.group_name as grp, count(*) as partitions,
        sum(standing.lag)::bigint as messages, min(waiting.oldest) as oldest
    from hark.standings_v1 as standing
    {OLDEST}
    where standing.wanted and standing.partition = any (array(select step.id from step))
    group by (standing.p).queue, standing.group_name
)
select queue.name as queue, found.*
from (select * from stored union all select * from open) as found
join hark.queues as queue on queue.id = found.id
order by found.id, found.grp nulls first
"""
# The last partition of a step that is full; if there is none, the step was the last.
_LAST = f"""
select place.queue, place.name from hark.partitions as place where {_AFTER}
order by place.queue, place.name limit 1 offset $3::bigint - 1
"""
# Tracks have no index on what changes with every pop.
_HELD = f"""
select queue, name, sum(messages)::bigint from (
    select groups.queue, groups.name, hark.size_v1(track.held) as messages
    from hark.tracks as track join hark.groups on groups.id = track.grp where track.lease_until > {NOW}
    union all
    select groups.queue, groups.name, 1
    from hark.exceptions as exception join hark.groups on groups.id = exception.grp where exception.until > {NOW}
) as held
group by queue, name having sum(messages) > 0
"""


async def queue_stats(pool: Pool, now: int | None, where: QueueFilter) -> QueuePage:
    """A page of queues with counts, and how many there are."""
    counted = _matching(where)
    total = await pool.fetchval(f"select count(*) from hark.queues where {counted}", *counted.args)
    matching, order = _matching(where, now, where.limit, where.offset), _ORDERS[where.sort]
    rows = await pool.fetch(
        f"""
        with chosen as materialized (
            select * from hark.queues where {matching} order by {order} limit $2::bigint offset $3::bigint
        ),
        behind as (
            select standing.queue, standing.grp, sum(standing.lag)::bigint as open,
                sum({PROCESSING})::bigint as processing
            from hark.standings_v1 as standing
            where standing.wanted and standing.queue = any (array(select chosen.name from chosen))
            group by standing.queue, standing.grp
        ),
        worst as (select distinct on (queue) * from behind order by queue, open desc, grp),
        sizes as (
            select place.queue, count(*) as partitions, sum({stored("chosen", "place")})::bigint as total
            from hark.partitions as place
            join chosen on chosen.id = place.queue
            group by place.queue
        )
        select chosen.*, coalesce(sizes.partitions, 0) as partitions, coalesce(sizes.total, 0) as total,
            coalesce(worst.open, sizes.total, 0) as open, coalesce(worst.processing, 0) as processing,
            coalesce(counters.expired, 0) as expired, coalesce(counters.discarded, 0) as discarded,
            (select count(*) from hark.dead_letters where dead_letters.queue = chosen.name) as dead_letter,
            (select count(*) from hark.groups join hark.retries on retries.grp = groups.id
                where groups.queue = chosen.name and retries.attempts > 0)
            + (select count(*) from hark.groups join hark.exceptions on exceptions.grp = groups.id
                where groups.queue = chosen.name and exceptions.attempts > 0) as failed
        from chosen
        left join sizes on sizes.queue = chosen.id
        left join worst on worst.queue = chosen.name
        left join hark.counters on counters.queue = chosen.id
        order by chosen.{order}
        """,
        *matching.args,
    )
    items = [
        QueueStats(
            info=info_of(row),
            partitions=row["partitions"],
            counts=counts_of(row),
            expired=row["expired"],
            discarded=row["discarded"],
        )
        for row in rows
    ]
    return QueuePage(items, total)


def _matching(where: QueueFilter, *args: object) -> Where:
    matching = Where(*args)
    names = None if where.names is None else [name for name in where.names if can_be_stored(name)]
    matching.also("queues.name = any ({}::text[])", names)
    matching.also("strpos(queues.name, {}) > 0", where.search)
    matching.also("queues.namespace = {}", where.namespace)
    matching.also("queues.task = {}", where.task)
    matching.also("queues.paused = {}", where.paused)
    return matching


async def survey(pool: Pool, after: tuple[int, str], limit: int) -> Survey:
    """What is stored and open in the partitions after a place, as many of them as one step takes."""
    rows = await pool.fetch(_SURVEY, *after, limit)
    depths = [Depth(row["queue"], row["grp"], row["partitions"], row["messages"], row["oldest"]) for row in rows]
    last = await pool.fetchrow(_LAST, *after, limit)
    return Survey(depths, None if last is None else (last["queue"], last["name"]))


async def census(pool: Pool, now: int | None) -> Census:
    """How many queues, dead letters and messages on leases there are."""
    queues = await pool.fetchval("select count(*) from hark.queues")
    dead = await pool.fetch("select queue, count(*) from hark.dead_letters group by queue")
    held = await pool.fetch(_HELD, now)
    return Census(queues, {row[0]: row[1] for row in dead}, {(row[0], row[1]): row[2] for row in held})
