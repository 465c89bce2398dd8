-- Leases messages of shared groups (rules 8-11, 16, 17): many requests in one call, which may take from one partition.
--
-- Requests that may take from the same partitions have the same pool. c_: the candidates of each pool (those of one
-- pool behind each other), the one served longest ago first; c_wait: wait for a locked row (the request named the
-- partition) instead of passing it by. r_: as in pop_v1; r_lease_ms: how long to hold what it gets, unless the queue
-- has its own time; null: the queue's lease time.
--
-- Answers a row for each request and candidate that it took from (status 0), and then for each candidate a row without
-- a request on what is left there: 0 as many of each priority as `ready` says, of which only the first are counted;
-- 1 nothing, 2 all is leased until `due`, 4 nothing until `due`, 5 window buffer until `due`; 3 locked by another call,
-- 6 paused, 7 there is no such thing, 9 the rate allows nothing until `due`, 10 too many are in flight, 11 the rate of
-- the partition allows nothing until `due`, 12 too many of the partition are in flight, and the first lease ends at `due`.
create or replace function hark.share_v1(
    p_now bigint,
    r_pool integer[], r_batch integer[], r_partitions integer[], r_lease uuid[], r_until bigint[], r_auto_ack boolean[],
    r_lease_ms bigint[],
    c_pool integer[], c_grp integer[], c_partition bigint[], c_wait boolean[],
    p_max_bytes bigint, r_consumer text[]
) returns table (
    request integer, candidate integer, status smallint, due bigint, ready integer[],
    offsets bigint[], created_ats bigint[], transaction_ids text[], payloads bytea[], attempts integer[], options text[]
)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_now bigint := hark.time_v1(p_now);
    v_until bigint[] := r_until;
    v_durable boolean := true = any (r_auto_ack);
    v_wanted integer[];
    v_none integer[] := array_fill(0, array[cardinality(c_pool)]);
    -- Of each candidate: what is wrong with it (0: nothing), its queue, and what was listed of it, from the first to
    -- the last.
    k_status smallint[] := v_none;
    k_due bigint[] := array_fill(null::bigint, array[cardinality(c_pool)]);
    k_queue integer[] := v_none;
    k_first integer[] := v_none;
    k_last integer[] := v_none;
    k_listed hark.listed[];
    -- What the limits of its partition allow (room_in_v1).
    k_free bigint[] := array_fill(null::bigint, array[cardinality(c_pool)]);
    k_rate_left bigint[] := array_fill(null::bigint, array[cardinality(c_pool)]);
    k_rate double precision[] := array_fill(null::double precision, array[cardinality(c_pool)]);
    k_tokens double precision[] := array_fill(null::double precision, array[cardinality(c_pool)]);
    -- What was listed, all candidates behind each other.
    f_candidate integer[] := '{}';
    f_offset bigint[] := '{}';
    f_lane smallint[] := '{}';
    f_due bigint[] := '{}';
    f_source smallint[] := '{}';
    f_used integer[] := '{}';
    f_size bigint[] := '{}';
    v_limits record;
    v_plan record;
    o record;
begin
    perform hark.make_missing_positions_v1(c_grp, c_partition);
    select * into v_limits from hark.limits_v1(v_now, c_grp);
    if true = any (c_wait) then
        perform 1 from (
            select 1 from hark.positions k
            join unnest(c_grp, c_partition, c_wait) as c(grp, partition, wait)
                on k.grp = c.grp and k.partition = c.partition
            where c.wait order by k.grp, k.partition for update of k
        ) as locked;
    end if;
    v_wanted := hark.wanted_v1(r_pool, r_batch, c_pool, c_partition);
    for c in 1..cardinality(c_pool) loop
        select * into o from hark.load_v1(v_now, c_grp[c], c_partition[c], v_wanted[c]);
        k_status[c] := o.status;
        k_due[c] := o.due;
        v_durable := v_durable or o.expired;
        if o.status = 0 then
            k_listed[c] := o.listed;
            k_queue[c] := (o.listed).queue;
            k_first[c] := cardinality(f_offset) + 1;
            f_candidate := f_candidate || array_fill(c, array[cardinality(o.offsets)]);
            f_offset := f_offset || o.offsets;
            f_lane := f_lane || o.lanes;
            f_due := f_due || o.due_times;
            f_source := f_source || o.sources;
            f_used := f_used || o.used;
            f_size := f_size || o.sizes;
            k_last[c] := cardinality(f_offset);
            k_free[c] := o.free;
            k_rate_left[c] := o.rate_left;
            k_rate[c] := o.rate;
            k_tokens[c] := o.tokens;
        end if;
    end loop;
    select * into v_plan from hark.plan_v1(r_pool, r_batch, r_partitions, r_auto_ack, c_pool, c_grp, k_queue,
        k_status, k_first, k_last, f_lane, f_size, v_limits.o_queues, v_limits.o_grps, v_limits.o_left,
        v_limits.o_rate, k_free, k_rate_left, p_max_bytes);
    if not v_durable then
        -- A lease may be lost in a crash: the message is delivered again.
        perform set_config('synchronous_commit', 'off', true);
    elsif true = any (r_auto_ack) then
        -- What is sealed has to be read before it is settled.
        select array_agg(r.at_once and not exists (
            select 1 from unnest(f_candidate, f_offset, v_plan.o_requests) as f(candidate, "offset", request)
            cross join lateral (
                select x.sealed from hark.messages x
                where x.partition = c_partition[f.candidate] and x."offset" = f."offset" offset 0) as m
            where f.request = r.n and m.sealed) order by r.n)
        into r_auto_ack from unnest(r_auto_ack) with ordinality as r(at_once, n);
    end if;

    for c in 1..cardinality(c_pool) loop
        continue when k_status[c] <> 0;
        perform hark.pass_v1(v_now, k_listed[c], f_offset[k_first[c]:k_last[c]], f_lane[k_first[c]:k_last[c]],
            f_due[k_first[c]:k_last[c]], f_source[k_first[c]:k_last[c]], v_plan.o_next[c] - k_first[c]);
    end loop;
    if true = any (select x is not null from unnest(k_rate) x) then
        update hark.positions k set tokens = w.tokens - w.used, tokens_at = v_now
        from unnest(c_grp, c_partition, k_tokens, v_plan.o_used) as w(grp, partition, tokens, used)
        where w.tokens is not null and w.used > 0 and k.grp = w.grp and k.partition = w.partition;
    end if;
    select array_agg(least(u.until, x.until) order by u.n) into v_until
    from unnest(r_until, r_lease_ms) with ordinality as u(until, lease_ms, n)
    left join lateral (
        select min(v_now + case when u.lease_ms is null then (k_listed[f.candidate]).lease_time
            else coalesce((k_listed[f.candidate]).lock_duration, u.lease_ms * 1000) end) as until
        from (
            select distinct t.candidate from unnest(f_candidate, v_plan.o_requests) as t(candidate, request)
            where t.request = u.n
        ) as f
    ) as x on true;
    perform hark.hold_v1(c_grp, c_partition, f_candidate, f_offset, f_lane, f_due, f_source, v_plan.o_requests,
        r_lease, r_until, v_until, r_auto_ack, v_now, r_consumer);
    if v_limits.o_queues is not null then
        perform hark.spend_v1(v_limits.o_queues, v_limits.o_grps, v_plan.o_spent, v_limits.o_rate,
            array_agg(k_queue[f.candidate]), array_agg(c_grp[f.candidate]), array_agg(c_partition[f.candidate]),
            array_agg(r_lease[f.request]))
        from unnest(f_candidate, v_plan.o_requests) as f(candidate, request)
        where f.request is not null and not r_auto_ack[f.request];
    end if;

    return query
    select f.request, f.candidate, 0::smallint, case when not r_auto_ack[f.request] then v_until[f.request] end,
        null::integer[],
        array_agg(f."offset" order by f.n), array_agg(m.created_at order by f.n),
        array_agg(m.transaction_id order by f.n), array_agg(m.payload order by f.n), array_agg(f.used + 1 order by f.n),
        case when count(m.options) > 0 then array_agg(m.options order by f.n) end
    from unnest(f_candidate, f_offset, f_used, v_plan.o_requests, v_plan.o_turns) with ordinality
        as f(candidate, "offset", used, request, turn, n)
    cross join lateral (
        select x.created_at, x.transaction_id, x.payload,
            case when x.priority is not null or x.sealed or x.trace_id is not null or x.producer is not null
                    or x.trace_context is not null
                then hark.options_v1(x.priority, x.sealed, x.trace_id, x.producer, x.trace_context) end as options
        from hark.messages x where x.partition = c_partition[f.candidate] and x."offset" = f."offset"
        offset 0
    ) as m
    where f.request is not null
    group by f.request, f.candidate
    order by min(f.turn);
    perform hark.drop_settled_v1(c_partition[f.candidate], array_agg(f."offset"))
    from unnest(f_candidate, f_offset, v_plan.o_requests) as f(candidate, "offset", request)
    where r_auto_ack[f.request]
    group by f.candidate;

    for c in 1..cardinality(c_pool) loop
        request := null; candidate := c; status := v_plan.o_status[c]; due := k_due[c]; ready := null;
        if status in (9, 10) then
            due := v_limits.o_due[v_plan.o_limit[c]];
        elsif status = 11 then
            due := hark.next_token_v1(v_now, k_tokens[c] - v_plan.o_used[c], k_rate[c]);
        elsif status = 12 then
            due := coalesce(hark.lease_end_v1(c_grp[c], c_partition[c]), v_now + 1000000);
        elsif status = 0 and (v_plan.o_next[c] <= k_last[c] or due <= v_now) then
            ready := hark.lane_counts_v1(f_lane[v_plan.o_next[c]:k_last[c]]);
        elsif status = 0 then
            status := case when due is null then 1 else 4 end;
            if due is null then
                due := hark.lease_end_v1(c_grp[c], c_partition[c]);
                status := case when due is null then 1 else 2 end;
            end if;
        end if;
        return next;
    end loop;
end $$;

-- Places of groups that have not been in a partition yet.
create or replace function hark.make_missing_positions_v1(p_grps integer[], p_partitions bigint[]) returns void
language plpgsql as $$
declare
    v_grps integer[];
    v_partitions bigint[];
begin
    select array_agg(c.grp), array_agg(c.partition) into v_grps, v_partitions
    from unnest(p_grps, p_partitions) as c(grp, partition)
    where not exists (select 1 from hark.positions k where k.grp = c.grp and k.partition = c.partition);
    if v_grps is not null then
        perform hark.make_positions_v1(v_grps, v_partitions);
    end if;
end $$;

-- How many messages to list of each candidate: what its requests may take of it, and some more to know whether others
-- find something. Where priorities decide, one candidate may have to serve them all.
create or replace function hark.wanted_v1(r_pool integer[], r_batch integer[], c_pool integer[], c_partition bigint[])
returns integer[]
language sql volatile as $$
    with pool as (
        select r.pool, sum(r.batch) as total, max(r.batch) as largest, count(*) as requests,
            (select count(*) from unnest(c_pool) x where x = r.pool) as candidates
        from unnest(r_pool, r_batch) as r(pool, batch) group by r.pool
    )
    select array_agg((greatest(32 / p.candidates, 4) + least(p.total, 100000, case when p.candidates > 1 and exists (
            select 1 from unnest(c_pool, c_partition) as y(pool, partition)
            join hark.partitions q on q.id = y.partition where y.pool = c.pool and q.lanes is not null)
        then p.total else p.largest * ((p.requests + p.candidates - 1) / p.candidates) end))::integer order by c.n)
    from unnest(c_pool) with ordinality as c(pool, n) join pool p on p.pool = c.pool
$$;

-- Locks a candidate and lists what can be taken of it; status as share_v1 answers it. expired: leases ended.
create or replace function hark.load_v1(p_now bigint, p_grp integer, p_partition bigint, p_wanted integer,
    out status smallint, out due bigint, out expired boolean, out listed hark.listed,
    out offsets bigint[], out lanes smallint[], out due_times bigint[], out sources smallint[], out used integer[],
    out sizes bigint[], out free bigint, out rate_left bigint, out rate double precision, out tokens double precision
)
language plpgsql as $$
declare
    s record;
begin
    expired := false;
    select k as position, p as partition, q.id as queue, q.ttl, q.lease_time, q.lock_duration, q.delayed_processing,
        q.window_buffer, q.paused or g.paused as paused,
        (q.max_in_flight_per_partition > 0 or g.max_in_flight_per_partition > 0
            or q.rate_limit_per_partition > 0 or g.rate_limit_per_partition > 0) as bounded
    into s
    from hark.positions k
    left join hark.partitions p on p.id = k.partition
    left join hark.groups g on g.id = k.grp
    left join hark.queues q on q.id = p.queue and q.name = g.queue
    where k.grp = p_grp and k.partition = p_partition
    for update of k skip locked;
    if not found then
        status := case when exists (select 1 from hark.positions k where k.grp = p_grp and k.partition = p_partition)
            then 3 else 7 end;
        return;
    elsif s.queue is null or s.paused then
        status := case when s.queue is null then 7 else 6 end;
        return;
    end if;
    if exists (
        select 1 from hark.outstanding e
        where e.partition = p_partition and e.until <= p_now and e.lease is not null and e.grp + 0 = p_grp)
    then
        perform hark.expire_shared_v1(p_grp, p_partition, p_now, null);
        expired := true;
    end if;
    if s.window_buffer > 0 and (s.partition).last_created + s.window_buffer * 1000000::bigint > p_now then
        due := hark.window_v1(p_now, s.position, s.partition, s.window_buffer, s.ttl, s.delayed_processing);
        if due > p_now then
            status := 5;
            return;
        end if;
    end if;
    if s.bounded then
        select x.o_free, x.o_left, x.o_rate, x.o_tokens into free, rate_left, rate, tokens
        from hark.room_in_v1(p_now, p_grp, p_partition) x;
    end if;
    status := 0;
    listed.before := s.position;
    listed.partition := s.partition;
    listed.queue := s.queue;
    listed.ttl := s.ttl;
    listed.lease_time := s.lease_time * 1000000::bigint;
    listed.lock_duration := nullif(s.lock_duration, 0) * 1000;
    select x.t, x.offsets, x.lanes, x.due_times, x.sources, x.used, x.sizes, x.due
    into listed.after, offsets, lanes, due_times, sources, used, sizes, due
    from hark.list_v1(p_now, s.position, s.partition, s.ttl, s.delayed_processing, p_wanted) x;
end $$;

-- Until when the window buffer keeps a partition back (rule 11): what is ready and not handed out, and has been for the
-- longest, decides. Null: there is nothing to keep.
create or replace function hark.window_v1(
    p_now bigint, t hark.positions, p hark.partitions, p_window integer, p_ttl bigint, p_delayed integer
) returns bigint
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off
as $$
declare
    v_from bigint := greatest(t.cursor, p.floor);
    v_youngest bigint := p_now - p_delayed * 1000000::bigint;
    v_oldest bigint := case when p_ttl > 0 then p_now - p_ttl * 1000000 else -1 end;
    v_since bigint;
begin
    select min(x.since) into v_since from (
        select e.since from unnest(hark.free_lanes_v1(t.grp, t.partition)) as w(lane)
        cross join lateral (
            select greatest(y.due, m.created_at + p_delayed * 1000000::bigint) as since
            from hark.outstanding y
            join hark.messages m on m.partition = t.partition and m."offset" = y."offset"
            where (y.partition << 5 | y.lane) = (t.partition << 5 | w.lane) and y.grp::bigint = t.grp::bigint
                and y.lease is null and y.due <= p_now and m."offset" > p.floor and m.created_at <= v_youngest
                and case when m.expires_at is null then m.created_at > v_oldest or m.owner is not null
                    else m.expires_at > p_now end
            order by y.due, y."offset" limit 1
        ) as e
        union all
        (select m.created_at + p_delayed * 1000000::bigint from hark.messages m
         where m.partition = t.partition and m."offset" > greatest(v_from, t.plain[1]) and m."offset" <= p.tail
            and m.priority is null and m.deliver_at is null and m.owner is null and m.created_at <= v_youngest
            and case when m.expires_at is null then m.created_at > v_oldest else m.expires_at > p_now end
         order by m."offset" limit 1)
        union all
        select m.since from generate_series(1, 9) as w(priority)
        cross join lateral (
            select y.created_at + p_delayed * 1000000::bigint as since from hark.messages y
            where (y.partition << 4 | y.priority) = (t.partition << 4 | w.priority) and y.priority > 0
                and y.deliver_at is null and y.owner is null and y."offset" > greatest(v_from, t.plain[w.priority + 1])
                and y.created_at <= v_youngest
                and case when y.expires_at is null then y.created_at > v_oldest else y.expires_at > p_now end
            order by y."offset" limit 1
        ) as m
        where p.lanes[w.priority + 1] > v_from
        union all
        select m.since from generate_series(0, 9) as w(priority)
        cross join lateral (
            select greatest(y.deliver_at, y.created_at + p_delayed * 1000000::bigint) as since from hark.messages y
            where (y.partition << 4 | coalesce(y.priority, 0)) = (t.partition << 4 | w.priority)
                and y.deliver_at is not null and y.deliver_at <= p_now and y."offset" > v_from
                and (y.deliver_at, y."offset") > (t.delayed_at[w.priority + 1], t.delayed_offset[w.priority + 1])
                and y.created_at <= v_youngest
                and case when y.expires_at is null then y.created_at > v_oldest else y.expires_at > p_now end
            order by y.deliver_at, y."offset" limit 1
        ) as m
        where p.lanes[w.priority + 11] > v_from
    ) as x;
    return case when v_since is not null
        then least(p.last_created + p_window * 1000000::bigint, v_since + p_window * 10000000::bigint) end;
end $$;

-- Who takes what: requests are served one after the other, each from the partition with the highest priority, then from
-- the one served longest ago, as long as it has room and limits allow. o_requests has the request for each message that
-- was listed, o_turns the order in which they came, o_next the first that is left of each candidate. o_status: the status of candidates that a limit closed,
-- which is o_limit, or the limits of their partition (k_free: messages that may be in flight more, k_rate_left: messages
-- that its rate allows). o_used: how many messages were taken of each candidate.
create or replace function hark.plan_v1(
    r_pool integer[], r_batch integer[], r_partitions integer[], r_auto_ack boolean[],
    c_pool integer[], c_grp integer[],
    k_queue integer[], k_status smallint[], k_first integer[], k_last integer[], f_lane smallint[], f_size bigint[],
    l_queue integer[], l_grp integer[], l_left bigint[], l_rate boolean[], k_free bigint[], k_rate_left bigint[],
    p_max_bytes bigint,
    out o_requests integer[], out o_turns integer[], out o_next integer[], out o_status smallint[],
    out o_limit integer[], out o_spent bigint[], out o_used integer[]
)
language plpgsql as $$
declare
    v_tops integer[] := array_fill(0, array[cardinality(c_pool)]);
    v_turns integer[] := array_fill(0, array[cardinality(c_pool)]);
    v_takers integer[] := array_fill(0, array[cardinality(c_pool)]);
    v_leased integer[] := array_fill(0, array[cardinality(c_pool)]);
    v_alone boolean := cardinality(c_pool) = 1;
    v_turn integer := 0;
    v_left integer;
    v_room integer;
    v_share integer;
    v_bytes bigint := 0;
    v_own bigint;
    v_all bigint := (select coalesce(sum(x), 0) from unnest(f_size) x);
    v_best integer;
begin
    o_requests := array_fill(null::integer, array[cardinality(f_lane)]);
    o_turns := o_requests;
    o_next := k_first; o_status := k_status;
    o_limit := array_fill(0, array[cardinality(c_pool)]);
    o_used := o_limit;
    o_spent := array_fill(0::bigint, array[coalesce(cardinality(l_queue), 0)]);
    for c in 1..cardinality(c_pool) loop
        v_tops[c] := hark.top_v1(f_lane, k_first[c], k_last[c]);
    end loop;
    for r in 1..cardinality(r_pool) loop
        v_left := r_batch[r];
        v_room := r_partitions[r];
        v_own := 0;
        while v_left > 0 and v_room > 0 and v_own < p_max_bytes and (v_bytes < p_max_bytes) loop
            v_best := null;
            for c in 1..cardinality(c_pool) loop
                if c_pool[c] = r_pool[r] and o_status[c] = 0 and o_next[c] <= k_last[c] and v_takers[c] <> r
                    and (v_best is null or (-v_tops[c], v_turns[c]) < (-v_tops[v_best], v_turns[v_best]))
                then
                    v_best := c;
                end if;
            end loop;
            exit when v_best is null;
            v_share := least(v_left, k_last[v_best] - o_next[v_best] + 1);
            for n in 1..cardinality(o_spent) loop
                if l_queue[n] = k_queue[v_best] and l_grp[n] in (0, c_grp[v_best]) and (l_rate[n] or not r_auto_ack[r])
                    and l_left[n] - o_spent[n] < v_share
                then
                    v_share := l_left[n] - o_spent[n];
                    o_limit[v_best] := n;
                end if;
            end loop;
            if v_share <= 0 then
                o_status[v_best] := case when l_rate[o_limit[v_best]] then 9 else 10 end;
                continue;
            end if;
            if k_free[v_best] - v_leased[v_best] <= 0 or k_rate_left[v_best] - o_used[v_best] <= 0 then
                o_status[v_best] := case when k_free[v_best] - v_leased[v_best] <= 0 then 12 else 11 end;
                continue;
            end if;
            v_share := least(v_share, k_rate_left[v_best] - o_used[v_best],
                case when not r_auto_ack[r] then k_free[v_best] - v_leased[v_best] end);
            if v_all >= p_max_bytes then
                v_share := hark.fitting_v1(f_size[o_next[v_best]:o_next[v_best] + v_share - 1],
                    p_max_bytes - greatest(v_own, v_bytes));
                v_own := v_own + (select sum(x) from unnest(f_size[o_next[v_best]:o_next[v_best] + v_share - 1]) x);
                v_bytes := v_bytes + v_own;
            end if;
            o_requests[o_next[v_best]:o_next[v_best] + v_share - 1] := array_fill(r, array[v_share]);
            v_turn := v_turn + 1;
            o_turns[o_next[v_best]:o_next[v_best] + v_share - 1] := array_fill(v_turn, array[v_share]);
            o_next[v_best] := o_next[v_best] + v_share;
            o_used[v_best] := o_used[v_best] + v_share;
            if not r_auto_ack[r] then
                v_leased[v_best] := v_leased[v_best] + v_share;
            end if;
            v_turns[v_best] := v_turn;
            v_takers[v_best] := r;
            if not v_alone then
                v_tops[v_best] := hark.top_v1(f_lane, o_next[v_best], k_last[v_best]);
            end if;
            for n in 1..cardinality(o_spent) loop
                if l_queue[n] = k_queue[v_best] and l_grp[n] in (0, c_grp[v_best]) and (l_rate[n] or not r_auto_ack[r])
                then
                    o_spent[n] := o_spent[n] + v_share;
                end if;
            end loop;
            v_left := v_left - v_share;
            v_room := v_room - 1;
        end loop;
    end loop;
    for c in 1..cardinality(c_pool) loop
        if o_status[c] = 0 and o_next[c] <= k_last[c] then
            o_status[c] := case when k_free[c] - v_leased[c] <= 0 then 12 when k_rate_left[c] - o_used[c] <= 0 then 11
                else 0 end;
        end if;
    end loop;
end $$;

-- How many messages of these sizes fit, with the one that takes it beyond the bound.
create or replace function hark.fitting_v1(p_sizes bigint[], p_bound bigint) returns integer
language sql immutable as $$
    select count(*)::integer from (
        select sum(w.size) over (order by w.n) - w.size as before from unnest(p_sizes) with ordinality as w(size, n)
    ) as w
    where w.before < p_bound
$$;

-- The highest priority among messages that are in order: after the requeued ones the first has it.
create or replace function hark.top_v1(p_lanes smallint[], p_first integer, p_last integer) returns integer
language plpgsql immutable as $$
declare
    v_top integer := 0;
begin
    for n in p_first..p_last loop
        v_top := greatest(v_top, p_lanes[n] % 10);
        exit when p_lanes[n] < 10;
    end loop;
    return v_top;
end $$;

-- How many messages of each priority there are.
create or replace function hark.lane_counts_v1(p_lanes smallint[]) returns integer[]
language sql immutable as $$
    select array_agg((select count(*)::integer from unnest(p_lanes) x where x % 10 = w.priority) order by w.priority)
    from generate_series(0, 9) as w(priority)
$$;

-- When the first lease ends that a shared group has in a partition.
create or replace function hark.lease_end_v1(p_grp integer, p_partition bigint) returns bigint
language sql volatile as $$
    select e.until from hark.outstanding e
    where e.partition = p_partition and e.until > 0 and e.lease is not null and e.grp + 0 = p_grp
    order by e.until limit 1
$$;

-- What was taken is on leases, or done with.
create or replace function hark.hold_v1(
    c_grp integer[], c_partition bigint[],
    f_candidate integer[], f_offset bigint[], f_lane smallint[], f_due bigint[], f_source smallint[],
    f_request integer[], r_lease uuid[], r_until bigint[], v_until bigint[], r_auto_ack boolean[], p_now bigint,
    r_consumer text[]
) returns void
language plpgsql as $$
declare
    v_slot smallint;
    w record;
begin
    insert into hark.outstanding (grp, partition, "offset", lane, due, lease, until)
    select c_grp[f.candidate], c_partition[f.candidate], f."offset", f.lane, f.due, r_lease[f.request],
        v_until[f.request]
    from unnest(f_candidate, f_offset, f_lane, f_due, f_source, f_request)
        as f(candidate, "offset", lane, due, source, request)
    where f.source < 2 and not r_auto_ack[f.request];
    for w in
        select f.candidate, f.request, array_agg(f."offset") as offsets
        from unnest(f_candidate, f_offset, f_source, f_request) as f(candidate, "offset", source, request)
        where f.source = 2 and f.request is not null
        group by f.candidate, f.request
    loop
        if r_auto_ack[w.request] then
            delete from hark.outstanding e
            where e.grp = c_grp[w.candidate] and e.partition = c_partition[w.candidate] and e."offset" = any (w.offsets);
        else
            update hark.outstanding e set lease = r_lease[w.request], until = v_until[w.request]
            where e.grp = c_grp[w.candidate] and e.partition = c_partition[w.candidate] and e."offset" = any (w.offsets);
        end if;
    end loop;
    perform hark.end_sooner_v1(r.lease, r.before, r.until)
    from unnest(r_lease, r_until, v_until) as r(lease, before, until) where r.before > r.until;
    select slot into v_slot from hark.rotation where name = 'leases';
    insert into hark.leases (slot, id, until, grps, partitions, since, consumer)
    select v_slot, r_lease[c.request], v_until[c.request], array_agg(c_grp[c.candidate]),
        array_agg(c_partition[c.candidate]), p_now, r_consumer[c.request]
    from (
        select distinct f.candidate, f.request from unnest(f_candidate, f_request) as f(candidate, request)
        where not r_auto_ack[f.request]
    ) as c
    group by c.request
    on conflict (id, slot) do update
    set until = excluded.until, grps = leases.grps || excluded.grps,
        partitions = leases.partitions || excluded.partitions, void = hark.refuse_void_v1(leases.void);
end $$;

-- A lease over queues with different lease times ends as a whole, with the shortest of them. p_before: when what it had
-- before this call would end.
create or replace function hark.end_sooner_v1(p_lease uuid, p_before bigint, p_until bigint) returns void
language plpgsql as $$
begin
    update hark.positions k set lease_until = p_until
    from hark.leases l cross join lateral unnest(l.grps, l.partitions) as p(grp, partition)
    where l.id = p_lease and k.grp = p.grp and k.partition = p.partition and k.lease = p_lease
        and k.lease_until > p_until;
    update hark.outstanding e set until = p_until
    from hark.leases l cross join lateral unnest(l.grps, l.partitions) as p(grp, partition)
    where l.id = p_lease and e.partition = p.partition and e.until = p_before and e.lease = p_lease and e.lease is not null
        and e.grp + 0 = p.grp;
    update hark.leases set until = p_until where id = p_lease and until > p_until;
end $$;
