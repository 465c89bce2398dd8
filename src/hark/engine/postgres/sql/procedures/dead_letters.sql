-- Stores dead letters of another store in a queue: 0 done, 1 it is there already, 2 it contradicts the encryption of the
-- queue. Null: there is no such queue. l_own: the place that a transaction id stands for that is the id of a message.
create or replace function hark.import_dead_letters_v1(
    p_now bigint, p_queue text, l_uid uuid[], l_partition text[], l_group text[], l_transaction_id text[],
    l_own_partition bigint[], l_own_offset bigint[], l_created_at bigint[], l_payload bytea[], l_backoff text[],
    l_priority smallint[], l_sealed boolean[], l_trace_id text[], l_producer text[], l_undelivered text[],
    l_trace_context text[], l_attempts integer[], l_error text[], l_failed_at bigint[]
) returns smallint[]
language plpgsql as $$
declare
    v_now bigint := hark.time_v1(p_now);
    v_codes smallint[] := '{}';
    v_partition_ids bigint[];
    v_offset bigint;
    v_own bigint;
    v_sealed boolean;
begin
    perform hark.begin_v1();
    select q.encryption_enabled into v_sealed from hark.queues q where q.name = p_queue;
    if not found then
        return null;
    end if;
    v_partition_ids := hark.make_partitions_v1(v_now, array_fill(null::bigint, array[cardinality(l_uid)]),
        array_fill(p_queue, array[cardinality(l_uid)]), l_partition, array_fill(null::text, array[cardinality(l_uid)]),
        array_fill(null::text, array[cardinality(l_uid)]));
    -- A group without a place here would later find its start by times: all get one first.
    perform hark.make_positions_v1(array_agg(g.id), array_agg(w.id))
    from hark.groups g cross join (select distinct unnest(v_partition_ids) as id) as w where g.queue = p_queue;
    perform 1 from (
        select 1 from hark.positions where partition = any (v_partition_ids) order by grp, partition for update) as locked;
    perform 1 from (
        select 1 from hark.partitions where id = any (v_partition_ids) order by id for no key update) as locked;
    if exists (select 1 from hark.partitions where id = any (v_partition_ids) and queue = 0) then
        raise exception using errcode = 'serialization_failure', message = 'a queue was removed while it was used';
    end if;
    for n in 1..cardinality(l_uid) loop
        v_own := case when l_own_partition[n] = v_partition_ids[n] then l_own_offset[n] end;
        if l_sealed[n] <> v_sealed then
            v_codes[n] := 2;
            continue;
        elsif exists (select 1 from hark.dead_letters d where d.uid = l_uid[n]) then
            v_codes[n] := 1;
            continue;
        end if;
        v_offset := hark.find_message_v1(v_partition_ids[n], l_transaction_id[n], v_own);
        if v_offset is null then
            update hark.partitions p
            set tail = p.tail + 1, special = p.tail + 1, changed_bucket = greatest(p.changed_bucket, hark.bucket_v1(v_now))
            where p.id = v_partition_ids[n]
            returning p.tail into v_offset;
            perform hark.leave_gap_v1(v_now, v_partition_ids[n], v_offset, 0);
        end if;
        insert into hark.dead_letters (uid, queue, partition, partition_name, grp, "offset", transaction_id, created_at,
            payload, backoff, priority, sealed, trace_id, producer, undelivered, trace_context, attempts, error, failed_at)
        values (l_uid[n], p_queue, v_partition_ids[n], l_partition[n], l_group[n], v_offset,
            case when v_offset is distinct from v_own then l_transaction_id[n] end, l_created_at[n],
            l_payload[n], l_backoff[n]::bigint[], nullif(l_priority[n], 0), nullif(l_sealed[n], false), l_trace_id[n],
            l_producer[n], l_undelivered[n]::bytea[], l_trace_context[n], l_attempts[n], l_error[n], l_failed_at[n])
        on conflict do nothing;
        v_codes[n] := case when found then 0 else 1 end;
    end loop;
    return v_codes;
end $$;

-- Puts a dead letter back in front of its partition for its group only, under a new offset (rule 19). By its own id,
-- or by the place of the message that died. o_found: how many dead letters there were; only one is requeued.
create or replace function hark.requeue_v1(p_now bigint, p_uid uuid, p_partition bigint, p_offset bigint,
    out o_found integer, out o_partition bigint, out o_offset bigint, out o_grp integer, out o_queue text,
    out o_group text
)
language plpgsql as $$
declare
    v_now bigint := hark.time_v1(p_now);
    v_ids bigint[];
    v_slot smallint;
    v_created bigint;
    v_done record;
    d hark.dead_letters;
    t hark.positions;
begin
    if p_uid is not null then
        select array_agg(x.id) into v_ids from (
            select l.id from hark.dead_letters l where l.uid = p_uid for update) as x;
    else
        select array_agg(x.id) into v_ids from (
            select l.id from hark.dead_letters l where l.partition = p_partition and l."offset" = p_offset
            order by l.id for update
        ) as x;
    end if;
    o_found := coalesce(cardinality(v_ids), 0);
    if o_found <> 1 then
        return;
    end if;
    delete from hark.dead_letters where id = v_ids[1] returning * into d;
    o_queue := d.queue; o_group := d.grp;
    select c.id into o_grp
    from hark.contact_v1(v_now, array[d.queue], array[d.grp], array[null], array['all'], array[null::bigint]) c;
    o_partition := (hark.make_partitions_v1(v_now, array[null::bigint], array[d.queue], array[d.partition_name],
        null, null))[1];
    -- A group without a place here would later find its start by times: all get one first.
    perform hark.make_positions_v1(array_agg(g.id), array_agg(o_partition)) from hark.groups g where g.queue = d.queue;
    perform 1 from (
        select 1 from hark.positions where partition = o_partition order by grp, partition for update) as locked;
    update hark.partitions p
    set tail = p.tail + 1, special = p.tail + 1, last_created = greatest(v_now, p.last_created, q.created_floor),
        changed_bucket = greatest(p.changed_bucket, hark.bucket_v1(v_now))
    from hark.queues q
    where p.id = o_partition and q.id = p.queue
    returning p.tail, p.last_created into o_offset, v_created;
    select slot into v_slot from hark.rotation where name = 'messages';
    insert into hark.messages (slot, partition, "offset", created_at, payload, transaction_id, backoff, priority,
        sealed, owner, trace_id, producer, undelivered, trace_context)
    select v_slot, o_partition, o_offset, v_created, d.payload,
        -- The transaction id stays with the message that died, if that is still there: it is a key of the partition.
        case when hark.find_message_v1(o_partition, d.transaction_id, null) is null then d.transaction_id end,
        d.backoff, d.priority, d.sealed, o_grp, d.trace_id, d.producer, d.undelivered, d.trace_context;
    perform hark.leave_gap_v1(v_now, o_partition, o_offset, o_grp);
    select * into t from hark.positions where grp = o_grp and partition = o_partition;
    -- Delivered from the front, so not again where the cursor meets it.
    select * into v_done from hark.settle_offsets_v1(o_grp, o_partition,
        int8multirange(int8range(o_offset, o_offset + 1)), false, t.cursor, t.settled);
    if t.plain is not null then
        insert into hark.outstanding (grp, partition, "offset", lane, due)
        values (o_grp, o_partition, o_offset, 10 + coalesce(d.priority, 0), v_created);
        update hark.positions set changed_bucket = greatest(changed_bucket, hark.bucket_v1(v_now))
        where grp = o_grp and partition = o_partition;
        return;
    end if;
    insert into hark.requeued (grp, partition, "offset") values (o_grp, o_partition, o_offset);
    update hark.positions
    set cursor = v_done.cursor, settled = v_done.settled, irregular = true,
        changed_bucket = greatest(changed_bucket, hark.bucket_v1(v_now))
    where grp = o_grp and partition = o_partition;
end $$;
