"""The tables of the SQLite store, their migrations, and SQL expressions that queries share.

`messages` is in append order, with an index on (partition, offset). Clustering by partition would double the cost of a
push. Rare attributes (trace ids, times to live) share the column `extra`. Priority, delivery time and owner have
columns, with partial indexes that leave out plain messages. The payload is the last column, so that reads of other
columns skip it. A push writes only its messages: the tail of a partition is the highest offset in the index, and
`partitions.tail` keeps it only where messages were removed. Messages at or below `partitions.floor` are removed, even
while `collect` has not deleted their rows.
"""

from __future__ import annotations

import apsw

APPLICATION_ID = 0x4861726B  # "Hark"

MESSAGES = """
create table messages (
    seq integer primary key,
    partition integer not null,
    offset integer not null check (offset > 0),
    created_at integer not null,
    priority integer not null default 0,
    deliver_at integer,
    owner integer,
    transaction_id text,
    extra text,
    payload blob not null
);
create unique index messages_offset on messages (partition, offset);
create unique index messages_transaction on messages (partition, transaction_id) where transaction_id is not null;
-- The lanes of shared groups except the first. owner: a requeued dead letter, for one group only; it is in no lane.
create index messages_priority on messages (partition, priority, offset)
    where priority > 0 and deliver_at is null and owner is null;
create index messages_delayed on messages (partition, priority, deliver_at, offset) where deliver_at is not null;
"""

_VERSION_1 = (
    """
create table meta (key text primary key, value) without rowid;

create table queues (
    id integer primary key autoincrement,
    uid text not null unique,
    name text not null unique,
    namespace text not null,
    task text not null,
    options text not null check (json_valid(options)),
    paused integer not null default 0 check (paused in (0, 1)),
    created_at integer not null,
    expired integer not null default 0,
    discarded integer not null default 0
);

-- queue 0: the queue was deleted, and collect will remove the partition.
create table partitions (
    id integer primary key autoincrement,
    queue integer not null,
    name text not null,
    created_at integer not null,
    floor integer not null default 0 check (floor >= 0),
    tail integer not null default 0 check (tail >= floor),
    unique (queue, name)
);
"""
    + MESSAGES
    + """
-- By the name of the queue, because a group may pop before the queue exists.
create table groups (
    id integer primary key autoincrement,
    queue text not null,
    name text not null,
    mode text not null check (mode in ('ordered', 'shared')),
    subscription text not null check (subscription in ('all', 'new', 'timestamp')),
    since integer,
    highest_partition integer not null,
    paused integer not null default 0 check (paused in (0, 1)),
    created_at integer not null,
    last_seen integer not null,
    limits text not null default '{}' check (json_valid(limits)),
    unique (queue, name)
);

-- Groups that pop by namespace or task. They start at their first pop, also in queues that are created later.
-- id: the sessions of SQLite, which record changes for the S3 engine, need a primary key.
create table labels (
    id integer primary key,
    grp text not null,
    namespace text,
    task text,
    subscription text not null check (subscription in ('all', 'new', 'timestamp')),
    since integer,
    highest_partition integer not null
);
create unique index labels_key on labels (grp, ifnull(namespace, ''), ifnull(task, ''));

-- The position of a group in a partition. probe: messages up to that offset are delivered one at a time. In a shared
-- group the cursor is the start; lanes has what it passed since, and outstanding the unsettled messages among these.
create table positions (
    grp integer not null,
    partition integer not null,
    cursor integer not null check (cursor >= 0),
    probe integer not null default 0,
    settled_at integer,
    primary key (grp, partition)
) without rowid;
create index positions_partition on positions (partition);

-- Settled ranges beyond the cursor; disjoint and not adjacent.
create table ranges (
    grp integer not null,
    partition integer not null,
    first integer not null,
    last integer not null check (last >= first),
    primary key (grp, partition, first)
) without rowid;

-- Messages that used attempts, or wait for their next delivery.
create table retries (
    grp integer not null,
    partition integer not null,
    offset integer not null,
    attempts integer not null check (attempts >= 0),
    due integer not null,
    error text,
    primary key (grp, partition, offset)
) without rowid;

-- The cursors of a shared group over the messages of a priority: over plain ones by offset, over delayed ones by
-- delivery time and offset.
create table lanes (
    grp integer not null,
    partition integer not null,
    priority integer not null,
    cursor integer not null,
    due integer not null,
    due_offset integer not null,
    primary key (grp, partition, priority)
) without rowid;

-- Messages that a shared group has passed and not settled: in flight, or waiting for a retry.
-- requeued: a dead letter that was requeued.
create table outstanding (
    grp integer not null,
    partition integer not null,
    offset integer not null,
    available_at integer not null,
    attempts integer not null check (attempts >= 0),
    error text,
    requeued integer not null default 0,
    primary key (grp, partition, offset)
) without rowid;

-- Requeued dead letters, which are delivered before the rest of the partition. probe: messages are delivered one at a
-- time while a row has it.
create table requeued (
    grp integer not null,
    partition integer not null,
    offset integer not null,
    probe integer not null default 0 check (probe in (0, 1)),
    primary key (grp, partition, offset)
) without rowid;

-- Offsets above the floor without a message: removed ones, and for other groups those requeued for one group (owner).
-- Disjoint; those without an owner are not adjacent.
create table gaps (
    partition integer not null,
    first integer not null,
    last integer not null check (last >= first),
    owner integer not null default 0,
    primary key (partition, first)
) without rowid;

create table dead_letters (
    id integer primary key autoincrement,
    uid text not null unique,
    queue text not null,
    partition integer not null,
    partition_name text not null,
    grp text not null,
    offset integer not null,
    transaction_id text,
    created_at integer not null,
    priority integer not null,
    payload blob not null,
    extra text,
    attempts integer not null,
    error text not null,
    failed_at integer not null
);
create unique index dead_letters_offset on dead_letters (partition, offset, grp);
create index dead_letters_queue on dead_letters (queue, failed_at);

-- The key-value store. Encoded keys sort in key order.
create table kv (
    key blob primary key,
    value blob not null,
    version integer not null,
    expires_at integer,
    sealed_by text
) without rowid;
create index kv_expiry on kv (expires_at) where expires_at is not null;

create table traces (
    id integer primary key autoincrement,
    uid text not null unique,
    partition integer not null,
    offset integer not null,
    grp text not null,
    event text not null,
    data blob not null,
    created_at integer not null
);
create index traces_offset on traces (partition, offset);
create table trace_names (name text not null, trace integer not null, primary key (name, trace)) without rowid;
create index trace_names_trace on trace_names (trace);
"""
)

_VERSION_2 = """
-- The leases under which transactions completed messages, for as long as a consumer may repeat them (rule 12).
create table completions (
    grp integer not null,
    partition integer not null,
    offset integer not null,
    lease text not null,
    at integer not null,
    primary key (grp, partition, offset)
) without rowid;
create index completions_at on completions (at);
"""

_VERSION_3 = """
-- Messages with their own time to live, for retention.
create index messages_expiry on messages (extra ->> 'x') where extra ->> 'x' is not null;
"""

_VERSION_4 = """
-- Remaining tokens of the rate limit of a group in a partition, and when they were last filled; null: all.
alter table positions add column tokens real;
alter table positions add column filled_at integer not null default 0;
"""

# Step n migrates version n to version n + 1. Only append.
MIGRATIONS: tuple[str, ...] = (_VERSION_1, _VERSION_2, _VERSION_3, _VERSION_4)
CURRENT_VERSION = len(MIGRATIONS)


def version_of(connection: apsw.Connection) -> int:
    """The schema version of a database; 0 for a new one."""
    return int(connection.pragma("user_version"))


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
