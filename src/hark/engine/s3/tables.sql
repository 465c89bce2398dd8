-- Tables beside those of engine/core. replica is local: the last applied record.
create table if not exists replica (
    id integer primary key check (id = 1),
    seq integer not null,
    time integer not null,
    nonce text not null
);
insert or ignore into replica values (1, 0, 0, '');

-- Leases. parts: for each position [group, partition, handed, open, last, blocks, [[first, last] ...],
-- consumer, since].
create table if not exists leases (
    id text primary key,
    expires_at integer not null,
    writer text not null,
    parts text not null
) without rowid;

-- Remaining tokens of the rate limits of queues and groups.
create table if not exists rates (
    kind text not null check (kind in ('queue', 'group')),
    owner integer not null,
    tokens real not null,
    filled_at integer not null,
    primary key (kind, owner)
) without rowid;

-- Records with payloads. dead_since: time since which no message refers to them.
create table if not exists segments (
    seq integer primary key,
    bytes integer not null,
    dead_since integer
);
