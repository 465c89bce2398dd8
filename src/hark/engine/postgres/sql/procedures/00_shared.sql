-- What several verbs need.

-- The time of a call: as given, else the database's own.
create or replace function hark.time_v1(p_now bigint) returns bigint
language sql volatile parallel safe as $$
    select coalesce(p_now, (extract(epoch from clock_timestamp()) * 1000000)::bigint)
$$;

-- The ten seconds that a time is in: the value of `changed_bucket`.
create or replace function hark.bucket_v1(p_now bigint) returns integer
language sql immutable parallel safe as $$
    select (p_now / 10000000)::integer
$$;

-- Gives the transaction its number before it waits for a lock: from here on other servers know that it is running, and look
-- back to its time when it has ended (`changed_bucket`).
create or replace function hark.begin_v1() returns void
language sql volatile as $$
    select pg_current_xact_id()
$$;

-- Where a group starts in a partition that it has not been in yet (rule 20).
create or replace function hark.start_v1(p_grp integer, p_partition bigint) returns bigint
language plpgsql as $$
declare
    g hark.groups;
    p hark.partitions;
begin
    select * into g from hark.groups where id = p_grp;
    select * into p from hark.partitions where id = p_partition;
    if g.since is null or p.id > g.highest_partition then
        return p.floor;
    elsif p.last_created <= g.since then
        return p.tail;
    end if;
    return hark.last_offset_at_v1(p.id, g.since);
end $$;

-- The last offset of a partition that was created at or before a time. Times never decrease with the offset, so
-- halving finds it. Volatile, as all that read messages or leases: with the snapshot of its caller it would miss what
-- was copied forward to another child table since.
create or replace function hark.last_offset_at_v1(p_partition bigint, p_time bigint) returns bigint
language plpgsql as $$
declare
    v_low bigint;
    v_high bigint;
    v_middle bigint;
    v_created bigint;
begin
    select floor, tail into v_low, v_high from hark.partitions where id = p_partition;
    while v_low < v_high loop
        v_middle := (v_low + v_high + 1) / 2;
        select m.created_at into v_created from hark.messages m
        where m.partition = p_partition and m."offset" >= v_middle order by m."offset" limit 1;
        if v_created <= p_time then
            v_low := v_middle;
        else
            v_high := v_middle - 1;
        end if;
    end loop;
    return v_low;
end $$;

-- Cursor and settled ranges in their one right form: what continues the cursor is part of it.
create or replace function hark.advance_v1(inout cursor bigint, inout settled int8multirange)
language plpgsql immutable as $$
declare
    v_first int8range;
begin
    while not isempty(settled) and lower(settled) <= cursor + 1 loop
        select r into v_first from unnest(settled) r limit 1;
        cursor := greatest(cursor, upper(v_first) - 1);
        settled := settled - int8multirange(int8range(0, cursor + 1));
    end loop;
end $$;

-- Offsets as ranges.
create or replace function hark.ranges_v1(p_offsets bigint[]) returns int8multirange
language sql immutable as $$
    select coalesce(range_agg(int8range(o, o + 1)), '{}') from unnest(p_offsets) o
$$;

-- How many offsets ranges have.
create or replace function hark.size_v1(p_ranges int8multirange) returns bigint
language sql immutable as $$
    select coalesce(sum(upper(r) - lower(r)), 0)::bigint from unnest(p_ranges) r
$$;

-- What of a partition is not there for a group beyond an offset: removed messages, and those requeued for others. A queue
-- that drops what is settled does not note single removals.
create or replace function hark.gaps_v1(p_grp integer, p_partition bigint, p_cursor bigint) returns int8multirange
language plpgsql as $$
declare
    v_tail bigint;
begin
    select p.tail into v_tail from hark.partitions p join hark.queues q on q.id = p.queue
    where p.id = p_partition and q.drop_settled and p.tail > p_cursor;
    if found then
        return int8multirange(int8range(p_cursor + 1, v_tail + 1)) - coalesce((
            select range_agg(int8range(m."offset", m."offset" + 1)) from hark.messages m
            where m.partition = p_partition and m."offset" > p_cursor and (m.owner is null or m.owner = p_grp)), '{}');
    end if;
    return coalesce((
        select range_agg(int8range(h."offset", h."offset" + 1)) from hark.gaps h
        where h.partition = p_partition and h."offset" > p_cursor and h.owner <> p_grp), '{}');
end $$;

-- A group's place in a partition, made where there is none. Offsets without a message are done from the start.
create or replace function hark.make_positions_v1(p_grps integer[], p_partitions bigint[]) returns void
language plpgsql as $$
declare
    v_shared record;
begin
    for v_shared in
        with made as (
            insert into hark.positions (grp, partition, cursor, settled, plain, seen)
            select w.grp, p.id, a.cursor, a.settled, case when g.mode = 'shared' then '{}'::bigint[] end,
                case when g.mode = 'shared' then 0 end
            from unnest(p_grps, p_partitions) as w(grp, partition)
            join hark.partitions p on p.id = w.partition
            join hark.groups g on g.id = w.grp
            cross join lateral (select hark.start_v1(g.id, p.id) as cursor) as s
            cross join lateral hark.advance_v1(s.cursor, case when g.mode = 'shared' then '{}'
                else hark.gaps_v1(g.id, p.id, s.cursor) end) as a
            where not exists (select 1 from hark.positions t where t.grp = w.grp and t.partition = w.partition)
            order by w.grp, p.id
            on conflict do nothing
            returning positions.grp, positions.partition, positions.cursor, positions.plain
        )
        select * from made where plain is not null
    loop
        perform hark.begin_lanes_v1(v_shared.grp, v_shared.partition, v_shared.cursor);
    end loop;
end $$;

create or replace function hark.count_v1(p_queue integer, p_expired bigint, p_discarded bigint) returns void
language plpgsql as $$
begin
    insert into hark.counters as c (queue, expired, discarded) values (p_queue, p_expired, p_discarded)
    on conflict (queue) do update set expired = c.expired + p_expired, discarded = c.discarded + p_discarded;
end $$;

-- A group stepped over messages whose time was over: they are counted, and remembered for those who ask.
create or replace function hark.note_expired_v1(
    p_now bigint, p_queue integer, p_grp integer, p_partition bigint, p_offsets int8multirange
) returns void
language plpgsql as $$
begin
    if not isempty(p_offsets) then
        perform hark.count_v1(p_queue, hark.size_v1(p_offsets), 0);
        insert into hark.endings (partition, grp, offsets, kind, at)
        values (p_partition, p_grp, p_offsets, 'expired', p_now);
    end if;
end $$;

-- Copies a message into the dead letters of a group, if its queue keeps them or p_always (rule 18). The caller settles it.
create or replace function hark.dead_letter_v1(
    p_grp integer, p_partition bigint, p_offset bigint, p_attempts integer, p_error text, p_at bigint,
    p_exhausted boolean, p_always boolean default false
) returns boolean
language plpgsql as $$
declare
    v_queue hark.queues;
begin
    select q.* into v_queue from hark.queues q join hark.partitions p on p.queue = q.id where p.id = p_partition;
    perform hark.set_undelivered_v1(p_partition, p_offset, v_queue.name);
    if not p_always and (not v_queue.dead_letter_queue or (p_exhausted and not v_queue.dlq_after_max_retries)) then
        perform hark.count_v1(v_queue.id, 0, 1);
        insert into hark.endings (partition, grp, offsets, kind, at, attempts, error)
        values (p_partition, p_grp, hark.ranges_v1(array[p_offset]), 'discarded', p_at, p_attempts, p_error);
        return false;
    end if;
    insert into hark.dead_letters as d (queue, partition, partition_name, grp, "offset", transaction_id, created_at,
        payload, backoff, priority, sealed, trace_id, producer, undelivered, trace_context,
        attempts, error, failed_at)
    select v_queue.name, p.id, p.name, g.name, m."offset", m.transaction_id, m.created_at,
        m.payload, m.backoff, m.priority, m.sealed, m.trace_id, m.producer, m.undelivered, m.trace_context, p_attempts,
        p_error, p_at
    from hark.messages m
    join hark.partitions p on p.id = m.partition
    join hark.groups g on g.id = p_grp
    where m.partition = p_partition and m."offset" = p_offset
    on conflict (partition, "offset", grp) do update
    set attempts = excluded.attempts, error = excluded.error, failed_at = excluded.failed_at;
    return true;
end $$;

-- The milliseconds before each retry of a message: its own schedule, else that of its queue.
create or replace function hark.delays_v1(p_partition bigint, p_offset bigint) returns bigint[]
language sql volatile as $$
    select coalesce(m.backoff, q.schedule)
    from hark.messages m
    join hark.partitions p on p.id = m.partition
    join hark.queues q on q.id = p.queue
    where m.partition = p_partition and m."offset" = p_offset
$$;

-- How long a message waits for its next attempt, which is number p_attempts + 1. p_delay: the wish of its consumer; null: as the schedule
-- says; below 0: so long, if neither the message nor its queue has a delay (a maximum delay of 0 says that there is none).
create or replace function hark.wait_v1(
    p_partition bigint, p_offset bigint, p_delays bigint[], p_attempts integer, p_delay bigint
) returns bigint
language plpgsql as $$
begin
    if p_delay >= 0 then
        return p_delay;
    end if;
    if p_delay < 0 and 0 = all (p_delays) and exists (
        select from hark.messages m
        join hark.partitions p on p.id = m.partition
        join hark.queues q on q.id = p.queue
        where m.partition = p_partition and m."offset" = p_offset and m.backoff is null and q.retry_max_delay > 0
    ) then
        return -p_delay;
    end if;
    return p_delays[p_attempts] * 1000;
end $$;

-- Uses one attempt of a message: it waits for its next one, or is dead-lettered or discarded (rule 14). exhausted: the group is done with it.
-- p_delay: how long it waits; null: as its schedule says.
create or replace function hark.fail_v1(
    p_grp integer, p_partition bigint, p_offset bigint, p_error text, p_at bigint, p_delay bigint,
    out exhausted boolean, out dead boolean
)
language plpgsql as $$
declare
    v_delays bigint[] := hark.delays_v1(p_partition, p_offset);
    v_attempts integer;
begin
    select attempts into v_attempts from hark.retries
    where grp = p_grp and partition = p_partition and "offset" = p_offset;
    v_attempts := coalesce(v_attempts, 0) + 1;
    exhausted := v_attempts > coalesce(cardinality(v_delays), 0);
    dead := false;
    if exhausted then
        dead := hark.dead_letter_v1(p_grp, p_partition, p_offset, v_attempts, p_error, p_at, true);
        return;
    end if;
    insert into hark.retries as r (grp, partition, "offset", attempts, due, error)
    values (p_grp, p_partition, p_offset, v_attempts,
        p_at + hark.wait_v1(p_partition, p_offset, v_delays, v_attempts, p_delay), p_error)
    on conflict (grp, partition, "offset") do update
    set attempts = excluded.attempts, due = excluded.due, error = excluded.error;
end $$;

-- The same for a message that a shared group has on a lease: it is free again, or dead-lettered.
create or replace function hark.fail_shared_v1(
    p_grp integer, p_partition bigint, p_offset bigint, p_error text, p_at bigint, p_delay bigint,
    out exhausted boolean, out dead boolean
)
language plpgsql as $$
declare
    v_delays bigint[] := hark.delays_v1(p_partition, p_offset);
    v_attempts integer;
begin
    select attempts + 1 into v_attempts from hark.outstanding
    where grp = p_grp and partition = p_partition and "offset" = p_offset;
    exhausted := v_attempts > coalesce(cardinality(v_delays), 0);
    dead := false;
    if exhausted then
        dead := hark.dead_letter_v1(p_grp, p_partition, p_offset, v_attempts, p_error, p_at, true);
        delete from hark.outstanding where grp = p_grp and partition = p_partition and "offset" = p_offset;
        return;
    end if;
    update hark.outstanding
    set attempts = v_attempts, due = p_at + hark.wait_v1(p_partition, p_offset, v_delays, v_attempts, p_delay),
        error = p_error, lease = null, until = null
    where grp = p_grp and partition = p_partition and "offset" = p_offset;
end $$;

-- A group is done with offsets, for whatever reason: they leave the front, or become part of what is settled.
create or replace function hark.settle_offsets_v1(
    p_grp integer, p_partition bigint, p_offsets int8multirange, p_irregular boolean,
    inout cursor bigint, inout settled int8multirange
)
language plpgsql as $$
declare
    v_rest int8multirange := p_offsets;
    v_requeued int8multirange;
begin
    if p_irregular then
        with gone as (
            delete from hark.requeued f
            where f.grp = p_grp and f.partition = p_partition and f."offset" <@ p_offsets
                and f."offset" >= lower(p_offsets) and f."offset" < upper(p_offsets)  -- For the index.
            returning f."offset"
        )
        select hark.ranges_v1(array_agg("offset")) into v_requeued from gone;
        v_rest := p_offsets - v_requeued;
        delete from hark.retries r
        where r.grp = p_grp and r.partition = p_partition and r."offset" <@ p_offsets
            and r."offset" >= lower(p_offsets) and r."offset" < upper(p_offsets);
    end if;
    if not isempty(v_rest) then
        if isempty(settled) and lower(v_rest) <= cursor + 1 and v_rest = int8multirange(range_merge(v_rest)) then
            cursor := greatest(cursor, upper(v_rest) - 1);
        else
            select a.cursor, a.settled into cursor, settled
            from hark.advance_v1(cursor, (settled + v_rest) - int8multirange(int8range(0, cursor + 1))) a;
        end if;
    end if;
end $$;

-- Applies the end of a lease to the position that it is on, as of the time it was due (rule 16). The caller holds the
-- position's lock. A lease on one message costs it an attempt; after a lease on several they come one at a time.
create or replace function hark.expire_position_v1(p_grp integer, p_partition bigint, p_now bigint) returns boolean
language plpgsql as $$
declare
    t hark.positions;
    v_failed record;
    v_gone bigint[];
    v_cursor bigint;
    v_settled int8multirange;
begin
    delete from hark.claims where grp = p_grp and partition = p_partition and until <= p_now;
    select * into t from hark.positions where grp = p_grp and partition = p_partition;
    if t.lease is null or t.lease_until > p_now then
        return false;
    end if;
    v_cursor := t.cursor;
    v_settled := t.settled;
    if t.handed > 1 then
        if t.cursor < t.lease_last then
            t.probe := greatest(t.probe, t.lease_last);
        end if;
        if t.irregular then
            -- Requeued messages have offsets beyond all others: those of the batch come one at a time too.
            update hark.requeued f set probe = true
            where f.grp = p_grp and f.partition = p_partition and f."offset" <@ t.leased;
        end if;
    elsif not isempty(t.leased) then
        t.irregular := true;
        select * into v_failed from hark.fail_v1(p_grp, p_partition, lower(t.leased),
            'Lease expired: the consumer neither settled nor renewed in time', t.lease_until, 0);
        if v_failed.exhausted then
            select s.cursor, s.settled into v_cursor, v_settled
            from hark.settle_offsets_v1(p_grp, p_partition, t.leased, true, v_cursor, v_settled) s;
            t.settled_at := p_now;
            v_gone := array[lower(t.leased)];
        end if;
    end if;
    update hark.leases set expired = true where id = t.lease;
    update hark.positions
    set cursor = v_cursor, settled = v_settled, settled_at = t.settled_at, irregular = t.irregular,
        probe = case when v_cursor >= t.probe then 0 else t.probe end,
        lease = null, lease_until = null, handed = 0, lease_last = 0, leased = '{}',
        changed_bucket = greatest(changed_bucket, hark.bucket_v1(p_now))
    where grp = p_grp and partition = p_partition;
    perform hark.drop_settled_v1(p_partition, v_gone);
    return true;
end $$;
