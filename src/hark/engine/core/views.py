"""Counts of queues, partitions and groups, read beside the writer."""

from __future__ import annotations

from collections.abc import Sequence

import apsw
import msgspec

from hark import model
from hark.clock import SECOND
from hark.engine.core.explain import LeaseView
from hark.engine.core.schema import DELAYED, HAS_LANES, OPEN, POSITION, PRIORITIES, SCHEDULED, STORED, WANTS_PARTITION
from hark.engine.core.state import State
from hark.engine.core.store import Value, records_of, rows_of, scalar
from hark.engine.hints import counts_of, struct_of

# Partitions are chosen first, because it costs more to count their open messages.
_CHOSEN = f"""
select groups.id as grp, partition.id as partition
from groups
join queues on queues.name = groups.queue
join partitions as partition on partition.queue = queues.id
left join positions as position on position.grp = groups.id and position.partition = partition.id
where (:queue is null or queues.name = :queue)
  and (:queues is null or queues.name in (select value from json_each(:queues)))
  and (:group is null or groups.name = :group) and {WANTS_PARTITION}
"""
# One row per leased message. Without the casts SQLite makes no index of them.
_LEASED = """
leased as materialized (
    select cast(value ->> 0 as integer) as grp, cast(value ->> 1 as integer) as partition,
        cast(value ->> 2 as integer) as offset
    from json_each(:leased))
"""
# One row per partition and group in `at`: its open, scheduled and leased messages, and the lag, which is the others.
_COUNTS = f"""
{_LEASED},
counted as materialized (
    select *, {OPEN} as open, {SCHEDULED} as scheduled,
        (select count(*) from leased where leased.grp = at.grp and leased.partition = at.partition) as leased
    from at),
open as materialized (select *, max(0, open - scheduled - leased) as lag from counted)
"""
# The same, with names, for the chosen partitions and groups.
_OPEN = f"""
at as materialized (
    select queues.name as queue, groups.name as group_name, partition.name as name,
        position.settled_at as settled_at, {POSITION}
    from chosen
    cross join groups on groups.id = chosen.grp
    cross join partitions as partition on partition.id = chosen.partition
    cross join queues on queues.id = partition.queue
    left join positions as position on position.grp = groups.id and position.partition = partition.id),
{_COUNTS}
"""

_PARTITIONS = f"""
with page as materialized (
    select * from partitions as partition
    where partition.queue = (select id from queues where name = :queue)
        and (:search is null or instr(partition.name, :search))
    order by partition.name limit :limit offset :offset),
at as materialized (
    select {POSITION}
    from page as partition
    join groups on groups.queue = :queue
    left join positions as position on position.grp = groups.id and position.partition = partition.id
    where {WANTS_PARTITION}),
{_COUNTS}
select partition.id, partition.name, partition.created_at, {STORED} as total,
    (select json_array(open, scheduled, leased) from open where open.partition = partition.id
        order by lag desc, open desc limit 1) as worst,
    {DELAYED} as delayed,
    (select count(*) from dead_letters where dead_letters.partition = partition.id) as dead_letter,
    (select count(*) from retries where retries.partition = partition.id and retries.attempts > 0)
    + (select count(*) from outstanding where outstanding.partition = partition.id and outstanding.attempts > 0)
        as failed,
    (select created_at from messages where messages.partition = partition.id and offset > partition.floor
        order by offset limit 1) as oldest,
    (select created_at from messages where messages.partition = partition.id and offset > partition.floor
        order by offset desc limit 1) as newest
from page as partition
order by partition.name
"""

# The open messages of an ordered group. There are few ranges beyond the cursor, but they may have many messages.
_UNSETTLED = """
message.partition = {partition} and (message.offset > {cursor}
    and not exists (select 1 from ranges where ranges.grp = {grp} and ranges.partition = {partition}
                    and first <= message.offset and last >= message.offset)
    and (message.owner is null or message.owner = {grp}))
"""
_OLDEST_UNSETTLED = f"(select created_at from messages as message where {_UNSETTLED} order by message.offset limit 1)"
_DUE = """
and not exists (select 1 from retries where retries.grp = {grp} and retries.partition = {partition}
                and retries.offset = message.offset and due > :now)
"""
_UNLEASED = """
and not exists (select 1 from leased
                where leased.grp = {grp} and leased.partition = {partition} and leased.offset = message.offset)
"""
# Since when the first message that is neither scheduled nor leased has waited. Times never decrease with the offset, so
# only a message after a delayed one can have waited longer.
_OLDEST = f"""
(select iif(ifnull(message.deliver_at, 0) <= message.created_at, message.created_at, min(message.deliver_at, ifnull(
    (select message.created_at from messages as message
     where {_UNSETTLED} {_DUE} {_UNLEASED} and message.deliver_at is null order by message.offset limit 1),
    message.deliver_at)))
from messages as message
where {_UNSETTLED} {_DUE} {_UNLEASED} and ifnull(message.deliver_at, 0) <= :now
order by message.offset limit 1)
"""
# Requeued messages may be behind the cursor.
_OLDEST_REQUEUED = f"""
(select min(message.created_at) from requeued
 cross join messages as message on message.partition = requeued.partition and message.offset = requeued.offset
 where requeued.grp = {{grp}} and requeued.partition = {{partition}} {_DUE} {_UNLEASED})
"""
_LEVELS = f"""
from {PRIORITIES} as level
left join lanes as lane on lane.grp = {{grp}} and lane.partition = {{partition}} and lane.priority = level.value
"""
# The same in a shared group: from the first message of each lane, and the outstanding messages.
_FIRSTS = """
select (select created_at from messages as message where message.partition = {partition}
    and offset > max({cursor}, ifnull((select cursor from lanes
        where lanes.grp = {grp} and lanes.partition = {partition} and priority = 0), 0))
    and priority = 0 and deliver_at is null and owner is null {unleased} order by offset limit 1) as time
union all
select {delayed} from outstanding
cross join messages as message on message.partition = outstanding.partition and message.offset = outstanding.offset
where outstanding.grp = {grp} and outstanding.partition = {partition} and available_at <= {until} {unleased}
"""
_LANES = f"""
union all
select (select created_at from messages as message indexed by messages_priority
    where message.partition = {{partition}} and message.priority = level.value and message.priority > 0
      and deliver_at is null and owner is null and offset > max({{cursor}}, ifnull(lane.cursor, 0)) {{unleased}}
    order by offset limit 1)
{_LEVELS}
union all
select (select {{delayed}} from messages as message indexed by messages_delayed
    where message.partition = {{partition}} and message.priority = level.value and deliver_at is not null
      and (deliver_at, offset) > (ifnull(lane.due, 0), ifnull(lane.due_offset, 0)) and offset > {{cursor}}
      and deliver_at <= {{until}} {{unleased}})
{_LEVELS}
"""
_HERE = {"partition": "open.partition", "cursor": "open.cursor", "grp": "open.grp"}
_NEVER = "9223372036854775807"


def _first_shared(**named: str) -> str:
    """The first time in the lanes of a shared group. Most partitions have messages only in the first lane."""
    firsts, lanes = _FIRSTS.format(**_HERE, **named), _LANES.format(**_HERE, **named)
    return f"""iif({HAS_LANES.format(**_HERE)},
        (select min(time) from ({firsts} {lanes})), (select min(time) from ({firsts})))"""


_DUE_HERE = _first_shared(
    delayed="min(max(created_at, ifnull(deliver_at, 0)))", until=":now", unleased=_UNLEASED.format(**_HERE)
)
_OLDEST_OPEN = f"""
iif(open.lag > 0, iif(open.shared, {_DUE_HERE}, (select min(time) from (
    select {_OLDEST.format(**_HERE)} as time union all select {_OLDEST_REQUEUED.format(**_HERE)}))), null)
"""
_OLDEST_UNSETTLED_OPEN = f"""iif(open.shared, {_first_shared(delayed="min(created_at)", until=_NEVER, unleased="")},
    {_OLDEST_UNSETTLED.format(**_HERE)})"""

_BEHIND = f"""
with chosen as ({_CHOSEN} and queues.name not in (select value from json_each(:uncounted))), {_OPEN}
select grp, sum(lag) as lag, sum(lag > 0) as partitions_with_lag, sum(scheduled) as scheduled,
    min({_OLDEST_OPEN}) as oldest_waiting
from open where open > 0 group by grp
"""
_POSITIONS = f"""
with chosen as (
    {_CHOSEN} {{named}} order by queues.name, partition.name, groups.id limit iif(:before is null, :limit, -1)),
{_OPEN}
select queue, grp, group_name as "group", partition as number, name as partition, cursor, settled_at as last_settled,
    lag, scheduled, oldest as oldest_waiting, iif(open > 0, {_OLDEST_UNSETTLED_OPEN}, null) as oldest_unsettled
from (select *, {_OLDEST_OPEN} as oldest from open) as open
where :before is null or oldest <= :before
order by open.queue, open.name, open.grp limit :limit
"""
_ALL_POSITIONS = _POSITIONS.format(named="")
_NAMED_POSITIONS = _POSITIONS.format(named="and partition.name in (select value from json_each(:names))")
_decode_limits = msgspec.json.Decoder(model.Limits).decode
_encode = msgspec.json.Encoder().encode
_NOT_BEHIND = {"lag": 0, "partitions_with_lag": 0, "scheduled": 0, "oldest_waiting": None}


def _names(names: Sequence[str] | None) -> str | None:
    return None if names is None else _encode(list(names)).decode()


def _moment(leases: LeaseView) -> dict[str, Value]:
    """The time of the counts, and the messages that are leased then."""
    leased = [(*position, offset) for position, offsets in leases.leased.items() for offset in offsets]
    return {"now": leases.now, "leased": _encode(leased).decode()}


def partition_stats(
    connection: apsw.Connection,
    leases: LeaseView,
    queue: str,
    search: str | None = None,
    limit: int = 1000,
    offset: int = 0,
) -> list[model.PartitionStats]:
    """A page of a queue's partitions, with counts."""
    page = []
    named: dict[str, Value] = {"queue": queue, "search": search, "limit": limit, "offset": offset}
    for row in records_of(connection, _PARTITIONS, **named, **_moment(leases)):
        row["open"], row["scheduled"], row["processing"] = row["total"], row["delayed"], 0
        if row["worst"] is not None:
            row["open"], row["scheduled"], row["processing"] = msgspec.json.decode(row["worst"])
        partition_id = leases.codec.encode(row["id"], 0)
        page.append(struct_of(model.PartitionStats, row, id=partition_id, counts=counts_of(row)))
    return page


def position_stats(
    connection: apsw.Connection,
    leases: LeaseView,
    group: str | None = None,
    queue: str | None = None,
    min_lag_seconds: int | None = None,
    limit: int = 1000,
    partitions: Sequence[str] | None = None,
    queues: Sequence[str] | None = None,
) -> list[model.PositionStats]:
    """Positions of groups. With `min_lag_seconds`, only those where a message has waited that long."""
    stats = []
    sql = _ALL_POSITIONS if partitions is None else _NAMED_POSITIONS
    named: dict[str, Value] = {
        "queue": queue,
        "group": group,
        "before": None if min_lag_seconds is None else leases.now - min_lag_seconds * SECOND,
        "limit": limit,
        "names": _names(partitions),
        "queues": _names(queues),
        **_moment(leases),
    }
    for row in records_of(connection, sql, **named):
        lease_id, expires_at = leases.leases.get((row["grp"], row["number"]), (None, None))
        stats.append(
            struct_of(
                model.PositionStats,
                row,
                partition_id=leases.codec.encode(row["number"], 0),
                lease_id=lease_id,
                lease_expires_at=expires_at,
            )
        )
    return stats


def group_stats(
    connection: apsw.Connection,
    leases: LeaseView,
    group: str | None = None,
    queue: str | None = None,
    queues: Sequence[str] | None = None,
    uncounted: Sequence[str] = (),
) -> list[model.GroupStats]:
    """Groups, one entry per (group, queue)."""
    named: dict[str, Value] = {
        "queue": queue,
        "group": group,
        "queues": _names(queues),
        "uncounted": _names(uncounted),
        **_moment(leases),
    }
    behind = {row["grp"]: row for row in records_of(connection, _BEHIND, **named)}
    sql = """
        select id, queue, name as "group", mode, subscription, since, paused, created_at, last_seen, limits from groups
        where (:group is null or name = :group) and (:queue is null or queue = :queue)
          and (:queues is null or queue in (select value from json_each(:queues))) order by name, queue
    """
    return [
        struct_of(
            model.GroupStats,
            row | behind.get(row["id"], _NOT_BEHIND),
            subscription=model.Subscription(row["subscription"], row["since"]),
            paused=bool(row["paused"]),
            leases=leases.leases_by_group.get(row["id"], 0),
            in_flight=leases.messages_by_group.get(row["id"], 0),
            limits=_decode_limits(row["limits"]),
        )
        for row in records_of(connection, sql, **named)
    ]


_ORDERS = {"newest": "id desc", "name": "name"}
_CONDITIONS = {
    "names": "name in (select value from json_each(:names))",
    "search": "instr(name, :search)",
    "namespace": "namespace = :namespace",
    "task": "task = :task",
    "paused": "paused = :paused",
}

# Cross joins, so that the planner starts with the page whatever the sizes of the tables.
_PAGE = f"""
with page as materialized (select * from queues where {{where}} order by {{order}} limit :limit offset :offset),
wanted as materialized (select * from page where name not in (select value from json_each(:uncounted))),
at as materialized (
    select queues.id as queue, {POSITION}
    from wanted as queues
    cross join groups on groups.queue = queues.name
    cross join partitions as partition on partition.queue = queues.id
    left join positions as position on position.grp = groups.id and position.partition = partition.id
    where {WANTS_PARTITION}),
{_COUNTS},
behind as (
    select queue, sum(open) as open, sum(scheduled) as scheduled, sum(leased) as leased, sum(lag) as lag
    from open group by queue, grp),
worst as (select *, row_number() over (partition by queue order by lag desc, open desc) as rank from behind),
sizes as materialized (
    select partition.queue as queue, count(*) as partitions, sum({STORED}) as total,
        iif(exists (select 1 from groups where groups.queue = wanted.name), 0, sum({DELAYED})) as delayed
    from wanted cross join partitions as partition on partition.queue = wanted.id group by partition.queue)
select page.uid as id, page.name, page.namespace, page.task, page.options, page.created_at, page.paused, page.expired,
    page.discarded, ifnull(sizes.partitions, 0) as partitions, ifnull(sizes.total, 0) as total,
    ifnull(worst.open, ifnull(sizes.total, 0)) as open,
    ifnull(worst.scheduled, ifnull(sizes.delayed, 0)) as scheduled, ifnull(worst.leased, 0) as processing,
    (select count(*) from dead_letters where dead_letters.queue = page.name) as dead_letter,
    (select count(*) from groups cross join retries on retries.grp = groups.id
        where groups.queue = page.name and retries.attempts > 0)
    + (select count(*) from groups cross join outstanding on outstanding.grp = groups.id
        where groups.queue = page.name and outstanding.attempts > 0) as failed
from page
left join sizes on sizes.queue = page.id
left join worst on worst.queue = page.id and worst.rank = 1
order by page.{{order}}
"""

decode_options = msgspec.json.Decoder(model.QueueOptions).decode


def queue_stats(connection: apsw.Connection, leases: LeaseView, where: model.QueueFilter) -> model.QueuePage:
    """A page of queues with counts, and their total number."""
    given = {
        "names": _names(where.names),
        "search": where.search,
        "namespace": where.namespace,
        "task": where.task,
        "paused": where.paused,
    }
    matching = " and ".join(_CONDITIONS[name] for name, value in given.items() if value is not None) or "true"
    total = int(connection.execute(f"select count(*) from queues where {matching}", given).get)
    sql = _PAGE.format(where=matching, order=_ORDERS[where.sort])
    page = given | {
        "uncounted": _names(where.uncounted),
        **_moment(leases),
        "limit": -1 if where.limit is None else where.limit,
        "offset": where.offset,
    }
    items = []
    for row in records_of(connection, sql, **page):
        row["options"], row["paused"] = decode_options(row["options"]), bool(row["paused"])
        items.append(struct_of(model.QueueStats, row, info=struct_of(model.QueueInfo, row), counts=counts_of(row)))
    return model.QueuePage(items, total)


SurveyPoint = tuple[int, str]
"""Where a step ended: the number of a queue and the name of a partition."""

# The index on (queue, name) groups the partitions by queue. Queue 0 has those of deleted queues.
_STEP = """
with step as materialized (
    select * from partitions as partition
    where (partition.queue, partition.name) > (:queue, :name) and partition.queue > 0
    order by partition.queue, partition.name limit :limit)
"""
_END = f"{_STEP} select count(*), max(queue), (select name from step order by queue desc, name desc limit 1) from step"
_STORED = f"""
{_STEP}
select queues.name, null, count(*), sum({STORED}),
    min(iif(exists (select 1 from groups where groups.queue = queues.name), null,
        (select max(created_at, ifnull(deliver_at, 0)) from messages
         where messages.partition = partition.id and offset > partition.floor and ifnull(deliver_at, 0) <= :now
         order by offset limit 1))),
    iif(exists (select 1 from groups where groups.queue = queues.name), 0, sum({DELAYED})), 0
from step as partition cross join queues on queues.id = partition.queue
group by queues.id order by queues.id
"""
_SURVEY_OPEN = f"""
{_STEP},
at as materialized (
    select queues.id as queue, queues.name as queue_name, groups.name as group_name, {POSITION}
    from step as partition
    cross join queues on queues.id = partition.queue
    cross join groups on groups.queue = queues.name
    left join positions as position on position.grp = groups.id and position.partition = partition.id
    where {WANTS_PARTITION}),
{_COUNTS}
select queue_name, group_name, count(*), sum(lag), min({_OLDEST_OPEN}), sum(scheduled), sum(lag > 0)
from open group by queue, grp order by queue
"""


def survey(
    connection: apsw.Connection, leases: LeaseView, after: SurveyPoint = (0, ""), limit: int = 1000
) -> model.Survey:
    """The stored and open messages of the partitions after a place, at most `limit` of them."""
    named: dict[str, Value] = {"queue": after[0], "name": after[1], "limit": limit, **_moment(leases)}
    [(partitions, queue, name)] = rows_of(connection, _END, **named)
    stored = [model.Depth(*row) for row in rows_of(connection, _STORED, **named)]
    opened = [model.Depth(*row) for row in rows_of(connection, _SURVEY_OPEN, **named)]
    order = {depth.queue: number for number, depth in enumerate(stored)}
    depths = sorted((*stored, *(one for one in opened if one.queue in order)), key=lambda one: order[one.queue])
    return model.Survey(depths, (queue, name) if partitions == limit else None)


def group_names(connection: apsw.Connection, _leases: LeaseView, queue: str | None = None) -> list[str]:
    """Names of all groups, or of those of a queue."""
    sql = "select distinct name from groups where ?1 is null or queue = ?1 order by name"
    return [row[0] for row in rows_of(connection, sql, queue)]


def totals(connection: apsw.Connection, leased: dict[tuple[str, str], int]) -> model.Totals:
    """The numbers of queues, dead letters and leased messages."""
    return model.Totals(
        int(scalar(connection, "select count(*) from queues")),
        dict(rows_of(connection, "select queue, count(*) from dead_letters group by queue")),
        leased,
    )


def leased_counts(state: State) -> dict[tuple[str, str], int]:
    """Number of leased messages by queue and group."""
    leased: dict[tuple[str, str], int] = {}
    for lease in state.leases.values():
        for position in lease.parts:
            key = (position.group.queue_name, position.group.name)
            leased[key] = leased.get(key, 0) + len(position.live_offsets(lease))
    return {key: number for key, number in leased.items() if number}
