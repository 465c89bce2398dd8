-- The partitions with these names, in order; queues and partitions that are missing are made (rule 2), queues with the
-- labels that are given first for them, or (null) with those that their name has. Where p_partitions has an id already, that
-- is it.
create or replace function hark.make_partitions_v1(p_now bigint, p_partitions bigint[], p_queues text[], p_names text[],
    p_namespaces text[], p_tasks text[]
) returns bigint[]
language plpgsql as $$
declare
    v_partition_ids bigint[];
begin
    insert into hark.queues (name, namespace, task, created_at, created_floor)
    select w.queue, coalesce(w.namespace, split_part(w.queue, '.', 1)),
        coalesce(w.task, split_part(w.queue, '.', 2)),
        p_now,
        coalesce((select max(g.since) + 1 from hark.groups g where g.queue = w.queue and g.subscription = 'new'), 0)
    from (
        select distinct on (u.queue) u.queue, u.namespace, u.task
        from unnest(p_partitions, p_queues, p_namespaces, p_tasks) with ordinality as u(partition, queue, namespace, task, n)
        where u.partition is null order by u.queue, u.n
    ) as w
    where not exists (select 1 from hark.queues q where q.name = w.queue)
    order by w.queue
    on conflict do nothing;

    -- Numbered in the order in which they are named first, but inserted in one order everywhere: two calls that make
    -- the same partitions must not wait for each other.
    insert into hark.partitions (id, queue, name, created_at)
    overriding system value
    select w.id, w.queue, w.name, p_now
    from (
        select nextval('hark.partitions_id_seq') as id, x.queue, x.name
        from (
            select q.id as queue, u.name, min(u.n) as n
            from unnest(p_partitions, p_queues, p_names) with ordinality as u(partition, queue, name, n)
            join hark.queues q on q.name = u.queue
            where u.partition is null
                and not exists (select 1 from hark.partitions p where p.queue = q.id and p.name = u.name)
            group by q.id, u.name
            order by min(u.n)
        ) as x
    ) as w
    order by w.queue, w.name
    on conflict do nothing;

    select array_agg(coalesce(w.partition, p.id) order by w.n) into v_partition_ids
    from unnest(p_partitions, p_queues, p_names) with ordinality as w(partition, queue, name, n)
    left join hark.queues q on w.partition is null and q.name = w.queue
    left join hark.partitions p on p.queue = q.id and p.name = w.name;
    return v_partition_ids;
end $$;
