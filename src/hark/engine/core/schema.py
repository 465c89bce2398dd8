"""The tables of the SQLite store (see `migrations`), and SQL expressions that queries share."""

from __future__ import annotations

from importlib.resources import files

import apsw

from hark.errors import StoreUnusable

APPLICATION_ID = 0x4861726B  # "Hark"

MIGRATIONS = tuple(
    step.read_text() for step in sorted((files(__package__) / "migrations").iterdir(), key=lambda step: step.name)
)
"""Step n migrates version n to version n + 1."""
CURRENT_VERSION = len(MIGRATIONS)


def version_of(connection: apsw.Connection) -> int:
    """The schema version of a database; 0 for a new one."""
    return int(connection.pragma("user_version"))


def refuse_newer(name: object, version: int) -> None:
    """Raise if a newer Hark made a database."""
    if version > CURRENT_VERSION:
        text = f"{name} has schema version {version}, but this Hark supports up to {CURRENT_VERSION}; upgrade Hark"
        raise StoreUnusable(text)


def distrust(connection: apsw.Connection) -> None:
    """Restrict what the schema of an untrusted database can run or change."""
    connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
    connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)


def migrate(connection: apsw.Connection, steps: tuple[str, ...] = MIGRATIONS) -> None:
    """Migrate a database to the current version, each step in its own transaction."""
    for version in range(version_of(connection), len(steps)):
        with connection:
            for _ in connection.execute(steps[version]):
                pass
            connection.pragma("application_id", APPLICATION_ID)
            connection.pragma("user_version", version + 1)


# Expressions that several queries share. `partition` is a row of `partitions`; `at` has the columns `POSITION`.

TAIL = "max(partition.tail, ifnull((select max(offset) from messages where messages.partition = partition.id), 0))"
"""The last offset of a partition."""

LAST_CREATED = """
ifnull((select created_at from messages where messages.partition = partition.id order by offset desc limit 1), 0)
"""
"""The creation time of the last message of a partition."""

CURSOR = """
max(partition.floor, ifnull(position.cursor,
    case when groups.since is null or partition.id > groups.highest_partition then 0 else ifnull(
        (select offset from messages where messages.partition = partition.id and created_at <= groups.since
         order by offset desc limit 1), 0) end))
"""
"""The cursor of a group in a partition; without a position, where it will start."""

WANTS_PARTITION = f"""
(position.cursor is not null or groups.since is null or partition.id > groups.highest_partition
    or {LAST_CREATED} > groups.since)
"""
"""Whether a group needs a partition. It does not if it started after the last message."""

POSITION = f"""
groups.id as grp, groups.mode = 'shared' as shared, partition.id as partition, position.cursor is not null as tracked,
{TAIL} as tail, {CURSOR} as cursor
"""
"""The columns of `at`: the cursor of a group in a partition. Materialize them, because they are read often."""

_ORDERED_OPEN = """
(at.tail - at.cursor
- ifnull((select sum(last - first + 1) from ranges
          where ranges.grp = at.grp and ranges.partition = at.partition and first > at.cursor), 0)
- iif(at.tracked, 0, ifnull((select sum(last - first + 1) from gaps
          where gaps.partition = at.partition and gaps.first > at.cursor and gaps.owner != at.grp), 0))
+ (select count(*) from requeued where requeued.grp = at.grp and requeued.partition = at.partition))
"""
"""The ranges of a position include the gaps."""

PRIORITIES = "json_each('[0,1,2,3,4,5,6,7,8,9]')"
_HAS_DELAYED = """
exists (select 1 from messages indexed by messages_delayed
    where messages.partition = {partition} and deliver_at is not null)
"""
HAS_LANES = f"""
({_HAS_DELAYED.format(partition="{partition}")} or exists (select 1 from messages indexed by messages_priority
    where messages.partition = {{partition}} and priority > 0 and deliver_at is null and owner is null))
"""
"""Whether a partition has messages in lanes other than the first. Most have none."""

_FIRST_LANE = """
max(at.cursor, ifnull((select cursor from lanes
    where lanes.grp = at.grp and lanes.partition = at.partition and lanes.priority = 0), 0))
"""
# Messages that are in no other lane are in the first, so they can be counted with indexes.
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
"""Number of unsettled messages of a group in a partition."""

SHARED_OPEN_HERE = f"""
with at as materialized (
    select {POSITION} from groups
    join partitions as partition on partition.id = ?2
    left join positions as position on position.grp = groups.id and position.partition = partition.id
    where groups.id = ?1)
select {_SHARED_OPEN} from at
"""
"""The same for one shared group and one partition, by number."""

STORED = f"""
({TAIL} - partition.floor - ifnull((select sum(last - first + 1) from gaps
    where gaps.partition = partition.id and first > partition.floor and owner = 0), 0))
"""
"""Number of stored messages of a partition."""

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
"""Number of these that are scheduled (rule 28) at the time `:now`."""

DELAYED = _DELAYED.format(partition="partition.id", open="message.offset > partition.floor")
"""Number of delayed messages of a partition, for queues without groups."""
