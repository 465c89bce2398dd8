"""Rows between SQL and Python, and SQL expressions that several queries share."""

from __future__ import annotations

from typing import NamedTuple, cast

import msgspec

# `at` has the columns `POSITION`.


TAIL = "max(partition.tail, ifnull((select max(offset) from messages where messages.partition = partition.id), 0))"
"""A partition's last offset."""

LAST_CREATED = """
ifnull((select created_at from messages where messages.partition = partition.id order by offset desc limit 1), 0)
"""
"""When a partition's last message was created."""

CURSOR = """
max(partition.floor, ifnull(position.cursor,
    case when groups.since is null or partition.id > groups.highest_partition then 0 else ifnull(
        (select offset from messages where messages.partition = partition.id and created_at <= groups.since
         order by offset desc limit 1), 0) end))
"""
"""Up to where a group is done with a partition; where it has not been yet, where it will start."""

WANTS_PARTITION = f"""
(position.cursor is not null or groups.since is null or partition.id > groups.highest_partition
    or {LAST_CREATED} > groups.since)
"""
"""Whether a group has anything to do with a partition: not when it started after the partition's end."""

POSITION = f"""
groups.id as grp, groups.mode = 'shared' as shared, partition.id as partition, position.cursor is not null as tracked,
{TAIL} as tail, {CURSOR} as cursor
"""
"""The columns of `at`: where a group stands in a partition. What follows reads them often, so materialize them."""

_ORDERED_OPEN = """
(at.tail - at.cursor
- ifnull((select sum(last - first + 1) from ranges
          where ranges.grp = at.grp and ranges.partition = at.partition and first > at.cursor), 0)
- iif(at.tracked, 0, ifnull((select sum(last - first + 1) from gaps
          where gaps.partition = at.partition and gaps.first > at.cursor and gaps.owner != at.grp), 0))
+ (select count(*) from requeued where requeued.grp = at.grp and requeued.partition = at.partition))
"""
"""Gaps are among the ranges of those with a position."""

PRIORITIES = "json_each('[0,1,2,3,4,5,6,7,8,9]')"
_HAS_DELAYED = """
exists (select 1 from messages indexed by messages_delayed
    where messages.partition = {partition} and deliver_at is not null)
"""
HAS_LANES = f"""
({_HAS_DELAYED.format(partition="{partition}")} or exists (select 1 from messages indexed by messages_priority
    where messages.partition = {{partition}} and priority > 0 and deliver_at is null and owner is null))
"""
"""Whether a partition has messages in lanes other than the first; most have none."""

_FIRST_LANE = """
max(at.cursor, ifnull((select cursor from lanes
    where lanes.grp = at.grp and lanes.partition = at.partition and lanes.priority = 0), 0))
"""
# What is in no other lane is in the first: so that can be counted along indexes alone.
_SHARED_OPEN = f"""
((select count(*) from messages where messages.partition = at.partition and offset > {_FIRST_LANE})
- (select count(*) from gaps where gaps.partition = at.partition and owner != 0 and first > {_FIRST_LANE})
+ (select count(*) from outstanding where outstanding.grp = at.grp and outstanding.partition = at.partition)
+ iif({HAS_LANES.format(partition="at.partition")}, (select sum(
    (select count(*) from messages indexed by messages_priority where messages.partition = at.partition
        and messages.priority = level.value and messages.priority > 0 and deliver_at is null and owner is null
        and offset > max(at.cursor, ifnull(lane.cursor, 0)))
    + (select count(*) from messages indexed by messages_delayed where messages.partition = at.partition
        and messages.priority = level.value and deliver_at is not null
        and (deliver_at, offset) > (ifnull(lane.due, 0), ifnull(lane.due_offset, 0)) and offset > at.cursor))
    from {PRIORITIES} as level
    left join lanes as lane on lane.grp = at.grp and lane.partition = at.partition and lane.priority = level.value)
- (select count(*) from messages indexed by messages_priority where messages.partition = at.partition
    and priority > 0 and deliver_at is null and owner is null and offset > {_FIRST_LANE})
- (select count(*) from messages indexed by messages_delayed where messages.partition = at.partition
    and deliver_at is not null and offset > {_FIRST_LANE}), 0))
"""

OPEN = f"iif(at.shared, {_SHARED_OPEN}, {_ORDERED_OPEN})"
"""How many messages of a partition a group has yet to settle."""

SHARED_OPEN_HERE = f"""
with at as materialized (
    select {POSITION} from groups
    join partitions as partition on partition.id = ?2
    left join positions as position on position.grp = groups.id and position.partition = partition.id
    where groups.id = ?1)
select {_SHARED_OPEN} from at
"""
"""The same for a shared group and a partition by their numbers."""

STORED = f"""
({TAIL} - partition.floor - ifnull((select sum(last - first + 1) from gaps
    where gaps.partition = partition.id and first > partition.floor and owner = 0), 0))
"""
"""How many messages a partition has."""

_DELAYED = f"""
iif({_HAS_DELAYED}, (select count(*) from {PRIORITIES} as level
 cross join messages as message indexed by messages_delayed
    on message.partition = {{partition}} and message.priority = level.value and deliver_at > :now
 where {{open}}), 0)
"""
_IN_LANES = """
message.offset > at.cursor and not exists (select 1 from lanes
    where lanes.grp = at.grp and lanes.partition = at.partition and lanes.priority = message.priority
      and (lanes.due, lanes.due_offset) >= (message.deliver_at, message.offset))
"""
_IN_RANGES = """
message.offset > at.cursor and not exists (select 1 from ranges
    where ranges.grp = at.grp and ranges.partition = at.partition
      and message.offset between ranges.first and ranges.last)
"""
SCHEDULED = f"""
iif(at.shared,
    (select count(*) from outstanding
     where outstanding.grp = at.grp and outstanding.partition = at.partition and available_at > :now)
    + {_DELAYED.format(partition="at.partition", open=_IN_LANES)},
    (select count(*) from retries
     where retries.grp = at.grp and retries.partition = at.partition and due > :now)
    + {_DELAYED.format(partition="at.partition", open=_IN_RANGES)})
"""
"""How many of these are scheduled (rule 28) at the time `:now`."""

DELAYED = _DELAYED.format(partition="partition.id", open="message.offset > partition.floor")
"""How many messages of a partition are delayed, for those who ask before there is a group."""


class Elsewhere(NamedTuple):
    """Where a payload is that is not in the tables: in a record of the log of the S3 engine."""

    record: int
    offset: int
    """Its first byte, from the beginning of the record's object."""
    length: int


class Extra(msgspec.Struct, omit_defaults=True, gc=False, frozen=True):
    """What few messages have. One-letter names: they are stored with every such message."""

    t: str | None = None
    """Trace id."""
    u: str | None = None
    """Producer (the subject of its token)."""
    s: bool = False
    """The payload is sealed."""
    b: tuple[int, ...] | None = None
    """Own retry schedule in milliseconds."""
    x: int = 0
    """Expires at."""
    k: tuple[str, ...] = ()
    """Keys that get the payload if it can't be delivered, encoded, in hex."""
    c: str | None = None
    """Trace context."""
    a: int = 0
    """The time of delivery by the system clock, if the producer gave one."""
    r: Elsewhere | None = None
    """Where the payload is, if not here: record, place in it, length. The column says `null` then."""


NO_EXTRA = Extra()


class MessageRow(msgspec.Struct, array_like=True, gc=False):
    """A message as a claim reads it; `fetch` is the number of the range that asked for it."""

    fetch: int
    offset: int
    created_at: int
    priority: int
    deliver_at: int | None
    owner: int | None
    """The only group that it is for: it is a requeued dead letter."""
    transaction_id: str | None
    extra: Extra | None
    payload: msgspec.Raw


decode_messages = msgspec.json.Decoder(list[MessageRow]).decode
decode_extra = msgspec.json.Decoder(Extra).decode
encode_extra = msgspec.json.Encoder().encode


def extra_of(text: str | None) -> Extra:
    """What the column `extra` says."""
    return NO_EXTRA if text is None else decode_extra(text)


def payload_of(payload: msgspec.Raw, extra: Extra | None) -> msgspec.Raw:
    """The payload of a row: what the column has, or an `Elsewhere`.

    The type does not say so on purpose. Only an engine that places payloads elsewhere ever gets one, and it puts the
    payload there before it answers: for everybody beyond it a payload is what it always was.
    """
    if extra is None or extra.r is None:
        return payload
    return cast("msgspec.Raw", extra.r)


def size_of(payload: msgspec.Raw, extra: Extra | None) -> int:
    """The length of a row's payload, wherever it is."""
    if extra is None or extra.r is None:
        return len(memoryview(payload))
    return extra.r.length


SELECT_MESSAGES = """
select cast('[' || group_concat(
    '[' || fetch || ',' || offset || ',' || created_at || ',' || priority || ',' || ifnull(deliver_at, 'null')
    || ',' || ifnull(owner, 'null') || ',' || ifnull(json_quote(transaction_id), 'null')
    || ',' || ifnull(extra, 'null') || ',' || payload || ']') || ']' as blob)
from (
    select wanted.key as fetch, message.*
    from json_each(?1) as wanted
    cross join messages as message indexed by messages_offset
    where message.partition = wanted.value ->> 0
      and message.offset between wanted.value ->> 1 and wanted.value ->> 2
)
"""
"""Messages of many (partition, first, last) ranges as one JSON text; rows of a range come in offset order."""
