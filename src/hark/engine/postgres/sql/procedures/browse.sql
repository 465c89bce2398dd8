-- The offsets of partitions at which a message is in a state. The state of a message is the most urgent of what the
-- groups of its queue say of it.
create or replace function hark.offsets_in_state_v1(p_now bigint, p_state text, p_partitions bigint[])
returns table (partition bigint, offsets int8multirange)
language sql stable as $$
    with examined as (
        select p.id, int8multirange(int8range(p.floor + 1, p.tail + 1)) as whole, p.special > p.floor as special, p,
            exists (select 1 from hark.groups g where g.queue = q.name) as has_groups
        from hark.partitions p
        join hark.queues q on q.id = p.queue
        where p.id = any (p_partitions)
    ),
    standing as materialized (
        select s.partition, case when s.shared then x.open else s.open + coalesce(s.requeued, '{}') end as open,
            case when s.shared then x.leased when s.lease_until > p_now then s.leased else '{}' end as leased,
            case when s.regular then '{}' else hark.scheduled_ranges_v1(p_now, s.open, s.t, s.p) end as scheduled
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
        from standing s cross join lateral unnest(s.open * s.leased) as r
        group by s.partition
    ),
    -- What was requeued for a group that is gone since will never be settled.
    waiting as (
        select u.partition, range_agg(u.r) as offsets
        from (
            select s.partition, r from standing s cross join lateral unnest(s.open - s.leased - s.scheduled) as r
            union all
            select h.partition, int8range(h."offset", h."offset" + 1) from hark.gaps h
            where h.partition = any (p_partitions) and h.owner <> 0
              and not exists (select 1 from hark.groups g where g.id = h.owner)
        ) as u
        group by u.partition
    ),
    scheduled as (
        select s.partition, range_agg(r) as offsets
        from standing s cross join lateral unnest(s.open * s.scheduled) as r
        group by s.partition
    )
    select examined.id, examined.whole * case p_state
        when 'dead_letter' then o.dead
        when 'processing' then o.working - o.dead
        when 'pending' then o.waiting - o.working - o.dead
        when 'scheduled' then o.scheduled - o.waiting - o.working - o.dead
        when 'completed' then examined.whole - o.waiting - o.scheduled - o.working - o.dead
    end
    from examined
    left join dead on dead.partition = examined.id
    left join working on working.partition = examined.id
    left join waiting on waiting.partition = examined.id
    left join scheduled on scheduled.partition = examined.id
    cross join lateral (
        select case when examined.special and not examined.has_groups
            then hark.scheduled_ranges_v1(p_now, examined.whole, null, examined.p) else '{}' end as delayed
        offset 0
    ) as d
    cross join lateral (
        select coalesce(dead.offsets, '{}') as dead, coalesce(working.offsets, '{}') as working,
            case when examined.has_groups then coalesce(waiting.offsets, '{}') else examined.whole - d.delayed end as waiting,
            coalesce(scheduled.offsets, d.delayed) as scheduled
    ) as o
$$;

-- What a shared group has yet to settle, and what of it is on leases.
create or replace function hark.shared_ranges_v1(p_now bigint, t hark.positions, p hark.partitions,
    out open int8multirange, out leased int8multirange
)
language plpgsql stable as $$
begin
    if t.plain is null then
        return;
    end if;
    select coalesce(range_agg(int8range(u, u + 1)), '{}') into open from hark.unsettled_v1(t, p) u;
    select coalesce(range_agg(int8range(e."offset", e."offset" + 1)), '{}') into leased from hark.outstanding e
    where e.grp = t.grp and e.partition = t.partition and e.until > p_now;
end $$;

-- The partitions that may have pending or completed messages, found without a look at these; none is newer than `newest`.
-- Most partitions are simple: no group has settled, failed or taken anything beyond its cursor. So what all groups have
-- passed is completed, and the rest is pending. offsets: these of a simple partition, as far as they are not newer than
-- `until` (a group that starts at a time is done with what is older).
create or replace function hark.partitions_in_state_v1(
    p_now bigint, p_state text, p_queues integer[], p_partition text, p_since bigint, p_until bigint
) returns table (id bigint, newest bigint, offsets int8multirange, until bigint)
language sql stable
set work_mem = '64MB'  -- For 100,000 partitions in memory.
as $$
    with grp as materialized (
        select g.id, q.id as queue, g.since, g.highest_partition
        from hark.queues q join hark.groups g on g.queue = q.name where q.id = any (p_queues)
    ),
    examined as (
        select * from hark.partitions a where a.queue = any (p_queues) and p_partition is null
        union all
        select * from hark.partitions a where a.queue = any (p_queues) and a.name = p_partition
    ),
    position as (
        select t.* from hark.positions t where p_partition is null and t.grp in (select grp.id from grp)
        union all
        select t.* from hark.partitions a join hark.positions t on t.partition = a.id
        where a.queue = any (p_queues) and a.name = p_partition
    ),
    -- passed: all of these groups are done with what is up to here. last: one of them is done with nothing beyond.
    tracked as not materialized (
        select t.partition, array_agg(t.grp) as grps, min(greatest(t.cursor, t.plain[1])) as passed,
            min(case when t.plain is null then coalesce(upper(t.settled) - 1, t.cursor) end) as last,
            bool_and(isempty(t.settled) and not t.irregular and coalesce(t.lease_until <= p_now, true)) as simple,
            bool_or(t.irregular) as irregular, bool_or(t.plain is not null) as shared
        from position t group by t.partition
    ),
    uncommon as (
        select u.partition, bool_or(u.owned) as owned, bool_or(u.excepted) as excepted
        from (
            select distinct d.partition, false as owned, false as excepted from hark.dead_letters d
            union all
            select distinct h.partition, h.owner <> 0, false from hark.gaps h
            union all
            select distinct e.partition, false, true from hark.outstanding e
        ) as u
        group by u.partition
    ),
    standing as not materialized (
        select p.*, missing.*, coalesce(k.irregular, false) as irregular, coalesce(u.owned, false) as owned,
            coalesce(u.excepted, false) as excepted, greatest(p.floor, coalesce(k.passed, p.tail)) as passed,
            least(p.tail, k.last) as last, exists (select 1 from grp where grp.queue = p.queue) as grouped,
            coalesce(k.simple, true) and u.partition is null and (k.shared is not true or p.lanes is null) as simple
        from examined p
        left join tracked k on k.partition = p.id
        left join uncommon u on u.partition = p.id
        cross join lateral (
            select coalesce(bool_or(grp.since is null or p.id > grp.highest_partition), false) as unstarted,
                min(grp.since) filter (where p.id <= grp.highest_partition) as since
            from grp where grp.queue = p.queue and not grp.id = any (coalesce(k.grps, '{}'))
        ) as missing
        where p.tail > p.floor and p.last_created >= p_since and p.created_at <= p_until
    )
    select s.id, s.last_created, case when s.simple and s.special <= o.passed then
        int8multirange(int8range(o.passed + 1, s.tail + 1)) end, p_until
    from standing s
    cross join lateral (
        select case
            when s.unstarted or not s.grouped then s.floor
            when s.since < s.last_created then least(s.passed, hark.last_offset_at_v1(s.id, s.since))
            else s.passed
        end as passed
        offset 0
    ) as o
    where p_state = 'pending' and (not s.grouped or s.unstarted or s.irregular or s.owned or s.excepted
        or s.passed < s.tail or s.since < s.last_created)
    union all
    select s.id, case when s.owned then s.last_created else least(s.since, coalesce((
            select m.created_at from hark.messages m where m.partition = s.id and m."offset" = e.edge limit 1
        ), s.last_created)) end,
        case when s.simple then int8multirange(int8range(s.floor + 1, e.edge + 1)) end,
        case when s.simple then least(p_until, s.since) else p_until end
    from standing s
    cross join lateral (select case when s.simple then s.passed else s.last end as edge) as e
    where p_state = 'completed' and s.grouped and (s.owned or (
        not s.unstarted and e.edge > s.floor and coalesce(s.since >= s.created_at, true)))
$$;

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
    v_only bigint[];
    v_batch integer := 16;
    v_last_times bigint[];
    v_partitions bigint[];
    v_spans int8multirange[];
    v_partition_ids bigint[];
    v_newest bigint[];
    v_offsets int8multirange[];
    v_untils bigint[];
    v_known integer := 0;
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
    -- Few partitions have messages in such a state, and it is known which.
    if p_state = 'dead_letter' then
        v_only := array(select distinct d.partition from hark.dead_letters d);
    elsif p_state = 'processing' then
        v_only := array(
            select t.partition from hark.positions t where t.lease_until > p_now
            union
            select e.partition from hark.outstanding e where e.until > p_now);
    elsif p_state = 'scheduled' then
        v_only := array(
            select p.id from hark.partitions p where p.special > p.floor
            union
            select r.partition from hark.retries r where r.due > p_now
            union
            select e.partition from hark.outstanding e where e.due > p_now and e.lease is null);
    elsif p_state is not null then
        select array_agg(w.id), array_agg(w.newest), array_agg(w.offsets), array_agg(w.until)
        into v_partition_ids, v_newest, v_offsets, v_untils
        from (
            select * from hark.partitions_in_state_v1(p_now, p_state, v_queues, p_partition, v_since, v_until) w
            where w.newest >= v_since order by w.newest desc, w.id desc
        ) as w;
    end if;
    loop
        if p_state in ('pending', 'completed') then
            v_last_times := v_newest[v_known + 1:v_known + v_batch];
            v_partitions := nullif(v_partition_ids[v_known + 1:v_known + v_batch], '{}');
        else
            select array_agg(c.last_created), array_agg(c.id) into v_last_times, v_partitions
            from (
                select p.last_created, p.id
                from (
                    select * from hark.partitions a where a.queue = any (v_queues) and p_partition is null and v_only is null
                    union all
                    select * from hark.partitions a
                    where a.queue = any (v_queues) and p_partition is null and a.id = any (v_only)
                    union all
                    select * from hark.partitions a where a.queue = any (v_queues) and a.name = p_partition
                ) as p
                where p.tail > p.floor and p.last_created >= v_since and p.created_at <= v_until
                  and (v_last_time is null or (p.last_created, p.id) < (v_last_time, v_last_partition))
                order by p.last_created desc, p.id desc
                limit v_batch
            ) as c;
        end if;
        exit when v_partitions is null;
        v_last_time := v_last_times[cardinality(v_last_times)];
        v_last_partition := v_partitions[cardinality(v_partitions)];

        -- What of them is to be looked at. In long partitions it is worth a search to leave out the wrong times.
        select array_agg(int8multirange(int8range(s.before + 1, greatest(s.before, s.until) + 1)) order by w.n)
        into v_spans
        from unnest(v_partitions, v_untils[v_known + 1:v_known + v_batch]) with ordinality as w(id, until, n)
        join hark.partitions p on p.id = w.id
        cross join lateral (
            select case when p.tail - p.floor > c_long and v_since > 0
                then hark.last_offset_at_v1(p.id, v_since - 1) else p.floor end as before,
                case when p.tail - p.floor > c_long and coalesce(w.until, v_until) < p.last_created
                then hark.last_offset_at_v1(p.id, coalesce(w.until, v_until)) else p.tail end as until
            offset 0
        ) as s;
        if p_state is not null then
            select array_agg(w.span * coalesce(w.offsets, i.offsets) order by w.n) into v_spans
            from unnest(v_partitions, v_spans, v_offsets[v_known + 1:v_known + v_batch])
                with ordinality as w(id, span, offsets, n)
            left join hark.offsets_in_state_v1(p_now, p_state, array(
                select u.id from unnest(v_partitions, v_offsets[v_known + 1:v_known + v_batch]) as u(id, offsets)
                where u.offsets is null)) i on i.partition = w.id;
        end if;

        select array_agg(b.created_at), array_agg(b.partition), array_agg(b."offset")
        into v_found_times, v_found_partitions, v_found_offsets
        from (
            select * from unnest(v_found_times, v_found_partitions, v_found_offsets)
                as f(created_at, partition, "offset")
            union all
            select m.created_at, w.id, m."offset"
            from unnest(v_partitions, v_spans, v_untils[v_known + 1:v_known + v_batch]) as w(id, span, until)
            cross join lateral (
                select l.created_at, l."offset"
                from unnest(w.span) as r
                cross join lateral (
                    select x.created_at, x."offset" from hark.messages x
                    where x.partition = w.id and x."offset" >= lower(r) and x."offset" < upper(r)
                      and x.created_at between v_since and coalesce(w.until, v_until)
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
        v_known := v_known + v_batch;
        v_batch := v_batch * 4;
    end loop;
    return query
    select f.n, f.partition, f."offset"
    from unnest(v_found_partitions, v_found_offsets) with ordinality as f(partition, "offset", n);
end $$;
