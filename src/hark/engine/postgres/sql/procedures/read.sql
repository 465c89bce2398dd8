-- Messages of partitions from offsets on, in offset order, whatever groups have done with them; those that were
-- requeued for one group only are marked, so that the reader can step over them. Changes nothing.
--
-- Each request has at most r_limit messages, and ends with the one that takes it to p_max_bytes; `bytes` is the size
-- of its payloads up to that one.
create or replace function hark.read_v1(
    r_queue text[], r_partition text[], r_offset bigint[], r_limit integer[], p_max_bytes bigint
) returns table (
    request bigint, partition bigint, "offset" bigint, created_at bigint, transaction_id text, payload bytea,
    requeued boolean, options text, deliver_at bigint, expires_at bigint, backoff bigint[], undelivered bytea[],
    bytes bigint
)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set plan_cache_mode = force_generic_plan
as $$
begin
    return query
    select r.n, p.id, m."offset", m.created_at, m.transaction_id, m.payload, m.owner is not null,
        case when m.priority is not null or m.sealed or m.trace_id is not null or m.producer is not null
                or m.trace_context is not null
            then hark.options_v1(m.priority, m.sealed, m.trace_id, m.producer, m.trace_context) end,
        m.deliver_at, m.expires_at, m.backoff, m.undelivered, m.bytes
    from unnest(r_queue, r_partition, r_offset, r_limit) with ordinality as r(queue, name, first, room, n)
    join hark.queues q on q.name = r.queue
    join hark.partitions p on p.queue = q.id and p.name = r.name
    cross join lateral (
        select x.*, (sum(length(x.payload)) over (order by x."offset"))::bigint as bytes
        from (
            select * from hark.messages y
            where y.partition = p.id and y."offset" >= greatest(r.first, p.floor + 1)
            order by y."offset" limit r.room
        ) as x
    ) as m
    where m.bytes - length(m.payload) < p_max_bytes;
end $$;

-- Where a reader begins, in the partitions of a queue or in the one named: at the first message that is there, after
-- the last one (p_tail), or at the first one created after a time. p_changed_bucket: only partitions that something happened
-- in since then (a bucket, see bucket_v1).
create or replace function hark.positions_v1(
    p_queue text, p_partition text, p_tail boolean, p_time bigint, p_changed_bucket integer
) returns table (name text, "offset" bigint)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_queue integer;
begin
    select id into v_queue from hark.queues q where q.name = p_queue;
    return query
    select p.name, 1 + case
        when p_tail or p.last_created <= p_time then p.tail
        when p_time is null then p.floor
        else hark.last_offset_at_v1(p.id, p_time)
    end
    from (
        select * from hark.partitions a where a.queue = v_queue and a.name = p_partition
        union all
        select * from hark.partitions a where a.queue = v_queue and p_partition is null and p_changed_bucket is null
        union all
        select * from hark.partitions a
        where p_partition is null and (a.queue::bigint << 32 | a.changed_bucket)
            between (v_queue::bigint << 32 | p_changed_bucket) and (v_queue::bigint << 32 | 2147483647)
    ) as p
    order by p.name;
end $$;
