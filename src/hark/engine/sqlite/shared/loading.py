"""Loads places of shared groups, and finds out where they have work."""

from __future__ import annotations

from collections.abc import Sequence

import apsw
import msgspec

from hark.engine.sqlite.shared.entry import Entry
from hark.engine.sqlite.shared.lanes import NEVER, DelayedLane, PlainLane
from hark.engine.sqlite.shared.track import SharedTrack
from hark.engine.sqlite.state import Group, Partition
from hark.engine.sqlite.store import scalar

PRIORITIES = "json_each('[0,1,2,3,4,5,6,7,8,9]')"

# What is behind a lane's position, in the partition `place` for the group ?1. Whoever includes these names the tables
# `level` (a priority), `lane` (its row in lanes, or none) and `track` (the group's row in tracks, or none).
_LOWER = "max(place.floor, ifnull(track.cursor, wanted.value ->> 1))"
FIRST_PLAIN = f"""
(select message.offset from messages as message indexed by messages_priority
 where message.partition = place.id and message.priority = level.value
   and message.offset > max({_LOWER}, ifnull(lane.cursor, 0))
   and message.priority > 0 and message.deliver_at is null and message.owner is null
 order by message.offset limit 1)
"""
FIRST_DELAYED = f"""
(select message.deliver_at from messages as message indexed by messages_delayed
 where message.partition = place.id and message.priority = level.value and message.deliver_at is not null
   and (message.deliver_at, message.offset) > (ifnull(lane.due, 0), ifnull(lane.due_offset, 0))
   and message.offset > {_LOWER}
 order by message.deliver_at, message.offset limit 1)
"""
_LANES = f"""
select json_group_array(json_array(level.value, ifnull(lane.cursor, 0), ifnull(lane.due, 0),
    ifnull(lane.due_offset, 0), {FIRST_PLAIN} is not null, ifnull({FIRST_DELAYED}, 0)))
from {PRIORITIES} as level
left join lanes as lane on lane.grp = ?1 and lane.partition = place.id and lane.priority = level.value
"""
_TRACKS = f"""
select json_group_array(json_array(
    place.id,
    iif(track.cursor is null, null, json_array(track.cursor, track.settled_at)),
    json(({_LANES})),
    json((select json_group_array(json_array(
            exceptions.offset, available_at, attempts, error, front, ifnull(created_at, 0), ifnull(priority, 0)))
        from exceptions
        left join messages on messages.partition = exceptions.partition and messages.offset = exceptions.offset
        where exceptions.grp = ?1 and exceptions.partition = place.id))))
from json_each(?2) as wanted
join partitions as place on place.id = wanted.value ->> 0
left join tracks as track on track.grp = ?1 and track.partition = place.id
"""

# Partitions where something may be ready, or will be: the highest priority that is, and whether time may raise that.
DISCOVER = f"""
select json_group_array(json_array(id, found ->> 0, found ->> 1)) from (
    select place.id, (
        select iif(max(priority) is null, null, json_array(max(priority), max(later))) from (
            select iif({FIRST_PLAIN} is not null or {FIRST_DELAYED} <= ?5, level.value, 0) as priority,
                {FIRST_DELAYED} is not null as later
            from {PRIORITIES} as level
            left join lanes as lane on lane.grp = ?1 and lane.partition = place.id and lane.priority = level.value
            where {FIRST_PLAIN} is not null or {FIRST_DELAYED} is not null
            union all
            select 0, 0 where max(place.tail,
                ifnull((select max(offset) from messages where messages.partition = place.id), 0))
                > max(place.floor, ifnull(track.cursor, 0), ifnull((select cursor from lanes
                    where grp = ?1 and lanes.partition = place.id and lanes.priority = 0), 0))
            union all
            select iif(available_at <= ?5, messages.priority, 0), available_at > ?5 from exceptions
            join messages on messages.partition = place.id and messages.offset = exceptions.offset
            where exceptions.grp = ?1 and exceptions.partition = place.id
        )) as found
    from partitions as place
    cross join json_each('[[0, 0]]') as wanted
    left join tracks as track on track.grp = ?1 and track.partition = place.id
    where place.queue = ?2
      and (track.cursor is not null or ?3 is null or place.id > ?4
           or ifnull((select created_at from messages where messages.partition = place.id
                      order by offset desc limit 1), 0) > ?3)
) where found is not null
"""


class Row(msgspec.Struct, array_like=True):
    """A place as it is read."""

    partition: int
    track: tuple[int, int | None] | None
    lanes: list[tuple[int, int, int, int, int, int]]
    entries: list[tuple[int, int, int, str | None, int, int, int]]


_decode_rows = msgspec.json.Decoder(list[Row]).decode
_encode = msgspec.json.Encoder().encode


def load(connection: apsw.Connection, group: Group, places: Sequence[tuple[int, int]]) -> list[Row]:
    """The rows of a group's places in partitions, each with where it begins if it is new."""
    return _decode_rows(scalar(connection, _TRACKS, group.id, _encode(places).decode()))


def make_track(group: Group, partition: Partition, row: Row, base: int) -> SharedTrack:
    """A place as it is stored; `base` is where it begins if it is new."""
    track = SharedTrack(group, partition, base if row.track is None else row.track[0])
    if row.track is not None:
        track.settled_at = row.track[1]
    for priority, cursor, due, due_offset, more, next_due in row.lanes:
        if priority == 0 or cursor or more:
            lane = track.plain[priority] = PlainLane(priority, cursor)
            lane.more = bool(more) if priority else max(cursor, track.lower) < partition.tail
        if due or next_due:
            late = track.delayed[priority] = DelayedLane(priority, (due, due_offset))
            late.next_due = next_due or NEVER
    for offset, available_at, attempts, error, front, created_at, priority in row.entries:
        entry = Entry(offset, priority, created_at, available_at)
        entry.attempts, entry.error, entry.front, entry.saved = attempts, error, bool(front), True
        track.add(entry)
    return track
