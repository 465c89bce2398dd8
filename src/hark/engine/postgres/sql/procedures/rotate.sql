-- Messages and leases are never deleted row by row: they are in child tables (slots), one of which gets what is new.
-- When nearly all of what is in another one is gone, the rest is copied forward and the table is emptied.

-- The sizes in bytes of the child tables of messages or leases.
create or replace function hark.slots_v1(p_table text) returns table (slot smallint, bytes bigint, is_current boolean)
language sql stable as $$
    select s.slot::smallint, pg_relation_size(('hark.' || p_table || '_' || s.slot)::regclass),
        s.slot = (select r.slot from hark.rotation r where r.name = p_table)
    from generate_series(0, case p_table when 'messages' then 3 else 1 end) as s(slot)
$$;

-- Lets new rows go to another, empty child table when the current one is old or large enough; whether it did.
create or replace function hark.begin_slot_v1(p_now bigint, p_table text, p_seconds bigint, p_bytes bigint)
returns boolean
language plpgsql as $$
declare
    v_now bigint := hark.time_v1(p_now);
    v_free smallint;
    r hark.rotation;
begin
    select * into r from hark.rotation where name = p_table for update;
    if not exists (
        select 1 from hark.slots_v1(p_table) s where s.is_current and s.bytes > 0
            and (s.bytes >= p_bytes or (r.since > 0 and r.since <= v_now - p_seconds * 1000000)))
    then
        if r.since = 0 then
            update hark.rotation set since = v_now where name = p_table;
        end if;
        return false;
    end if;
    select s.slot into v_free from hark.slots_v1(p_table) s where not s.is_current and s.bytes = 0
    order by s.slot limit 1;
    if v_free is null then
        return false;
    end if;
    update hark.rotation set slot = v_free, since = v_now where name = p_table;
    return true;
end $$;

-- Empties a child table of messages of which at most p_share percent (and p_survivors rows) still count; those are
-- copied to the current one. Answers how many rows survived, or null when it was left as it is.
create or replace function hark.empty_messages_v1(p_slot smallint, p_share integer, p_survivors integer)
returns bigint
language plpgsql as $$
declare
    v_table text := 'messages_' || p_slot;
    v_rows bigint;
    v_live bigint;
begin
    if p_slot = (select slot from hark.rotation where name = 'messages' for share) then
        return null;
    end if;
    execute format('select count(*), count(p.id) from hark.%I m '
        'left join hark.partitions p on p.id = m.partition and p.queue <> 0 and m."offset" > p.floor', v_table)
    into v_rows, v_live;
    if v_rows = 0 or v_live > p_survivors or v_live * 100 > v_rows * p_share then
        return null;
    end if;
    -- Nothing may be removed from it while its survivors are copied; readers wait only for the last moment.
    execute format('lock table hark.%I in share row exclusive mode', v_table);
    execute format('insert into hark.messages '
        'select r.slot, m.partition, m."offset", m.created_at, m.payload, m.transaction_id, m.deliver_at, '
        'm.expires_at, m.backoff, m.priority, m.sealed, m.owner, m.trace_id, m.producer, m.undelivered, '
        'm.trace_context '
        'from hark.rotation r, hark.%I m '
        'join hark.partitions p on p.id = m.partition and p.queue <> 0 and m."offset" > p.floor '
        'where r.name = ''messages''', v_table);
    get diagnostics v_live = row_count;
    execute format('truncate hark.%I', v_table);
    return v_live;
end $$;

-- The same for the child table of leases that is not current: what still is on a track survives.
create or replace function hark.empty_leases_v1(p_now bigint) returns bigint
language plpgsql as $$
declare
    v_slot smallint := 1 - (select slot from hark.rotation where name = 'leases' for share);
    v_live bigint;
begin
    if not exists (select 1 from hark.slots_v1('leases') s where s.slot = v_slot and s.bytes > 0) then
        return 0;
    end if;
    execute format('lock table hark.leases_%s in share row exclusive mode', v_slot);
    execute format('insert into hark.leases select %s, l.id, l.until, l.grps, l.partitions, l.expired, l.since, l.consumer '
        'from hark.leases_%s l where l.until > $1 - 600000000 and (l.expired or exists ('
        'select 1 from unnest(l.grps, l.partitions) as p(grp, partition) '
        'join hark.tracks t on t.grp = p.grp and t.partition = p.partition and t.lease = l.id) or exists ('
        'select 1 from unnest(l.grps, l.partitions) as p(grp, partition) '
        'join hark.claims c on c.grp = p.grp and c.partition = p.partition and c.lease = l.id) or exists ('
        'select 1 from unnest(l.grps, l.partitions) as p(grp, partition) '
        'join hark.exceptions e on e.partition = p.partition and e.until = l.until and e.lease = l.id and e.lease is not null)) '
        'on conflict (id, slot) do update set until = greatest(leases.until, excluded.until), '
        'grps = leases.grps || excluded.grps, partitions = leases.partitions || excluded.partitions', 1 - v_slot, v_slot)
    using hark.time_v1(p_now);
    get diagnostics v_live = row_count;
    execute format('truncate hark.leases_%s', v_slot);
    return v_live;
end $$;

-- Writes a table whose rows are updated in place anew, without their dead versions. Vacuum does the same unless some
-- transaction in the database is old: this does not depend on that. Answers the bytes before.
create or replace function hark.compact_v1(p_table text) returns bigint
language plpgsql as $$
declare
    v_bytes bigint := pg_relation_size(('hark.' || p_table)::regclass);
begin
    execute format('lock table hark.%I in access exclusive mode', p_table);
    execute format('create temporary table hark_copy on commit drop as select * from hark.%I', p_table);
    execute format('truncate hark.%I', p_table);
    execute format('insert into hark.%I overriding system value select * from hark_copy', p_table);
    drop table hark_copy;
    insert into hark.meta (key, value) values ('compacted:' || p_table, pg_relation_size(('hark.' || p_table)::regclass))
    on conflict (key) do update set value = excluded.value;
    return v_bytes;
end $$;
