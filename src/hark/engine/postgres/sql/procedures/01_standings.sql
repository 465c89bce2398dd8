-- Where the groups of a queue stand in its partitions: one row per group and partition, been there or not.
--
-- cursor: where the group will start if it has no track yet. open: what it has yet to settle beyond that; requeued
-- messages are apart (fronts), but lag counts them. wanted: false for a partition whose end the group started after.
-- What costs more than reading a column is behind `offset 0`, or it would be worked out once per mention.
create or replace view hark.standings_v1 as
select g.queue, g.id as grp, g.name as group_name, p.id as partition, p.name, p.last_created,
    t.grp is not null or g.since is null or p.id > g.highest_partition or p.last_created > g.since as wanted,
    c.cursor, o.open, f.fronts, t.settled_at, t.lease, t.lease_until, t.held, t.plain is not null as shared, t, p,
    case
        when t.plain is not null then hark.lag_v1(t, p)
        when isempty(s.settled) then p.tail - c.cursor
        else hark.size_v1(o.open)
    end + case when f.fronts is null then 0 else hark.size_v1(f.fronts) end as lag
from hark.groups g
join hark.queues q on q.name = g.queue
join hark.partitions p on p.queue = q.id
left join hark.tracks t on t.grp = g.id and t.partition = p.id
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
        select range_agg(int8range(r."offset", r."offset" + 1)) from hark.fronts r
        where r.grp = g.id and r.partition = p.id and r."offset" > p.floor
    ) end as fronts
    offset 0
) as f;
