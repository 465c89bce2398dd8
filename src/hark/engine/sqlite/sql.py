"""Expressions that several queries share. `place` is a row of partitions, `track` of tracks, `groups` of groups."""

from __future__ import annotations

TAIL = "max(place.tail, ifnull((select max(offset) from messages where messages.partition = place.id), 0))"
"""A partition's last offset."""

LAST_CREATED = """
ifnull((select created_at from messages where messages.partition = place.id order by offset desc limit 1), 0)
"""
"""When a partition's last message was created."""

CURSOR = """
max(place.floor, ifnull(track.cursor,
    case when groups.since is null or place.id > groups.highest_partition then 0 else ifnull(
        (select offset from messages where messages.partition = place.id and created_at <= groups.since
         order by offset desc limit 1), 0) end))
"""
"""Up to where a group is done with a partition; where it has not been yet, where it will start."""

WANTS_PLACE = f"""
(track.cursor is not null or groups.since is null or place.id > groups.highest_partition
    or {LAST_CREATED} > groups.since)
"""
"""Whether a group has anything to do with a partition: not when it started after the partition's end."""

_ORDERED_OPEN = f"""
({TAIL} - {CURSOR}
- ifnull((select sum(last - first + 1) from ranges
          where ranges.grp = groups.id and ranges.partition = place.id and first > {CURSOR}), 0)
- case when track.cursor is null
    then ifnull((select sum(last - first + 1) from holes
          where holes.partition = place.id and holes.first > {CURSOR} and holes.owner != groups.id), 0) else 0 end
+ (select count(*) from fronts where fronts.grp = groups.id and fronts.partition = place.id))
"""
"""Holes are among the ranges of those with a track."""

PRIORITIES = "json_each('[0,1,2,3,4,5,6,7,8,9]')"
_FIRST_LANE = f"""
max({CURSOR}, ifnull((select cursor from lanes
    where lanes.grp = groups.id and lanes.partition = place.id and lanes.priority = 0), 0))
"""
# What is in no other lane is in the first: so that can be counted along indexes alone.
_SHARED_OPEN = f"""
((select count(*) from messages where messages.partition = place.id and offset > {_FIRST_LANE})
- (select count(*) from messages indexed by messages_priority where messages.partition = place.id
    and priority > 0 and deliver_at is null and owner is null and offset > {_FIRST_LANE})
- (select count(*) from messages indexed by messages_delayed where messages.partition = place.id
    and deliver_at is not null and offset > {_FIRST_LANE})
- (select count(*) from holes where holes.partition = place.id and owner != 0 and first > {_FIRST_LANE})
+ (select sum(
    (select count(*) from messages indexed by messages_priority where messages.partition = place.id
        and messages.priority = level.value and messages.priority > 0 and deliver_at is null and owner is null
        and offset > max({CURSOR}, ifnull(lane.cursor, 0)))
    + (select count(*) from messages indexed by messages_delayed where messages.partition = place.id
        and messages.priority = level.value and deliver_at is not null
        and (deliver_at, offset) > (ifnull(lane.due, 0), ifnull(lane.due_offset, 0)) and offset > {CURSOR}))
   from {PRIORITIES} as level
   left join lanes as lane on lane.grp = groups.id and lane.partition = place.id and lane.priority = level.value)
+ (select count(*) from exceptions where exceptions.grp = groups.id and exceptions.partition = place.id))
"""

OPEN = f"case groups.mode when 'shared' then {_SHARED_OPEN} else {_ORDERED_OPEN} end"
"""How many messages of a partition a group has yet to settle."""

SHARED_OPEN_HERE = f"""
select {_SHARED_OPEN} from groups
join partitions as place on place.id = ?2
left join tracks as track on track.grp = groups.id and track.partition = place.id
where groups.id = ?1
"""
"""The same for a shared group and a partition by their numbers."""

STORED = f"""
({TAIL} - place.floor - ifnull((select sum(last - first + 1) from holes
    where holes.partition = place.id and first > place.floor and owner = 0), 0))
"""
"""How many messages a partition has."""
