-- Makes queues, or replaces all options of those that exist (unless p_make_only), and makes their partition `Default`.
create or replace function hark.configure_v1(p_now bigint, p_name text, p_namespace text, p_task text,
    p_options hark.queues, p_make_only boolean, out o_queue integer, out o_partition bigint
)
language plpgsql as $$
declare
    v_now bigint := hark.time_v1(p_now);
    v_keeps boolean;
begin
    if p_make_only then
        -- Of those who make it at the same time one does, and the others find it made.
        perform pg_advisory_xact_lock(hashtextextended(p_name, 0));
        select id into o_queue from hark.queues where name = p_name;
        if found then
            return;
        end if;
    end if;
    o_partition := (hark.make_partitions_v1(v_now, array[null::bigint], array[p_name], array['Default'], null, null))[1];
    update hark.queues q
    set namespace = p_namespace, task = p_task, lease_time = p_options.lease_time,
        retry_limit = p_options.retry_limit, retry_delay = p_options.retry_delay,
        retry_multiplier = p_options.retry_multiplier, retry_max_delay = p_options.retry_max_delay,
        delayed_processing = p_options.delayed_processing, window_buffer = p_options.window_buffer,
        priority = p_options.priority, max_size = p_options.max_size, ttl = p_options.ttl,
        dead_letter_queue = p_options.dead_letter_queue, dlq_after_max_retries = p_options.dlq_after_max_retries,
        retention_enabled = p_options.retention_enabled, retention_seconds = p_options.retention_seconds,
        completed_retention_seconds = p_options.completed_retention_seconds,
        max_wait_time_seconds = p_options.max_wait_time_seconds,
        dead_letter_retention_seconds = p_options.dead_letter_retention_seconds,
        encryption_enabled = p_options.encryption_enabled, schedule = p_options.schedule,
        max_in_flight = p_options.max_in_flight, rate_limit = p_options.rate_limit, rate_burst = p_options.rate_burst,
        max_in_flight_per_partition = p_options.max_in_flight_per_partition,
        rate_limit_per_partition = p_options.rate_limit_per_partition,
        rate_burst_per_partition = p_options.rate_burst_per_partition,
        drop_settled = p_options.drop_settled, lock_duration = p_options.lock_duration,
        changed_bucket = hark.bucket_v1(v_now)
    from hark.queues before
    where q.name = p_name and before.id = q.id
    returning q.id, before.drop_settled and not q.drop_settled into o_queue, v_keeps;
    if p_options.max_in_flight > 0 then
        perform hark.list_in_flight_v1(o_queue);
    end if;
    if p_options.drop_settled then
        update hark.partitions set leftover = true where queue = o_queue and not leftover and tail > floor;
    end if;
    if v_keeps then
        -- From now on single removals are noted: so those of the past have to be.
        insert into hark.gaps (partition, "offset")
        select p.id, o from hark.partitions p
        cross join lateral generate_series(p.floor + 1, p.tail) as o
        where p.queue = o_queue and not exists (
            select 1 from hark.messages m where m.partition = p.id and m."offset" = o)
        on conflict do nothing;
    end if;
end $$;

-- Removes queues with their groups and dead letters. Their messages go with the next rotation. Answers, for each
-- name, whether there was one.
create or replace function hark.delete_queues_v1(p_names text[]) returns boolean[]
language plpgsql as $$
declare
    v_ids integer[];
    v_existed boolean[];
begin
    select array_agg(q.id is not null order by w.n), array_agg(q.id) filter (where q.id is not null)
    into v_existed, v_ids
    from unnest(p_names) with ordinality as w(name, n) left join hark.queues q on q.name = w.name;
    perform 1 from (
        select 1 from hark.positions t
        join hark.groups g on g.id = t.grp
        where g.queue = any (p_names) order by t.grp, t.partition for update of t
    ) as locked;
    perform 1 from (select 1 from hark.partitions where queue = any (v_ids) order by id for update) as locked;
    delete from hark.queues where id = any (v_ids);
    delete from hark.counters where queue = any (v_ids);
    delete from hark.dead_letters where queue = any (p_names);
    -- Names must stay unique among what is waiting to be removed.
    update hark.partitions set queue = 0, name = id::text where queue = any (v_ids);
    delete from hark.retries using hark.groups g where grp = g.id and g.queue = any (p_names);
    delete from hark.requeued using hark.groups g where grp = g.id and g.queue = any (p_names);
    delete from hark.claims using hark.groups g where grp = g.id and g.queue = any (p_names);
    delete from hark.outstanding using hark.groups g where grp = g.id and g.queue = any (p_names);
    delete from hark.in_flight where queue = any (v_ids);
    delete from hark.allowances where queue = any (v_ids);
    delete from hark.positions using hark.groups g where grp = g.id and g.queue = any (p_names);
    delete from hark.groups where queue = any (p_names);
    return v_existed;
end $$;

-- Stops or resumes deliveries of a queue, or of one group of it. False: there is no such thing.
create or replace function hark.pause_v1(p_queue text, p_group text, p_paused boolean) returns boolean
language plpgsql as $$
begin
    if p_group is null then
        update hark.queues set paused = p_paused where name = p_queue;
    else
        update hark.groups set paused = p_paused where queue = p_queue and name = p_group;
    end if;
    return found;
end $$;

-- Removes all messages of a queue, leased ones too, or settles all that one group has open; how many those were.
create or replace function hark.purge_v1(p_now bigint, p_queue text, p_group text) returns bigint
language plpgsql as $$
declare
    v_queue integer;
    v_groups integer[];
    v_partitions bigint[];
    v_number bigint;
begin
    select id into v_queue from hark.queues where name = p_queue;
    select array_agg(id) into v_groups from hark.groups
    where queue = p_queue and (p_group is null or name = p_group);
    if v_queue is null or (p_group is not null and v_groups is null) then
        return 0;
    end if;
    select array_agg(id order by id) into v_partitions from hark.partitions where queue = v_queue;
    if p_group is not null then
        perform hark.make_positions_v1(array_fill(v_groups[1], array[cardinality(v_partitions)]), v_partitions);
    end if;
    perform 1 from (
        select 1 from hark.positions where grp = any (v_groups) and partition = any (v_partitions)
        order by grp, partition for update
    ) as locked;
    perform 1 from (
        select 1 from hark.partitions where id = any (v_partitions) order by id for no key update
    ) as locked;
    if p_group is not null then
        select coalesce(sum(case when t.plain is not null then hark.lag_v1(t, p) else
            p.tail - greatest(t.cursor, p.floor)
            - hark.size_v1(t.settled * int8multirange(int8range(greatest(t.cursor, p.floor) + 1, null)))
            + (select count(*) from hark.requeued f where f.grp = t.grp and f.partition = t.partition) end), 0)
        into v_number
        from hark.positions t join hark.partitions p on p.id = t.partition
        where t.grp = v_groups[1] and t.partition = any (v_partitions);
    else
        select coalesce(sum(n.number), 0) into v_number
        from hark.partitions p
        cross join lateral (
            select count(*) as number from hark.messages m where m.partition = p.id and m."offset" > p.floor) as n
        where p.id = any (v_partitions);
    end if;
    if p_group is null then
        perform hark.withdraw_v1(p, null) from unnest(v_partitions) p;
    end if;
    delete from hark.retries where grp = any (v_groups) and partition = any (v_partitions);
    delete from hark.requeued where grp = any (v_groups) and partition = any (v_partitions);
    delete from hark.claims where grp = any (v_groups) and partition = any (v_partitions);
    perform hark.forget_outstanding_v1(g, p) from unnest(v_groups) g cross join unnest(v_partitions) p;
    update hark.positions t
    set cursor = greatest(t.cursor, p.tail), settled = '{}', probe = 0, irregular = false,
        plain = case when t.plain is not null then array_fill(p.tail, array[10]) end,
        seen = case when t.plain is not null then p.tail end,
        lease = null, lease_until = null, handed = 0, lease_last = 0, leased = '{}',
        changed_bucket = greatest(t.changed_bucket, hark.bucket_v1(hark.time_v1(p_now)))
    from hark.partitions p
    where p.id = t.partition and t.grp = any (v_groups) and t.partition = any (v_partitions);
    if p_group is null then
        delete from hark.gaps where partition = any (v_partitions);
        update hark.partitions set floor = tail where id = any (v_partitions);
    else
        perform hark.drop_passed_v1(p) from unnest(v_partitions) p;
    end if;
    return v_number;
end $$;
