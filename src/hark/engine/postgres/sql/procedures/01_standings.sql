-- Where the groups of a queue stand in its partitions: one row per group and partition, been there or not.
--
-- cursor: where the group will start if it has no position yet. open: what it has yet to settle beyond that; requeued
-- messages are apart (requeued), but unsettled counts them. wanted: false for a partition whose end the group started
-- after. regular: none of it can be scheduled (rule 28).
-- What costs more than reading a column is behind `offset 0`, or it would be worked out once per mention.
create or replace view hark.standings_v1 as
select g.queue, g.id as grp, g.name as group_name, p.id as partition, p.name, p.last_created,
    t.grp is not null or g.since is null or p.id > g.highest_partition or p.last_created > g.since as wanted,
    c.cursor, o.open, f.requeued, t.settled_at, t.lease, t.lease_until, t.leased, t.plain is not null as shared, t, p,
    t.plain is null and not coalesce(t.irregular, false) and p.special <= c.cursor as regular,
    case
        when t.plain is not null then hark.lag_v1(t, p)
        when isempty(s.settled) then p.tail - c.cursor
        else hark.size_v1(o.open)
    end + case when f.requeued is null then 0 else hark.size_v1(f.requeued) end as unsettled
from hark.groups g
join hark.queues q on q.name = g.queue
join hark.partitions p on p.queue = q.id
left join hark.positions t on t.grp = g.id and t.partition = p.id
cross join lateral (
    select greatest(p.floor, case
        when t.grp is not null then t.cursor
        when g.since is null or p.id > g.highest_partition then p.floor
        when p.last_created <= g.since then p.tail
        else hark.last_offset_at_v1(p.id, g.since)
    end) as cursor
    offset 0
) as c
cross join lateral (
    select coalesce(t.settled, hark.gaps_v1(g.id, p.id, c.cursor)) as settled
    offset 0
) as s
cross join lateral (
    select int8multirange(int8range(c.cursor + 1, p.tail + 1)) - s.settled as open
    offset 0
) as o
cross join lateral (
    select case when t.irregular then (
        select range_agg(int8range(r."offset", r."offset" + 1)) from hark.requeued r
        where r.grp = g.id and r.partition = p.id and r."offset" > p.floor
    ) end as requeued
    offset 0
) as f;

-- The offsets of what a group has yet to settle that are delayed or wait for a retry (rule 28). p_open: what an ordered
-- group has open, or a group that has not been there yet; all that is stored, where a queue has no group.
create or replace function hark.scheduled_v1(p_now bigint, p_open int8multirange, t hark.positions, p hark.partitions)
returns setof bigint
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off
as $$
begin
    if t.plain is not null then
        return query
        select e."offset" from hark.outstanding e
        where e.grp = t.grp and e.partition = t.partition and e.lease is null and e.due > p_now
            and e."offset" > p.floor;
        if p.lanes is null then
            return;
        end if;
    elsif t.irregular then
        return query
        select r."offset" from hark.retries r
        where r.grp = t.grp and r.partition = t.partition and r.due > p_now and r."offset" > p.floor;
    end if;
    return query
    select m."offset" from generate_series(0, 9) as x(priority)
    cross join lateral (
        select y."offset", y.priority, y.deliver_at from hark.messages y
        where (y.partition << 4 | coalesce(y.priority, 0)) = (p.id << 4 | x.priority)
            and y.deliver_at is not null and y.deliver_at > p_now
        offset 0
    ) as m
    where coalesce(p.lanes[11 + x.priority] > p.floor, true) and case when t.plain is null then m."offset" <@ p_open
        else m."offset" > p.floor and not hark.passed_v1(t, m."offset", m.priority, m.deliver_at) end;
end $$;

create or replace function hark.scheduled_ranges_v1(
    p_now bigint, p_open int8multirange, t hark.positions, p hark.partitions
) returns int8multirange
language sql volatile as $$
    select coalesce(range_agg(int8range(o, o + 1)), '{}') from hark.scheduled_v1(p_now, p_open, t, p) o
$$;

-- Since when the first message has been waiting that a group has open and that is neither scheduled nor leased: since it
-- was created, or since it became deliverable if it was delayed. Times never decrease with the offset, so only behind a
-- delayed message may be one that has waited longer.
create or replace function hark.oldest_waiting_v1(
    p_now bigint, p_open int8multirange, t hark.positions, p hark.partitions
) returns bigint
language plpgsql as $$
declare
    v_away int8multirange := hark.scheduled_ranges_v1(p_now, p_open, t, p) + case
        when t.plain is not null then coalesce((
            select range_agg(int8range(e."offset", e."offset" + 1)) from hark.outstanding e
            where e.grp = t.grp and e.partition = t.partition and e.until > p_now
        ), '{}')
        when t.lease_until > p_now then t.leased
        else '{}'
    end;
    v_first bigint;
    v_created bigint;
    v_due bigint;
    v_plain bigint;
begin
    if t.plain is null then
        v_first := lower(p_open - v_away);
    else
        select min(o) into v_first from hark.unsettled_v1(t, p) o where not o <@ v_away;
    end if;
    select m.created_at, m.deliver_at into v_created, v_due from hark.messages m
    where m.partition = p.id and m."offset" = v_first;
    if v_due is null or v_due <= v_created then
        return v_created;
    elsif t.plain is null then
        select m.created_at into v_plain from hark.messages m
        where m.partition = p.id and m."offset" > v_first and m."offset" <@ (p_open - v_away)
            and m.deliver_at is null
        order by m."offset" limit 1;
    else
        select min(m.created_at) into v_plain from hark.unsettled_v1(t, p) o
        join hark.messages m on m.partition = p.id and m."offset" = o
        where m.deliver_at is null and not o <@ v_away;
    end if;
    return least(v_due, v_plain);
end $$;
