-- The offsets of partitions at which a message is in a state. The state of a message is the most urgent of what the
-- groups of its queue say of it.
create or replace function hark.offsets_in_state_v1(p_now bigint, p_state text, p_partitions bigint[])
returns table (partition bigint, offsets int8multirange)
language sql stable as $$
    with place as (
        select p.id, int8multirange(int8range(p.floor + 1, p.tail + 1)) as whole,
            exists (select 1 from hark.groups g where g.queue = q.name) as has_groups
        from hark.partitions p
        join hark.queues q on q.id = p.queue
        where p.id = any (p_partitions)
    ),
    standing as materialized (
        select s.partition, case when s.shared then x.open else s.open + coalesce(s.fronts, '{}') end as open,
            case when s.shared then x.held when s.lease_until > p_now then s.held else '{}' end as held
        from hark.standings_v1 s
        cross join lateral hark.shared_ranges_v1(p_now, s.t, s.p) as x
        where s.partition = any (p_partitions)
    ),
    dead as (
        select d.partition, range_agg(int8range(d."offset", d."offset" + 1)) as offsets
        from hark.dead_letters d
        join hark.groups g on g.queue = d.queue and g.name = d.grp
        where d.partition = any (p_partitions)
        group by d.partition
    ),
    working as (
        select s.partition, range_agg(r) as offsets
        from standing s cross join lateral unnest(s.open * s.held) as r
        group by s.partition
    ),
    -- What was requeued for a group that is gone since will never be settled.
    unsettled as (
        select u.partition, range_agg(u.r) as offsets
        from (
            select s.partition, r from standing s cross join lateral unnest(s.open) as r
            union all
            select h.partition, int8range(h."offset", h."offset" + 1) from hark.holes h
            where h.partition = any (p_partitions) and h.owner <> 0
              and not exists (select 1 from hark.groups g where g.id = h.owner)
        ) as u
        group by u.partition
    )
    select place.id, place.whole * case p_state
        when 'dead_letter' then o.dead
        when 'processing' then o.working - o.dead
        when 'pending' then o.unsettled - o.working - o.dead
        when 'completed' then place.whole - o.unsettled - o.dead
    end
    from place
    left join dead on dead.partition = place.id
    left join working on working.partition = place.id
    left join unsettled on unsettled.partition = place.id
    cross join lateral (
        select coalesce(dead.offsets, '{}') as dead, coalesce(working.offsets, '{}') as working,
            case when place.has_groups then coalesce(unsettled.offsets, '{}') else place.whole end as unsettled
    ) as o
$$;

-- What a shared group has yet to settle, and what of it is on leases.
create or replace function hark.shared_ranges_v1(p_now bigint, t hark.tracks, p hark.partitions,
    out open int8multirange, out held int8multirange
)
language plpgsql stable as $$
begin
    if t.plain is null then
        return;
    end if;
    select coalesce(range_agg(int8range(u, u + 1)), '{}') into open from hark.unsettled_v1(t, p) u;
    select coalesce(range_agg(int8range(e."offset", e."offset" + 1)), '{}') into held from hark.exceptions e
    where e.grp = t.grp and e.partition = t.partition and e.until > p_now;
end $$;

-- The newest messages that match, newest first.
--
-- There is no index by time, which every push would pay for. Times never decrease within a partition, and partitions
-- know that of their last message: so it looks at the partitions that got a message last, a growing number at a time,
-- until no other partition can have a message that is newer than the worst of those it has found.
create or replace function hark.newest_messages_v1(
    p_now bigint, p_queue text, p_partition text, p_namespace text, p_task text, p_state text, p_since bigint,
    p_until bigint, p_limit bigint
) returns table (n bigint, partition bigint, "offset" bigint)
language plpgsql stable as $$
declare
    c_long constant integer := 200;
    v_queues integer[];
    v_batch integer := 16;
    v_last_times bigint[];
    v_partitions bigint[];
    v_spans int8multirange[];
    v_last_time bigint;
    v_last_partition bigint;
    v_since bigint := coalesce(p_since, 0);
    v_until bigint := coalesce(p_until, 9223372036854775807);
    v_found_times bigint[] := '{}';
    v_found_partitions bigint[] := '{}';
    v_found_offsets bigint[] := '{}';
begin
    v_queues := array(
        select q.id from hark.queues q
        where (p_queue is null or q.name = p_queue) and (p_namespace is null or q.namespace = p_namespace)
          and (p_task is null or q.task = p_task));
    loop
        select array_agg(c.last_created), array_agg(c.id) into v_last_times, v_partitions
        from (
            select p.last_created, p.id
            from (
                select * from hark.partitions a where a.queue = any (v_queues) and p_partition is null
                union all
                select * from hark.partitions a where a.queue = any (v_queues) and a.name = p_partition
            ) as p
            where p.tail > p.floor and p.last_created >= v_since and p.created_at <= v_until
              and (v_last_time is null or (p.last_created, p.id) < (v_last_time, v_last_partition))
            order by p.last_created desc, p.id desc
            limit v_batch
        ) as c;
        exit when v_partitions is null;
        v_last_time := v_last_times[cardinality(v_last_times)];
        v_last_partition := v_partitions[cardinality(v_partitions)];

        -- What of them is to be looked at. In long partitions it is worth a search to leave out the wrong times.
        select array_agg(int8multirange(int8range(s.before + 1, greatest(s.before, s.until) + 1)) order by w.n)
        into v_spans
        from unnest(v_partitions) with ordinality as w(id, n)
        join hark.partitions p on p.id = w.id
        cross join lateral (
            select case when p.tail - p.floor > c_long and v_since > 0
                then hark.last_offset_at_v1(p.id, v_since - 1) else p.floor end as before,
                case when p.tail - p.floor > c_long and v_until < p.last_created
                then hark.last_offset_at_v1(p.id, v_until) else p.tail end as until
            offset 0
        ) as s;
        if p_state is not null then
            select array_agg(w.span * i.offsets order by w.n) into v_spans
            from unnest(v_partitions, v_spans) with ordinality as w(id, span, n)
            join hark.offsets_in_state_v1(p_now, p_state, v_partitions) i on i.partition = w.id;
        end if;

        select array_agg(b.created_at), array_agg(b.partition), array_agg(b."offset")
        into v_found_times, v_found_partitions, v_found_offsets
        from (
            select * from unnest(v_found_times, v_found_partitions, v_found_offsets)
                as f(created_at, partition, "offset")
            union all
            select m.created_at, w.id, m."offset"
            from unnest(v_partitions, v_spans) as w(id, span)
            cross join lateral (
                select l.created_at, l."offset"
                from unnest(w.span) as r
                cross join lateral (
                    select x.created_at, x."offset" from hark.messages x
                    where x.partition = w.id and x."offset" >= lower(r) and x."offset" < upper(r)
                      and x.created_at between v_since and v_until
                    order by x."offset" desc limit p_limit
                ) as l
                order by l."offset" desc limit p_limit
            ) as m
            order by created_at desc, partition desc, "offset" desc
            limit p_limit
        ) as b;
        if cardinality(v_found_times) = p_limit then
            v_since := v_found_times[p_limit];
            exit when (v_since, v_found_partitions[p_limit]) >= (v_last_time, v_last_partition);
        end if;
        v_batch := v_batch * 4;
    end loop;
    return query
    select f.n, f.partition, f."offset"
    from unnest(v_found_partitions, v_found_offsets) with ordinality as f(partition, "offset", n);
end $$;
