-- Completes, fails, gives back or dead-letters messages (rules 12-15).
--
-- t_: the positions concerned, each once. i_: the items in the order of their requests; i_offset is null where the
-- server does not know it, then the message is found by i_transaction_id, or by i_own_offset (the offset that the
-- transaction id stands for when it is a message's own id). i_status: 0 completed, 1 failed, 2 retry, 3 dlq, 4 dlq because the
-- payload cannot be read: a dead letter whatever the queue says.
-- p_required: leases that something settled without a lease id must be held under, if there are any. i_known: in a
-- transaction, whether the server knows that an item was completed under its lease before; null: this is none. Only in
-- a transaction o_offsets has the offsets of the items.
--
-- o_codes: 0 done, 1 not found, 2 lease expired, 3 not delivered under this lease, 4 not leased, 5 dead already.
-- o_holders: the lease that an item was held under, where it changed something. o_ready has for each position whether it
-- can be taken now as far as leases are concerned; o_counts and o_due_times, of shared groups: see settle_shared_v1. Groups
-- that do not exist change nothing and are answered in o_stale (0 stands for a group that nobody knows, and is none of
-- them).
create or replace function hark.settle_v1(
    p_now bigint,
    t_grp integer[], t_partition bigint[], t_shared boolean[],
    i_request integer[], i_position integer[], i_offset bigint[], i_transaction_id text[], i_own_offset bigint[],
    i_lease uuid[], i_status smallint[], i_error text[], i_delay bigint[],
    p_required uuid[], i_known boolean[],
    out o_codes smallint[], out o_released boolean[], out o_dead boolean[], out o_holders uuid[],
    out o_ready boolean[], out o_counts integer[], out o_due_times bigint[], out o_stale integer[],
    out o_offsets bigint[]
)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_now bigint := hark.time_v1(p_now);
    v_offsets bigint[] := i_offset;
    v_items integer[];
    v_number integer;
    v_shared boolean := true = any (t_shared);
    v_rest integer := cardinality(t_grp) - coalesce(cardinality(array_positions(t_shared, true)), 0);
    v_settled boolean[] := array_fill(false, array[cardinality(t_grp)]);
    v_ready boolean;
    v_ranges int8multirange;
    v_done record;
    t hark.positions;
begin
    perform hark.begin_v1();
    o_codes := array_fill(1::smallint, array[cardinality(i_position)]);
    o_released := array_fill(false, array[cardinality(i_position)]);
    o_dead := array_fill(false, array[cardinality(i_position)]);
    o_holders := array_fill(null::uuid, array[cardinality(i_position)]);
    o_ready := array_fill(false, array[cardinality(t_grp)]);
    o_counts := array_fill(0, array[cardinality(t_grp)]);
    o_due_times := array_fill(null::bigint, array[cardinality(t_grp)]);
    perform 1 from (
        select 1 from hark.positions k
        join unnest(t_grp, t_partition, t_shared) as w(grp, partition, shared)
            on k.grp = w.grp and k.partition = w.partition
        where not w.shared
        order by k.grp, k.partition for no key update of k
    ) as locked;
    get diagnostics v_number = row_count;
    if v_shared or v_number < cardinality(t_grp) then
        o_stale := hark.stale_groups_v1(t_grp);
        if o_stale is not null then
            return;
        end if;
    end if;
    if i_transaction_id is not null then
        select array_agg(coalesce(i.given, hark.find_message_v1(t_partition[i.position], i.transaction_id, i.own), i.own)
            order by i.n)
        into v_offsets
        from unnest(i_position, i_offset, i_transaction_id, i_own_offset) with ordinality
            as i(position, given, transaction_id, own, n);
    end if;
    if i_known is not null then
        o_offsets := v_offsets;
    end if;

    if v_shared then
        select x.* into o_codes, o_released, o_dead, o_holders, o_counts, o_due_times
        from hark.settle_shared_v1(v_now, t_grp, t_partition, t_shared, i_request, i_position, v_offsets, i_lease, i_status,
            i_error, i_delay, p_required, i_known, o_codes, o_released, o_dead, o_holders, o_counts, o_due_times) x;
        if v_rest = 0 then
            return;
        end if;
    end if;

    -- The common case, for all positions at once: everything is completed under the lease that the position is under, and
    -- continues the cursor.
    if p_required is null then
        for v_done in
            with settlement as (
                select i.position, min(v_offsets[i.n]) as first, max(v_offsets[i.n]) as last, max(i.n)::integer as item,
                    count(*) as number, count(distinct v_offsets[i.n]) as distinct_number,
                    (array_agg(i.lease))[1] as lease,
                    bool_and(coalesce(i.status = 0 and i.lease = i_lease[i.one], false)) as plain
                from (
                    select u.position, u.lease, u.status, u.n, (min(u.n) over (partition by u.position))::integer as one
                    from unnest(i_position, i_lease, i_status) with ordinality as u(position, lease, status, n)
                    where not t_shared[u.position]
                ) as i
                group by i.position
            ), changed as (
                update hark.positions k
                set cursor = s.last, settled_at = v_now,
                    leased = k.leased - int8multirange(int8range(s.first, s.last + 1)),
                    lease = case when upper(k.leased) - 1 > s.last then k.lease end,
                    lease_until = case when upper(k.leased) - 1 > s.last then k.lease_until end,
                    handed = case when upper(k.leased) - 1 > s.last then k.handed else 0 end,
                    lease_last = case when upper(k.leased) - 1 > s.last then k.lease_last else 0 end,
                    probe = case when s.last >= k.probe then 0 else k.probe end,
                    changed_bucket = greatest(k.changed_bucket, hark.bucket_v1(v_now))
                from settlement s
                where k.grp = t_grp[s.position] and k.partition = t_partition[s.position] and s.plain
                    and k.lease = s.lease and k.lease_until > v_now and not k.irregular and k.settled = '{}'
                    and s.first = k.cursor + 1 and s.last - s.first + 1 = s.number and s.number = s.distinct_number
                    and int8range(s.first, s.last + 1) <@ k.leased
                returning s.position, s.item, k.lease is null as ended, s.first, k.cursor, k.partition
            )
            select c.position, c.item, c.ended, c.ended and c.cursor < p.tail as ready, c.first, c.cursor,
                q.drop_settled as drops
            from changed c join hark.partitions p on p.id = c.partition left join hark.queues q on q.id = p.queue
        loop
            v_rest := v_rest - 1;
            v_settled[v_done.position] := true;
            o_released[v_done.item] := v_done.ended;
            o_ready[v_done.position] := v_done.ready;
            if v_done.drops then
                perform hark.drop_settled_v1(t_partition[v_done.position],
                    array(select generate_series(v_done.first, v_done.cursor)));
            end if;
        end loop;
        if v_rest = 0 and not v_shared then
            o_codes := array_fill(0::smallint, array[cardinality(i_position)]);
            o_holders := i_lease;
            return;
        end if;
        select array_agg(case when v_settled[i.position] then 0 else i.code end::smallint order by i.n),
            array_agg(case when v_settled[i.position] then i.lease else i.holder end order by i.n)
        into o_codes, o_holders
        from unnest(i_position, o_codes, i_lease, o_holders) with ordinality as i(position, code, lease, holder, n);
    end if;

    for k in 1..cardinality(t_grp) loop
        continue when v_settled[k] or t_shared[k];
        select array_agg(n order by n) into v_items from unnest(i_position) with ordinality as i(position, n) where position = k;
        select * into t from hark.positions where grp = t_grp[k] and partition = t_partition[k];
        if not found then
            for n in 1..cardinality(v_items) loop
                if v_offsets[v_items[n]] is not null and exists (
                    select 1 from hark.messages m join hark.partitions p on p.id = m.partition
                    where m.partition = t_partition[k] and m."offset" = v_offsets[v_items[n]] and m."offset" > p.floor
                        and p.queue <> 0)
                then
                    o_codes[v_items[n]] := 4;
                end if;
            end loop;
            continue;
        end if;
        if t.lease_until <= v_now or t.irregular then
            perform hark.expire_position_v1(t.grp, t.partition, v_now);
            select * into t from hark.positions where grp = t_grp[k] and partition = t_partition[k];
        end if;
        select range_agg(int8range(v_offsets[n], v_offsets[n] + 1)), count(distinct v_offsets[n]),
            bool_and(coalesce(i_status[n] = 0 and i_lease[n] = t.lease and v_offsets[n] <@ t.leased, false))
        into v_ranges, v_number, v_ready
        from unnest(v_items) n;
        if p_required is null and v_ready and v_number = cardinality(v_items) then
            -- All of it is completed under the position's lease, though not in order.
            select s.cursor, s.settled into t.cursor, t.settled
            from hark.settle_offsets_v1(t.grp, t.partition, v_ranges, t.irregular, t.cursor, t.settled) s;
            update hark.positions x
            set cursor = t.cursor, settled = t.settled, settled_at = v_now, leased = x.leased - v_ranges,
                lease = case when isempty(x.leased - v_ranges) then null else x.lease end,
                lease_until = case when isempty(x.leased - v_ranges) then null else x.lease_until end,
                handed = case when isempty(x.leased - v_ranges) then 0 else x.handed end,
                lease_last = case when isempty(x.leased - v_ranges) then 0 else x.lease_last end,
                probe = case when t.cursor >= x.probe then 0 else x.probe end,
                changed_bucket = greatest(x.changed_bucket, hark.bucket_v1(v_now))
            where x.grp = t.grp and x.partition = t.partition;
            for n in 1..cardinality(v_items) loop
                o_codes[v_items[n]] := 0;
                o_holders[v_items[n]] := t.lease;
            end loop;
            o_released[v_items[cardinality(v_items)]] := isempty(t.leased - v_ranges);
        else
            select s.o_codes, s.o_released, s.o_dead, s.o_holders into o_codes, o_released, o_dead, o_holders
            from hark.settle_position_v1(v_now, t, v_items, i_request, v_offsets, i_lease, i_status, i_error, i_delay,
                p_required, i_known, o_codes, o_released, o_dead, o_holders) s;
        end if;
        perform hark.drop_settled_v1(t.partition, array_agg(v_offsets[n])) from unnest(v_items) n
        where o_holders[n] is not null and hark.is_done_v1(t.grp, t.partition, v_offsets[n])
            and exists (
                select 1 from hark.partitions p join hark.queues q on q.id = p.queue
                where p.id = t.partition and q.drop_settled);
        select x.lease is null and (x.cursor < p.tail or (x.irregular and exists (
            select 1 from hark.requeued f where f.grp = x.grp and f.partition = x.partition)))
        into v_ready
        from hark.positions x join hark.partitions p on p.id = x.partition
        where x.grp = t.grp and x.partition = t.partition;
        o_ready[k] := coalesce(v_ready, false);
    end loop;
end $$;

create or replace function hark.stale_groups_v1(p_grps integer[]) returns integer[]
language sql volatile as $$
    select array_agg(distinct w.grp) from unnest(p_grps) as w(grp)
    where w.grp <> 0 and not exists (select 1 from hark.groups g where g.id = w.grp)
$$;

-- The offset of a stored message by its transaction id, or by its own id. Volatile, so that it looks with a snapshot
-- of its own: messages may have been copied forward to another child table since the caller's was taken.
create or replace function hark.find_message_v1(p_partition bigint, p_transaction_id text, p_own bigint) returns bigint
language plpgsql as $$
declare
    v_offset bigint;
begin
    select m."offset" into v_offset from hark.messages m join hark.partitions p on p.id = p_partition
    where hashtextextended(m.transaction_id, m.partition) = hashtextextended(p_transaction_id, p_partition)
        and m.transaction_id = p_transaction_id and m.partition + 0 = p_partition
        and m."offset" > p.floor and p.queue <> 0;
    if not found then
        select m."offset" into v_offset from hark.messages m join hark.partitions p on p.id = m.partition
        where m.partition = p_partition and m."offset" = p_own and m."offset" > p.floor and p.queue <> 0;
    end if;
    return v_offset;
end $$;

-- Whether a settlement counts, by the leases as they stand: 0 it does, else the code of the refusal; -1: it is
-- completed already, which is a success that changes nothing. holder: the lease that it is held under.
create or replace function hark.authorize_settlement_v1(
    p_now bigint, t hark.positions, p_offset bigint, p_lease uuid, p_status smallint, p_required uuid[],
    p_known boolean,
    out code smallint, out holder uuid
)
language plpgsql as $$
begin
    code := 0;
    if p_offset is null then
        code := 1;
        return;
    end if;
    if t.lease is not null and p_offset <@ t.leased and (p_lease is null or p_lease = t.lease) then
        holder := t.lease;
    elsif t.irregular then
        select c.lease into holder from hark.claims c
        where c.grp = t.grp and c.partition = t.partition and p_offset <@ c.leased and c.until > p_now
            and (p_lease is null or p_lease = c.lease);
    end if;
    if holder is not null then
        if p_lease is null and holder <> all (p_required) then
            code := 3;
        end if;
        return;
    end if;
    code := hark.refuse_v1(t.grp, t.partition, p_offset, p_lease, p_status,
        (p_offset <= t.cursor or p_offset <@ t.settled) and not (t.irregular and exists (
            select 1 from hark.requeued f where f.grp = t.grp and f.partition = t.partition and f."offset" = p_offset)),
        p_required, p_known);
end $$;

-- Settles items of one position one by one; those of one request are judged before any of them has an effect.
create or replace function hark.settle_position_v1(
    p_now bigint, t hark.positions, p_items integer[], i_request integer[], i_offset bigint[], i_lease uuid[],
    i_status smallint[], i_error text[], i_delay bigint[], p_required uuid[],
    i_known boolean[],
    inout o_codes smallint[], inout o_released boolean[], inout o_dead boolean[], inout o_holders uuid[]
)
language plpgsql as $$
declare
    v_holders uuid[] := '{}';
    v_authorized integer := 0;
    v_seen bigint[];
    v_decision record;
    v_failed record;
    v_attempts integer;
    v_settle boolean;
    v_give_back boolean;
    v_changed boolean := false;
    i integer;
begin
    for n in 1..cardinality(p_items) loop
        if n > v_authorized then
            -- A new request begins: judge all of it.
            v_seen := '{}';
            loop
                v_authorized := v_authorized + 1;
                i := p_items[v_authorized];
                select * into v_decision
                from hark.authorize_settlement_v1(p_now, t, i_offset[i], i_lease[i], i_status[i], p_required, i_known[i]);
                o_codes[i] := v_decision.code;
                v_holders[v_authorized] := v_decision.holder;
                exit when v_authorized = cardinality(p_items)
                    or i_request[p_items[v_authorized + 1]] <> i_request[p_items[v_authorized]];
            end loop;
        end if;
        i := p_items[n];
        if o_codes[i] = -1 then
            o_codes[i] := 0;
            continue;
        end if;
        if o_codes[i] <> 0 or i_offset[i] = any (v_seen) then
            continue;
        end if;
        v_changed := true;
        o_holders[i] := v_holders[n];
        v_seen := v_seen || i_offset[i];
        v_settle := i_status[i] = 0;
        -- However a failure ends, nothing waits for the end of the lease: it keeps the rest of the batch as a claim.
        v_give_back := i_status[i] <> 0;
        if i_status[i] = 1 then
            t.irregular := true;
            select * into v_failed from hark.fail_v1(t.grp, t.partition, i_offset[i],
                coalesce(nullif(i_error[i], ''), 'Failed without an error text'), p_now, i_delay[i]);
            v_settle := v_failed.exhausted;
            o_dead[i] := v_failed.dead;
        elsif i_status[i] = 2 then
            t.irregular := true;
            insert into hark.retries as r (grp, partition, "offset", attempts, due)
            values (t.grp, t.partition, i_offset[i], 0, p_now + coalesce(i_delay[i], 0))
            on conflict (grp, partition, "offset") do update set due = excluded.due;
        elsif i_status[i] in (3, 4) then
            select coalesce(max(r.attempts), 0) + 1 into v_attempts from hark.retries r
            where r.grp = t.grp and r.partition = t.partition and r."offset" = i_offset[i];
            o_dead[i] := hark.dead_letter_v1(t.grp, t.partition, i_offset[i], v_attempts,
                coalesce(nullif(i_error[i], ''), 'Sent to the dead letters by its consumer'), p_now, false,
                i_status[i] = 4);
            v_settle := true;
        end if;
        if v_settle then
            t.settled_at := p_now;
            select s.cursor, s.settled into t.cursor, t.settled
            from hark.settle_offsets_v1(t.grp, t.partition, int8multirange(int8range(i_offset[i], i_offset[i] + 1)),
                t.irregular, t.cursor, t.settled) s;
        end if;
        if v_holders[n] = t.lease then
            t.leased := t.leased - int8multirange(int8range(i_offset[i], i_offset[i] + 1));
            if v_give_back and not isempty(t.leased) then
                t.irregular := true;
                insert into hark.claims (grp, partition, lease, until, leased)
                values (t.grp, t.partition, t.lease, t.lease_until, t.leased);
            end if;
            if v_give_back or isempty(t.leased) then
                t.lease := null; t.lease_until := null; t.handed := 0; t.lease_last := 0; t.leased := '{}';
            end if;
        else
            delete from hark.claims c
            where c.grp = t.grp and c.partition = t.partition and c.lease = v_holders[n]
                and isempty(c.leased - int8multirange(int8range(i_offset[i], i_offset[i] + 1)));
            update hark.claims c set leased = c.leased - int8multirange(int8range(i_offset[i], i_offset[i] + 1))
            where c.grp = t.grp and c.partition = t.partition and c.lease = v_holders[n];
        end if;
        o_released[i] := t.lease is distinct from v_holders[n];
    end loop;
    if v_changed then
        update hark.positions
        set cursor = t.cursor, settled = t.settled, settled_at = t.settled_at, irregular = t.irregular,
            lease = t.lease, lease_until = t.lease_until, handed = t.handed, lease_last = t.lease_last, leased = t.leased,
            probe = case when t.cursor >= t.probe then 0 else t.probe end,
            changed_bucket = greatest(changed_bucket, hark.bucket_v1(p_now))
        where grp = t.grp and partition = t.partition;
    end if;
end $$;
