"""Counts of queues, partitions and groups for administrators."""

from __future__ import annotations

from collections.abc import Sequence

from hark import model
from hark.clock import SECOND
from hark.engine.hints import counts_of, struct_of
from hark.engine.postgres.admin import info_of
from hark.engine.postgres.browse import NOW, Where, can_be_stored
from hark.engine.postgres.partitions import Store

# How many messages a group holds at a place.
PROCESSING = f"""case
    when standing.shared then (
        select count(*) from hark.outstanding as exception
        where exception.grp = standing.grp and exception.partition = standing.partition and exception.until > {NOW})
    when standing.lease_until > {NOW} then hark.size_v1(standing.leased)
    else 0
end"""

# How many of the messages that a group has open at a place are scheduled.
SCHEDULED = f"""case when standing.regular then 0 else (
    select count(*) from hark.scheduled_v1({NOW}, standing.open, standing.t, standing.p)
) end"""

# When the first message was created that a group has open at a place: there is one at each open offset.
_UNSETTLED = """
left join lateral (
    select message.created_at as oldest from hark.messages as message
    where message.partition = standing.partition and message."offset" = case
        when standing.shared then (select min(open) from hark.unsettled_v1(standing.t, standing.p) as open)
        else lower(standing.open + coalesce(standing.requeued, int8multirange()))
    end
    limit 1
) as unsettled on true
"""

# Since when the first of them has been waiting that is neither scheduled nor leased.
_OLDEST = f"""case when standing.regular then (
    select message.created_at from hark.messages as message
    where message.partition = standing.partition and message."offset" = lower(
        standing.open - case when standing.lease_until > {NOW} then standing.leased else int8multirange() end)
    limit 1
) else hark.oldest_waiting_v1(
    {NOW}, standing.open + coalesce(standing.requeued, int8multirange()), standing.t, standing.p
) end"""
OLDEST = f"left join lateral (select {_OLDEST} as oldest) as waiting on true"

# Where a group starts in a partition that it has not been in (rule 20). A short partition is read from its end, which
# costs less than the calls of a search.
_START = """(
    select case when partition.tail - partition.floor > 100 then hark.last_offset_at_v1(partition.id, grp.since) else (
        select message."offset" from hark.messages as message
        where message.partition = partition.id and message."offset" > partition.floor
            and message.created_at <= grp.since
        order by message."offset" desc limit 1
    ) end
    where position.grp is null and partition.id <= grp.highest_partition and grp.since is not null
)"""

_GROUPS_OF_QUEUES = "hark.queues as queue join hark.groups as grp on grp.queue = queue.name"

# What each of the groups `members` has yet to settle in each of the partitions `partitions`. Most positions are simple:
# there it is all that is beyond the cursor, and none of it can be scheduled. Only the others cost more than reading a
# row.
_POSITIONS_OF_MEMBERS = f"""
member as materialized (
    select grp.id, grp.name, grp.since, grp.highest_partition, queue.id as queue_id, queue.drop_settled
    from {{members}}
),
uncommon as (
    select grp, partition from hark.retries where due > {NOW}
    union
    select grp, partition from hark.requeued
    union
    select grp, partition from hark.outstanding
),
partition as materialized (
    select grp.id as grp, partition.id as partition, began.cursor, partition.tail, position.settled, position.leased,
        partition.tail - began.cursor
            - case when isempty(position.settled) is false then hark.size_v1(position.settled) else 0 end as open,
        case when position.lease_until > {NOW} then hark.size_v1(position.leased) else 0 end as processing,
        partition.special <= began.cursor and uncommon.grp is null and case
            when position.plain is null and position.grp is not null
            then isempty(position.settled) or position.cursor >= partition.floor
            else partition.lanes is null and not grp.drop_settled
                and not exists (select 1 from hark.gaps where gaps.partition = partition.id)
        end as simple
    from member as grp
    join {{partitions}} as partition on partition.queue = grp.queue_id
    left join hark.positions as position on position.grp = grp.id and position.partition = partition.id
    left join uncommon on uncommon.grp = grp.id and uncommon.partition = partition.id
    cross join lateral (
        select greatest(partition.floor, position.cursor, position.plain[1], {_START}) as cursor offset 0
    ) as began
    where position.grp is not null or grp.since is null or partition.id > grp.highest_partition
        or partition.last_created > grp.since
),
open as (
    select partition.grp, partition.partition, partition.open as unsettled, 0 as scheduled, partition.processing,
        case when {{oldest}} and partition.open > partition.processing then (
            select message.created_at from hark.messages as message
            where message.partition = partition.partition and message."offset" = case
                when partition.processing = 0 then partition.cursor + 1
                else lower(int8multirange(int8range(partition.cursor + 1, partition.tail + 1))
                    - partition.settled - partition.leased)
            end
            limit 1
        ) end as oldest
    from partition where partition.simple
    union all
    select partition.grp, partition.partition, standing.unsettled, {SCHEDULED}, {PROCESSING},
        case when {{oldest}} then {_OLDEST} end
    from partition
    cross join lateral (
        select * from hark.standings_v1 as standing
        where standing.grp = partition.grp and standing.partition = partition.partition
        offset 0
    ) as standing
    where not partition.simple
)
"""
_LAG = "greatest(0, unsettled - scheduled - processing)"
# The same, together for each group.
BEHIND = f"""
{_POSITIONS_OF_MEMBERS},
behind as (
    select grp, count(*) as partitions, sum(unsettled)::bigint as unsettled, sum(scheduled)::bigint as scheduled,
        sum(processing)::bigint as processing, sum({_LAG})::bigint as lag,
        count(*) filter (where {_LAG} > 0) as lagging, min(oldest) as oldest
    from open
    group by grp
)
"""

# Sorted first: the oldest message is looked up for those places only that are needed to fill the page.
_POSITIONS = f"""
select standing.group_name as "group", standing.queue, standing.name as partition, standing.partition as number,
    standing.cursor, standing.unsettled, standing.settled_at as last_settled,
    case when standing.lease_until > {NOW} then standing.lease::text end as lease_id,
    case when standing.lease_until > {NOW} then standing.lease_until end as lease_expires_at,
    waiting.oldest as oldest_waiting, unsettled.oldest as oldest_unsettled, {SCHEDULED} as scheduled,
    {PROCESSING} as processing
from (
    select * from hark.standings_v1 as standing
    where standing.wanted and {{partitions}}
    order by standing.queue, standing.name, standing.grp
) as standing
{OLDEST}
{_UNSETTLED}
where {{late}}
order by standing.queue, standing.name, standing.grp
limit $2
"""
# To count the open messages costs more than to find which places come first. More groups than those of a place may be
# among them; such rows come after all that are wanted.
_FIRST_POSITIONS = """
standing.partition = any (array(select chosen.partition from chosen)) and standing.grp = any (
    array(select chosen.grp from chosen))
"""
_CHOSEN = """
with chosen as materialized (
    select grp.id as grp, partition.id as partition
    from hark.groups as grp
    join hark.queues as queue on queue.name = grp.queue
    join hark.partitions as partition on partition.queue = queue.id
    left join hark.positions as position on position.grp = grp.id and position.partition = partition.id
    where (position.grp is not null or grp.since is null or partition.id > grp.highest_partition
        or partition.last_created > grp.since) and {where}
    order by grp.queue, partition.name, grp.id
    limit $2
)
"""


async def partition_stats(
    store: Store, queue: str, search: str | None = None, limit: int = 1000, offset: int = 0
) -> list[model.PartitionStats]:
    """A page of a queue's partitions by name, with counts."""
    where = Where(store.pool.time, limit, offset)
    where.also("partition.queue = (select id from hark.queues where name = {})", queue)
    where.also("strpos(partition.name, {}) > 0", search)
    members = f"{_GROUPS_OF_QUEUES} where queue.id = (select page.queue from page limit 1)"
    rows = await store.pool.fetch(
        f"""
        with page as materialized (
            select partition as p, partition.*, {stored("queue", "partition")} as total
            from hark.partitions as partition
            join hark.queues as queue on queue.id = partition.queue
            where {where} order by partition.name limit $2 offset $3
        ),
        {_POSITIONS_OF_MEMBERS.format(oldest="false", partitions="page", members=members)},
        worst as (
            select distinct on (open.partition) open.partition, open.unsettled as open, open.processing, open.scheduled
            from open
            order by open.partition, {_LAG} desc, open.unsettled desc, open.grp
        )
        select page.id, page.name, page.created_at, page.total,
            coalesce(worst.open, page.total) as open, coalesce(worst.processing, 0) as processing,
            coalesce(worst.scheduled, {delayed("page")}) as scheduled,
            (select count(*) from hark.dead_letters where dead_letters.partition = page.id) as dead_letter,
            (select count(*) from hark.queues
                join hark.groups on groups.queue = queues.name
                join hark.retries on retries.grp = groups.id and retries.partition = page.id
                where queues.id = page.queue and retries.attempts > 0)
            + (select count(*) from hark.queues
                join hark.groups on groups.queue = queues.name
                join hark.outstanding on outstanding.grp = groups.id and outstanding.partition = page.id
                where queues.id = page.queue and outstanding.attempts > 0) as failed,
            {_edge("asc")} as oldest, {_edge("desc")} as newest
        from page
        left join worst on worst.partition = page.id
        order by page.name
        """,
        *where.args,
    )
    return [
        struct_of(model.PartitionStats, row, id=store.codec.encode(row["id"], 0), counts=counts_of(row)) for row in rows
    ]


def stored(queue: str, partition: str) -> str:
    """How many messages a partition has; where what is settled is dropped, offsets do not say."""
    return f"""case when {queue}.drop_settled then (
        select count(*) from hark.messages as message
        where message.partition = {partition}.id and message."offset" > {partition}.floor
    ) else {partition}.tail - {partition}.floor - case when {partition}.special > {partition}.floor then (
        select count(*) from hark.gaps as gap
        where gap.partition = {partition}.id and gap."offset" > {partition}.floor and gap.owner = 0
    ) else 0 end end"""


def delayed(partition: str) -> str:
    """How many messages of a partition are delayed, where there is no group; `p` is its row."""
    return f"""case when {partition}.special > {partition}.floor then (
        select count(*) from hark.scheduled_v1(
            {NOW}, int8multirange(int8range({partition}.floor + 1, {partition}.tail + 1)), null, {partition}.p)
    ) else 0 end"""


def _edge(order: str) -> str:
    """When the first or the last message of a partition was created that is still there."""
    return f"""(
        select message.created_at from hark.messages as message
        where message.partition = page.id and message."offset" > page.floor
        order by message."offset" {order} limit 1
    )"""


async def position_stats(
    store: Store,
    group: str | None = None,
    queue: str | None = None,
    min_lag_seconds: int | None = None,
    limit: int = 1000,
    partitions: Sequence[str] | None = None,
    queues: Sequence[str] | None = None,
) -> list[model.PositionStats]:
    """Places of groups in partitions; those where a message has been open so long, if a number of seconds is given."""
    named = None if partitions is None else list(filter(can_be_stored, partitions))
    where = Where(store.pool.time, limit)
    names = ("standing.group_name", "standing.queue", "standing.name")
    if min_lag_seconds is None:
        names = ("grp.name", "grp.queue", "partition.name")
    where.also(f"{names[0]} = {{}}", group)
    where.also(f"{names[1]} = {{}}", queue)
    where.also(f"{names[1]} = any ({{}})", None if queues is None else list(queues))
    where.also(f"{names[2]} = any ({{}})", named)
    late = Where(*where.args)
    if min_lag_seconds is None:
        sql = _CHOSEN.format(where=where) + _POSITIONS.format(partitions=_FIRST_POSITIONS, late=late)
    else:
        late.also(f"waiting.oldest <= {NOW} - {{}}", min_lag_seconds * SECOND)
        sql = _POSITIONS.format(partitions=where, late=late)
    rows = await store.pool.fetch(sql, *late.args)
    encode = store.codec.encode
    return [
        struct_of(
            model.PositionStats,
            row,
            partition_id=encode(row["number"], 0),
            lag=max(0, row["unsettled"] - row["scheduled"] - row["processing"]),
        )
        for row in rows
    ]


async def group_names(store: Store, queue: str | None = None) -> list[str]:
    """The names of groups, each once."""
    where = Where()
    where.also("groups.queue = {}", queue)
    sql = f"select distinct name from hark.groups where {where} order by name"
    return [row["name"] for row in await store.pool.fetch(sql, *where.args)]


async def group_stats(
    store: Store,
    group: str | None = None,
    queue: str | None = None,
    queues: Sequence[str] | None = None,
    uncounted: Sequence[str] = (),
) -> list[model.GroupStats]:
    """Groups, one entry per (group, queue)."""
    where = Where(store.pool.time, list(uncounted))
    where.also("groups.name = {}", group)
    where.also("groups.queue = {}", queue)
    where.also("groups.queue = any ({})", None if queues is None else list(queues))
    members = "chosen as grp join hark.queues as queue on queue.name = grp.queue where grp.queue <> all ($2::text[])"
    rows = await store.pool.fetch(
        f"""
        with chosen as (select * from hark.groups where {where}),
        {BEHIND.format(oldest="true", partitions="hark.partitions", members=members)}
        select chosen.*, chosen.name as "group", coalesce(behind.lag, 0) as lag,
            coalesce(behind.lagging, 0) as partitions_with_lag,
            coalesce(behind.scheduled, 0) as scheduled, behind.oldest as oldest_waiting,
            coalesce(leased.leases, 0) + single.leases as leases,
            coalesce(leased.messages, 0) + single.messages as in_flight
        from chosen
        left join behind on behind.grp = chosen.id
        left join (
            select position.grp, count(*) as leases, sum(hark.size_v1(position.leased))::bigint as messages
            from hark.positions as position where position.lease_until > {NOW} group by position.grp
        ) as leased on leased.grp = chosen.id
        cross join lateral (
            select count(distinct exception.lease) as leases, count(*) as messages
            from hark.outstanding as exception where exception.grp = chosen.id and exception.until > {NOW}
        ) as single
        order by chosen.name, chosen.queue
        """,
        *where.args,
    )
    return [
        struct_of(
            model.GroupStats,
            row,
            subscription=model.Subscription(row["subscription"], row["since"]),
            limits=struct_of(model.Limits, row),
        )
        for row in rows
    ]


_ORDERS = {"newest": "id desc", "name": "name"}

# The index on (queue, name) has the partitions of a queue beside each other. Queue 0 was deleted.
_AFTER = "partition.queue > 0 and (partition.queue, partition.name) > ($2::integer, $3::text)"
_MEMBERS_OF_STORED = f"{_GROUPS_OF_QUEUES} where queue.id = any (array(select stored.id from stored))"
_SURVEY = f"""
with step as materialized (
    select partition as p, partition.* from hark.partitions as partition where {_AFTER}
    order by partition.queue, partition.name limit $4::bigint
),
stored as (
    select step.queue as id, null as grp, count(*) as partitions, sum({stored("queue", "step")})::bigint as messages,
        min(case when grouped.yes then null when step.special > step.floor then hark.oldest_waiting_v1(
                {NOW}, int8multirange(int8range(step.floor + 1, step.tail + 1)) - hark.gaps_v1(-1, step.id, step.floor),
                null, step.p)
            else (
                select message.created_at from hark.messages as message
                where message.partition = step.id and message."offset" > step.floor
                order by message."offset" limit 1
            ) end) as oldest,
        sum(case when grouped.yes then 0 else {delayed("step")} end)::bigint as scheduled, 0::bigint as lagging
    from step join hark.queues as queue on queue.id = step.queue
    cross join lateral (
        select exists (select 1 from hark.groups where groups.queue = queue.name) as yes offset 0
    ) as grouped
    group by step.queue
),
{BEHIND.format(oldest="true", partitions="step", members=_MEMBERS_OF_STORED)},
found as (
    select * from stored
    union all
    select member.queue_id as id, member.name as grp, behind.partitions,
        behind.lag, behind.oldest, behind.scheduled, behind.lagging
    from behind join member on member.id = behind.grp
)
select queue.name, found.grp, found.partitions, found.messages, found.oldest, found.scheduled, found.lagging
from found
join hark.queues as queue on queue.id = found.id
order by found.id, found.grp nulls first
"""
# The last partition of a step that is full; if there is none, the step was the last.
_LAST = """
select partition.queue, partition.name from hark.partitions as partition
where partition.queue > 0 and (partition.queue, partition.name) > ($1::integer, $2::text)
order by partition.queue, partition.name limit 1 offset $3::bigint - 1
"""
# Positions have no index on what changes with every pop.
_LEASED = f"""
select queue, name, sum(messages)::bigint from (
    select groups.queue, groups.name, hark.size_v1(position.leased) as messages
    from hark.positions as position join hark.groups on groups.id = position.grp where position.lease_until > {NOW}
    union all
    select groups.queue, groups.name, 1
    from hark.outstanding as exception join hark.groups on groups.id = exception.grp where exception.until > {NOW}
) as leased
group by queue, name having sum(messages) > 0
"""


async def queue_stats(store: Store, where: model.QueueFilter) -> model.QueuePage:
    """A page of queues with counts, and how many there are."""
    conditions = _matching(where)
    total = await store.pool.fetchval(f"select count(*) from hark.queues where {conditions}", *conditions.args)
    members = "chosen as queue join hark.groups as grp on grp.queue = queue.name where queue.name <> all ($4::text[])"
    matching = _matching(where, store.pool.time, where.limit, where.offset, list(where.uncounted))
    order = _ORDERS[where.sort]
    rows = await store.pool.fetch(
        f"""
        with chosen as materialized (
            select * from hark.queues where {matching} order by {order} limit $2::bigint offset $3::bigint
        ),
        {BEHIND.format(oldest="false", partitions="hark.partitions", members=members)},
        worst as (
            select distinct on (member.queue_id) member.queue_id, behind.*
            from behind join member on member.id = behind.grp
            order by member.queue_id, behind.lag desc, behind.unsettled desc, behind.grp
        ),
        sizes as (
            select partition.queue, count(*) as partitions, sum({stored("chosen", "partition")})::bigint as total,
                sum(case when partition.queue not in (select queue_id from member) then {delayed("partition")} end
                )::bigint as scheduled
            from (select partition as p, partition.* from hark.partitions as partition) as partition
            join chosen on chosen.id = partition.queue
            where chosen.name <> all ($4::text[])
            group by partition.queue
        )
        select chosen.*, coalesce(sizes.partitions, 0) as partitions, coalesce(sizes.total, 0) as total,
            coalesce(worst.unsettled, sizes.total, 0) as open, coalesce(worst.processing, 0) as processing,
            coalesce(worst.scheduled, sizes.scheduled, 0) as scheduled,
            coalesce(counters.expired, 0) as expired, coalesce(counters.discarded, 0) as discarded,
            (select count(*) from hark.dead_letters where dead_letters.queue = chosen.name) as dead_letter,
            (select count(*) from hark.groups join hark.retries on retries.grp = groups.id
                where groups.queue = chosen.name and retries.attempts > 0)
            + (select count(*) from hark.groups join hark.outstanding on outstanding.grp = groups.id
                where groups.queue = chosen.name and outstanding.attempts > 0) as failed
        from chosen
        left join sizes on sizes.queue = chosen.id
        left join worst on worst.queue_id = chosen.id
        left join hark.counters on counters.queue = chosen.id
        order by chosen.{order}
        """,
        *matching.args,
    )
    items = [struct_of(model.QueueStats, row, info=info_of(row), counts=counts_of(row)) for row in rows]
    return model.QueuePage(items, total)


def _matching(where: model.QueueFilter, *args: object) -> Where:
    matching = Where(*args)
    names = None if where.names is None else [name for name in where.names if can_be_stored(name)]
    matching.also("queues.name = any ({}::text[])", names)
    matching.also("strpos(queues.name, {}) > 0", where.search)
    matching.also("queues.namespace = {}", where.namespace)
    matching.also("queues.task = {}", where.task)
    matching.also("queues.paused = {}", where.paused)
    return matching


async def survey(store: Store, after: tuple[int, str] = (0, ""), limit: int = 1000) -> model.Survey:
    """What is stored and open in the partitions after a place, as many of them as one step takes."""
    rows = await store.pool.call(_SURVEY, *after, limit)
    last = await store.pool.fetchrow(_LAST, *after, limit)
    return model.Survey([model.Depth(*row) for row in rows], None if last is None else (last["queue"], last["name"]))


async def totals(store: Store) -> model.Totals:
    """How many queues, dead letters and messages on leases there are."""
    queues = await store.pool.fetchval("select count(*) from hark.queues")
    dead = await store.pool.fetch("select queue, count(*) from hark.dead_letters group by queue")
    leased = await store.pool.call(_LEASED)
    return model.Totals(queues, {row[0]: row[1] for row in dead}, {(row[0], row[1]): row[2] for row in leased})
