-- Settled messages and old leases are not deleted row by row: they are in child tables (slots), one of which gets what
-- is new. Another one is emptied when nearly all of what is in it counts for nothing any more:
--
-- 1. It is closed: the rotation names another one. Calls that began before may still put rows into it.
-- 2. When those are over, what still counts is moved to the current one, by ordinary statements.
-- 3. When no snapshot from before that is left, it is truncated. TRUNCATE is not safe for older snapshots, which
--    would find the rows neither here nor there: a dump would lack them, without an error.
--
-- What is over is known by the oldest transaction that vacuum has to respect (horizon_v1): snapshots of every session
-- and replication slot hold it back. Standbys that do not report theirs end such queries with an error when they replay
-- that vacuum removed the old version of the row in `slots`, which is before they replay the TRUNCATE.

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
    select s.slot into v_free from hark.slots_v1(p_table) s
    where not s.is_current and s.bytes = 0
        and not exists (select 1 from hark.slots c where c.name = p_table and c.slot = s.slot)
    order by s.slot limit 1;
    if v_free is null then
        return false;
    end if;
    update hark.rotation set slot = v_free, since = v_now where name = p_table;
    insert into hark.slots (name, slot, closed) values (p_table, r.slot, pg_current_xact_id());
    return true;
end $$;

-- Every transaction before this one is over, and visible to all snapshots, as of the last vacuum of hark.slots (with
-- FREEZE, which writes it down).
create or replace function hark.horizon_v1() returns xid8
language sql stable as $$
    select (n.next - ((n.next - c.relfrozenxid::text::bigint) & 4294967295))::text::xid8
    from (select pg_snapshot_xmax(pg_current_snapshot())::text::bigint as next) as n, pg_class c
    where c.oid = 'hark.slots'::regclass
$$;

-- Whether that transaction is over for all snapshots. One that is yet to come is from the database that this one was
-- restored from.
create or replace function hark.is_past_v1(p_transaction xid8) returns boolean
language sql stable as $$
    select p_transaction < hark.horizon_v1() or p_transaction > pg_snapshot_xmax(pg_current_snapshot())
$$;

-- What has to be moved before a closed child table can be emptied, with the sizes: messages above the floor of their
-- partition; leases that are on a position, and for ten minutes those that expired. When nothing has to be, that is noted.
-- Null: it is too early, or more than p_share percent (or p_rows rows) still count.
create or replace function hark.survivors_v1(
    p_now bigint, p_table text, p_slot smallint, p_share integer, p_rows integer, out o_rows tid[], out o_bytes bigint[]
)
language plpgsql as $$
declare
    v_child text := p_table || '_' || p_slot;
    v_number bigint;
    v_counts constant text := case p_table
        when 'messages' then 'exists (select 1 from hark.partitions p '
            'where p.id = x.partition and p.queue <> 0 and x."offset" > p.floor)'
        else 'x.until > $2 - 600000000 and (x.expired or exists ('
            'select 1 from unnest(x.grps, x.partitions) as p(grp, partition) '
            'join hark.positions t on t.grp = p.grp and t.partition = p.partition and t.lease = x.id) or exists ('
            'select 1 from unnest(x.grps, x.partitions) as p(grp, partition) '
            'join hark.claims c on c.grp = p.grp and c.partition = p.partition and c.lease = x.id) or exists ('
            'select 1 from unnest(x.grps, x.partitions) as p(grp, partition) join hark.outstanding e '
            'on e.partition = p.partition and e.until = x.until and e.lease = x.id and e.lease is not null))' end;
begin
    if not exists (
        select 1 from hark.slots s
        where s.name = p_table and s.slot = p_slot and s.emptied is null and hark.is_past_v1(s.closed))
    then
        return;
    end if;
    execute format(
        'select coalesce(array_agg(y.ctid), ''{}''), array_agg(y.bytes) from ('
        'select x.ctid, %s as bytes from hark.%I x where %s limit $1 + 1) as y',
        case p_table when 'messages' then 'octet_length(x.payload)' else '0' end, v_child, v_counts)
    into o_rows, o_bytes using p_rows, hark.time_v1(p_now);
    if cardinality(o_rows) = 0 then
        update hark.slots set emptied = pg_current_xact_id() where name = p_table and slot = p_slot;
        return;
    end if;
    execute format('select count(*) from hark.%I', v_child) into v_number;
    if cardinality(o_rows) > p_rows or cardinality(o_rows) * 100 > v_number * p_share then
        o_rows := null;
    end if;
end $$;

-- Moves rows of a closed child table to the current one; how many.
create or replace function hark.move_rows_v1(p_table text, p_slot smallint, p_rows tid[]) returns bigint
language plpgsql as $$
declare
    v_child text := p_table || '_' || p_slot;
    v_columns text;
    v_moved bigint;
begin
    select string_agg(quote_ident(a.attname), ', ' order by a.attnum) into v_columns from pg_attribute a
    where a.attrelid = ('hark.' || p_table)::regclass and a.attnum > 0 and not a.attisdropped and a.attname <> 'slot';
    -- Calls that change such a row meanwhile wait, and then find it in its new place.
    execute format('lock table hark.%I in share row exclusive mode', v_child);
    execute format(
        'with moved as (delete from hark.%I where ctid = any ($1) returning *) '
        'insert into hark.%I (slot, %s) '
        'select (select r.slot from hark.rotation r where r.name = %L), %s from moved %s',
        v_child, p_table, v_columns, p_table, v_columns, case p_table when 'leases' then
            'on conflict (id, slot) do update set until = greatest(leases.until, excluded.until), '
            'grps = leases.grps || excluded.grps, partitions = leases.partitions || excluded.partitions' else '' end)
    using p_rows;
    get diagnostics v_moved = row_count;
    return v_moved;
end $$;

-- Truncates a child table in which nothing counts, if no snapshot is left in which something did; whether it did.
create or replace function hark.truncate_slot_v1(p_table text, p_slot smallint) returns boolean
language plpgsql as $$
begin
    delete from hark.slots s where s.name = p_table and s.slot = p_slot and hark.is_past_v1(s.emptied);
    if found then
        execute format('truncate hark.%I', p_table || '_' || p_slot);
    end if;
    return found;
end $$;
