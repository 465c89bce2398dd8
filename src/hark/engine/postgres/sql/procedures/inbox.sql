-- Messages that applications send in their own transactions: hark.send puts them into hark.inbox, and servers move them into
-- their partitions once they are committed.
--
-- A sender takes no offset and no lock of a queue, so its transaction may last. Servers therefore move what is visible: the
-- rows of one transaction in the order of its calls, and what was sent after another transaction's commit after that one's.
--
-- A row that is gone may still have its place in the indexes, for as long as an old snapshot may need it. So no look begins
-- at the head of the table: it is given the snapshot of the look before, and finds what was not visible to that one.

create or replace function hark.send(
    queue text,
    payload jsonb,
    partition text default 'Default',
    transaction_id text default null,
    delay interval default null,
    deliver_at timestamptz default null,
    priority integer default 0,
    ttl interval default null,
    backoff_schedule bigint[] default null,
    trace_id uuid default null,
    traceparent text default null,
    tracestate text default null,
    notify boolean default true
) returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
    v_now bigint := hark.time_v1(null);
    v_due bigint;
    v_ttl bigint;
    v_id text := coalesce(nullif(transaction_id, ''), gen_random_uuid()::text);
    v_payload text := payload::text;
    v_wrong text;
begin
    -- One expression, of what does not fit: a transaction may send thousands.
    v_wrong := case
        when (octet_length(queue) between 1 and 255) is not true then 'queue: expected a name of 1 to 255 bytes'
        when v_payload is null then 'payload: expected JSON; null as a payload is ''null''::jsonb'
        when octet_length(v_payload) > 10485760 then 'payload: expected at most 10485760 bytes of JSON'
        when octet_length(v_payload) > 512 and jsonb_path_exists(payload,
            'strict $.**{256} ? (@.type() == "array" || @.type() == "object")')
            then 'payload: must be nested at most 256 levels deep'
        when (octet_length(partition) between 1 and 255) is not true then 'partition: expected a name of 1 to 255 bytes'
        when octet_length(v_id) > 255 then 'transaction_id: expected at most 255 bytes'
        when (priority between 0 and 9) is not true then 'priority: expected an integer from 0 to 9'
        when delay is not null and deliver_at is not null then 'delay, deliver_at: expected one of them, got both'
        when delay not between interval '0' and interval '3650 days' then 'delay: expected an interval from 0 to 3650 days'
        when deliver_at not between timestamptz '1970-01-01 00:00:00+00' and timestamptz '9999-01-01 00:00:00+00'
            then 'deliver_at: expected a time from 1970 to 9998'
        when ttl not between interval '1 millisecond' and interval '36500 days'
            then 'ttl: expected an interval from 1 millisecond to 36500 days'
        when array_ndims(backoff_schedule) > 1 or cardinality(backoff_schedule) > 100
            or array_position(backoff_schedule, null) is not null
            or not (0 <= all (backoff_schedule) and 315360000000 >= all (backoff_schedule))
            then 'backoff_schedule: expected at most 100 delays in milliseconds, each from 0 to 315360000000'
        when traceparent !~ '^(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$'
            then 'traceparent: expected a W3C trace context, such as 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'
        when tracestate is not null and (traceparent is null or length(tracestate) > 512 or tracestate !~ '^[!-~][ -~]*$')
            then 'tracestate: expected up to 512 printable ASCII characters, and a traceparent'
    end;
    if v_wrong is not null then
        raise exception using errcode = 'invalid_parameter_value', message = 'hark.send: ' || v_wrong;
    end if;
    if delay is not null then
        v_due := v_now + (extract(epoch from delay) * 1000000)::bigint;
    elsif deliver_at is not null then
        v_due := (extract(epoch from deliver_at) * 1000000)::bigint;
    end if;
    v_ttl := (extract(epoch from ttl) * 1000000)::bigint;
    insert into hark.inbox (xid, queue, partition, payload, transaction_id, sent_at, deliver_at, ttl, backoff, priority,
        trace_id, trace_context)
    values (pg_current_xact_id(), queue, partition, convert_to(v_payload, 'UTF8'), v_id, v_now, v_due, v_ttl,
        backoff_schedule, priority, trace_id::text, concat_ws(' ', traceparent, tracestate));
    if notify then
        -- However often a transaction does it, servers hear of it once: when it has committed.
        perform pg_notify('hark_inbox', '');
    end if;
    return v_id;
end $$;
comment on function hark.send is 'Send a message to a queue of Hark when this transaction commits; returns its transaction id.';

-- Lets a role send, and do nothing else.
create or replace function hark.allow_send(p_role name) returns void
language plpgsql as $$
begin
    execute format('grant usage on schema hark to %I', p_role);
    execute format('grant execute on function hark.send to %I', p_role);
end $$;
comment on function hark.allow_send is 'Allow a role to send messages with hark.send, and nothing else.';

-- Takes that back.
create or replace function hark.deny_send(p_role name) returns void
language plpgsql as $$
begin
    execute format('revoke usage on schema hark from %I', p_role);
    execute format('revoke execute on function hark.send from %I', p_role);
end $$;
comment on function hark.deny_send is 'Take back what hark.allow_send allowed.';

-- The first rows to be moved, in their order: those that an earlier snapshot did not see (null: all), without those of some
-- queues; or with p_queue those of one queue. o_snapshot is the one that they were found in.
create or replace function hark.plan_inbox_v1(
    p_seen text, p_queue text, p_except text[], p_limit integer,
    out o_snapshot text, out o_ids bigint[], out o_bytes integer[]
)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
as $$
begin
    -- In one statement, which has one snapshot.
    if p_queue is not null then
        select pg_current_snapshot()::text, array_agg(f.id order by f.id), array_agg(f.bytes order by f.id)
        into o_snapshot, o_ids, o_bytes
        from (
            select i.id, octet_length(i.payload) as bytes from hark.inbox i
            where i.queue = p_queue and i.error is null order by i.queue, i.id limit p_limit
        ) as f;
    elsif p_seen is null then
        select pg_current_snapshot()::text, array_agg(f.id order by f.id), array_agg(f.bytes order by f.id)
        into o_snapshot, o_ids, o_bytes
        from (
            select i.id, octet_length(i.payload) as bytes from hark.inbox i
            where i.error is null and i.queue <> all (p_except) order by i.id limit p_limit
        ) as f;
    else
        select pg_current_snapshot()::text, array_agg(f.id order by f.id), array_agg(f.bytes order by f.id)
        into o_snapshot, o_ids, o_bytes
        from (
            select n.id, n.bytes from (
                select i.id, i.queue, i.error, octet_length(i.payload) as bytes from hark.inbox i
                where i.xid >= pg_snapshot_xmax(p_seen::pg_snapshot)
                union all
                select i.id, i.queue, i.error, octet_length(i.payload)
                from hark.inbox i where i.xid = any (array(select pg_snapshot_xip(p_seen::pg_snapshot)))
            ) as n
            where n.error is null and n.queue <> all (p_except) order by n.id limit p_limit
        ) as f;
    end if;
end $$;

-- Rows that are still there.
create or replace function hark.read_inbox_v1(p_ids bigint[]) returns setof hark.inbox
language sql volatile set enable_seqscan = off as $$
    select i.* from hark.inbox i where i.id = any (p_ids) and i.error is null order by i.id
$$;

-- Pushes messages as push_v1 does, and removes the rows that they come from, in one transaction. i_position: of each row
-- its message (several may have the same transaction id). What is refused stays. Servers take turns, else a later row could
-- be moved before an earlier one: o_busy, another one is at it. o_gone: rows that are not there any more, or that another
-- session has locked; then nothing was done.
create or replace function hark.move_inbox_v1(
    p_now bigint,
    p_partitions bigint[], p_queues text[], p_names text[], p_namespaces text[], p_tasks text[], p_counts integer[],
    m_partition integer[], m_ordinal integer[], m_payload bytea[], m_transaction_id text[], m_same_as bigint[],
    x_message integer[], x_deliver_at bigint[], x_delay bigint[], x_ttl bigint[], x_backoff text[],
    x_priority smallint[], x_sealed boolean[], x_trace_id text[], x_producer text[], x_undelivered text[],
    x_trace_context text[],
    i_id bigint[], i_position integer[],
    out o_busy boolean, out o_gone bigint[],
    out o_stale bigint[], out o_partitions bigint[], out o_tails bigint[], out o_offsets bigint[], out o_outcomes smallint[]
)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_there bigint[];
begin
    -- Before the snapshot of what follows, so that it shows what the one before has done. An advisory lock is one that a
    -- role that may only send could hold for ever.
    perform from hark.meta m where m.key = 'tag' for no key update skip locked;
    o_busy := not found;
    if o_busy then
        return;
    end if;
    select array_agg(there.id) into v_there from (
        select i.id from hark.inbox i where i.id = any (i_id) and i.error is null for update skip locked) as there;
    if coalesce(cardinality(v_there), 0) < cardinality(i_id) then
        select array_agg(w.id) into o_gone from unnest(i_id) as w(id) where w.id <> all (coalesce(v_there, '{}'));
        return;
    end if;
    select p.* into o_stale, o_partitions, o_tails, o_offsets, o_outcomes from hark.push_v1(
        p_now, p_partitions, p_queues, p_names, p_namespaces, p_tasks, p_counts, m_partition, m_ordinal, m_payload,
        m_transaction_id, m_same_as, x_message, x_deliver_at, x_delay, x_ttl, x_backoff, x_priority, x_sealed, x_trace_id,
        x_producer, x_undelivered, x_trace_context) as p;
    if o_stale is null then
        delete from hark.inbox i where i.id = any (array(
            select w.id from unnest(i_id, i_position) as w(id, position) where coalesce(o_outcomes[w.position], 0) <= 1));
    end if;
end $$;

-- Numbers for metrics and hark doctor: rows that wait (counted up to 100,000), for how long the first has, and rows that were
-- refused.
create or replace function hark.inbox_numbers_v1(
    out o_rows bigint, out o_oldest_seconds double precision, out o_refused bigint
)
language plpgsql as $$
begin
    select count(*) filter (where error is null), count(error),
        greatest(hark.time_v1(null) - min(sent_at) filter (where error is null), 0)
    into o_rows, o_refused, o_oldest_seconds
    from (select i.error, i.sent_at from hark.inbox i order by i.id limit 100000) as first;
    o_oldest_seconds := coalesce(o_oldest_seconds, 0) / 1000000;
end $$;
