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

-- Messages are in append order, with an index on (partition, offset). Clustering by partition would double the cost of a
-- push. Rare attributes (trace ids, times to live) share the column extra. Priority, delivery time and owner have
-- columns, with partial indexes that leave out plain messages. The payload is the last column, so that reads of other
-- columns skip it. A push writes only its messages: the tail of a partition is the highest offset in the index, and
-- partitions.tail keeps it only where messages were removed. Messages at or below partitions.floor are removed, even
-- while collect has not deleted their rows.
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
