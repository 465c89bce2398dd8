-- First contact of groups with queues, which need not exist yet (rule 20). mode is null for: as stored, else
-- ordered.
-- Answers the groups in order.
create or replace function hark.contact_v1(
    p_now bigint, p_queues text[], p_groups text[], p_modes text[], p_subscriptions text[], p_since bigint[]
) returns table (queue text, name text, id integer, mode text, queue_id integer)
language plpgsql as $$
declare
    v_now bigint := hark.time_v1(p_now);
begin
    insert into hark.groups as g (queue, name, mode, subscription, since, highest_partition, created_at, last_seen)
    select w.queue, w.name, coalesce(w.mode, 'ordered'), w.subscription,
        case when w.subscription = 'new' then coalesce(w.since, hark.newest_v1(w.queue, v_now)) else w.since end,
        (select coalesce(max(p.id), 0) from hark.partitions p), v_now, v_now
    from (
        select distinct on (u.queue, u.name) u.* from unnest(p_queues, p_groups, p_modes, p_subscriptions, p_since)
            with ordinality as u(queue, name, mode, subscription, since, n)
        order by u.queue, u.name, u.n
    ) as w
    where not exists (select 1 from hark.groups e where e.queue = w.queue and e.name = w.name)
    on conflict do nothing;
    if found then
        -- A group that starts behind messages is done with them.
        update hark.partitions p set leftover = true from hark.queues q
        where q.name = any (p_queues) and q.drop_settled and p.queue = q.id and not p.leftover;
    end if;
    -- What is pushed from now on, even in this very microsecond, is new to groups that want only new messages.
    update hark.queues q set created_floor = greatest(q.created_floor, n.since + 1)
    from (
        select g.queue, max(g.since) as since
        from unnest(p_queues, p_groups) as w(queue, name)
        join hark.groups g on g.queue = w.queue and g.name = w.name
        where g.subscription = 'new' group by g.queue
    ) as n
    where q.name = n.queue and q.created_floor < n.since + 1;
    return query
    select g.queue, g.name, g.id, g.mode, q.id
    from unnest(p_queues, p_groups) with ordinality as w(queue, name, n)
    join hark.groups g on g.queue = w.queue and g.name = w.name
    left join hark.queues q on q.name = g.queue
    order by w.n;
end $$;

-- Now, or the creation of a queue's newest message: that may be later, as times never decrease.
create or replace function hark.newest_v1(p_queue text, p_now bigint) returns bigint
language sql stable as $$
    select greatest(p_now, (
        select max(p.last_created) from hark.partitions p join hark.queues q on q.id = p.queue where q.name = p_queue))
$$;

-- The queues with a namespace and task, and the group's number in each: groups that pop by these start, in all of
-- the queues and in those to come, when they first did.
create or replace function hark.label_v1(
    p_now bigint, p_group text, p_namespace text, p_task text, p_mode text, p_subscription text, p_since bigint
) returns table (queue text, queue_id integer, priority integer, grp integer, mode text, namespace text)
language plpgsql as $$
declare
    v_now bigint := hark.time_v1(p_now);
    l hark.labels;
begin
    select * into l from hark.labels x
    where x.grp = p_group and x.namespace is not distinct from p_namespace and x.task is not distinct from p_task;
    if not found then
        insert into hark.labels (grp, namespace, task, subscription, since, highest_partition)
        select p_group, p_namespace, p_task, p_subscription,
            case when p_subscription = 'new' then greatest(v_now, (
                select max(hark.newest_v1(q.name, v_now)) from hark.queues q
                where (p_namespace is null or q.namespace = p_namespace) and (p_task is null or q.task = p_task)))
            else p_since end,
            (select coalesce(max(p.id), 0) from hark.partitions p)
        on conflict do nothing;
        select * into l from hark.labels x
        where x.grp = p_group and x.namespace is not distinct from p_namespace and x.task is not distinct from p_task;
    end if;
    insert into hark.groups (queue, name, mode, subscription, since, highest_partition, created_at, last_seen)
    select q.name, p_group, coalesce(p_mode, 'ordered'), l.subscription, l.since, l.highest_partition, v_now, v_now
    from hark.queues q
    where (p_namespace is null or q.namespace = p_namespace) and (p_task is null or q.task = p_task)
        and not exists (select 1 from hark.groups g where g.queue = q.name and g.name = p_group)
    order by q.name
    on conflict do nothing;
    update hark.queues q set created_floor = greatest(q.created_floor, g.since + 1)
    from hark.groups g
    where g.queue = q.name and g.name = p_group and g.subscription = 'new' and q.created_floor < g.since + 1
        and (p_namespace is null or q.namespace = p_namespace) and (p_task is null or q.task = p_task);
    return query
    select q.name, q.id, q.priority, g.id, g.mode, q.namespace
    from hark.queues q
    join hark.groups g on g.queue = q.name and g.name = p_group
    where (p_namespace is null or q.namespace = p_namespace) and (p_task is null or q.task = p_task);
end $$;

-- Partitions of a queue in which a group has something to do, with the end of the lease where one is leased: all
-- of them, or those that got a
-- message or were given back since p_since (a bucket, see bucket_v1), which the index on `changed_bucket` finds. Unless what
-- was changed since then is the queue or the group itself: then all of them again. A null says that one of them is
-- not there any more.
create or replace function hark.discover_v1(p_now bigint, p_grp integer, p_queue integer, p_since integer)
returns table (partition bigint, due bigint, status smallint, has_lanes boolean)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
as $$
declare
    v_now bigint := hark.time_v1(p_now);
    v_since integer := p_since;
    v_bounded boolean;
    g hark.groups;
begin
    select x.* into g from hark.groups x join hark.queues q on q.name = x.queue
    where x.id = p_grp and q.id = p_queue;
    if not found then
        return query select null::bigint, null::bigint, 0::smallint, false;
        return;
    end if;
    if g.changed_bucket >= p_since or p_since <= (select q.changed_bucket from hark.queues q where q.id = p_queue) then
        v_since := 0;
    end if;
    select q.max_in_flight_per_partition > 0 or g.max_in_flight_per_partition > 0
        or q.rate_limit_per_partition > 0 or g.rate_limit_per_partition > 0
    into v_bounded from hark.queues q where q.id = p_queue;
    return query
    with candidate as (
        select p.id from hark.partitions p where (p.queue::bigint << 32 | p.changed_bucket) between (p_queue::bigint << 32 | v_since) and (p_queue::bigint << 32 | 2147483647)
        union
        select t.partition from hark.positions t where (t.grp::bigint << 32 | t.changed_bucket) between (p_grp::bigint << 32 | v_since) and (p_grp::bigint << 32 | 2147483647)
    )
    select p.id, case when y.status <> 0 then y.due when t.plain is not null then s.due
            when t.lease_until > v_now then t.lease_until end,
        case when y.status <> 0 then y.status when t.plain is null or s.leased then 2 else 4 end::smallint,
        p.lanes is not null
    from candidate c
    join hark.partitions p on p.id = c.id
    left join hark.positions t on t.grp = p_grp and t.partition = p.id
    cross join lateral hark.shared_state_v1(v_now, t, p) as s
    cross join lateral hark.bound_state_v1(v_now, t, v_bounded) as y
    where p.queue = p_queue and s.open
        and (t.plain is not null or p.tail > greatest(p.floor, coalesce(t.cursor, 0))
            or (t.irregular and exists (select 1 from hark.requeued f where f.grp = p_grp and f.partition = p.id)))
        and (t.cursor is not null or g.since is null or p.id > g.highest_partition or p.last_created > g.since)
    order by p.id;
end $$;

-- Whether the limits of a partition keep a group from it, and until when: 11 and 12 as share_v1, else 0.
create or replace function hark.bound_state_v1(p_now bigint, t hark.positions, p_bounded boolean,
    out status smallint, out due bigint
)
language plpgsql as $$
declare
    v_here record;
begin
    status := 0;
    if not p_bounded or t.grp is null or t.lease_until > p_now then
        return;
    end if;
    select * into v_here from hark.room_in_v1(p_now, t.grp, t.partition);
    if v_here.o_free <= 0 and t.plain is not null then
        status := 12;
        due := hark.lease_end_v1(t.grp, t.partition);
    elsif v_here.o_left <= 0 then
        status := 11;
        due := v_here.o_due;
    end if;
end $$;

-- Whether there is something that a shared group may take in a partition, or will at a time, maybe when a lease ends. Not
-- exact: a pop is.
create or replace function hark.shared_state_v1(p_now bigint, t hark.positions, p hark.partitions,
    out open boolean, out due bigint, out leased boolean
)
language plpgsql as $$
declare
    v_lanes smallint[];
begin
    open := true; leased := false;
    if t.plain is null or p.tail > greatest(p.floor, t.plain[1]) then
        return;
    end if;
    due := hark.lease_end_v1(t.grp, t.partition);
    if due <= p_now then
        due := null;
        return;
    end if;
    v_lanes := hark.free_lanes_v1(t.grp, t.partition);
    if exists (
        select 1 from unnest(v_lanes) as w(lane) join hark.outstanding e
            on (e.partition << 5 | e.lane) = (t.partition << 5 | w.lane) and e.grp::bigint = t.grp::bigint
            and e.lease is null and e.due <= p_now)
        or (p.lanes is not null and (
            t.seen < p.tail or exists (
                select 1 from generate_series(1, 9) as w(priority)
                where p.lanes[w.priority + 1] > greatest(t.plain[w.priority + 1], t.cursor, p.floor))))
    then
        due := null;
        return;
    end if;
    -- Not only what is due after this moment: delayed messages may have fallen due.
    leased := due is not null;
    due := coalesce(hark.next_due_v1(0, t, p, v_lanes, p.tail, 0), due);
    if due <= p_now then
        due := null;
    else
        leased := leased and due = hark.lease_end_v1(t.grp, t.partition);
        open := due is not null;
    end if;
end $$;

-- Saves when groups were last seen; idle ones stop holding retention some day.
create or replace function hark.seen_v1(p_now bigint, p_grps integer[]) returns void
language sql volatile as $$
    update hark.groups set last_seen = hark.time_v1(p_now) where id = any (p_grps)
$$;

-- Moves a group in one partition of a queue or in all of them (rule 21). Exactly one of p_to_end, p_time, p_offset
-- says where to. What was settled, retried or requeued beyond it is forgotten, open leases are void.
-- Answers how many partitions were moved (null: no such queue; -1: no such partition) and the last one's next offset,
-- and about how many messages it has from there on.
create or replace function hark.seek_v1(
    p_now bigint, p_queue text, p_group text, p_partition text, p_to_end boolean, p_time bigint, p_offset bigint,
    out o_number integer, out o_next bigint, out o_left bigint, out o_grp integer, out o_partitions bigint[]
)
language plpgsql as $$
declare
    v_queue integer;
    v_cursor bigint;
    p record;
begin
    select id into v_queue from hark.queues where name = p_queue;
    if not found then
        return;
    end if;
    select c.id into o_grp
    from hark.contact_v1(p_now, array[p_queue], array[p_group], array[null], array['all'], array[null::bigint]) c;
    select array_agg(x.id order by x.id) into o_partitions from hark.partitions x
    where x.queue = v_queue and (p_partition is null or x.name = p_partition);
    if p_partition is not null and o_partitions is null then
        o_number := -1;
        return;
    end if;
    o_number := coalesce(cardinality(o_partitions), 0);
    perform hark.make_positions_v1(array_fill(o_grp, array[o_number]), o_partitions);
    perform 1 from (
        select 1 from hark.positions where grp = o_grp and partition = any (o_partitions)
        order by partition for update
    ) as locked;
    for p in select x.* from hark.partitions x where x.id = any (o_partitions) order by x.id loop
        v_cursor := case
            when p_to_end then p.tail
            when p_time is not null then hark.last_offset_at_v1(p.id, p_time)
            else least(greatest(p_offset - 1, p.floor), p.tail) end;
        v_cursor := greatest(v_cursor, p.floor);
        perform hark.move_position_v1(o_grp, p.id, v_cursor, p_now);
        perform hark.drop_passed_v1(p.id);
        o_next := v_cursor + 1;
        o_left := p.tail - v_cursor;
    end loop;
    update hark.groups set moved = hark.time_v1(p_now) where id = o_grp;
end $$;

-- Sets a cursor and forgets everything beyond it, leases included. Offsets without a message are done again.
create or replace function hark.move_position_v1(p_grp integer, p_partition bigint, p_cursor bigint, p_now bigint)
returns void
language plpgsql as $$
declare
    a record;
begin
    delete from hark.retries where grp = p_grp and partition = p_partition;
    delete from hark.requeued where grp = p_grp and partition = p_partition;
    delete from hark.claims where grp = p_grp and partition = p_partition;
    delete from hark.completions where grp = p_grp and partition = p_partition;
    delete from hark.endings where grp = p_grp and partition = p_partition;
    if (select plain is not null from hark.positions where grp = p_grp and partition = p_partition) then
        perform hark.forget_outstanding_v1(p_grp, p_partition);
        perform hark.begin_lanes_v1(p_grp, p_partition, p_cursor);
        update hark.positions
        set cursor = p_cursor, changed_bucket = greatest(changed_bucket, hark.bucket_v1(hark.time_v1(p_now)))
        where grp = p_grp and partition = p_partition;
        return;
    end if;
    select * into a from hark.advance_v1(p_cursor, hark.gaps_v1(p_grp, p_partition, p_cursor));
    update hark.positions
    set cursor = a.cursor, settled = a.settled, probe = 0, irregular = false,
        lease = null, lease_until = null, handed = 0, lease_last = 0, leased = '{}',
        changed_bucket = greatest(changed_bucket, hark.bucket_v1(hark.time_v1(p_now)))
    where grp = p_grp and partition = p_partition;
end $$;

-- Removes the outstanding of a group in a partition, in the order in which others lock them.
create or replace function hark.forget_outstanding_v1(p_grp integer, p_partition bigint) returns void
language plpgsql as $$
begin
    perform 1 from (
        select 1 from hark.outstanding where grp = p_grp and partition = p_partition order by "offset" for update
    ) as locked;
    delete from hark.outstanding where grp = p_grp and partition = p_partition;
end $$;

-- Drops a group's places in one queue or all of them, and its start if asked.
create or replace function hark.delete_group_v1(p_now bigint, p_group text, p_queue text, p_forget boolean,
    out o_partitions bigint, out o_groups integer[], out o_queues text[]
)
language plpgsql as $$
begin
    select array_agg(id), array_agg(queue) into o_groups, o_queues from hark.groups
    where name = p_group and (p_queue is null or queue = p_queue);
    select count(*) into o_partitions from hark.positions where grp = any (o_groups);
    delete from hark.positions where grp = any (o_groups);
    delete from hark.retries where grp = any (o_groups);
    delete from hark.requeued where grp = any (o_groups);
    delete from hark.claims where grp = any (o_groups);
    delete from hark.completions where grp = any (o_groups);
    delete from hark.outstanding where grp = any (o_groups);
    delete from hark.endings where grp = any (o_groups);
    delete from hark.in_flight where grp = any (o_groups);
    if p_forget then
        delete from hark.groups where id = any (o_groups);
        delete from hark.allowances where grp = any (o_groups);
        if p_queue is null then
            delete from hark.labels where grp = p_group;
        end if;
    else
        update hark.groups set changed_bucket = hark.bucket_v1(hark.time_v1(p_now)), moved = hark.time_v1(p_now)
        where id = any (o_groups);
    end if;
    update hark.partitions p set leftover = true from hark.queues q
    where q.name = any (o_queues) and q.drop_settled and p.queue = q.id and not p.leftover;
end $$;

-- Changes where a group starts in partitions that it has not touched yet; the queues it is in.
create or replace function hark.resubscribe_v1(p_now bigint, p_group text, p_since bigint) returns table (id integer, queue text)
language sql volatile as $$
    update hark.groups g
    set subscription = 'timestamp', since = p_since, changed_bucket = hark.bucket_v1(hark.time_v1(p_now)),
        highest_partition = (select coalesce(max(p.id), 0) from hark.partitions p)
    where g.name = p_group
    returning g.id, g.queue
$$;
