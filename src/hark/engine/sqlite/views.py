"""What administrators see: counts of queues, partitions and groups. Read beside the writer, never in its way."""

from __future__ import annotations

from collections.abc import Sequence

import apsw
import msgspec

from hark.engine.sqlite.leases import LeaseView
from hark.engine.sqlite.sql import CURSOR, OPEN, PRIORITIES, STORED, WANTS_PLACE
from hark.engine.sqlite.store import rows_of
from hark.ids import IdCodec
from hark.model import Counts, GroupStats, Limits, PartitionStats, Subscription, TrackStats

# Places are chosen first: what is open there costs more to tell.
_CHOSEN = f"""
select groups.id as grp, place.id as partition
from groups
join queues on queues.name = groups.queue
join partitions as place on place.queue = queues.id
left join tracks as track on track.grp = groups.id and track.partition = place.id
where (?1 is null or queues.name = ?1) and (?2 is null or groups.name = ?2) and {WANTS_PLACE}
"""
# One row per chosen partition and group: where the group stands and what it has open.
_OPEN = f"""
select queues.name as queue, groups.id as grp, groups.name as group_name, place.id as partition, place.name as name,
    {CURSOR} as cursor, track.settled_at as settled_at, {OPEN} as open, groups.mode = 'shared' as shared
from chosen
cross join groups on groups.id = chosen.grp
cross join partitions as place on place.id = chosen.partition
cross join queues on queues.id = place.queue
left join tracks as track on track.grp = groups.id and track.partition = place.id
"""

_PARTITIONS = f"""
with page as (
    select * from partitions as place
    where place.queue = (select id from queues where name = ?1) and (?2 is null or instr(place.name, ?2))
    order by place.name limit ?3 offset ?4),
open as (
    select place.id as partition, groups.id as grp, {OPEN} as open
    from page as place
    join groups on groups.queue = ?1
    left join tracks as track on track.grp = groups.id and track.partition = place.id
    where {WANTS_PLACE})
select place.id, place.name, place.created_at, {STORED},
    (select max(open) from open where open.partition = place.id),
    (select grp from open where open.partition = place.id order by open desc limit 1),
    (select count(*) from dead_letters where dead_letters.partition = place.id),
    (select count(*) from retries where retries.partition = place.id and retries.attempts > 0)
    + (select count(*) from exceptions where exceptions.partition = place.id and exceptions.attempts > 0),
    (select created_at from messages where messages.partition = place.id and offset > place.floor
        order by offset limit 1),
    (select created_at from messages where messages.partition = place.id and offset > place.floor
        order by offset desc limit 1)
from page as place
order by place.name
"""

# When the first unsettled message was created: the ranges beyond the cursor are few, the messages in them may be many.
OLDEST = """
(select created_at from messages as message
where message.partition = {partition} and message.offset > {cursor}
  and not exists (select 1 from ranges where ranges.grp = {grp} and ranges.partition = {partition}
                  and first <= message.offset and last >= message.offset)
  and (message.owner is null or message.owner = {grp})
order by message.offset limit 1)
"""
"""The same in a shared group: the lowest offset of all lanes and exceptions, for times never decrease with it."""
OLDEST_SHARED = f"""
(select created_at from messages where partition = {{partition}} and offset = (select min(offset) from (
    select (select offset from messages where partition = {{partition}}
        and offset > max({{cursor}}, ifnull((select cursor from lanes
            where lanes.grp = {{grp}} and lanes.partition = {{partition}} and priority = 0), 0))
        and priority = 0 and deliver_at is null and owner is null order by offset limit 1) as offset
    union all
    select (select offset from messages as message indexed by messages_priority
        where message.partition = {{partition}} and message.priority = level.value and message.priority > 0
          and deliver_at is null and owner is null and offset > max({{cursor}}, ifnull(lane.cursor, 0))
        order by offset limit 1)
    from {PRIORITIES} as level
    left join lanes as lane
        on lane.grp = {{grp}} and lane.partition = {{partition}} and lane.priority = level.value
    union all
    select (select min(offset) from messages as message indexed by messages_delayed
        where message.partition = {{partition}} and message.priority = level.value and deliver_at is not null
          and (deliver_at, offset) > (ifnull(lane.due, 0), ifnull(lane.due_offset, 0)) and offset > {{cursor}})
    from {PRIORITIES} as level
    left join lanes as lane
        on lane.grp = {{grp}} and lane.partition = {{partition}} and lane.priority = level.value
    union all
    select min(offset) from exceptions where exceptions.grp = {{grp}} and exceptions.partition = {{partition}}
)))
"""
_HERE = {"partition": "open.partition", "cursor": "open.cursor", "grp": "open.grp"}
OLDEST_OPEN = f"iif(open.shared, {OLDEST_SHARED.format(**_HERE)}, {OLDEST.format(**_HERE)})"
"""When the first message was created that a row of `open` has."""

_BEHIND = f"""
with chosen as ({_CHOSEN}), open as materialized ({_OPEN})
select grp, sum(open), count(*), min({OLDEST_OPEN}) from open where open > 0 group by grp
"""
_TRACKS = f"""
with chosen as ({_CHOSEN} {{named}} order by queues.name, place.name, groups.id limit iif(?3 is null, ?4, -1)),
open as materialized ({_OPEN})
select * from (select *, iif(open > 0, {OLDEST_OPEN}, null) as oldest from open)
where ?3 is null or oldest <= ?3
order by queue, name, grp limit ?4
"""
_ALL_TRACKS = _TRACKS.format(named="")
_NAMED_TRACKS = _TRACKS.format(named="and place.name in (select value from json_each(?5))")
_decode_limits = msgspec.json.Decoder(Limits).decode
_encode_names = msgspec.json.Encoder().encode


def partition_stats(
    connection: apsw.Connection,
    leases: LeaseView,
    codec: IdCodec,
    queue: str,
    search: str | None,
    limit: int,
    offset: int,
) -> list[PartitionStats]:
    """A page of a queue's partitions, with counts."""
    page = []
    for row in rows_of(connection, _PARTITIONS, queue, search, limit, offset):
        partition, name, created_at, total, open_, group, dead, failed, oldest, newest = row
        processing = 0 if group is None else leases.held_in(group, partition)
        counts = counts_from(total, total if open_ is None else open_, processing, failed, dead)
        page.append(
            PartitionStats(
                id=codec.encode(partition, 0),
                name=name,
                created_at=created_at,
                counts=counts,
                oldest=oldest,
                newest=newest,
            )
        )
    return page


def counts_from(total: int, open_: int, processing: int, failed: int, dead: int) -> Counts:
    """Messages by state, from what is stored and what a group has open, holds and has failed at."""
    return Counts(
        total=total,
        pending=max(0, open_ - processing),
        processing=processing,
        completed=max(0, total - open_ - dead),
        failed=failed,
        dead_letter=dead,
    )


def track_stats(
    connection: apsw.Connection,
    leases: LeaseView,
    codec: IdCodec,
    group: str | None,
    queue: str | None,
    created_before: int | None,
    limit: int,
    partitions: Sequence[str] | None = None,
) -> list[TrackStats]:
    """Places of groups in partitions; those with something open that was created before a time, if one is given."""
    stats = []
    sql = _ALL_TRACKS if partitions is None else _NAMED_TRACKS
    names = () if partitions is None else (_encode_names(partitions).decode(),)
    for row in rows_of(connection, sql, queue, group, created_before, limit, *names):
        queue_name, group_id, group_name, partition, name, cursor, settled_at, open_, _, oldest = row
        lease = leases.lease_of(group_id, partition)
        stats.append(
            TrackStats(
                group=group_name,
                queue=queue_name,
                partition=name,
                partition_id=codec.encode(partition, 0),
                cursor=cursor,
                lag=open_,
                oldest_waiting=oldest,
                last_settled=settled_at,
                lease_id=None if lease is None else lease[0],
                lease_expires_at=None if lease is None else lease[1],
            )
        )
    return stats


def group_stats(
    connection: apsw.Connection, leases: LeaseView, group: str | None, queue: str | None
) -> list[GroupStats]:
    """Groups, one entry per (group, queue)."""
    totals: dict[int, tuple[int, int, int | None]] = {
        row[0]: (row[1], row[2], row[3]) for row in rows_of(connection, _BEHIND, queue, group)
    }
    sql = """
        select id, queue, name, mode, subscription, since, paused, created_at, last_seen, limits from groups
        where (?1 is null or name = ?1) and (?2 is null or queue = ?2) order by name, queue
    """
    stats = []
    for row in rows_of(connection, sql, group, queue):
        lag, lagging, oldest = totals.get(row[0], (0, 0, None))
        stats.append(
            GroupStats(
                group=row[2],
                queue=row[1],
                mode=row[3],
                subscription=Subscription(row[4], row[5]),
                created_at=row[7],
                last_seen=row[8],
                paused=bool(row[6]),
                lag=lag,
                partitions_with_lag=lagging,
                oldest_waiting=oldest,
                leases=leases.leases_of_group(row[0]),
                in_flight=leases.held_by_group(row[0]),
                limits=_decode_limits(row[9]),
            )
        )
    return stats
