-- Appends messages (rules 1-7).
--
-- The partitions, each once: an id, or null and the names of its queue and itself, and the labels for that queue
-- (null: as its name says). For each message m_partition
-- is the position of its partition there and m_ordinal its number among the messages for that partition, from 1;
-- p_counts has how many those are. Few messages have options: the arrays x_ have a row for each of those only.
--
-- Offsets are taken under the lock of the partition's row, in the order of ids, so that pushes can't
-- deadlock, and what commits later has higher offsets. An unknown id changes nothing and is answered in o_stale.
-- When every message was queued, o_offsets is null: then the offset is the partition's old tail plus the ordinal.
create or replace function hark.push_v1(
    p_now bigint,
    p_partitions bigint[], p_queues text[], p_names text[], p_namespaces text[], p_tasks text[], p_counts integer[],
    m_partition integer[], m_ordinal integer[], m_payload bytea[], m_transaction_id text[], m_same_as bigint[],
    x_message integer[], x_deliver_at bigint[], x_delay bigint[], x_ttl bigint[], x_backoff text[],
    x_priority smallint[], x_sealed boolean[], x_trace_id text[], x_producer text[], x_undelivered text[],
    x_trace_context text[],
    out o_stale bigint[], out o_partitions bigint[], out o_tails bigint[], out o_offsets bigint[], out o_outcomes smallint[]
)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_now bigint := hark.time_v1(p_now);
    v_created bigint[];
    v_floors bigint[];
    v_counts integer[] := p_counts;
    v_ordinals integer[] := m_ordinal;
    v_special boolean;
    v_slot smallint;
    v_known integer[];
    v_earlier bigint[];
begin
    perform hark.begin_v1();
    o_partitions := p_partitions;
    if p_queues is not null then
        o_partitions := hark.make_partitions_v1(v_now, p_partitions, p_queues, p_names, p_namespaces, p_tasks);
    end if;

    select array_agg(p.id order by w.n), array_agg(p.tail order by w.n), array_agg(p.floor order by w.n),
        array_agg(greatest(v_now, p.last_created, q.created_floor) order by w.n),
        bool_or(q.max_size > 0 or q.encryption_enabled)
    into o_partitions, o_tails, v_floors, v_created, v_special
    from (
        select * from hark.partitions where id = any (o_partitions) order by id for no key update
    ) as p
    join hark.queues q on q.id = p.queue
    join unnest(o_partitions) with ordinality as w(id, n) on w.id = p.id;
    if coalesce(cardinality(o_partitions), 0) < cardinality(p_partitions) then
        select array_agg(w.id) into o_stale from unnest(p_partitions) as w(id) where w.id <> all (coalesce(o_partitions, '{}'));
        if o_stale is null then
            raise exception using errcode = 'serialization_failure', message = 'a queue was removed while it was used';
        end if;
        return;
    end if;

    if m_transaction_id is not null then
        select array_agg(known.n), array_agg(known.earlier) into v_known, v_earlier
        from (
            select w.n::integer as n, m."offset" as earlier
            from unnest(m_partition, m_transaction_id) with ordinality as w(part, transaction_id, n)
            join hark.messages m
                on hashtextextended(m.transaction_id, m.partition) = hashtextextended(w.transaction_id, o_partitions[w.part])
                and m.transaction_id = w.transaction_id and m.partition + 0 = o_partitions[w.part]
            where m."offset" > v_floors[w.part]
        ) as known;
        if m_same_as is not null then
            -- A producer may use the id of a message that had no transaction id as one. Of a partition that the server
            -- did not know, m_same_as may mean another one: an id begins with the number of its partition (hark/ids.py).
            -- One that is not there yet must not share its transaction id with this one: 0.
            select v_known || array_agg(w.n::integer), v_earlier || array_agg(coalesce(m."offset", 0))
            into v_known, v_earlier
            from unnest(m_partition, m_same_as, m_transaction_id) with ordinality as w(part, same_as, transaction_id, n)
            left join hark.messages m on m.partition = o_partitions[w.part] and m."offset" = w.same_as
                and m."offset" > v_floors[w.part]
            where (m."offset" is not null or w.same_as > o_tails[w.part]) and w.n <> all (coalesce(v_known, '{}'))
                and left(replace(w.transaction_id, '-', ''), 11) = lpad(to_hex(o_partitions[w.part]), 11, '0');
        end if;
    end if;

    if v_special or v_known is not null or true = any (x_sealed) then
        select j.offsets, j.outcomes, j.ordinals, j.counts
        into o_offsets, o_outcomes, v_ordinals, v_counts
        from hark.check_push_v1(o_partitions, o_tails, m_partition, v_known, v_earlier, x_message, x_sealed) j;
    end if;

    update hark.partitions p
    set tail = p.tail + w.number, last_created = w.created, changed_bucket = greatest(p.changed_bucket, hark.bucket_v1(v_now))
    from unnest(o_partitions, v_counts, v_created) as w(id, number, created)
    where p.id = w.id and w.number > 0;

    -- Under the locks, so that within a partition slots follow each other as offsets do.
    select slot into v_slot from hark.rotation where name = 'messages';
    if x_message is null then
        insert into hark.messages (slot, partition, "offset", created_at, payload, transaction_id)
        select v_slot, o_partitions[m.part], o_tails[m.part] + m.ordinal, v_created[m.part], m.payload, m.transaction_id
        from unnest(m_partition, v_ordinals, m_payload, m_transaction_id) as m(part, ordinal, payload, transaction_id)
        where m.ordinal > 0;
    else
        insert into hark.messages (slot, partition, "offset", created_at, payload, transaction_id,
            deliver_at, expires_at, backoff, priority, sealed, trace_id, producer, undelivered,
            trace_context)
        select v_slot, o_partitions[m.part], o_tails[m.part] + m.ordinal, v_created[m.part], m.payload, m.transaction_id,
            case when greatest(x.deliver_at, v_now + nullif(x.delay, 0)) > v_created[m.part]
                then greatest(x.deliver_at, v_now + nullif(x.delay, 0)) end,
            v_created[m.part] + x.ttl,
            x.backoff::bigint[], nullif(x.priority, 0), nullif(x.sealed, false), x.trace_id, x.producer,
            x.undelivered::bytea[], x.trace_context
        from unnest(m_partition, v_ordinals, m_payload, m_transaction_id) with ordinality
            as m(part, ordinal, payload, transaction_id, n)
        left join unnest(x_message, x_deliver_at, x_delay, x_ttl, x_backoff, x_priority, x_sealed, x_trace_id,
            x_producer, x_undelivered, x_trace_context) as x(message, deliver_at, delay, ttl, backoff, priority, sealed,
            trace_id, producer, undelivered, trace_context)
            on x.message = m.n
        where m.ordinal > 0;
        update hark.partitions p
        set special = greatest(p.special, w.special), lanes = hark.mark_lanes_v1(p.lanes, w.lanes, w.lasts)
        from (
            select y.id, max(y.last) filter (where y.waits) as special,
                array_agg(y.lane) filter (where y.lane > 1) as lanes, array_agg(y.last) filter (where y.lane > 1) as lasts
            from (
                select o_partitions[m.part] as id, d.waits or x.ttl is not null as waits,
                    1 + coalesce(x.priority, 0) + case when d.waits then 10 else 0 end as lane,
                    max(o_tails[m.part] + m.ordinal) as last
                from unnest(m_partition, v_ordinals) with ordinality as m(part, ordinal, n)
                join unnest(x_message, x_deliver_at, x_delay, x_ttl, x_priority)
                    as x(message, deliver_at, delay, ttl, priority) on x.message = m.n
                cross join lateral (
                    select coalesce(greatest(x.deliver_at, v_now + nullif(x.delay, 0)) > v_created[m.part], false)
                ) as d(waits)
                where m.ordinal > 0
                group by 1, 2, 3
            ) as y
            where y.waits or y.lane > 1
            group by y.id
        ) as w
        where p.id = w.id;
    end if;
end $$;

-- Lanes of a partition that got messages, and the last offset in each.
create or replace function hark.mark_lanes_v1(p_before bigint[], p_lanes integer[], p_lasts bigint[]) returns bigint[]
language sql immutable as $$
    select case when p_lanes is null then p_before else (
        select array_agg(greatest(p_before[w.lane], 0, (
            select max(x.last) from unnest(p_lanes, p_lasts) as x(lane, last) where x.lane = w.lane)) order by w.lane)
        from generate_series(1, 20) as w(lane)) end
$$;

-- How many messages of a queue its slowest group has yet to settle (rule 7); all of them while there is no group.
create or replace function hark.open_v1(p_queue integer) returns bigint
language sql volatile as $$
    select coalesce(
        (select max(o.number) from (
            select coalesce(sum(
                case when t.plain is not null then hark.lag_v1(t, p) else
                    p.tail - greatest(p.floor, coalesce(t.cursor, s.cursor))
                    - hark.size_v1(case when t.cursor is not null
                        then t.settled * int8multirange(int8range(p.floor + 1, null))
                        else hark.gaps_v1(g.id, p.id, s.cursor) end)
                    + case when t.irregular then (
                        select count(*) from hark.requeued f where f.grp = g.id and f.partition = p.id) else 0 end
                end), 0) as number
            from hark.queues q
            join hark.groups g on g.queue = q.name
            left join hark.partitions p on p.queue = q.id
            left join hark.positions t on t.grp = g.id and t.partition = p.id
            left join lateral (
                select hark.start_v1(g.id, p.id) as cursor where t.cursor is null and p.id is not null) as s on true
            where q.id = p_queue
            group by g.id) as o),
        (select sum(p.tail - p.floor - hark.size_v1(hark.gaps_v1(-1, p.id, p.floor)))
         from hark.partitions p where p.queue = p_queue),
        0)::bigint
$$;

-- Which messages of a push are refused, and what offsets the others get. outcomes: 0 queued, 1 duplicate (offsets
-- has the first one's), 2 sealed or not against the queue's encryption, 3 the queue is full, 4 the transaction id is the
-- id of a message that is not there yet. ordinals: 0 when refused.
create or replace function hark.check_push_v1(
    p_partitions bigint[], p_tails bigint[], m_partition integer[], p_known integer[], p_earlier bigint[],
    x_message integer[], x_sealed boolean[],
    out offsets bigint[], out outcomes smallint[], out ordinals integer[], out counts integer[]
)
language sql volatile as $$
    with queue as (
        select w.n as part, q.id, q.encryption_enabled, q.max_size,
            case when q.max_size > 0 then q.max_size - hark.open_v1(q.id) end as room
        from unnest(p_partitions) with ordinality as w(id, n)
        join hark.partitions p on p.id = w.id
        join hark.queues q on q.id = p.queue
    ), item as (
        select m.n, m.part, k.earlier, q.id as queue, q.max_size, q.room,
            case when k.earlier = 0 then 4 when k.earlier is not null then 1
                 when q.encryption_enabled <> coalesce(x.sealed, false) then 2 else 0 end as refusal
        from unnest(m_partition) with ordinality as m(part, n)
        join queue q on q.part = m.part
        left join unnest(p_known, p_earlier) as k(n, earlier) on k.n = m.n
        left join unnest(x_message, x_sealed) as x(n, sealed) on x.n = m.n
    ), ranked as (
        select item.*, count(*) filter (where refusal = 0) over (partition by queue order by n) as rank from item
    ), checked as (
        select ranked.*, case when refusal = 0 and max_size > 0 and rank > room then 3 else refusal end as outcome
        from ranked
    ), numbered as (
        select checked.*, case when outcome = 0
            then (count(*) filter (where outcome = 0) over (partition by part order by n))::integer else 0 end as ordinal
        from checked
    )
    select
        array_agg(case outcome when 0 then p_tails[part] + ordinal when 1 then earlier end order by n),
        array_agg(outcome::smallint order by n),
        array_agg(ordinal order by n),
        (select array_agg(coalesce(c.number, 0) order by w.n)
         from unnest(p_partitions) with ordinality as w(id, n)
         left join (select part, max(ordinal) as number from numbered group by part) as c on c.part = w.n)
    from numbered
$$;
