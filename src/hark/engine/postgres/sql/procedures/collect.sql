-- One bounded step of retention (rule 23): goes through partitions from a place on, and removes messages whose time
-- is over. Those at the beginning of a partition leave together, by raising its floor; their rows go when their child
-- table is emptied (see rotate.sql). Single ones further on leave a gap.
--
-- p_after and p_offset: where the last step stopped. p_expired: up to which time messages with a time to live of
-- their own have been dealt with. Pushes wait for partitions that a step has changed, so it ends after p_milliseconds,
-- and one that another server is at is left to that one.
create or replace function hark.collect_v1(
    p_now bigint, p_after bigint, p_offset bigint, p_expired bigint, p_limit integer,
    p_completed_seconds bigint, p_idle_seconds bigint, p_milliseconds integer,
    out o_examined integer, out o_removed integer, out o_after bigint, out o_offset bigint, out o_expired bigint,
    out o_more boolean
)
language plpgsql as $$
declare
    v_now bigint := hark.time_v1(p_now);
    v_deadline timestamptz := clock_timestamp() + p_milliseconds * interval '1 ms';
    v_step record;
    v_seen integer := 0;
    p record;
begin
    o_examined := 0; o_removed := 0; o_after := p_after; o_offset := p_offset; o_expired := p_expired; o_more := false;
    if not pg_try_advisory_xact_lock(hashtextextended('hark.collect_v1', 0)) then
        return;
    end if;
    -- What a crash brings back is removed again.
    perform set_config('synchronous_commit', 'off', true);
    if p_after = 0 and p_offset = 0 then
        delete from hark.withdrawn where until <= v_now;
        delete from hark.endings where at <= v_now - 86400000000;
        -- A pass begins with the messages whose own time to live has ended since the last one.
        for p in
            select w.partition, max(w.expires_at) as last, count(*)::integer as number,
                array_agg(w."offset" order by w."offset") as offsets
            from (
                select m.partition, m.expires_at, m."offset" from hark.messages m
                join hark.partitions x on x.id = m.partition and x.floor < m."offset"
                where m.expires_at > p_expired and m.expires_at <= v_now order by m.expires_at limit p_limit
            ) as w
            group by w.partition order by w.partition
        loop
            select * into v_step from hark.collect_partition_v1(v_now, p.partition, p.offsets[1] - 1, p.offsets,
                null, p_completed_seconds, p_idle_seconds, v_deadline);
            o_examined := o_examined + v_step.examined;
            o_removed := o_removed + v_step.removed;
            o_expired := greatest(o_expired, p.last);
            v_seen := v_seen + p.number;
            if o_removed > 0 and clock_timestamp() >= v_deadline then
                -- The next step begins with those that are left.
                o_expired := p_expired;
                o_more := true;
                return;
            end if;
        end loop;
        if v_seen >= p_limit and o_removed > 0 then
            -- There may be more, some of them due at the very same time.
            o_expired := o_expired - 1;
            o_more := true;
            return;
        end if;
        -- Whatever is held is not removed while it is: look at it again.
        select least(o_expired, min(m.expires_at) - 1) into o_expired
        from hark.messages m join hark.partitions x on x.id = m.partition and x.floor < m."offset"
        where m.expires_at > p_expired and m.expires_at <= v_now;
    end if;
    v_seen := 0;
    for p in
        select x.id, x.queue from hark.partitions x
        where x.id > p_after - (p_offset > 0)::integer and (
            x.tail > x.floor or not exists (select 1 from hark.queues q where q.id = x.queue)) order by x.id limit p_limit
    loop
        if o_examined >= p_limit then
            o_more := true;
            return;
        end if;
        v_seen := v_seen + 1;
        select * into v_step from hark.collect_partition_v1(v_now, p.id,
            case when p.id = p_after then p_offset else 0 end, null, p_limit - o_examined, p_completed_seconds,
            p_idle_seconds, v_deadline);
        o_examined := o_examined + greatest(v_step.examined, 1);
        o_removed := o_removed + v_step.removed;
        o_after := p.id;
        o_offset := v_step.next;
        if v_step.next > 0 or clock_timestamp() >= v_deadline then
            o_more := true;
            return;
        end if;
    end loop;
    o_more := v_seen >= p_limit;
    if not o_more then
        o_after := 0;
    end if;
    o_offset := 0;
end $$;

-- Retention of one partition from an offset on. p_offsets: the messages to look at, whatever their age; null: those that
-- are old enough. p_limit: how many messages to look at. next: where to go on (0: at the end).
create or replace function hark.collect_partition_v1(
    p_now bigint, p_partition bigint, p_offset bigint, p_offsets bigint[], p_limit integer, p_completed_seconds bigint,
    p_idle_seconds bigint, p_deadline timestamptz,
    out examined integer, out removed integer, out next bigint
)
language plpgsql as $$
declare
    c_second constant bigint := 1000000;
    p hark.partitions;
    q hark.queues;
    v_completed bigint;
    v_youngest bigint;
    v_slowest bigint;
    v_fastest bigint;
    v_leased int8multirange;
    v_shared integer[];
    v_last bigint;
    v_requeued bigint[];
    v_ages boolean;
    v_floor bigint;
    v_before bigint;
    v_kept boolean := false;
    v_expired integer := 0;
    v_stopped boolean := false;
    v_over boolean;
    v_expiry bigint;
    m record;
begin
    examined := 0; removed := 0; next := 0;
    select * into p from hark.partitions where id = p_partition;
    select * into q from hark.queues where id = p.queue;
    if not found then
        perform hark.drop_partition_v1(p_partition);
        return;
    end if;
    v_ages := p_offsets is not null or q.ttl > 0 or q.max_wait_time_seconds > 0
        or (q.retention_enabled and q.retention_seconds > 0);
    v_completed := c_second * coalesce(
        nullif(case when q.retention_enabled then q.completed_retention_seconds end, 0), p_completed_seconds);
    if q.drop_settled and p.leftover then
        v_completed := 0;
    end if;
    v_youngest := p_now - least(v_completed, c_second * nullif(q.ttl, 0), c_second * nullif(q.max_wait_time_seconds, 0),
        c_second * nullif(case when q.retention_enabled then q.retention_seconds end, 0));
    -- In most partitions the first message is young: no group needs to be asked.
    v_last := coalesce(p_offsets[cardinality(p_offsets)], hark.last_offset_at_v1(p.id, v_youngest));
    if v_last <= greatest(p.floor, p_offset) then
        return;
    end if;
    v_shared := array(
        select g.id from hark.groups g
        where g.queue = q.name and g.mode = 'shared' and g.last_seen >= p_now - p_idle_seconds * c_second);
    -- What shared groups have settled has no end: it is asked for message by message.
    select coalesce(min(s.cursor) filter (where s.active), case when cardinality(v_shared) > 0 then p.tail else 0 end),
        coalesce(max(s.cursor), 0)
    into v_slowest, v_fastest
    from (
        select greatest(p.floor, coalesce(t.cursor, hark.start_v1(g.id, p.id))) as cursor,
            g.last_seen >= p_now - p_idle_seconds * c_second as active
        from hark.groups g
        left join hark.positions t on t.grp = g.id and t.partition = p.id
        where g.queue = q.name and g.mode = 'ordered'
    ) as s;
    if not v_ages and v_slowest <= p.floor then
        return;
    end if;
    -- Under the locks of the positions nothing can be leased that is about to be removed.
    perform 1 from (
        select 1 from hark.positions where partition = p.id order by grp, partition for update) as locked;
    select * into p from hark.partitions where id = p_partition;  -- Another server may have been here meanwhile.
    select coalesce(range_agg(h.leased), '{}') into v_leased
    from hark.positions t cross join lateral unnest(t.leased) as h(leased)
    where t.partition = p.id and t.lease_until > p_now;
    select v_leased + coalesce(range_agg(int8range(e."offset", e."offset" + 1)), '{}') into v_leased
    from hark.outstanding e where e.partition = p.id and e.until > p_now and e.lease is not null;
    select coalesce(array_agg(f."offset"), '{}') into v_requeued from hark.requeued f where f.partition = p.id;
    v_floor := p.floor;
    v_before := greatest(p.floor, p_offset);
    if p_offset > p.floor then
        v_kept := exists (
            select 1 from hark.messages x where x.partition = p.id and x."offset" > p.floor and x."offset" <= p_offset);
    end if;
    for m in
        select x."offset", x.created_at, x.expires_at, x.owner, x.priority, x.deliver_at from hark.messages x
        where x.partition = p.id and x."offset" > greatest(p.floor, p_offset)
            and (v_ages or x."offset" <= v_slowest) and x."offset" <= v_last
            and (p_offsets is null or x."offset" = any (p_offsets))
        order by x."offset" limit p_limit
    loop
        examined := examined + 1;
        -- Between the messages that are looked at, others may stay.
        if p_offsets is not null and not v_kept and m."offset" > v_before + 1 then
            v_kept := exists (
                select 1 from hark.messages x
                where x.partition = p.id and x."offset" > v_before and x."offset" < m."offset");
        end if;
        v_before := m."offset";
        next := m."offset";
        v_expiry := coalesce(m.expires_at,
            case when q.ttl > 0 and m.owner is null then m.created_at + q.ttl * c_second end);
        v_over := not m."offset" <@ v_leased and (
            coalesce(v_expiry <= p_now, false)
            or (q.retention_enabled and q.retention_seconds > 0
                and m.created_at <= p_now - q.retention_seconds * c_second)
            or case when m."offset" <= v_slowest and m."offset" <> all (v_requeued) and (
                    cardinality(v_shared) = 0 or (select bool_and(hark.is_done_v1(g, p.id, m."offset")) from unnest(v_shared) g))
                then m.created_at <= p_now - v_completed
                else q.max_wait_time_seconds > 0 and m.created_at <= p_now - q.max_wait_time_seconds * c_second end);
        if not v_over then
            v_kept := true;
            continue;
        end if;
        removed := removed + 1;
        if v_expiry <= p_now and m."offset" > v_fastest and not exists (
            select 1 from hark.positions t where t.partition = p.id and t.plain is not null
                and hark.passed_v1(t, m."offset", m.priority, m.deliver_at))
        then
            v_expired := v_expired + 1;  -- Nobody has stepped over it, and so nobody has counted it.
        end if;
        if v_kept then
            perform hark.remove_message_v1(p_now, p.id, m."offset");
        else
            v_floor := m."offset";
        end if;
        if clock_timestamp() >= p_deadline then
            v_stopped := true;
            exit;
        end if;
    end loop;
    if not v_stopped and (examined < p_limit or p_limit is null) then
        next := 0;
    end if;
    if v_floor > p.floor then
        perform hark.raise_floor_v1(p.id, v_floor);
    end if;
    if next = 0 and p.leftover and (select count(*) from hark.groups g where g.queue = q.name) < 2 then
        update hark.partitions set leftover = false where id = p.id;
    end if;
    if v_expired > 0 then
        perform hark.count_v1(q.id, v_expired, 0);
    end if;
end $$;

-- What is at or below an offset is gone, and so is what was remembered about it.
create or replace function hark.raise_floor_v1(p_partition bigint, p_floor bigint) returns void
language plpgsql as $$
begin
    -- Apart from the update, whose snapshot would not have what was pushed while it waited for the row.
    perform 1 from hark.partitions where id = p_partition for no key update;
    update hark.partitions p
    set floor = greatest(p.floor, case when exists (
        select 1 from hark.messages m where m.partition = p.id and m."offset" > p_floor and m."offset" <= p.tail)
        then p_floor else p.tail end)
    where p.id = p_partition;
    delete from hark.retries r using hark.partitions p
    where p.id = p_partition and r.partition = p.id and r."offset" <= p.floor;
    delete from hark.requeued f using hark.partitions p
    where p.id = p_partition and f.partition = p.id and f."offset" <= p.floor;
    delete from hark.outstanding e using hark.partitions p, hark.positions t
    where p.id = p_partition and t.partition = p.id and e.grp = t.grp and e.partition = p.id and e."offset" <= p.floor;
    delete from hark.gaps h using hark.partitions p
    where p.id = p_partition and h.partition = p.id and h."offset" <= p.floor;
    delete from hark.trace_names n using hark.traces t, hark.partitions p
    where p.id = p_partition and t.id = n.trace and t.partition = p.id and t."offset" <= p.floor;
    delete from hark.traces t using hark.partitions p
    where p.id = p_partition and t.partition = p.id and t."offset" <= p.floor;
end $$;

-- A partition of a deleted queue, with what is remembered about it. Rows of messages without a partition count for
-- nothing, and go with their child table.
create or replace function hark.drop_partition_v1(p_partition bigint) returns void
language plpgsql as $$
begin
    delete from hark.trace_names n using hark.traces t where t.id = n.trace and t.partition = p_partition;
    delete from hark.traces where partition = p_partition;
    delete from hark.gaps where partition = p_partition;
    delete from hark.requeued where partition = p_partition;
    delete from hark.withdrawn where partition = p_partition;
    delete from hark.endings where partition = p_partition;
    delete from hark.outstanding e using hark.positions t
    where t.partition = p_partition and e.grp = t.grp and e.partition = t.partition;
    delete from hark.positions where partition = p_partition;
    delete from hark.partitions where id = p_partition;
end $$;
