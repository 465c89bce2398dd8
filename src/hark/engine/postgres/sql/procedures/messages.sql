-- Removes messages, leased or not; consumers step over them. Answers for each whether there was one.
create or replace function hark.delete_messages_v1(p_now bigint, p_partitions bigint[], p_offsets bigint[])
returns boolean[]
language plpgsql as $$
declare
    v_removed boolean[] := '{}';
begin
    perform 1 from (
        select 1 from hark.positions where partition = any (p_partitions) order by grp, partition for update
    ) as locked;
    for n in 1..cardinality(p_partitions) loop
        v_removed[n] := hark.remove_message_v1(p_now, p_partitions[n], p_offsets[n]);
    end loop;
    return v_removed;
end $$;

-- Removes messages that nobody has been given yet: 0 done, 1 there is none, 2 some group holds it or has used attempts of
-- it, 3 some group is done with it.
create or replace function hark.cancel_v1(p_now bigint, p_partitions bigint[], p_offsets bigint[]) returns smallint[]
language plpgsql as $$
declare
    v_now bigint := hark.time_v1(p_now);
    v_codes smallint[] := '{}';
begin
    perform hark.make_missing_positions_v1(array_agg(g.id), array_agg(p.id))
    from hark.partitions p join hark.queues q on q.id = p.queue join hark.groups g on g.queue = q.name
    where p.id = any (p_partitions);
    perform 1 from (
        select 1 from hark.positions where partition = any (p_partitions) order by grp, partition for update
    ) as locked;
    for n in 1..cardinality(p_partitions) loop
        v_codes[n] := hark.cancellable_v1(v_now, p_partitions[n], p_offsets[n]);
        -- Without a group there is no row to lock: another cancellation may have removed it since.
        if v_codes[n] = 0 and not hark.remove_message_v1(p_now, p_partitions[n], p_offsets[n]) then
            v_codes[n] := 1;
        end if;
    end loop;
    return v_codes;
end $$;

create or replace function hark.cancellable_v1(p_now bigint, p_partition bigint, p_offset bigint) returns smallint
language sql volatile as $$
    select case
        when m."offset" is null then 1
        when exists (
            select 1 from hark.positions t
            left join hark.retries r on r.grp = t.grp and r.partition = t.partition and r."offset" = p_offset
            left join hark.outstanding e on e.grp = t.grp and e.partition = t.partition and e."offset" = p_offset
            where t.partition = p_partition and ((t.lease_until > p_now and p_offset <@ t.leased)
                or greatest(r.attempts, e.attempts) > 0 or e.lease is not null)) then 2
        when exists (
            select 1 from hark.groups g where g.queue = q.name and (m.owner is null or m.owner = g.id)
                and hark.is_done_v1(g.id, p_partition, p_offset)) then 3
        else 0 end::smallint
    from (select 1) as one
    left join hark.partitions p on p.id = p_partition
    left join hark.queues q on q.id = p.queue
    left join lateral (
        select x."offset", x.owner from hark.messages x
        where x.partition = p.id and x."offset" = p_offset and x."offset" > p.floor and q.id is not null
    ) as m on true
$$;

-- Removes one message. The caller holds the locks of the partition's positions.
create or replace function hark.remove_message_v1(p_now bigint, p_partition bigint, p_offset bigint) returns boolean
language plpgsql as $$
begin
    -- A group that has no place here yet would find its start by the message's time: it gets one first.
    perform hark.make_positions_v1(array_agg(g.id), array_agg(p.id))
    from hark.partitions p join hark.queues q on q.id = p.queue join hark.groups g on g.queue = q.name
    where p.id = p_partition and p_offset > p.floor;
    delete from hark.messages m using hark.partitions p
    where p.id = m.partition and m.partition = p_partition and m."offset" = p_offset and m."offset" > p.floor
        and p.queue <> 0;
    if not found then
        return false;
    end if;
    delete from hark.trace_names n using hark.traces t
    where t.id = n.trace and t.partition = p_partition and t."offset" = p_offset;
    delete from hark.traces where partition = p_partition and "offset" = p_offset;
    perform hark.withdraw_v1(p_partition, p_offset);
    -- A group that makes its place here at this moment can't know of the gap: then it must look before it takes.
    update hark.partitions set special = greatest(special, p_offset) where id = p_partition;
    perform hark.leave_gap_v1(p_now, p_partition, p_offset, 0);
    return true;
end $$;

-- Notes that a message of a partition is removed, or all of them are, for groups that have it on a lease.
create or replace function hark.withdraw_v1(p_partition bigint, p_offset bigint) returns void
language sql volatile as $$
    insert into hark.withdrawn (partition, "offset", grp, until)
    select p_partition, o, t.grp, t.lease_until from hark.positions t
    cross join lateral unnest(t.leased) as r
    cross join lateral generate_series(lower(r), upper(r) - 1) as o
    where t.partition = p_partition and t.lease is not null and (p_offset is null or o = p_offset)
    union
    select p_partition, e."offset", e.grp, e.until from hark.positions t
    join hark.outstanding e on e.grp = t.grp and e.partition = t.partition
    where t.partition = p_partition and t.plain is not null and e.lease is not null
        and (p_offset is null or e."offset" = p_offset)
    on conflict do nothing
$$;

-- There is no message at an offset (any more), but for p_owner's group: every other group is done with it, those to
-- come as well.
create or replace function hark.leave_gap_v1(p_now bigint, p_partition bigint, p_offset bigint, p_owner integer)
returns void
language plpgsql as $$
declare
    v_gap int8multirange := int8multirange(int8range(p_offset, p_offset + 1));
    v_done record;
    t hark.positions;
begin
    insert into hark.gaps (partition, "offset", owner) values (p_partition, p_offset, p_owner)
    on conflict (partition, "offset") do update set owner = excluded.owner;
    for t in select * from hark.positions k where k.partition = p_partition and k.grp <> p_owner order by k.grp
        for update
    loop
        if t.plain is not null then
            delete from hark.outstanding e
            where e.grp = t.grp and e.partition = t.partition and e."offset" = p_offset;
            continue;
        end if;
        select * into v_done
        from hark.settle_offsets_v1(t.grp, t.partition, v_gap, t.irregular, t.cursor, t.settled);
        delete from hark.claims c
        where t.irregular and c.grp = t.grp and c.partition = t.partition and isempty(c.leased - v_gap);
        update hark.claims c set leased = c.leased - v_gap
        where t.irregular and c.grp = t.grp and c.partition = t.partition and p_offset <@ c.leased;
        if isempty(t.leased - v_gap) then
            t.lease := null; t.lease_until := null; t.handed := 0; t.lease_last := 0;
        end if;
        update hark.positions k
        set cursor = v_done.cursor, settled = v_done.settled, leased = t.leased - v_gap, lease = t.lease,
            lease_until = t.lease_until, handed = t.handed, lease_last = t.lease_last,
            probe = case when v_done.cursor >= t.probe then 0 else t.probe end,
            changed_bucket = greatest(k.changed_bucket, hark.bucket_v1(hark.time_v1(p_now)))
        where k.grp = t.grp and k.partition = t.partition;
    end loop;
end $$;

-- Records events about messages; their ids, null where there is no such message.
create or replace function hark.trace_v1(
    p_now bigint, p_partitions bigint[], p_transaction_ids text[], p_own_offsets bigint[], p_groups text[], p_events text[],
    p_data bytea[], n_trace integer[], n_name text[]
) returns uuid[]
language plpgsql as $$
declare
    v_uids uuid[] := '{}';
    v_offset bigint;
    v_id bigint;
    v_uid uuid;
begin
    for n in 1..cardinality(p_partitions) loop
        v_uids[n] := null;
        v_offset := hark.find_message_v1(p_partitions[n], p_transaction_ids[n], p_own_offsets[n]);
        continue when v_offset is null;
        insert into hark.traces (partition, "offset", grp, event, data, created_at)
        values (p_partitions[n], v_offset, p_groups[n], p_events[n], p_data[n], hark.time_v1(p_now))
        returning id, uid into v_id, v_uid;
        v_uids[n] := v_uid;
        insert into hark.trace_names (name, trace)
        select distinct w.name, v_id from unnest(n_trace, n_name) as w(trace, name) where w.trace = n;
    end loop;
    return v_uids;
end $$;
