-- Shared groups: every message has a state of its own.
--
-- Beyond the place where the group started (the cursor of its position) each message is in a lane: plain or delayed, of a
-- priority. A group has a position in each lane. What is at or before that has been passed, and is settled, unless it
-- is among the outstanding: on a lease, or to be taken again. So a claim reads from the positions on and looks at
-- neither what is settled nor what is not due. Positions are in arrays by priority, from 1 for priority 0.
--
-- A delayed message may arrive with a time that the group has passed already: its push committed late, or a clock
-- stepped back. So positions in delayed lanes count for offsets up to `seen` only; what lies beyond is looked at once,
-- and becomes an exception if the positions would pass it unseen (see list_v1).

-- Whether a shared group has passed a message.
create or replace function hark.passed_v1(t hark.positions, p_offset bigint, p_priority smallint, p_deliver_at bigint)
returns boolean
language sql immutable as $$
    select p_offset <= t.cursor or case
        when p_deliver_at is null then p_offset <= t.plain[coalesce(p_priority, 0) + 1]
        else p_offset <= t.seen and (p_deliver_at, p_offset)
            <= (t.delayed_at[coalesce(p_priority, 0) + 1], t.delayed_offset[coalesce(p_priority, 0) + 1])
    end
$$;

-- The same place with its lanes at their beginning.
create or replace function hark.begin_lanes_v1(p_grp integer, p_partition bigint, p_cursor bigint) returns void
language plpgsql as $$
begin
    update hark.positions k
    set plain = array_fill(p_cursor, array[10]), delayed_at = array_fill(0::bigint, array[10]),
        delayed_offset = array_fill(0::bigint, array[10]), seen = p.tail
    from hark.partitions p
    where k.grp = p_grp and k.partition = p_partition and p.id = k.partition;
    -- What was requeued for this group is in no lane.
    insert into hark.outstanding (grp, partition, "offset", lane, due)
    select p_grp, p_partition, m."offset", coalesce(m.priority, 0), m.created_at
    from hark.gaps h
    join hark.messages m on m.partition = h.partition and m."offset" = h."offset"
    where h.partition = p_partition and h."offset" > p_cursor and h.owner = p_grp
    on conflict do nothing;
end $$;

-- The offsets that a shared group has yet to settle.
create or replace function hark.unsettled_v1(t hark.positions, p hark.partitions) returns setof bigint
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off
as $$
declare
    v_from bigint := greatest(t.cursor, p.floor);
begin
    return query
    select e."offset" from hark.outstanding e
    where e.grp = t.grp and e.partition = t.partition and e."offset" > p.floor;
    return query
    select m."offset" from hark.messages m
    where m.partition = t.partition and m."offset" > greatest(v_from, t.plain[1])
        and m.priority is null and m.deliver_at is null and m.owner is null;
    if p.lanes is null then
        return;
    end if;
    return query
    select m."offset" from generate_series(1, 9) as x(priority)
    cross join lateral (
        select y."offset" from hark.messages y
        where (y.partition << 4 | y.priority) = (t.partition << 4 | x.priority) and y.priority > 0
            and y.deliver_at is null and y.owner is null and y."offset" > greatest(v_from, t.plain[x.priority + 1])
        offset 0
    ) as m;
    return query
    select m."offset" from generate_series(0, 9) as x(priority)
    cross join lateral (
        select y."offset" from hark.messages y
        where (y.partition << 4 | coalesce(y.priority, 0)) = (t.partition << 4 | x.priority)
            and y.deliver_at is not null and y."offset" > v_from
            and (y.deliver_at, y."offset") > (t.delayed_at[x.priority + 1], t.delayed_offset[x.priority + 1])
        offset 0
    ) as m;
    return query
    select m."offset" from hark.messages m
    where m.partition = t.partition and m."offset" > greatest(v_from, t.seen) and m.deliver_at is not null
        and (m.deliver_at, m."offset")
            <= (t.delayed_at[coalesce(m.priority, 0) + 1], t.delayed_offset[coalesce(m.priority, 0) + 1]);
end $$;

-- How many those are. Where only plain messages of one priority are left, they need not be counted.
create or replace function hark.lag_v1(t hark.positions, p hark.partitions) returns bigint
language plpgsql as $$
declare
    v_from bigint := greatest(t.plain[1], p.floor);
begin
    if (p.lanes is null or greatest(t.cursor, p.floor) >= all (p.lanes))
        and not exists (select 1 from hark.queues q where q.id = p.queue and q.drop_settled)
    then
        return greatest(0, p.tail - v_from)
            - (select count(*) from hark.gaps h where h.partition = p.id and h."offset" > v_from)
            + (select count(*) from hark.outstanding e
               where e.grp = t.grp and e.partition = t.partition and e."offset" > p.floor);
    end if;
    return (select count(*) from hark.unsettled_v1(t, p));
end $$;

-- Applies the end of leases on messages of a shared group, as of the time it was due (rule 16): it costs each message
-- an attempt. p_leases: only these; null: all. made_ready: how many can be taken again; ended: the leases.
create or replace function hark.expire_shared_v1(p_grp integer, p_partition bigint, p_now bigint, p_leases uuid[],
    out made_ready integer, out ended uuid[]
)
language plpgsql as $$
declare
    v_failed record;
    v_gone bigint[] := '{}';
    e record;
begin
    made_ready := 0;
    ended := '{}';
    for e in
        select x."offset", x.lease, x.until from hark.outstanding x
        where x.partition = p_partition and x.until <= p_now and x.lease is not null and x.grp + 0 = p_grp
            and (p_leases is null or x.lease = any (p_leases))
        order by x."offset" for update
    loop
        select * into v_failed from hark.fail_shared_v1(p_grp, p_partition, e."offset",
            'Lease expired: the consumer neither settled nor renewed in time', e.until, 0);
        if v_failed.exhausted then
            v_gone := v_gone || e."offset";
        else
            made_ready := made_ready + 1;
        end if;
        if e.lease <> all (ended) then
            ended := ended || e.lease;
            update hark.leases set expired = true where id = e.lease;
        end if;
    end loop;
    perform hark.drop_settled_v1(p_partition, v_gone);
end $$;

-- Removes those of some messages that every group of their queue is done with, if the queue keeps none of these. No
-- gap is noted: there may be very many, and nobody wants them back.
create or replace function hark.drop_settled_v1(p_partition bigint, p_offsets bigint[]) returns void
language plpgsql as $$
declare
    v_queue text;
    v_rest bigint[] := p_offsets;
begin
    if coalesce(cardinality(p_offsets), 0) = 0 then
        return;
    end if;
    select q.name into v_queue from hark.partitions p join hark.queues q on q.id = p.queue
    where p.id = p_partition and q.drop_settled;
    if not found then
        return;
    end if;
    if (select count(*) from hark.groups g where g.queue = v_queue) > 1 then
        update hark.partitions p set leftover = true where p.id = p_partition and not p.leftover;
        select array_agg(w."offset") into v_rest from unnest(p_offsets) as w("offset")
        where not exists (
            select 1 from hark.groups g
            where g.queue = v_queue and not hark.is_done_v1(g.id, p_partition, w."offset"));
    end if;
    delete from hark.messages m where m.partition = p_partition and m."offset" = any (v_rest);
    delete from hark.trace_names n using hark.traces t
    where t.id = n.trace and t.partition = p_partition and t."offset" = any (v_rest);
    delete from hark.traces t where t.partition = p_partition and t."offset" = any (v_rest);
end $$;

-- The same for all that a group may have left behind, after it was moved.
create or replace function hark.drop_passed_v1(p_partition bigint) returns void
language plpgsql as $$
begin
    if exists (select 1 from hark.partitions p join hark.queues q on q.id = p.queue
        where p.id = p_partition and q.drop_settled)
    then
        perform hark.drop_settled_v1(p_partition, array(
            select m."offset" from hark.messages m
            where m.partition = p_partition
                and m."offset" > (select p.floor from hark.partitions p where p.id = p_partition)
                and m."offset" <= (select max(t.cursor) from hark.positions t where t.partition = p_partition)
                and not exists (
                    select 1 from hark.positions t
                    where t.partition = p_partition and not hark.is_done_v1(t.grp, t.partition, m."offset"))));
    end if;
end $$;

-- Whether a group has settled a message, or it is not for this group at all.
create or replace function hark.is_done_v1(p_grp integer, p_partition bigint, p_offset bigint) returns boolean
language plpgsql as $$
declare
    t hark.positions;
    m hark.messages;
begin
    select * into m from hark.messages x where x.partition = p_partition and x."offset" = p_offset;
    if not found or m.owner <> p_grp then
        return true;
    end if;
    select * into t from hark.positions where grp = p_grp and partition = p_partition;
    if not found then
        return p_offset <= hark.start_v1(p_grp, p_partition);
    elsif t.plain is null then
        return (p_offset <= t.cursor or p_offset <@ t.settled) and not (t.irregular and exists (
            select 1 from hark.requeued f where f.grp = p_grp and f.partition = p_partition and f."offset" = p_offset));
    end if;
    return (m.owner is not null or hark.passed_v1(t, p_offset, m.priority, m.deliver_at)) and not exists (
        select 1 from hark.outstanding e
        where e.grp = p_grp and e.partition = p_partition and e."offset" = p_offset);
end $$;
