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
    t hark.tracks;
begin
    select array_agg(x.id) into v_ids from (
        select l.id from hark.dead_letters l
        where l.uid = p_uid or (l.partition = p_partition and l."offset" = p_offset)
        order by l.id for update
    ) as x;
    o_found := coalesce(cardinality(v_ids), 0);
    if o_found <> 1 then
        return;
    end if;
    delete from hark.dead_letters where id = v_ids[1] returning * into d;
    o_queue := d.queue; o_group := d.grp;
    select c.id into o_grp
    from hark.contact_v1(v_now, array[d.queue], array[d.grp], array[null], array['all'], array[null::bigint]) c;
    o_partition := (hark.places_v1(v_now, array[null::bigint], array[d.queue], array[d.partition_name]))[1];
    -- A group without a place here would later find its start by times: all get one first.
    perform hark.make_tracks_v1(array_agg(g.id), array_agg(o_partition)) from hark.groups g where g.queue = d.queue;
    perform 1 from (
        select 1 from hark.tracks where partition = o_partition order by grp, partition for update) as locked;
    update hark.partitions p
    set tail = p.tail + 1, special = p.tail + 1, last_created = greatest(v_now, p.last_created, q.created_floor),
        touched = greatest(p.touched, hark.bucket_v1(v_now))
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
    perform hark.leave_hole_v1(v_now, o_partition, o_offset, o_grp);
    select * into t from hark.tracks where grp = o_grp and partition = o_partition;
    -- Delivered from the front, so not again where the cursor meets it.
    select * into v_done from hark.settle_offsets_v1(o_grp, o_partition,
        int8multirange(int8range(o_offset, o_offset + 1)), false, t.cursor, t.settled);
    if t.plain is not null then
        insert into hark.exceptions (grp, partition, "offset", lane, due)
        values (o_grp, o_partition, o_offset, 10 + coalesce(d.priority, 0), v_created);
        update hark.tracks set touched = greatest(touched, hark.bucket_v1(v_now))
        where grp = o_grp and partition = o_partition;
        return;
    end if;
    insert into hark.fronts (grp, partition, "offset") values (o_grp, o_partition, o_offset);
    update hark.tracks
    set cursor = v_done.cursor, settled = v_done.settled, irregular = true,
        touched = greatest(touched, hark.bucket_v1(v_now))
    where grp = o_grp and partition = o_partition;
end $$;
