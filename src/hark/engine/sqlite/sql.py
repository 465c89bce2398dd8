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

OPEN = f"""
({TAIL} - {CURSOR}
- ifnull((select sum(last - first + 1) from ranges
          where ranges.grp = groups.id and ranges.partition = place.id and first > {CURSOR}), 0)
- case when track.cursor is null
    then (select count(*) from holes
          where holes.partition = place.id and holes.offset > {CURSOR} and holes.owner != groups.id) else 0 end
+ (select count(*) from fronts where fronts.grp = groups.id and fronts.partition = place.id))
"""
"""How many messages of a partition a group has yet to settle. Holes are among the ranges of those with a track."""
