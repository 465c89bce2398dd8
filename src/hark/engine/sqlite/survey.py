"""A look at every partition, in steps that each cost little: what waits where, and since when."""

from __future__ import annotations

import apsw

from hark.engine.sqlite.sql import CURSOR, OPEN, STORED, WANTS_PLACE
from hark.engine.sqlite.state import State
from hark.engine.sqlite.store import rows_of, scalar
from hark.engine.sqlite.views import OLDEST_OPEN
from hark.model import Census, Depth, Survey

Place = tuple[int, str]
"""Where a step ended: a queue's number and a partition's name."""

# The index on (queue, name) has the partitions of a queue beside each other. Queue 0 was deleted.
_STEP = """
with step as materialized (
    select * from partitions as place
    where (place.queue, place.name) > (?1, ?2) and place.queue > 0 order by place.queue, place.name limit ?3)
"""
_END = f"{_STEP} select count(*), max(queue), (select name from step order by queue desc, name desc limit 1) from step"
_STORED = f"""
{_STEP}
select queues.name, null, count(*), sum({STORED}),
    min(iif(exists (select 1 from groups where groups.queue = queues.name), null,
        (select created_at from messages where messages.partition = place.id and offset > place.floor
         order by offset limit 1)))
from step as place cross join queues on queues.id = place.queue
group by queues.id order by queues.id
"""
_OPEN = f"""
{_STEP},
open as materialized (
    select queues.id as queue, queues.name as queue_name, groups.id as grp, groups.name as group_name,
        groups.mode = 'shared' as shared, place.id as partition, {CURSOR} as cursor, {OPEN} as open
    from step as place
    cross join queues on queues.id = place.queue
    cross join groups on groups.queue = queues.name
    left join tracks as track on track.grp = groups.id and track.partition = place.id
    where {WANTS_PLACE})
select queue_name, group_name, count(*), sum(open), min(iif(open > 0, {OLDEST_OPEN}, null))
from open group by queue, grp order by queue
"""


def survey(connection: apsw.Connection, after: Place, limit: int) -> Survey:
    """What is stored and open in the partitions after a place, as many of them as one step takes."""
    [(partitions, queue, name)] = rows_of(connection, _END, *after, limit)
    stored = [Depth(*row) for row in rows_of(connection, _STORED, *after, limit)]
    opened = [Depth(*row) for row in rows_of(connection, _OPEN, *after, limit)]
    order = {depth.queue: number for number, depth in enumerate(stored)}
    depths = sorted((*stored, *(one for one in opened if one.queue in order)), key=lambda one: order[one.queue])
    return Survey(depths, (queue, name) if partitions == limit else None)


def census(connection: apsw.Connection, held: dict[tuple[str, str], int]) -> Census:
    """How many queues and dead letters there are."""
    return Census(
        int(scalar(connection, "select count(*) from queues")),
        dict(rows_of(connection, "select queue, count(*) from dead_letters group by queue")),
        held,
    )


def held_messages(state: State) -> dict[tuple[str, str], int]:
    """How many messages are on leases, by queue and group."""
    held: dict[tuple[str, str], int] = {}
    for lease in state.leases.values():
        for track in lease.parts:
            key = (track.group.queue_name, track.group.name)
            held[key] = held.get(key, 0) + len(track.live_offsets(lease))
    return {key: number for key, number in held.items() if number}
