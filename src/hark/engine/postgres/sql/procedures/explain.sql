-- For those who ask why a message was not delivered. Nothing is changed by it.

-- What one group, or each of a queue, knows of the message at a place. settled: it is done with it. leased: on a live
-- lease (`lease`, `lease_until`, and who has it since when). blocked: an ordered group has a live lease on the partition,
-- whose first message is first_leased. open, requeued: what it has yet to settle, and what comes before all of that.
create or replace function hark.explain_v1(p_now bigint, p_partition bigint, p_offset bigint, p_group text)
returns table (
    grp integer, name text, mode text, paused boolean, last_seen bigint, begins_after bigint, settled boolean,
    settled_at bigint, leased boolean, blocked boolean, lease uuid, lease_until bigint, since bigint, consumer text,
    first_leased bigint, attempts integer, due bigint, error text, open int8multirange, requeued int8multirange,
    ending text, ended_at bigint, ended_attempts integer, ended_error text, window_until bigint
)
language sql volatile as $$
    select g.id, g.name, g.mode, g.paused, g.last_seen,
        case when g.subscription <> 'all' and m.created_at <= g.since and s.partition <= g.highest_partition
            then g.since end,
        m."offset" is null or (f.is_requeued is null and case
            when s.shared then x."offset" is null and (m.owner is not null
                or hark.passed_v1(s.t, p_offset, m.priority, m.deliver_at))
            else not s.open @> p_offset
        end),
        s.settled_at, h.leased, h.blocked, h.lease, h.lease_until, l.since, coalesce(l.consumer, ''), lower(s.leased),
        coalesce(r.attempts, x.attempts), coalesce(r.due, x.due), coalesce(r.error, x.error), s.open,
        coalesce(s.requeued, '{}'), e.kind, e.at, e.attempts, e.error,
        case when g.mode = 'shared' and q.window_buffer > 0 then case
            when s.shared then hark.window_v1(p_now, s.t, s.p, q.window_buffer, q.ttl, q.delayed_processing)
            -- A group that has not been here yet.
            else (
                select least(s.last_created + q.window_buffer * 1000000::bigint, greatest(y.deliver_at,
                    y.created_at + q.delayed_processing * 1000000::bigint) + q.window_buffer * 10000000::bigint)
                from hark.messages y
                where y.partition = p_partition and y."offset" > s.cursor
                    and greatest(y.deliver_at, y.created_at + q.delayed_processing * 1000000::bigint) <= p_now
                order by y."offset" limit 1)
        end end
    from hark.standings_v1 s
    join hark.groups g on g.id = s.grp
    join hark.queues q on q.name = g.queue
    left join lateral (
        select * from hark.messages y
        where y.partition = p_partition and y."offset" = p_offset and y."offset" > (s.p).floor offset 0
    ) as m on true
    left join hark.retries r on r.grp = s.grp and r.partition = p_partition and r."offset" = p_offset
    left join hark.outstanding x on x.grp = s.grp and x.partition = p_partition and x."offset" = p_offset
    left join lateral (select true as is_requeued where s.requeued @> p_offset) as f on true
    cross join lateral (
        select case when s.shared then x.until > p_now else s.lease_until > p_now and s.leased @> p_offset end as leased,
            not s.shared and s.lease_until > p_now as blocked,
            case when s.shared then x.lease else s.lease end as lease,
            case when s.shared then x.until else s.lease_until end as lease_until
    ) as h
    left join lateral (select k.since, k.consumer from hark.leases k where k.id = h.lease limit 1) as l on true
    left join lateral (
        select * from hark.endings z where z.partition = p_partition and z.grp = s.grp and z.offsets @> p_offset
        order by z.at desc limit 1
    ) as e on true
    where s.partition = p_partition and (p_group is null or s.group_name = p_group)
    order by g.name
$$;

-- The first message of some ranges of a partition, in the order of the ranges. With p_waiting: the first that a group
-- may not have yet, because it is delayed, too young (p_delayed, in seconds), or waits for its next attempt. One whose
-- time is over (its own, or by p_ttl) blocks no group then.
create or replace function hark.first_of_v1(
    p_now bigint, p_grp integer, p_partition bigint, p_firsts bigint[], p_lasts bigint[], p_waiting boolean,
    p_delayed bigint, p_ttl bigint
) returns table ("offset" bigint, created_at bigint, deliver_at bigint, attempts integer, due bigint, error text)
language sql volatile as $$
    select m."offset", m.created_at, m.deliver_at, r.attempts, r.due, r.error
    from unnest(p_firsts, p_lasts) with ordinality as w(first, last, n)
    cross join lateral (
        select * from hark.messages x
        where x.partition = p_partition and x."offset" between w.first and w.last order by x."offset"
    ) as m
    left join hark.retries r on r.grp = p_grp and r.partition = p_partition and r."offset" = m."offset"
    where not p_waiting or ((m.deliver_at > p_now or m.created_at + nullif(p_delayed, 0) * 1000000 > p_now or r.due > p_now)
        and coalesce(m.expires_at, case when p_ttl > 0 and m.owner is null then m.created_at + p_ttl * 1000000 end,
            p_now + 1) > p_now)
    order by w.n, m."offset" limit 1
$$;

-- The first limit that lets a group have nothing more of a partition now: messages in flight, then rates; of each the
-- queue's, the group's, and that of the partition.
create or replace function hark.reached_limit_v1(p_now bigint, p_grp integer, p_partition bigint)
returns table (scope text, in_flight boolean, bound double precision, number bigint, until bigint)
language sql volatile as $$
    select y.scope, y.in_flight, y.bound, y.number, y.until from (
        select x.n, x.scope, w.in_flight, case when w.in_flight then x.max_in_flight else x.rate_limit end as bound,
            w.number, w.until
        from hark.groups g
        join hark.queues q on q.name = g.queue
        cross join lateral (values
            (1, 'queue', 0, q.max_in_flight, q.rate_limit, q.rate_burst),
            (2, 'group', g.id, g.max_in_flight, g.rate_limit, g.rate_burst)
        ) as x(n, scope, grp, max_in_flight, rate_limit, rate_burst)
        cross join lateral (
            select true as in_flight, c.number, null::bigint as until
            from (select hark.count_in_flight_v1(p_now, q.id, x.grp) as number offset 0) as c
            where x.max_in_flight > 0 and c.number >= x.max_in_flight
            union all
            select false, null, hark.next_token_v1(p_now, a.tokens, x.rate_limit)
            from (
                select least(hark.bucket_size_v1(x.rate_limit, x.rate_burst),
                    b.tokens + greatest(0, p_now - b.at) * x.rate_limit / 1000000) as tokens
                from hark.allowances b where b.queue = q.id and b.grp = x.grp and b.at is not null and x.rate_limit > 0
            ) as a
            where hark.whole_tokens_v1(a.tokens, x.rate_limit) <= 0
        ) as w
        where g.id = p_grp
        union all
        select 3, 'partition', true, h.o_most, h.o_most - h.o_free, null
        from hark.room_in_v1(p_now, p_grp, p_partition) h where h.o_free <= 0
        union all
        select 3, 'partition', false, h.o_rate, null, h.o_due
        from hark.room_in_v1(p_now, p_grp, p_partition) h where h.o_left <= 0
    ) as y
    order by not y.in_flight, y.n limit 1
$$;
