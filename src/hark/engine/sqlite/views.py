"""What administrators see: counts of queues, partitions and groups. Read beside the writer, never in its way."""

from __future__ import annotations

import apsw
import msgspec

from hark.engine.sqlite.leases import LeaseView
from hark.engine.sqlite.sql import CURSOR, OPEN, PRIORITIES, STORED, WANTS_PLACE
from hark.engine.sqlite.store import rows_of, scalar
from hark.ids import IdCodec
from hark.model import Counts, GroupStats, Limits, PartitionStats, QueueInfo, QueueStats, Subscription, TrackStats

# One row per partition and group of the chosen queues: where the group stands and what it has open.
_OPEN = f"""
select queues.name as queue, groups.id as grp, groups.name as group_name, place.id as partition, place.name as name,
    {CURSOR} as cursor, track.settled_at as settled_at, {OPEN} as open, groups.mode = 'shared' as shared
from groups
join queues on queues.name = groups.queue
join partitions as place on place.queue = queues.id
left join tracks as track on track.grp = groups.id and track.partition = place.id
where (?1 is null or queues.name = ?1) and {WANTS_PLACE}
"""

_QUEUES = f"""
with open as materialized ({_OPEN}),
worst as (select queue, grp, max(open) as open from
    (select queue, grp, sum(open) as open from open group by queue, grp) group by queue),
sizes as (select place.queue as queue, count(*) as partitions, sum({STORED}) as total
    from partitions as place where place.queue != 0 group by place.queue)
select queues.name, ifnull(sizes.partitions, 0), ifnull(sizes.total, 0), worst.grp,
    ifnull(worst.open, ifnull(sizes.total, 0)), queues.expired, queues.discarded,
    (select count(*) from dead_letters where dead_letters.queue = queues.name),
    (select count(*) from retries join groups on groups.id = retries.grp
        where groups.queue = queues.name and retries.attempts > 0)
    + (select count(*) from exceptions join groups on groups.id = exceptions.grp
        where groups.queue = queues.name and exceptions.attempts > 0)
from queues
left join sizes on sizes.queue = queues.id
left join worst on worst.queue = queues.name
where ?1 is null or queues.name = ?1
order by queues.id desc
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

# The first unsettled message: the ranges beyond the cursor are few, the messages in them may be many.
_OLDEST = """
select created_at from messages as message
where message.partition = ?1 and message.offset > ?2
  and not exists (select 1 from ranges where grp = ?3 and ranges.partition = ?1
                  and first <= message.offset and last >= message.offset)
  and (message.owner is null or message.owner = ?3)
order by message.offset limit 1
"""

# The lowest offset of all lanes and exceptions: times never decrease with the offset.
_OLDEST_SHARED = f"""
select created_at from messages where partition = ?1 and offset = (select min(offset) from (
    select (select offset from messages where partition = ?1
        and offset > max(?2, ifnull((select cursor from lanes where grp = ?3 and partition = ?1 and priority = 0), 0))
        and priority = 0 and deliver_at is null and owner is null order by offset limit 1) as offset
    union all
    select (select offset from messages as message indexed by messages_priority
        where message.partition = ?1 and message.priority = level.value and message.priority > 0
          and deliver_at is null and owner is null and offset > max(?2, ifnull(lane.cursor, 0))
        order by offset limit 1)
    from {PRIORITIES} as level
    left join lanes as lane on lane.grp = ?3 and lane.partition = ?1 and lane.priority = level.value
    union all
    select (select min(offset) from messages as message indexed by messages_delayed
        where message.partition = ?1 and message.priority = level.value and deliver_at is not null
          and (deliver_at, offset) > (ifnull(lane.due, 0), ifnull(lane.due_offset, 0)) and offset > ?2)
    from {PRIORITIES} as level
    left join lanes as lane on lane.grp = ?3 and lane.partition = ?1 and lane.priority = level.value
    union all
    select min(offset) from exceptions where grp = ?3 and partition = ?1
))
"""
_decode_limits = msgspec.json.Decoder(Limits).decode


def queue_stats(
    connection: apsw.Connection, leases: LeaseView, infos: dict[str, QueueInfo], name: str | None
) -> list[QueueStats]:
    """Queues with counts, newest first."""
    stats = []
    for queue, partitions, total, group, open_, expired, discarded, dead, failed in rows_of(connection, _QUEUES, name):
        info = infos.get(queue)
        if info is None:
            continue
        processing = 0 if group is None else leases.held_by_group(group)
        counts = _counts(int(total), int(open_), processing, failed, dead)
        stats.append(QueueStats(info=info, partitions=partitions, counts=counts, expired=expired, discarded=discarded))
    return stats


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
        counts = _counts(total, total if open_ is None else open_, processing, failed, dead)
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


def _counts(total: int, open_: int, processing: int, failed: int, dead: int) -> Counts:
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
) -> list[TrackStats]:
    """Places of groups in partitions; those with something open that was created before a time, if one is given."""
    stats = []
    sql = f"select * from ({_OPEN}) where (?2 is null or group_name = ?2) order by queue, name"
    for queue_name, group_id, group_name, partition, name, cursor, settled_at, open_, shared in rows_of(
        connection, sql, queue, group
    ):
        sought = _OLDEST_SHARED if shared else _OLDEST
        oldest = scalar(connection, sought, partition, cursor, group_id) if open_ else None
        if created_before is not None and (oldest is None or oldest > created_before):
            continue
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
        if len(stats) >= limit:
            break
    return stats


def group_stats(
    connection: apsw.Connection, leases: LeaseView, group: str | None, queue: str | None
) -> list[GroupStats]:
    """Groups, one entry per (group, queue)."""
    totals: dict[int, tuple[int, int, int | None]] = {}
    for _, group_id, _, partition, _, cursor, _, open_, shared in rows_of(
        connection,
        f"select * from ({_OPEN}) where (?2 is null or group_name = ?2) and open > 0",
        queue,
        group,
    ):
        lag, lagging, oldest = totals.get(group_id, (0, 0, None))
        waiting = scalar(connection, _OLDEST_SHARED if shared else _OLDEST, partition, cursor, group_id)
        if waiting is not None and (oldest is None or waiting < oldest):
            oldest = waiting
        totals[group_id] = (lag + open_, lagging + 1, oldest)
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
