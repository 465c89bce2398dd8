-- Settlements of messages of shared groups: each by itself, under the lock of its own row. The position is locked only
-- where it has to say that something happened, at most once a second.

-- Locks those positions of shared groups that a settlement has to note itself in. Before any other row: pops lock the
-- position first too.
create or replace function hark.lock_shared_v1(p_now bigint, t_grp integer[], t_partition bigint[], t_shared boolean[])
returns void
language plpgsql as $$
begin
    perform 1 from (
        select 1 from hark.positions k
        join unnest(t_grp, t_partition, t_shared) as w(grp, partition, shared)
            on k.grp = w.grp and k.partition = w.partition
        where w.shared and hark.is_due_for_a_note_v1(k, p_now)
        order by k.grp, k.partition for no key update of k
    ) as locked;
end $$;

create or replace function hark.is_due_for_a_note_v1(t hark.positions, p_now bigint) returns boolean
language sql immutable as $$
    select t.settled_at is null or p_now - t.settled_at >= 1000000 or p_now < t.settled_at
        or t.changed_bucket < hark.bucket_v1(p_now)
$$;

-- Settles the items of positions of shared groups; the arguments are those of settle_v1, with all offsets. o_counts has for
-- each position how many messages can be taken again, o_due_times when the next of those that wait can be.
create or replace function hark.settle_shared_v1(
    p_now bigint, t_grp integer[], t_partition bigint[], t_shared boolean[],
    i_request integer[], i_position integer[], i_offset bigint[], i_lease uuid[], i_status smallint[], i_error text[],
    i_delay bigint[], p_required uuid[], i_known boolean[],
    inout o_codes smallint[], inout o_released boolean[], inout o_dead boolean[], inout o_holders uuid[],
    inout o_counts integer[], inout o_due_times bigint[]
)
language plpgsql as $$
declare
    v_rest integer[];
    v_done integer[] := '{}';
    v_settled boolean[] := array_fill(false, array[cardinality(t_grp)]);
    v_same integer[];
    n integer := 0;
    e record;
begin
    perform hark.lock_shared_v1(p_now, t_grp, t_partition, t_shared);
    for e in
        select w.n::integer as n, x.made_ready
        from unnest(t_grp, t_partition, t_shared) with ordinality as w(grp, partition, shared, n)
        cross join lateral hark.expire_shared_v1(w.grp, w.partition, p_now, null) as x where w.shared
    loop
        o_counts[e.n] := o_counts[e.n] + e.made_ready;
    end loop;

    -- The common case, all at once: completed, and nothing else is said of the message.
    for e in
        select s.position, array_agg(s.n) as items, array_agg(s."offset") as offsets, array_agg(x.lease) as holders
        from (
            select i.*, t_grp[i.position] as grp, t_partition[i.position] as partition
            from (
                select u.n::integer as n, u.position, u."offset", u.lease, u.status,
                    count(*) over (partition by u.position, u."offset") as number
                from unnest(i_position, i_offset, i_lease, i_status) with ordinality as u(position, "offset", lease, status, n)
                where t_shared[u.position]
            ) as i
            where i.number = 1 and i.status = 0
            order by grp, partition, i."offset"
        ) as s
        cross join lateral (
            -- No index has the time and the lease as they are written here: by its key a message is found at once, by
            -- its lease among all that the group holds.
            select y.lease from hark.outstanding y
            where y.grp = s.grp and y.partition = s.partition and y."offset" = s."offset" and y.until + 0 > p_now
                and (y.lease = coalesce(s.lease, case when p_required is null then y.lease end)) is true
            for update
        ) as x
        group by s.position
    loop
        delete from hark.outstanding x
        where x.grp = t_grp[e.position] and x.partition = t_partition[e.position] and x."offset" = any (e.offsets);
        v_done := v_done || e.items;
        for j in 1..cardinality(e.items) loop
            o_codes[e.items[j]] := 0;
            o_holders[e.items[j]] := e.holders[j];
        end loop;
        v_settled[e.position] := true;
    end loop;

    if cardinality(v_done) < (select count(*) from unnest(i_position) x where t_shared[x]) then
        select array_agg(i.n::integer order by i.n) into v_rest from unnest(i_position) with ordinality as i(position, n)
        where t_shared[i.position] and i.n <> all (v_done);
        while n < cardinality(v_rest) loop
            -- The items of one request are judged before any of them has an effect.
            select array_agg(w.item order by w.item) into v_same from unnest(v_rest) as w(item)
            where i_request[w.item] = i_request[v_rest[n + 1]];
            n := n + cardinality(v_same);
            for j in 1..cardinality(v_same) loop
                select v.* into e from hark.authorize_shared_v1(p_now, t_grp[i_position[v_same[j]]],
                    t_partition[i_position[v_same[j]]], i_offset[v_same[j]], i_lease[v_same[j]], i_status[v_same[j]],
                    p_required, i_known[v_same[j]]) v;
                o_codes[v_same[j]] := e.code;
                o_holders[v_same[j]] := e.holder;
            end loop;
            for j in 1..cardinality(v_same) loop
                select x.* into e from hark.apply_shared_v1(p_now, t_grp[i_position[v_same[j]]],
                    t_partition[i_position[v_same[j]]], i_offset[v_same[j]], o_codes[v_same[j]], o_holders[v_same[j]],
                    i_status[v_same[j]], i_error[v_same[j]], i_delay[v_same[j]]) x;
                o_codes[v_same[j]] := greatest(o_codes[v_same[j]], 0);
                o_holders[v_same[j]] := e.holder;
                o_dead[v_same[j]] := e.dead;
                continue when e.holder is null;
                v_settled[i_position[v_same[j]]] := true;
                if e.due <= p_now then
                    o_counts[i_position[v_same[j]]] := o_counts[i_position[v_same[j]]] + 1;
                elsif e.due is not null then
                    o_due_times[i_position[v_same[j]]] := least(o_due_times[i_position[v_same[j]]], e.due);
                end if;
            end loop;
        end loop;
    end if;
    if true = any (v_settled) then
        for e in select * from hark.room_made_v1(p_now, t_grp, t_partition, v_settled, i_position, o_holders) loop
            o_counts[e.n] := greatest(o_counts[e.n], e.number);
        end loop;
    end if;
    select array_agg(coalesce(o.released, w.released) order by w.n) into o_released
    from unnest(o_released) with ordinality as w(released, n)
    left join (
        select max(h.n) as n, not hark.is_leased_v1(h.lease) as released
        from unnest(o_holders, i_position) with ordinality as h(lease, position, n)
        where h.lease is not null and t_shared[h.position] group by h.lease
    ) as o on o.n = w.n;
    update hark.positions k set settled_at = p_now, changed_bucket = greatest(k.changed_bucket, hark.bucket_v1(p_now))
    from unnest(t_grp, t_partition, v_settled) as w(grp, partition, settled)
    where w.settled and k.grp = w.grp and k.partition = w.partition and hark.is_due_for_a_note_v1(k, p_now);
    perform hark.drop_settled_v1(t_partition[i.position], array_agg(i."offset"))
    from unnest(i_position, i_offset, o_holders) as i(position, "offset", holder)
    where t_shared[i.position] and i.holder is not null and not exists (
        select 1 from hark.outstanding x
        where x.grp = t_grp[i.position] and x.partition = t_partition[i.position] and x."offset" = i."offset" offset 0)
    group by t_partition[i.position];
end $$;

-- Whether a lease holds messages of shared groups.
create or replace function hark.is_leased_v1(p_lease uuid) returns boolean
language sql volatile as $$
    select exists (
        select 1 from hark.leases l
        cross join lateral unnest(l.partitions) as p(partition)
        cross join lateral (
            select 1 from hark.outstanding x
            where x.partition = p.partition and x.until = l.until and x.lease = l.id and x.lease is not null limit 1
        ) as e
        where l.id = p_lease)
$$;

-- Whether a settlement counts: as authorize_settlement_v1, for a shared group.
create or replace function hark.authorize_shared_v1(
    p_now bigint, p_grp integer, p_partition bigint, p_offset bigint, p_lease uuid, p_status smallint,
    p_required uuid[], p_known boolean,
    out code smallint, out holder uuid
)
language plpgsql as $$
declare
    e hark.outstanding;
begin
    select * into e from hark.outstanding x
    where x.grp = p_grp and x.partition = p_partition and x."offset" = p_offset and x.lease is not null for update;
    if e.until > p_now and (p_lease = e.lease or (p_lease is null and (e.lease = any (p_required)) is not false)) then
        code := 0;
        holder := e.lease;
        return;
    end if;
    code := hark.refuse_v1(p_grp, p_partition, p_offset, p_lease, p_status,
        hark.is_done_v1(p_grp, p_partition, p_offset), p_required, p_known);
    if code = 4 and e.until > p_now then
        code := 3;  -- Held, but not under a lease that it must be held under.
    end if;
end $$;

-- Applies a settlement that counts. holder: null if it changed nothing; due: when the message comes again.
create or replace function hark.apply_shared_v1(
    p_now bigint, p_grp integer, p_partition bigint, p_offset bigint, p_code smallint, p_lease uuid, p_status smallint,
    p_error text, p_delay bigint,
    out holder uuid, out dead boolean, out due bigint
)
language plpgsql as $$
declare
    v_failed record;
    e hark.outstanding;
begin
    dead := false;
    select * into e from hark.outstanding x
    where x.grp = p_grp and x.partition = p_partition and x."offset" = p_offset and x.lease = p_lease;
    if p_code <> 0 or not found then
        return;  -- Refused, or said before in the same request: the first word counts.
    end if;
    holder := p_lease;
    if p_status = 1 then
        select * into v_failed from hark.fail_shared_v1(p_grp, p_partition, p_offset,
            coalesce(nullif(p_error, ''), 'Failed without an error text'), p_now, p_delay);
        dead := v_failed.dead;
        select x.due into due from hark.outstanding x
        where x.grp = p_grp and x.partition = p_partition and x."offset" = p_offset;
        return;
    elsif p_status = 2 then
        due := p_now + coalesce(p_delay, 0);
        update hark.outstanding x set due = apply_shared_v1.due, lease = null, until = null
        where x.grp = p_grp and x.partition = p_partition and x."offset" = p_offset;
        return;
    elsif p_status in (3, 4) then
        dead := hark.dead_letter_v1(p_grp, p_partition, p_offset, e.attempts + 1,
            coalesce(nullif(p_error, ''), 'Sent to the dead letters by its consumer'), p_now, false,
            p_status = 4);
    end if;
    delete from hark.outstanding x where x.grp = p_grp and x.partition = p_partition and x."offset" = p_offset;
end $$;

-- Why a settlement does not count; -1: it is completed already, which is a success that changes nothing. p_done: the
-- group is done with the message, or there is none. One that was removed has an offset that was given once. p_known: see
-- i_known of settle_v1; in a transaction only the lease that completed a message may say so again (rule 12).
create or replace function hark.refuse_v1(
    p_grp integer, p_partition bigint, p_offset bigint, p_lease uuid, p_status smallint, p_done boolean,
    p_required uuid[], p_known boolean
) returns smallint
language plpgsql as $$
declare
    v_stored boolean;
begin
    if p_offset is null or not exists (
        select 1 from hark.partitions p where p.id = p_partition and p.queue <> 0 and p_offset between 1 and p.tail)
    then
        return 1;
    end if;
    v_stored := exists (
        select 1 from hark.messages m join hark.partitions p on p.id = m.partition
        where m.partition = p_partition and m."offset" = p_offset and m."offset" > p.floor);
    if p_done or not v_stored then
        if exists (
            select 1 from hark.dead_letters d join hark.groups g on g.name = d.grp
            where g.id = p_grp and d.partition = p_partition and d."offset" = p_offset)
        then
            return 5;
        elsif not v_stored and (p_status <> 0 or exists (
            select 1 from hark.withdrawn w
            where w.partition = p_partition and w."offset" = p_offset and w.grp = p_grp))
        then
            return 1;
        elsif p_status = 0 and (p_known is not false or exists (
            select 1 from hark.completions c
            where c.grp = p_grp and c.partition = p_partition and c."offset" = p_offset
                and (c.lease = p_lease or (p_lease is null and c.lease = any (p_required)))))
        then
            return -1;
        end if;
    end if;
    if p_lease is null then
        return 4;
    end if;
    return case when exists (select 1 from hark.leases l where l.id = p_lease and l.expired) then 2 else 3 end;
end $$;
