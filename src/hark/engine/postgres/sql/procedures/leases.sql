-- Extends leases, each over all partitions that share it (rule 17). Answers the new ends; where there is none
-- o_codes says why: 3 it is not live, 4 its time is up. Not durable, as leases are not.
create or replace function hark.renew_v1(p_now bigint, p_leases uuid[], p_seconds bigint[],
    out o_until bigint[], out o_codes smallint[]
)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
as $$
declare
    v_now bigint := hark.time_v1(p_now);
    v_until bigint;
    s record;
begin
    perform 1 from (
        select 1 from hark.positions t
        join (
            select p.grp, p.partition from hark.leases l
            cross join lateral unnest(l.grps, l.partitions) as p(grp, partition) where l.id = any (p_leases)
        ) as w on t.grp = w.grp and t.partition = w.partition
        order by t.grp, t.partition for no key update of t
    ) as locked;
    for n in 1..cardinality(p_leases) loop
        o_codes[n] := hark.lease_state_v1(v_now, p_leases[n]);
        if o_codes[n] <> 0 then
            o_until[n] := null;
            continue;
        end if;
        v_until := v_now + p_seconds[n] * 1000000;
        update hark.positions t set lease_until = greatest(t.lease_until, v_until, l.whole)
        from hark.leases l cross join lateral unnest(l.grps, l.partitions) as p(grp, partition)
        where l.id = p_leases[n] and t.grp = p.grp and t.partition = p.partition and t.lease = l.id;
        update hark.claims c set until = greatest(c.until, v_until, l.whole)
        from hark.leases l cross join lateral unnest(l.grps, l.partitions) as p(grp, partition)
        where l.id = p_leases[n] and c.grp = p.grp and c.partition = p.partition and c.lease = l.id;
        for s in
            select l.until, greatest(v_until, l.whole) as later, p.grp, p.partition from hark.leases l
            cross join lateral unnest(l.grps, l.partitions) as p(grp, partition)
            where l.id = p_leases[n] and l.until < greatest(v_until, l.whole)
        loop
            update hark.outstanding e set until = s.later
            where e.partition = s.partition and e.until = s.until and e.lease = p_leases[n] and e.lease is not null
                and e.grp + 0 = s.grp;
        end loop;
        update hark.leases set until = greatest(until, v_until, whole), whole = null where id = p_leases[n]
        returning until into v_until;
        o_until[n] := v_until;
    end loop;
    perform set_config('synchronous_commit', 'off', true);
end $$;

-- Lets leases end after a time at the latest (rule 17); a renewal gives them their time back. Answers the leases that
-- end sooner now.
create or replace function hark.shorten_v1(p_now bigint, p_leases uuid[], p_microseconds bigint)
returns table (o_lease uuid, o_until bigint)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
as $$
declare
    v_now bigint := hark.time_v1(p_now);
    v_until bigint := v_now + p_microseconds;
    v_before bigint;
begin
    perform 1 from (
        select 1 from hark.positions t
        join (
            select p.grp, p.partition from hark.leases l
            cross join lateral unnest(l.grps, l.partitions) as p(grp, partition) where l.id = any (p_leases)
        ) as w on t.grp = w.grp and t.partition = w.partition
        order by t.grp, t.partition for no key update of t
    ) as locked;
    for n in 1..cardinality(p_leases) loop
        select max(l.until) into v_before from hark.leases l where l.id = p_leases[n];
        continue when v_before is null or v_before <= v_until or hark.lease_state_v1(v_now, p_leases[n]) <> 0;
        update hark.leases l set whole = greatest(l.whole, l.until) where l.id = p_leases[n];
        update hark.claims c set until = least(c.until, v_until)
        from hark.leases l cross join lateral unnest(l.grps, l.partitions) as p(grp, partition)
        where l.id = p_leases[n] and c.grp = p.grp and c.partition = p.partition and c.lease = l.id;
        perform hark.end_sooner_v1(p_leases[n], v_before, v_until);
        return query select p_leases[n], v_until;
    end loop;
    perform set_config('synchronous_commit', 'off', true);
end $$;

-- When leases end as things are now; null: over, or never was.
create or replace function hark.lease_ends_v1(p_now bigint, p_leases uuid[]) returns bigint[]
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
as $$
declare
    v_now bigint := hark.time_v1(p_now);
    v_ends bigint[];
begin
    select array_agg(e.until order by w.n) into v_ends
    from unnest(p_leases) with ordinality as w(id, n)
    cross join lateral (
        select max(coalesce(t.lease_until, c.until, e.until)) as until
        from hark.leases l
        cross join lateral unnest(l.grps, l.partitions) as p(grp, partition)
        left join hark.positions t on t.grp = p.grp and t.partition = p.partition and t.lease = l.id
            and t.lease_until > v_now
        left join hark.claims c on c.grp = p.grp and c.partition = p.partition and c.lease = l.id and c.until > v_now
        left join lateral (
            select x.until from hark.outstanding x
            where x.partition = p.partition and x.until = l.until and x.lease = l.id and x.lease is not null and x.grp + 0 = p.grp
                and x.until > v_now limit 1
        ) as e on true
        where l.id = w.id
    ) as e;
    return v_ends;
end $$;

-- Gives back what leases hold, as if it had never been handed out (rule 17); not where their time is up, which counts
-- (rule 16). Answers what is free now, and of what; number: how many messages of a shared group.
create or replace function hark.release_v1(p_now bigint, p_leases uuid[])
returns table (grp integer, partition bigint, lease uuid, number integer)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
as $$
declare
    v_now bigint := hark.time_v1(p_now);
    h record;
begin
    perform set_config('synchronous_commit', 'off', true);
    perform hark.begin_v1();
    perform hark.lock_shared_v1(v_now, array_agg(p.grp), array_agg(p.partition), array_agg(g.mode = 'shared'))
    from hark.leases l
    cross join lateral unnest(l.grps, l.partitions) as p(grp, partition)
    join hark.groups g on g.id = p.grp
    where l.id = any (p_leases);
    for h in
        select e.grp, e.partition, array_agg(e."offset") as offsets from hark.leases l
        cross join lateral unnest(l.grps, l.partitions) as p(grp, partition)
        cross join lateral (
            select x.grp, x.partition, x."offset" from hark.outstanding x
            where x.partition = p.partition and x.until = l.until and x.lease = l.id and x.lease is not null
                and x.grp + 0 = p.grp and x.until > v_now
            offset 0
        ) as e
        where l.id = any (p_leases)
        group by e.grp, e.partition
        order by e.grp, e.partition
    loop
        return query
        select h.grp, h.partition, k.lease, count(*)::integer from (
            select x.lease from hark.outstanding x
            where x.grp = h.grp and x.partition = h.partition and x."offset" = any (h.offsets)
                and (x.lease = any (p_leases)) is true and x.until + 0 > v_now
            order by x."offset" for update
        ) as k
        group by k.lease;
        update hark.outstanding x set lease = null, until = null
        where x.grp = h.grp and x.partition = h.partition and x."offset" = any (h.offsets)
            and (x.lease = any (p_leases)) is true and x.until + 0 > v_now;
        update hark.positions t set changed_bucket = hark.bucket_v1(v_now)
        where t.grp = h.grp and t.partition = h.partition and t.changed_bucket < hark.bucket_v1(v_now);
    end loop;
    return query
    with lease_part as (
        select l.id, p.grp, p.partition from hark.leases l
        cross join lateral unnest(l.grps, l.partitions) as p(grp, partition)
        where l.id = any (p_leases)
    ), locked as (
        select t.grp, t.partition, t.lease from hark.positions t
        join lease_part p on t.grp = p.grp and t.partition = p.partition and t.lease = p.id
        where t.lease_until > v_now
        order by t.grp, t.partition for no key update of t
    ), claim as (
        delete from hark.claims c using lease_part p
        where c.grp = p.grp and c.partition = p.partition and c.lease = p.id
    )
    update hark.positions t
    set lease = null, lease_until = null, handed = 0, lease_last = 0, leased = '{}',
        changed_bucket = greatest(t.changed_bucket, hark.bucket_v1(v_now))
    from locked k
    where t.grp = k.grp and t.partition = k.partition and t.lease = k.lease
    returning t.grp, t.partition, k.lease, 0;
end $$;

-- Gives back what failed pops may hold, or may still take: a call can run on after its connection was lost. A row for
-- each of their leases ends that. A pop that has not written its lease yet finds the row and is rolled back; for one that
-- has, this call waits.
create or replace function hark.give_back_v1(p_now bigint, p_leases uuid[]) returns void
language plpgsql as $$
declare
    v_now bigint := hark.time_v1(p_now);
begin
    perform set_config('synchronous_commit', 'off', true);
    insert into hark.leases (slot, id, until, grps, partitions, void, since)
    select s.slot, w.id, v_now, '{}', '{}', true, v_now
    from unnest(p_leases) as w(id) cross join generate_series(0, 1) as s(slot)
    order by w.id, s.slot
    on conflict (id, slot) do update set void = true;
    perform hark.release_v1(p_now, p_leases);
    -- The next rotation waits for those pops, because it brings an empty child table. The lock: until this is written it
    -- is decided which of the two is current.
    insert into hark.slots as s (name, slot, closed, emptied)
    select r.name, 1 - r.slot, pg_current_xact_id(), pg_current_xact_id()
    from (select * from hark.rotation where name = 'leases' for share) as r
    on conflict (name, slot) do update set emptied = excluded.emptied where s.emptied is not null;
end $$;

-- Rolls back a pop that was given up.
create or replace function hark.refuse_void_v1(p_void boolean) returns boolean
language plpgsql as $$
begin
    if p_void then
        raise exception using errcode = 'serialization_failure', message = 'this pop was given up';
    end if;
    return false;
end $$;

-- Ends leases whose time is up (rule 16): at most p_limit of those due after p_after (and
-- of those due then, after p_after_id), the earliest first. Answers the positions that this call freed, of which leases,
-- how many messages of a shared group, how many dead letters that made, how many leases it looked at, and the end of the
-- last of them.
create or replace function hark.expire_v1(p_now bigint, p_after bigint, p_after_id uuid, p_limit integer,
    out o_grps integer[], out o_partitions bigint[], out o_ended uuid[], out o_counts integer[], out o_leases integer,
    out o_dead_lettered integer, out o_examined integer,
    out o_last bigint, out o_last_id uuid, out o_now bigint
)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_shared record;
    w record;
begin
    o_now := hark.time_v1(p_now);
    o_grps := '{}'; o_partitions := '{}'; o_ended := '{}'; o_counts := '{}'; o_examined := 0; o_leases := 0;
    o_dead_lettered := 0;
    o_last := p_after; o_last_id := p_after_id;
    -- Most leases in the list were settled long ago: only positions that still are under one are locked, in order.
    for w in
        with due as materialized (
            select l.id, l.until, l.grps, l.partitions from hark.leases l
            where l.until >= p_after and (l.until, l.id) > (p_after, p_after_id) and l.until <= o_now
            order by l.until, l.id limit p_limit
        ), seen as (
            select count(*)::integer as number, max(until) as last,
                (array_agg(id order by until desc, id desc))[1] as last_id
            from due
        )
        select seen.number, seen.last, seen.last_id, t.grp, t.partition, t.leases, t.shared
        from seen
        left join (
            select t.grp, t.partition, array[t.lease] as leases, false as shared from due
            cross join lateral unnest(due.grps, due.partitions) as p(grp, partition)
            join hark.positions t on t.grp = p.grp and t.partition = p.partition and t.lease = due.id
            where t.lease_until <= o_now
            union all
            select e.grp, e.partition, array_agg(distinct e.lease), true from due
            cross join lateral unnest(due.grps, due.partitions) as p(grp, partition)
            cross join lateral (
                select x.grp, x.partition, x.lease from hark.outstanding x
                where x.partition = p.partition and x.until = due.until and x.lease = due.id and x.lease is not null
                    and x.grp + 0 = p.grp
                offset 0
            ) as e
            group by e.grp, e.partition
        ) as t on true
        order by t.grp, t.partition
    loop
        o_examined := w.number;
        o_last := coalesce(w.last, p_after);
        o_last_id := coalesce(w.last_id, p_after_id);
        continue when w.grp is null;
        perform hark.begin_v1();
        if w.shared then
            perform hark.lock_shared_v1(o_now, array[w.grp], array[w.partition], array[true]);
            select * into v_shared from hark.expire_shared_v1(w.grp, w.partition, o_now, w.leases);
            for n in 1..cardinality(v_shared.ended) loop
                o_grps := o_grps || w.grp;
                o_partitions := o_partitions || w.partition;
                o_ended := o_ended || v_shared.ended[n];
                o_counts := o_counts || case when n = 1 then v_shared.made_ready else 0 end;
            end loop;
            update hark.positions t set changed_bucket = hark.bucket_v1(o_now)
            where t.grp = w.grp and t.partition = w.partition and t.changed_bucket < hark.bucket_v1(o_now);
            continue;
        end if;
        perform 1 from hark.positions t where t.grp = w.grp and t.partition = w.partition for update;
        if hark.expire_position_v1(w.grp, w.partition, o_now) then
            o_grps := o_grps || w.grp;
            o_partitions := o_partitions || w.partition;
            o_ended := o_ended || w.leases;
            o_counts := o_counts || 0;
        end if;
    end loop;
    select count(distinct e) into o_leases from unnest(o_ended) e;
    if o_leases = 0 then
        perform set_config('synchronous_commit', 'off', true);
        return;
    end if;
    -- What this transaction wrote.
    select count(*)::integer into o_dead_lettered from hark.dead_letters d
    where d.partition = any (o_partitions) and d.xmin = pg_current_xact_id()::xid;
end $$;
