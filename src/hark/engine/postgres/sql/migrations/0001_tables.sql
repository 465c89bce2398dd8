-- The tables of the PostgreSQL store.
--
-- Times are microseconds since the epoch, durations say their unit. Rows that change with every push, pop or
-- settlement (partitions, positions) have room on their page and no index on what changes: they are updated in place
-- (HOT), and vacuum leaves little behind. Messages and leases are only ever inserted; they leave when the child table
-- that they are in is emptied (rotate.sql). No table is ever rewritten or truncated that an older snapshot may read.
--
-- Plans are kept for long, and may have been made while a table was empty and all its indexes looked alike. So no two
-- indexes of a table serve the same condition, unless both serve it well: where they would, one is on an expression.

create table hark.meta (
    key text primary key,
    value bigint not null
);

create table hark.queues (
    id integer generated always as identity primary key,
    uid uuid not null default gen_random_uuid() unique,
    name text collate "C" not null unique check (octet_length(name) between 1 and 255),
    namespace text collate "C" not null,
    task text collate "C" not null,
    paused boolean not null default false,
    created_at bigint not null,
    created_floor bigint not null default 0,
    changed_bucket integer not null default 0,
    lease_time integer not null default 300 check (lease_time > 0),
    retry_limit integer not null default 3 check (retry_limit >= 0),
    retry_delay bigint not null default 0 check (retry_delay >= 0),
    retry_multiplier double precision not null default 1,
    retry_max_delay bigint not null default 3600000 check (retry_max_delay >= 0),
    delayed_processing integer not null default 0 check (delayed_processing >= 0),
    window_buffer integer not null default 0 check (window_buffer >= 0),
    priority integer not null default 0,
    max_size bigint not null default 0 check (max_size >= 0),
    ttl bigint not null default 0 check (ttl >= 0),
    dead_letter_queue boolean not null default true,
    dlq_after_max_retries boolean not null default true,
    retention_enabled boolean not null default false,
    retention_seconds bigint not null default 0 check (retention_seconds >= 0),
    completed_retention_seconds bigint not null default 0 check (completed_retention_seconds >= 0),
    max_wait_time_seconds bigint not null default 0 check (max_wait_time_seconds >= 0),
    dead_letter_retention_seconds bigint not null default 0 check (dead_letter_retention_seconds >= 0),
    encryption_enabled boolean not null default false,
    max_in_flight integer not null default 0 check (max_in_flight >= 0),
    rate_limit double precision not null default 0 check (rate_limit >= 0),
    rate_burst integer not null default 0 check (rate_burst >= 0),
    max_in_flight_per_partition integer not null default 0 check (max_in_flight_per_partition >= 0),
    rate_limit_per_partition double precision not null default 0 check (rate_limit_per_partition >= 0),
    rate_burst_per_partition integer not null default 0 check (rate_burst_per_partition >= 0),
    drop_settled boolean not null default false,
    lock_duration bigint not null default 0 check (lock_duration >= 0),
    schedule bigint[] not null default '{0,0,0}'
);
comment on column hark.queues.created_floor is
    'Messages are created no earlier: after the start of the last group that wanted only new ones.';
comment on column hark.queues.schedule is 'Milliseconds before each retry, compiled from the retry options.';
create index queues_namespace on hark.queues (namespace);
create index queues_task on hark.queues (task);

-- What is only counted: apart from the queues, whose rows every push and pop reads.
create table hark.counters (
    queue integer primary key,
    expired bigint not null default 0 check (expired >= 0),
    discarded bigint not null default 0 check (discarded >= 0)
) with (fillfactor = 50);

-- queue 0: the queue was deleted, and collect has yet to remove the partition.
-- changed_bucket, here and elsewhere: the ten seconds (bucket_v1) in which something last happened that may have made messages
-- deliverable; coarse, so that few of those updates change an index. Servers find by it what others did.
create table hark.partitions (
    id bigint generated always as identity primary key,
    queue integer not null,
    name text collate "C" not null check (octet_length(name) between 1 and 255),
    created_at bigint not null,
    floor bigint not null default 0 check (floor >= 0),
    tail bigint not null default 0 check (tail >= floor),
    last_created bigint not null default 0,
    special bigint not null default 0,
    lanes bigint[],
    leftover boolean not null default false,
    changed_bucket integer not null default 0,
    unique (queue, name)
) with (fillfactor = 50);
comment on column hark.partitions.special is
    'Beyond this offset no message has options that could keep it from being delivered.';
comment on column hark.partitions.lanes is
    'The last offset of each lane: of plain messages by priority, then of delayed ones; null: all are plain, of priority 0.';
comment on column hark.partitions.leftover is
    'In a queue that drops what is settled: there may be settled messages, for collect to remove.';
create index partitions_changed on hark.partitions ((queue::bigint << 32 | changed_bucket));

-- A message has a slot, which is the child table that it was put into. What few messages have is null in most.
create table hark.messages (
    slot smallint not null,
    partition bigint not null,
    "offset" bigint not null check ("offset" > 0),
    created_at bigint not null,
    payload bytea not null,
    transaction_id text collate "C",
    deliver_at bigint,
    expires_at bigint,
    backoff bigint[],
    priority smallint check (priority between 1 and 9),
    sealed boolean check (sealed),
    owner integer,
    trace_id text,
    producer text,
    undelivered bytea[],
    trace_context text
) partition by list (slot);
comment on column hark.messages.undelivered is 'Keys that get the payload if it can''t be delivered, encoded.';
comment on column hark.messages.owner is 'The only group that it is for: it was a dead letter of that group.';
create unique index messages_offset on hark.messages (partition, "offset", slot);
-- Not unique: pushes look under the partition's lock, and a row that is gone may still be here.
create index messages_transaction on hark.messages (hashtextextended(transaction_id, partition))
    where transaction_id is not null;
-- The lanes of shared groups (see 00_lanes.sql), except that of plain messages of priority 0.
create index messages_priority on hark.messages ((partition << 4 | priority), "offset")
    where priority > 0 and deliver_at is null;
create index messages_delayed on hark.messages ((partition << 4 | coalesce(priority, 0)), deliver_at, "offset")
    where deliver_at is not null;
create index messages_expiry on hark.messages (expires_at) where expires_at is not null;
do $$
begin
    for slot in 0..3 loop
        execute format(
            'create table hark.messages_%s partition of hark.messages for values in (%s) '
            'with (vacuum_truncate = off, toast.vacuum_truncate = off)', slot, slot);
    end loop;
end $$;

-- What applications sent in their own transactions and no server has moved yet (inbox.sql).
create table hark.inbox (
    id bigint generated always as identity primary key,
    xid xid8 not null,
    queue text collate "C" not null,
    partition text collate "C" not null,
    payload bytea not null,
    transaction_id text collate "C" not null,
    sent_at bigint not null,
    deliver_at bigint,
    ttl bigint,
    backoff bigint[],
    priority smallint not null,
    trace_id text,
    trace_context text,
    error text
) with (vacuum_truncate = off, toast.vacuum_truncate = off);
comment on column hark.inbox.xid is 'The transaction that sent it. Snapshots tell by it what they have not seen.';
comment on column hark.inbox.error is 'Why it was refused: it stays until someone deletes it, or sets this to null to try again.';
create index inbox_xid on hark.inbox (xid);
create index inbox_queue on hark.inbox (queue, id);

-- By the queue's name, not its id: a group may meet a queue that does not exist yet.
create table hark.groups (
    id integer generated always as identity primary key,
    queue text collate "C" not null,
    name text collate "C" not null,
    mode text not null check (mode in ('ordered', 'shared')),
    subscription text not null check (subscription in ('all', 'new', 'timestamp')),
    since bigint check ((since is null) = (subscription = 'all')),
    highest_partition bigint not null,
    paused boolean not null default false,
    max_in_flight integer not null default 0 check (max_in_flight >= 0),
    rate_limit double precision not null default 0 check (rate_limit >= 0),
    rate_burst integer not null default 0 check (rate_burst >= 0),
    max_in_flight_per_partition integer not null default 0 check (max_in_flight_per_partition >= 0),
    rate_limit_per_partition double precision not null default 0 check (rate_limit_per_partition >= 0),
    rate_burst_per_partition integer not null default 0 check (rate_burst_per_partition >= 0),
    created_at bigint not null,
    last_seen bigint not null,
    changed_bucket integer not null default 0,
    moved bigint not null default 0,
    unique (queue, name)
) with (fillfactor = 70);
comment on column hark.groups.moved is 'When a seek or a deletion last made it begin elsewhere.';

-- Groups that pop by namespace or task: they start when they first do, also in queues that come later.
create table hark.labels (
    grp text collate "C" not null,
    namespace text collate "C",
    task text collate "C",
    subscription text not null check (subscription in ('all', 'new', 'timestamp')),
    since bigint check ((since is null) = (subscription = 'all')),
    highest_partition bigint not null
);
create unique index labels_key on hark.labels (grp, coalesce(namespace, ''), coalesce(task, ''));

-- A group's place in a partition, and the lease on it.
create table hark.positions (
    grp integer not null,
    partition bigint not null,
    cursor bigint not null check (cursor >= 0),
    settled int8multirange not null default '{}',
    probe bigint not null default 0,
    settled_at bigint,
    irregular boolean not null default false,
    lease uuid,
    lease_until bigint,
    handed integer not null default 0,
    lease_last bigint not null default 0,
    leased int8multirange not null default '{}',
    plain bigint[],
    delayed_at bigint[],
    delayed_offset bigint[],
    seen bigint,
    changed_bucket integer not null default 0,
    tokens double precision,
    tokens_at bigint,
    primary key (grp, partition),
    check ((tokens is null) = (tokens_at is null)),
    check ((plain is null) = (seen is null)),
    check ((lease is null) = (lease_until is null)),
    check (lease is not null or isempty(leased)),
    check (isempty(settled) or lower(settled) > cursor + 1)
) with (fillfactor = 40);
comment on column hark.positions.settled is 'What is settled beyond the cursor.';
comment on column hark.positions.probe is 'Up to this offset messages are handed out one at a time.';
comment on column hark.positions.irregular is 'There may be rows in retries, requeued or claims.';
comment on column hark.positions.leased is 'Offsets that the lease was the last to hand out and that are not settled.';
comment on column hark.positions.plain is
    'In a shared group: how far it has passed the plain messages of each priority; the cursor is where it started.';
comment on column hark.positions.delayed_at is
    'In a shared group: how far it has passed the delayed messages of each priority, by time, then by delayed_offset.';
comment on column hark.positions.seen is 'In a shared group: delayed messages beyond this offset have not been passed.';
comment on column hark.positions.handed is 'How many messages the lease handed out; lease_last: the last of them.';
comment on column hark.positions.tokens is
    'What the rate of the partition still allowed at the time tokens_at; null: nothing was delivered under one yet.';
create index positions_partition on hark.positions (partition, grp);
create index positions_changed on hark.positions ((grp::bigint << 32 | changed_bucket));

-- A position as it was before something was listed of it, and as it is when all of that is taken; with what else is known.
create type hark.listed as (
    before hark.positions,
    after hark.positions,
    partition hark.partitions,
    queue integer,
    ttl bigint,
    lease_time bigint,
    lock_duration bigint
);

-- Where a lease is, and when to look whether it is over. The positions say whether it still is.
create table hark.leases (
    slot smallint not null,
    id uuid not null,
    until bigint not null,
    grps integer[] not null,
    partitions bigint[] not null,
    expired boolean not null default false,
    void boolean not null default false,
    since bigint not null,
    consumer text,
    whole bigint
) partition by list (slot);
comment on column hark.leases.void is 'Its pop failed and may still be running: it must not lease anything any more.';
comment on column hark.leases.whole is 'When it would end if it had not been shortened; null: it was not.';
comment on column hark.leases.consumer is 'Who holds it, as the pop said; null: it did not say.';
create unique index leases_id on hark.leases (id, slot);
create index leases_until on hark.leases (until);
create table hark.leases_0 partition of hark.leases for values in (0) with (vacuum_truncate = off);
create table hark.leases_1 partition of hark.leases for values in (1) with (vacuum_truncate = off);

-- The slots that new messages and leases go to, and since when.
create table hark.rotation (
    name text primary key check (name in ('messages', 'leases')),
    slot smallint not null,
    since bigint not null
) with (fillfactor = 50);
insert into hark.rotation values ('messages', 0, 0), ('leases', 0, 0);

-- Child tables that were current and are not empty yet.
create table hark.slots (
    name text not null,
    slot smallint not null,
    closed xid8 not null,
    emptied xid8,
    primary key (name, slot)
);
comment on column hark.slots.closed is 'The transaction from which on nothing is put into it.';
comment on column hark.slots.emptied is 'The transaction from which on nothing in it counts.';

-- Leases that gave their partition back with a failure or a retry: what they hold may still be settled under them.
create table hark.claims (
    grp integer not null,
    partition bigint not null,
    lease uuid not null,
    until bigint not null,
    leased int8multirange not null check (not isempty(leased)),
    primary key (grp, partition, lease)
);

-- Under which lease a transaction completed a message, for as long as its consumer may repeat it (rule 12).
create table hark.completions (
    grp integer not null,
    partition bigint not null,
    "offset" bigint not null,
    lease uuid not null,
    at bigint not null,
    primary key (grp, partition, "offset")
);
create index completions_at on hark.completions (at);

-- Messages that used attempts, or wait for their next one.
create table hark.retries (
    grp integer not null,
    partition bigint not null,
    "offset" bigint not null,
    attempts integer not null check (attempts >= 0),
    due bigint not null,
    error text,
    primary key (grp, partition, "offset")
);

-- Messages that a shared group has passed and not settled: on a lease, waiting for an attempt, or to be taken again.
create table hark.outstanding (
    grp integer not null,
    partition bigint not null,
    "offset" bigint not null,
    lane smallint not null check (lane between 0 and 19),
    attempts integer not null default 0 check (attempts >= 0),
    due bigint not null,
    error text,
    lease uuid,
    until bigint,
    primary key (grp, partition, "offset"),
    check ((lease is null) = (until is null))
) with (fillfactor = 70);
comment on column hark.outstanding.lane is 'Its priority; 10 more for a requeued dead letter, which is in front of all.';
comment on column hark.outstanding.due is 'When it became available, or will; a lease does not change it.';
create index outstanding_due on hark.outstanding ((partition << 5 | lane), (grp::bigint), due, "offset")
    where lease is null;
create index outstanding_lease on hark.outstanding (partition, until, lease) where lease is not null;

-- What queues and groups with a rate may still deliver, as of a time; grp 0: the queue as a whole. A pop that claims under
-- a limit, of a rate or of messages in flight, locks the row first.
create table hark.allowances (
    queue integer not null,
    grp integer not null,
    tokens double precision not null default 0,
    at bigint,
    primary key (queue, grp)
) with (fillfactor = 50);
comment on column hark.allowances.at is 'Null: nothing was delivered under a rate yet.';

-- Where messages are in flight that count for a limit, while there is one. Those that are not any more are found out
-- and removed when they are counted.
create table hark.in_flight (
    queue integer not null,
    grp integer not null,
    partition bigint not null,
    lease uuid not null,
    primary key (queue, grp, partition, lease)
);

-- Requeued dead letters, to be delivered before anything else of the partition.
create table hark.requeued (
    grp integer not null,
    partition bigint not null,
    "offset" bigint not null,
    probe boolean not null default false,
    primary key (grp, partition, "offset")
);
comment on column hark.requeued.probe is 'While it is there, messages are handed out one at a time.';
create index requeued_partition on hark.requeued (partition, grp, "offset");

-- Offsets beyond the floor with no message: removed ones, and for all but their owner those requeued for one group.
create table hark.gaps (
    partition bigint not null,
    "offset" bigint not null,
    owner integer not null default 0,
    primary key (partition, "offset")
);

-- Messages that were removed while a group had them on a lease: they were not settled. Until the lease would have ended.
create table hark.withdrawn (
    partition bigint not null,
    "offset" bigint not null,
    grp integer not null,
    until bigint not null,
    primary key (partition, "offset", grp)
);

-- Messages that groups are done with though no consumer completed them: their time was over, or they had no attempts left and
-- the queue keeps no dead letters. For those who ask, and for a while only (collect).
create table hark.endings (
    partition bigint not null,
    grp integer not null,
    offsets int8multirange not null,
    kind text not null check (kind in ('discarded', 'expired')),
    at bigint not null,
    attempts integer not null default 0,
    error text
);
create index endings_partition on hark.endings (partition, grp);
create index endings_at on hark.endings (at);

create table hark.dead_letters (
    id bigint generated always as identity primary key,
    uid uuid not null default gen_random_uuid() unique,
    queue text collate "C" not null,
    partition bigint not null,
    partition_name text collate "C" not null,
    grp text collate "C" not null,
    "offset" bigint not null,
    transaction_id text collate "C",
    created_at bigint not null,
    payload bytea not null,
    backoff bigint[],
    priority smallint,
    sealed boolean,
    trace_id text,
    producer text,
    undelivered bytea[],
    trace_context text,
    attempts integer not null,
    error text not null,
    failed_at bigint not null,
    unique (partition, "offset", grp)
);
create index dead_letters_queue on hark.dead_letters (queue, failed_at);

create table hark.traces (
    id bigint generated always as identity primary key,
    uid uuid not null default gen_random_uuid() unique,
    partition bigint not null,
    "offset" bigint not null,
    grp text collate "C" not null,
    event text not null,
    data bytea not null,
    created_at bigint not null
);
create index traces_offset on hark.traces (partition, "offset");
create table hark.trace_names (
    name text collate "C" not null,
    trace bigint not null,
    primary key (name, trace)
);
create index trace_names_trace on hark.trace_names (trace);

-- The key-value half; keys are encoded so that their bytes sort as the keys do.
create table hark.kv (
    key bytea primary key,
    value bytea not null,
    version bigint not null,
    expires_at bigint,
    sealed_by text
);
comment on column hark.kv.sealed_by is 'The queue whose key the value is encrypted with.';
create sequence hark.kv_version;
create index kv_expiry on hark.kv (expires_at) where expires_at is not null;

-- Small tables that change all the time: vacuum early, without pauses, and without the lock that shortens a table.
alter table hark.partitions set (
    autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
alter table hark.positions set (
    autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
alter table hark.outstanding set (
    autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
