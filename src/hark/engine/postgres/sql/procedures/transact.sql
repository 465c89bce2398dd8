-- Applies transactions, each whole or not at all (rule 22).
--
-- The arguments are those of settle_v1 and push_v1, one transaction after the other, with numbers that count within
-- their transaction; b_ has for each transaction the end of its part of the arrays: b_position of t_, b_item of i_,
-- b_lease of q_lease (leases that must be live), b_partition of the partitions, b_message of m_, b_option of x_, b_check of c_,
-- b_mutation of u_ (the latter two are those of write_keys_v1); r_once: whether it is refused if a settlement changes
-- nothing or a message is a duplicate; k_given: whether it has a key-value part at all.
-- Rows are locked once for all of them, positions before partitions before keys and each kind in order.
--
-- o_codes: 0 applied, 1 a settlement was refused, 2 a message was refused, 3 a required lease is not live (4: its
-- time is up), 5 a check of a key does not hold, 6 a mutation does not fit what is stored (o_why), 7 a settlement changes
-- nothing. o_failed: the number of that settlement, message, lease, check or mutation within its transaction. What is refused first counts; keys are last.
create or replace function hark.transact_v1(
    p_now bigint,
    b_position integer[], b_item integer[], b_lease integer[], b_partition integer[], b_message integer[], b_option integer[],
    t_grp integer[], t_partition bigint[], t_shared boolean[],
    i_position integer[], i_offset bigint[], i_transaction_id text[], i_own_offset bigint[],
    i_lease uuid[], i_status smallint[], i_error text[], i_delay bigint[], i_known boolean[],
    q_lease uuid[],
    p_partitions bigint[], p_queues text[], p_names text[], p_namespaces text[], p_tasks text[], p_counts integer[],
    m_partition integer[], m_ordinal integer[], m_payload bytea[], m_transaction_id text[], m_same_as bigint[],
    x_message integer[], x_deliver_at bigint[], x_delay bigint[], x_ttl bigint[], x_backoff text[],
    x_priority smallint[], x_sealed boolean[], x_trace_id text[], x_producer text[], x_undelivered text[],
    x_trace_context text[],
    r_once boolean[], k_given boolean[], b_check integer[], b_mutation integer[],
    c_key bytea[], c_version bigint[], u_kind smallint[], u_key bytea[], u_value bytea[], u_ttl bigint[],
    out o_stale bigint[], out o_stale_groups integer[], out o_partitions bigint[], out o_codes smallint[], out o_failed integer[],
    out o_item_codes smallint[], out o_released boolean[], out o_dead boolean[], out o_holders uuid[],
    out o_ready boolean[], out o_counts integer[], out o_due_times bigint[],
    out o_offsets bigint[], out o_outcomes smallint[],
    out o_why smallint[], out o_versions bigint[], out o_deleted bigint[]
)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_now bigint := hark.time_v1(p_now);
    v_settled record;
    v_pushed record;
    v_keys record;
    v_key_code smallint;
    v_bad integer;
    v_known boolean[];
    v_locks boolean;
    t0 integer := 1; t1 integer; i0 integer := 1; i1 integer; q0 integer := 1; q1 integer;
    p0 integer := 1; p1 integer; m0 integer := 1; m1 integer; x0 integer := 1; x1 integer;
    c0 integer := 1; c1 integer; u0 integer := 1; u1 integer;
begin
    perform hark.begin_v1();
    o_codes := array_fill(0::smallint, array[cardinality(b_item)]);
    o_failed := array_fill(0, array[cardinality(b_item)]);
    o_item_codes := array_fill(0::smallint, array[cardinality(i_position)]);
    o_released := array_fill(false, array[cardinality(i_position)]);
    o_dead := o_released;
    o_holders := array_fill(null::uuid, array[cardinality(i_position)]);
    o_ready := array_fill(false, array[cardinality(t_grp)]);
    o_counts := array_fill(0, array[cardinality(t_grp)]);
    o_due_times := array_fill(null::bigint, array[cardinality(t_grp)]);
    o_offsets := array_fill(null::bigint, array[cardinality(m_partition)]);
    o_outcomes := array_fill(0::smallint, array[cardinality(m_partition)]);
    o_partitions := p_partitions;
    o_why := array_fill(0::smallint, array[cardinality(b_item)]);
    o_versions := array_fill(null::bigint, array[cardinality(b_item)]);
    o_deleted := array_fill(0::bigint, array[cardinality(b_item)]);
    perform 1 from (
        select 1 from hark.positions k
        join unnest(t_grp, t_partition, t_shared) as w(grp, partition, shared)
            on k.grp = w.grp and k.partition = w.partition
        where not w.shared or hark.is_due_for_a_note_v1(k, v_now)
        order by k.grp, k.partition for no key update of k
    ) as locked;
    perform 1 from (select 1 from hark.partitions where id = any (p_partitions) order by id for no key update) as locked;
    select array_agg(w.id) into o_stale from unnest(p_partitions) as w(id)
    where w.id is not null and not exists (
        select 1 from hark.partitions p join hark.queues q on q.id = p.queue where p.id = w.id);
    o_stale_groups := hark.stale_groups_v1(t_grp);
    if o_stale is not null or o_stale_groups is not null then
        return;
    end if;

    -- One transaction that only sets keys locks them in their order as it writes them.
    v_locks := true = any (k_given) and (cardinality(b_item) > 1 or cardinality(c_key) > 0 or 0 <> any (u_kind));
    if v_locks then
        perform hark.lock_keys_v1(c_key || u_key, array_agg(u.key), array_agg(u.high))
        from unnest(u_kind, u_key, u_value) as u(kind, key, high) where u.kind = 2;
    end if;

    for r in 1..cardinality(b_item) loop
        t1 := b_position[r]; i1 := b_item[r]; q1 := b_lease[r]; p1 := b_partition[r]; m1 := b_message[r]; x1 := b_option[r];
        c1 := b_check[r]; u1 := b_mutation[r];
        v_key_code := 0;
        begin
            if k_given[r] then
                -- Before the settlements: of a message that dies by them its payload is the last word.
                select * into v_keys from hark.write_keys_v1(v_now, c_key[c0:c1], c_version[c0:c1], u_kind[u0:u1],
                    u_key[u0:u1], u_value[u0:u1], u_ttl[u0:u1]);
                v_key_code := v_keys.o_code;
                o_versions[r] := v_keys.o_version;
                o_deleted[r] := v_keys.o_deleted;
            end if;
            for n in q0..q1 loop
                o_codes[r] := hark.lease_state_v1(v_now, q_lease[n]);
                if o_codes[r] <> 0 then
                    o_failed[r] := n - q0 + 1;
                    raise exception using errcode = 'HK001';
                end if;
            end loop;
            if i1 >= i0 then
                v_known := i_known[i0:i1];
                if r_once[r] then
                    v_known := null;  -- A repetition is refused below, under whichever lease.
                elsif true = any (v_known) then
                    -- A server remembers what was completed, but not that another one moved the group since then.
                    select array_agg(i.known and not exists (
                        select 1 from hark.groups g
                        where g.id = t_grp[t0 + i.position - 1]
                            and g.moved > coalesce((select min(l.since) from hark.leases l where l.id = i.lease), 0)
                        ) order by i.n)
                    into v_known
                    from unnest(v_known, i_position[i0:i1], i_lease[i0:i1]) with ordinality as i(known, position, lease, n);
                end if;
                select * into v_settled from hark.settle_v1(v_now, t_grp[t0:t1], t_partition[t0:t1],
                    t_shared[t0:t1], array_fill(1, array[i1 - i0 + 1]), i_position[i0:i1], i_offset[i0:i1], i_transaction_id[i0:i1],
                    i_own_offset[i0:i1], i_lease[i0:i1], i_status[i0:i1], i_error[i0:i1], i_delay[i0:i1],
                    case when q1 >= q0 then q_lease[q0:q1] end, v_known);
                o_item_codes[i0:i1] := v_settled.o_codes;
                o_released[i0:i1] := v_settled.o_released;
                o_dead[i0:i1] := v_settled.o_dead;
                o_holders[i0:i1] := v_settled.o_holders;
                o_ready[t0:t1] := v_settled.o_ready;
                o_counts[t0:t1] := v_settled.o_counts;
                o_due_times[t0:t1] := v_settled.o_due_times;
                select min(n) into v_bad from unnest(v_settled.o_codes) with ordinality as c(code, n) where code <> 0;
                if v_bad is not null then
                    o_codes[r] := 1;
                    o_failed[r] := v_bad;
                    raise exception using errcode = 'HK001';
                end if;
                if r_once[r] then
                    select min(n) into v_bad from unnest(v_settled.o_holders) with ordinality as h(holder, n)
                    where holder is null;
                    if v_bad is not null then
                        o_codes[r] := 7;
                        o_failed[r] := v_bad;
                        raise exception using errcode = 'HK001';
                    end if;
                else
                    insert into hark.completions as c (grp, partition, "offset", lease, at)
                    select t_grp[t0 + i.position - 1], t_partition[t0 + i.position - 1], i."offset", i.holder, v_now
                    from unnest(i_position[i0:i1], v_settled.o_offsets, v_settled.o_holders, i_status[i0:i1])
                        as i(position, "offset", holder, status)
                    where i.holder is not null and i.status = 0
                    on conflict (grp, partition, "offset") do update set lease = excluded.lease, at = excluded.at;
                end if;
            end if;
            if m1 >= m0 then
                select * into v_pushed from hark.push_v1(v_now, p_partitions[p0:p1], p_queues[p0:p1], p_names[p0:p1],
                    p_namespaces[p0:p1], p_tasks[p0:p1], p_counts[p0:p1], m_partition[m0:m1], m_ordinal[m0:m1], m_payload[m0:m1], m_transaction_id[m0:m1],
                    m_same_as[m0:m1], case when x1 >= x0 then x_message[x0:x1] end, x_deliver_at[x0:x1],
                    x_delay[x0:x1], x_ttl[x0:x1], x_backoff[x0:x1], x_priority[x0:x1], x_sealed[x0:x1],
                    x_trace_id[x0:x1], x_producer[x0:x1], x_undelivered[x0:x1],
                    x_trace_context[x0:x1]);
                if v_pushed.o_offsets is null then
                    for n in m0..m1 loop
                        o_offsets[n] := v_pushed.o_tails[m_partition[n]] + m_ordinal[n];
                    end loop;
                else
                    o_offsets[m0:m1] := v_pushed.o_offsets;
                    o_outcomes[m0:m1] := v_pushed.o_outcomes;
                    select min(n) into v_bad from unnest(v_pushed.o_outcomes) with ordinality as c(code, n)
                    where code > 1 or (code = 1 and r_once[r]);
                    if v_bad is not null then
                        o_codes[r] := 2;
                        o_failed[r] := v_bad;
                        raise exception using errcode = 'HK001';
                    end if;
                end if;
                o_partitions[p0:p1] := v_pushed.o_partitions;
            end if;
            if v_key_code <> 0 then
                o_codes[r] := v_key_code;
                o_failed[r] := v_keys.o_failed;
                o_why[r] := v_keys.o_why;
                raise exception using errcode = 'HK001';
            end if;
        exception
            when sqlstate 'HK001' then null;
        end;
        t0 := t1 + 1; i0 := i1 + 1; q0 := q1 + 1; p0 := p1 + 1; m0 := m1 + 1; x0 := x1 + 1;
        c0 := c1 + 1; u0 := u1 + 1;
    end loop;
    -- What no client repeats any more: two for each one that is added, so there is little more than what is young.
    if false = any (r_once) then
        delete from hark.completions c using (
            select x.grp, x.partition, x."offset" from hark.completions x
            where x.at < v_now - 3600000000 order by x.at limit 2 * cardinality(i_position) for update skip locked
        ) as o
        where c.grp = o.grp and c.partition = o.partition and c."offset" = o."offset";
    end if;
    if v_locks then
        perform hark.unlock_keys_v1(c_key || u_key);
    end if;
end $$;

-- Whether a lease is live: 0 yes, 3 no, 4 no: its time is up.
create or replace function hark.lease_state_v1(p_now bigint, p_lease uuid) returns smallint
language sql volatile as $$
    select case
        when max(coalesce(t.lease_until, c.until, e.until)) > p_now then 0
        when bool_or(l.expired) or max(coalesce(t.lease_until, c.until, e.until)) is not null then 4
        else 3 end::smallint
    from hark.leases l
    cross join lateral unnest(l.grps, l.partitions) as p(grp, partition)
    left join hark.positions t on t.grp = p.grp and t.partition = p.partition and t.lease = l.id
    left join hark.claims c on c.grp = p.grp and c.partition = p.partition and c.lease = l.id
    left join lateral (
        select x.until from hark.outstanding x
        where x.partition = p.partition and x.until = l.until and x.lease = l.id and x.lease is not null and x.grp + 0 = p.grp limit 1
    ) as e on true
    where l.id = p_lease
$$;
