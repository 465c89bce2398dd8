-- Leases messages (rules 8-11, 16, 17): many requests, each with candidates to take from, in one call.
--
-- r_: for each request how many messages and partitions it wants at most, the id of its lease and its end (when it
-- has some already), whether what it gets is settled at once (not in a partition where something of it is sealed: that
-- has to be read first), how long to hold it (null: the queue's lease time), and who asks.
-- c_: the candidates in the order in which they are to be tried; c_wait: wait for a locked row (the request named the
-- partition) instead of passing it by.
--
-- Answers a row for each candidate. status: 0 taken (on a lease until `due`, if that is not null), 1 nothing ready, 2 leased until `due`, 3 locked by another call,
-- 4 waiting until `due`, 5 window buffer until `due`, 6 paused, 7 there is no such partition or group, 8 not needed,
-- 9 the rate allows nothing until `due`, 10 too many are in flight, 11 the rate of the partition allows nothing until `due`.
-- options has a JSON object for each message that has any, and is null when none has.
create or replace function hark.pop_v1(
    p_now bigint,
    r_batch integer[], r_partitions integer[], r_lease uuid[], r_until bigint[], r_auto_ack boolean[],
    r_lease_ms bigint[],
    c_request integer[], c_grp integer[], c_partition bigint[], c_wait boolean[],
    p_max_bytes bigint, r_consumer text[]
) returns table (
    candidate integer, status smallint, due bigint, more boolean,
    offsets bigint[], created_ats bigint[], transaction_ids text[], payloads bytea[], attempts integer[], options text[]
)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_now bigint := hark.time_v1(p_now);
    v_left integer[] := r_batch;
    v_room integer[] := r_partitions;
    v_bytes bigint[] := array_fill(0::bigint, array[cardinality(r_batch)]);
    v_until bigint[] := r_until;
    v_taken boolean[] := array_fill(false, array[cardinality(c_request)]);
    v_durable boolean := true = any (r_auto_ack);
    v_at_once boolean[] := array_fill(false, array[cardinality(c_request)]);
    v_uneven boolean := false;
    v_slot smallint;
    v_number integer;
    v_allowed integer;
    v_limits record;
    -- What the limits of the partition allow (room_in_v1).
    h_most integer;
    h_rate double precision;
    h_tokens double precision;
    h_left bigint;
    h_due bigint;
    v_spent bigint[];
    v_closed integer;
    v_queue integer[];
    -- The plan for candidates with nothing out of the ordinary: what to take of them.
    f_candidate integer[] := '{}';
    f_partition bigint[] := '{}';
    f_first bigint[] := '{}';
    f_last bigint[] := '{}';
    f_tail bigint[] := '{}';
    v_plain integer := 0;
    v_largest integer := 0;
    v_next integer := 1;
    r integer;
    s record;
begin
    perform hark.make_missing_positions_v1(c_grp, c_partition);
    select * into v_limits from hark.limits_v1(v_now, c_grp);
    v_spent := array_fill(0::bigint, array[coalesce(cardinality(v_limits.o_queues), 0)]);
    if true = any (c_wait) then
        perform 1 from (
            select 1 from hark.positions k
            join unnest(c_grp, c_partition, c_wait) as c(grp, partition, wait)
                on k.grp = c.grp and k.partition = c.partition
            where c.wait order by k.grp, k.partition for update of k
        ) as locked;
    end if;

    for s in
        select c.n::integer as n, k.grp, k.partition, k.cursor, k.lease is not null as leased, k.lease_until,
            p.floor, p.tail, p.last_created, q.id as queue, q.ttl,
            v_now + case when r_lease_ms[c_request[c.n]] is null then q.lease_time * 1000000::bigint
                else coalesce(nullif(q.lock_duration, 0), r_lease_ms[c_request[c.n]]) * 1000 end as new_until,
            q.delayed_processing,
            q.window_buffer, q.paused or g.paused as paused,
            (q.max_in_flight_per_partition > 0 or g.max_in_flight_per_partition > 0
                or q.rate_limit_per_partition > 0 or g.rate_limit_per_partition > 0) as bounded,
            k.lease is null and not k.irregular and k.probe = 0 and k.settled = '{}' and k.cursor >= p.floor
                and k.cursor >= p.special and q.ttl = 0 and q.delayed_processing = 0 and q.window_buffer = 0
                and not q.drop_settled and not (q.max_in_flight_per_partition > 0 or g.max_in_flight_per_partition > 0
                    or q.rate_limit_per_partition > 0 or g.rate_limit_per_partition > 0) as plain
        from unnest(c_grp, c_partition) with ordinality as c(grp, partition, n)
        join hark.positions k on k.grp = c.grp and k.partition = c.partition
        left join hark.partitions p on p.id = k.partition
        left join hark.groups g on g.id = k.grp
        left join hark.queues q on q.id = p.queue and q.name = g.queue
        order by c.n
        for update of k skip locked
    loop
        -- Candidates that this query passed by are locked by another transaction, or there is no such partition.
        while v_next < s.n loop
            candidate := v_next;
            status := case when exists (
                select 1 from hark.positions k where k.grp = c_grp[v_next] and k.partition = c_partition[v_next])
                then 3 else 7 end;
            return next;
            v_next := v_next + 1;
        end loop;
        candidate := s.n;
        v_next := s.n + 1;
        r := c_request[s.n];
        v_allowed := v_left[r];
        v_closed := null;
        for n in 1..cardinality(v_spent) loop
            if v_limits.o_queues[n] = s.queue and v_limits.o_grps[n] in (0, s.grp)
                and (v_limits.o_rate[n] or not r_auto_ack[r]) and v_limits.o_left[n] - v_spent[n] < v_allowed
            then
                v_allowed := v_limits.o_left[n] - v_spent[n];
                v_closed := n;
            end if;
        end loop;
        if s.bounded then
            select x.o_most, x.o_rate, x.o_tokens, x.o_left, x.o_due into h_most, h_rate, h_tokens, h_left, h_due
            from hark.room_in_v1(v_now, s.grp, s.partition) x;
        end if;
        if v_left[r] <= 0 or v_room[r] <= 0 or v_bytes[r] >= p_max_bytes then
            status := 8;
        elsif s.queue is null then
            status := 7;
        elsif s.paused then
            status := 6;
        elsif s.leased and s.lease_until > v_now then
            status := 2;
            due := s.lease_until;
        elsif s.plain and s.cursor >= s.tail then
            status := 1;
        elsif v_allowed <= 0 then
            status := case when v_limits.o_rate[v_closed] then 9 else 10 end;
            due := v_limits.o_due[v_closed];
        elsif s.bounded and h_left <= 0 and (s.cursor < s.tail or exists (
            select 1 from hark.requeued f where f.grp = s.grp and f.partition = s.partition))
        then
            status := 11;
            due := h_due;
        elsif s.plain then
            v_number := least(s.tail - s.cursor, v_allowed);
            v_at_once[s.n] := r_auto_ack[r] and not exists (
                select 1 from hark.messages x
                where x.partition = s.partition and x."offset" > s.cursor and x."offset" <= s.cursor + v_number and x.sealed);
            v_plain := v_plain + 1;
            f_candidate[v_plain] := s.n;
            f_partition[v_plain] := s.partition;
            f_first[v_plain] := s.cursor + 1;
            f_last[v_plain] := s.cursor + v_number;
            f_tail[v_plain] := s.tail;
            v_largest := greatest(v_largest, v_number);
            v_uneven := v_uneven or coalesce(v_until[r] > s.new_until, false);
            v_until[r] := least(v_until[r], s.new_until);
            v_taken[s.n] := true;
            v_left[r] := v_left[r] - v_number;
            v_room[r] := v_room[r] - 1;
            for n in 1..cardinality(v_spent) loop
                if v_limits.o_queues[n] = s.queue and v_limits.o_grps[n] in (0, s.grp) then
                    v_spent[n] := v_spent[n] + case when v_limits.o_rate[n] or not r_auto_ack[r] then v_number else 0 end;
                    v_queue[s.n] := s.queue;
                end if;
            end loop;
            continue;
        else
            if s.leased then
                -- By the clock as it is now: the call may have waited for a lock.
                perform hark.expire_position_v1(s.grp, s.partition, hark.time_v1(p_now));
                v_durable := true;
            end if;
            if s.bounded then
                v_allowed := least(v_allowed, h_left, case when not r_auto_ack[r] then h_most end);
            end if;
            select t.* into status, due, v_number, more, offsets, created_ats, transaction_ids, payloads, attempts,
                options
            from hark.take_v1(v_now, s.grp, s.partition, s.queue, s.floor, s.tail, s.last_created, s.ttl,
                s.delayed_processing, s.window_buffer, v_allowed, p_max_bytes - v_bytes[r], r_lease[r],
                least(v_until[r], s.new_until), r_auto_ack[r]) t;
            if status = 0 then
                if s.bounded and h_rate is not null then
                    update hark.positions k set tokens = h_tokens - v_number, tokens_at = v_now
                    where k.grp = s.grp and k.partition = s.partition;
                end if;
                v_at_once[s.n] := r_auto_ack[r] and not hark.has_sealed_v1(options);
                v_uneven := v_uneven or coalesce(v_until[r] > s.new_until, false);
                v_until[r] := least(v_until[r], s.new_until);
                due := case when not v_at_once[s.n] then v_until[r] end;
                v_taken[s.n] := true;
                v_left[r] := v_left[r] - v_number;
                v_room[r] := v_room[r] - 1;
                v_bytes[r] := v_bytes[r] + (select sum(length(x)) from unnest(payloads) x);
                for n in 1..cardinality(v_spent) loop
                    if v_limits.o_queues[n] = s.queue and v_limits.o_grps[n] in (0, s.grp) then
                        v_spent[n] := v_spent[n]
                            + case when v_limits.o_rate[n] or not r_auto_ack[r] then v_number else 0 end;
                        v_queue[s.n] := s.queue;
                    end if;
                end loop;
            end if;
        end if;
        return next;
        due := null; more := false;
        offsets := null; created_ats := null; transaction_ids := null; payloads := null; attempts := null;
        options := null;
    end loop;
    while v_next <= cardinality(c_request) loop
        candidate := v_next;
        status := case when exists (
            select 1 from hark.positions k where k.grp = c_grp[v_next] and k.partition = c_partition[v_next])
            then 3 else 7 end;
        return next;
        v_next := v_next + 1;
    end loop;

    if not v_durable then
        -- A lease may be lost in a crash: the message is delivered again.
        perform set_config('synchronous_commit', 'off', true);
    end if;
    if v_largest > 1 then
        -- An answer has its bound in bytes too: take less of those whose messages are large.
        select array_agg(case when f.first = f.last then f.last else (
            select max(m."offset") from (
                select x."offset",
                    sum(length(x.payload)) over (order by x."offset") - length(x.payload) as before
                from hark.messages x where x.partition = f.partition and x."offset" between f.first and f.last
            ) as m
            where m.before < p_max_bytes / v_plain) end order by f.n)
        into f_last
        from unnest(f_partition, f_first, f_last) with ordinality as f(partition, first, last, n);
    end if;
    if v_plain > 0 then
        return query
        with fetched as materialized (
            select f.n as candidate, f.partition, f.tail, m.*
            from unnest(f_candidate, f_partition, f_first, f_last, f_tail) as f(n, partition, first, last, tail)
            cross join lateral (
                select count(*)::integer as number, max(y."offset") as last,
                    array_agg(y."offset") as offsets, array_agg(y.created_at) as created_ats,
                    array_agg(y.transaction_id) as transaction_ids, array_agg(y.payload) as payloads,
                    case when count(y.options) > 0 then array_agg(y.options) end as options
                from (
                    select x."offset", x.created_at, x.transaction_id, x.payload,
                        case when x.priority is not null or x.sealed or x.trace_id is not null
                            or x.producer is not null or x.trace_context is not null
                            then hark.options_v1(x.priority, x.sealed, x.trace_id, x.producer, x.trace_context)
                        end as options
                    from hark.messages x
                    where x.partition = f.partition and x."offset" between f.first and f.last
                    order by x."offset"
                ) as y
            ) as m
            where m.number > 0
        ), taken as (
            update hark.positions k
            set cursor = case when v_at_once[f.candidate] then f.last else k.cursor end,
                settled_at = case when v_at_once[f.candidate] then v_now else k.settled_at end,
                lease = case when not v_at_once[f.candidate] then r_lease[c_request[f.candidate]] end,
                lease_until = case when not v_at_once[f.candidate] then v_until[c_request[f.candidate]] end,
                handed = case when v_at_once[f.candidate] then 0 else f.number end,
                lease_last = case when v_at_once[f.candidate] then 0 else f.last end,
                leased = case when v_at_once[f.candidate] then '{}'
                    else int8multirange(int8range(k.cursor + 1, f.last + 1)) end
            from fetched f
            where k.grp = c_grp[f.candidate] and k.partition = f.partition
        )
        select f.candidate, 0::smallint, case when not v_at_once[f.candidate] then v_until[c_request[f.candidate]] end,
            f.last < f.tail, f.offsets,
            f.created_ats, f.transaction_ids, f.payloads, null::integer[], f.options
        from fetched f;
    end if;
    if true = any (v_taken) and false = any (v_at_once) then
        select slot into v_slot from hark.rotation where name = 'leases';
        insert into hark.leases (slot, id, until, grps, partitions, since, consumer)
        select v_slot, r_lease[c.request], v_until[c.request], array_agg(c.grp), array_agg(c.partition), v_now,
            r_consumer[c.request]
        from unnest(c_request, c_grp, c_partition, v_taken, v_at_once) as c(request, grp, partition, taken, at_once)
        where c.taken and not c.at_once
        group by c.request
        on conflict (id, slot) do update
        set until = excluded.until, grps = leases.grps || excluded.grps,
            partitions = leases.partitions || excluded.partitions, void = hark.refuse_void_v1(leases.void);
    end if;
    if v_uneven then
        perform hark.end_sooner_v1(r_lease[c.request], r_until[c.request], v_until[c.request])
        from (select distinct request from unnest(c_request) as request) as c
        where v_until[c.request] is not null;
    end if;
    if v_limits.o_queues is not null then
        perform hark.spend_v1(v_limits.o_queues, v_limits.o_grps, v_spent, v_limits.o_rate, array_agg(v_queue[c.n]),
            array_agg(c.grp), array_agg(c.partition), array_agg(r_lease[c.request]))
        from unnest(c_request, c_grp, c_partition, v_taken, v_at_once) with ordinality
            as c(request, grp, partition, taken, at_once, n)
        where c.taken and v_queue[c.n] is not null and not c.at_once;
    end if;
end $$;

-- Takes from a position that has something out of the ordinary; the caller holds its lock. number is 0 when there is
-- nothing to take now: then status and due say why.
create or replace function hark.take_v1(
    p_now bigint, p_grp integer, p_partition bigint, p_queue integer, p_floor bigint, p_tail bigint,
    p_last_created bigint, p_ttl bigint, p_delayed integer, p_window integer, p_wanted integer, p_max_bytes bigint,
    p_lease uuid, p_until bigint, p_auto_ack boolean,
    out status smallint, out due bigint, out number integer, out more boolean,
    out offsets bigint[], out created_ats bigint[], out transaction_ids text[], out payloads bytea[],
    out attempts integer[], out options text[]
)
language plpgsql as $$
declare
    v_got record;
    t hark.positions;
begin
    select * into t from hark.positions where grp = p_grp and partition = p_partition;
    if t.cursor < p_floor then
        select a.cursor, a.settled into t.cursor, t.settled
        from hark.advance_v1(p_floor, t.settled - int8multirange(int8range(0, p_floor + 1))) a;
    end if;
    select * into v_got from hark.choose_v1(p_now, t, p_queue, p_floor, p_tail, p_last_created, p_ttl, p_delayed,
        p_window, p_wanted, p_max_bytes);
    t.cursor := v_got.cursor; t.settled := v_got.settled;
    status := v_got.status; due := v_got.due; number := v_got.number; more := false;
    if number = 0 then
        if v_got.stepped then
            update hark.positions set cursor = t.cursor, settled = t.settled where grp = p_grp and partition = p_partition;
        end if;
        return;
    end if;
    status := 0;
    offsets := v_got.offsets; created_ats := v_got.created_ats; transaction_ids := v_got.transaction_ids;
    payloads := v_got.payloads; attempts := v_got.attempts; options := v_got.options;
    if p_auto_ack and not hark.has_sealed_v1(options) then
        select o.cursor, o.settled into t.cursor, t.settled
        from hark.settle_offsets_v1(p_grp, p_partition, v_got.leased, t.irregular, t.cursor, t.settled) o;
        update hark.positions
        set cursor = t.cursor, settled = t.settled, settled_at = p_now,
            probe = case when t.cursor >= t.probe then 0 else t.probe end
        where grp = p_grp and partition = p_partition;
        perform hark.drop_settled_v1(p_partition, offsets);
        more := t.cursor < p_tail or (t.irregular and exists (
            select 1 from hark.requeued f where f.grp = p_grp and f.partition = p_partition));
    else
        update hark.positions
        set cursor = t.cursor, settled = t.settled, lease = p_lease, lease_until = p_until, handed = number,
            lease_last = v_got.last, leased = v_got.leased
        where grp = p_grp and partition = p_partition;
    end if;
end $$;

create or replace function hark.options_v1(
    p_priority smallint, p_sealed boolean, p_trace_id text, p_producer text, p_trace_context text
) returns text
language sql immutable as $$
    select nullif(json_strip_nulls(json_build_object(
        'p', p_priority, 's', p_sealed, 't', p_trace_id, 'u', p_producer, 'c', p_trace_context))::text, '{}')
$$;

-- Whether options that options_v1 made are those of a sealed message, among others.
create or replace function hark.has_sealed_v1(p_options text[]) returns boolean
language sql immutable as $$
    select coalesce(bool_or((x::json ->> 's')::boolean), false) from unnest(p_options) as x
$$;

-- What of a position may be handed out now, message by message: requeued ones first, then what is open beyond the
-- cursor, up to the first that is not due. What is not there any more, or not for this group, is stepped over.
create or replace function hark.choose_v1(
    p_now bigint, t hark.positions, p_queue integer, p_floor bigint, p_tail bigint, p_last_created bigint, p_ttl bigint,
    p_delayed integer, p_window integer, p_wanted integer, p_max_bytes bigint,
    out status smallint, out due bigint, out number integer, out bytes bigint, out leased int8multirange,
    out last bigint, out offsets bigint[], out created_ats bigint[], out transaction_ids text[], out payloads bytea[],
    out attempts integer[], out options text[], out cursor bigint, out settled int8multirange, out stepped boolean
)
language plpgsql as $$
declare
    v_open int8multirange := int8multirange(int8range(t.cursor + 1, greatest(p_tail, t.cursor) + 1)) - t.settled;
    v_probed boolean := t.probe > t.cursor;
    v_requeued_gone bigint[] := '{}';
    v_stop bigint;
    v_expired bigint[] := '{}';
    v_expiry bigint;
    v_wanted integer := p_wanted;
    v_gone int8multirange;
    m record;
begin
    status := 1; number := 0; bytes := 0; leased := '{}'; last := 0; stepped := false;
    cursor := t.cursor; settled := t.settled;
    if t.irregular then
        -- A batch begins with what is in front, so if one of these was in it, the first was.
        v_probed := v_probed or coalesce((
            select f.probe from hark.requeued f
            where f.grp = t.grp and f.partition = t.partition and f."offset" > p_floor
            order by f."offset" limit 1), false);
    end if;
    -- Rule 16: a batch that ran out is looked through. Rule 13: what is settled out of order has its bound.
    if v_probed or (select count(*) from unnest(t.settled)) > 10000 then
        v_wanted := 1;
    end if;
    for m in
        select x.*, coalesce(y.attempts, 0) as used, y.due as retry_due
        from (
            (select true as is_requeued, y.* from (
                select f."offset" as requeued_offset from hark.requeued f
                where t.irregular and f.grp = t.grp and f.partition = t.partition and f."offset" > p_floor
                order by f."offset"
             ) as w
             cross join lateral (
                select * from hark.messages f where f.partition = t.partition and f."offset" = w.requeued_offset offset 0) as y)
            union all
            (select false as is_requeued, o.* from unnest(v_open) as w(gap)
             cross join lateral (
                select * from hark.messages o
                where o.partition = t.partition and o."offset" >= lower(w.gap) and o."offset" < upper(w.gap)
                order by o."offset") as o)
        ) as x
        left join lateral (
            select * from hark.retries y
            where t.irregular and y.grp = t.grp and y.partition = t.partition and y."offset" = x."offset" offset 0) as y on true
    loop
        if number >= v_wanted or bytes >= p_max_bytes then
            v_stop := case when m.is_requeued then t.cursor + 1 else m."offset" end;
            exit;
        end if;
        v_expiry := coalesce(m.expires_at,
            case when p_ttl > 0 and m.owner is null then m.created_at + p_ttl * 1000000 end);
        if m.owner <> t.grp or v_expiry <= p_now then
            if m.owner is null or m.owner = t.grp then
                v_expired := v_expired || m."offset";
            end if;
            if m.is_requeued then
                v_requeued_gone := v_requeued_gone || m."offset";
            end if;
            continue;
        end if;
        due := greatest(m.deliver_at, m.retry_due, m.created_at + nullif(p_delayed, 0) * 1000000::bigint);
        if due > p_now then
            due := least(due, v_expiry);
            v_stop := case when m.is_requeued then t.cursor + 1 else m."offset" end;
            exit;
        end if;
        if number = 0 and p_window > 0 then
            due := least(p_last_created + p_window * 1000000::bigint,
                greatest(due, m.created_at) + p_window * 10000000::bigint);
            if due > p_now then
                status := 5;
                due := least(due, v_expiry);
                v_stop := case when m.is_requeued then t.cursor + 1 else m."offset" end;
                exit;
            end if;
        end if;
        due := null;
        number := number + 1;
        bytes := bytes + length(m.payload);
        offsets[number] := m."offset";
        created_ats[number] := m.created_at;
        transaction_ids[number] := m.transaction_id;
        payloads[number] := m.payload;
        attempts[number] := m.used + 1;
        options[number] := hark.options_v1(m.priority, m.sealed, m.trace_id, m.producer, m.trace_context);
        if not m.is_requeued then
            last := m."offset";
        end if;
    end loop;
    leased := hark.ranges_v1(offsets);
    if v_stop is null then
        v_stop := greatest(p_tail, t.cursor) + 1;
    end if;
    v_gone := (v_open * int8multirange(int8range(t.cursor + 1, greatest(v_stop, t.cursor + 1)))) - leased;
    if not isempty(v_gone) or cardinality(v_requeued_gone) > 0 then
        stepped := true;
        select o.cursor, o.settled into cursor, settled
        from hark.settle_offsets_v1(t.grp, t.partition, v_gone + hark.ranges_v1(v_requeued_gone), t.irregular,
            t.cursor, t.settled) o;
        perform hark.note_expired_v1(p_now, p_queue, t.grp, t.partition, hark.ranges_v1(v_expired));
    end if;
    if t.irregular and number > 0 then
        -- Handed out again: a consumer that held these before may no longer settle them.
        delete from hark.claims c
        where c.grp = t.grp and c.partition = t.partition and isempty(c.leased - choose_v1.leased);
        update hark.claims c set leased = c.leased - choose_v1.leased
        where c.grp = t.grp and c.partition = t.partition and c.leased && choose_v1.leased;
    end if;
    if number = 0 and due is not null and status <> 5 then
        status := 4;
    end if;
    if array_remove(options, null) = '{}' then
        options := null;
    end if;
end $$;
