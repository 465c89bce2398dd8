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
