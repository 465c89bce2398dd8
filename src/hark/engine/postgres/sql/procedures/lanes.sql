-- What a shared group may be handed out of a partition, in order; see 00_lanes.sql.

-- The first messages that can be taken now, up to p_wanted: requeued ones, then by priority, then by the time that they
-- became available, then by offset. The caller holds the position's lock. Answers the position as it would be if all of them
-- were taken (save what list_v1 itself changed in the outstanding); pass_v1 stores how many really were. sources: 0 from
-- a plain lane, 1 from a delayed one, 2 from the outstanding; used: attempts that were used before. due: when there will
-- be more, known only where less was found than wanted.
create or replace function hark.list_v1(
    p_now bigint, inout t hark.positions, p hark.partitions, p_ttl bigint, p_delayed integer, p_wanted integer,
    out offsets bigint[], out lanes smallint[], out due_times bigint[], out sources smallint[], out used integer[],
    out sizes bigint[], out due bigint
)
language plpgsql as $$
declare
    v_from bigint := greatest(t.cursor, p.floor);
    v_end bigint := p.tail;
    v_number integer := 0;
    v_lanes smallint[] := hark.free_lanes_v1(t.grp, t.partition);
    v_plain record;
    v_lane record;
    v_exceptional boolean;
    v_unfinished boolean := false;
begin
    offsets := '{}'; lanes := '{}'; due_times := '{}'; sources := '{}'; used := '{}'; sizes := '{}';
    if p.lanes is not null then
        t := hark.see_v1(t, p);
    end if;
    if p_delayed > 0 then
        v_end := hark.last_offset_at_v1(p.id, p_now - p_delayed * 1000000::bigint);
        if p.lanes is not null then
            t := hark.hold_back_v1(t, p, p_now, p_delayed);
            v_lanes := hark.free_lanes_v1(t.grp, t.partition);
        end if;
    end if;
    for n in reverse 19..0 loop
        v_exceptional := n = any (v_lanes);
        continue when not v_exceptional and (n > 9 or (n > 0 and (p.lanes is null
            or (p.lanes[n + 1] <= greatest(v_from, t.plain[n + 1]) and p.lanes[n + 11] <= v_from))));
        select '{}'::bigint[] as offsets, '{}'::bigint[] as due_times, '{}'::bigint[] as sizes, t.plain[n + 1] as passed
        into v_plain;
        if n = 0 or (n < 10 and p.lanes[n + 1] > greatest(v_from, t.plain[n + 1])) then
            select x.* into v_plain from hark.list_plain_v1(p_now, t.partition, n,
                greatest(v_from, t.plain[n + 1]), v_end, p_ttl, p_delayed, p_wanted - v_number) x;
            v_unfinished := v_unfinished or (v_plain.passed < v_end and cardinality(v_plain.offsets) < p_wanted - v_number);
        end if;
        if not v_exceptional and coalesce(p.lanes[n + 11], 0) <= v_from then
            -- Nothing but plain messages: no need to sort them into others.
            offsets := offsets || v_plain.offsets;
            due_times := due_times || v_plain.due_times;
            sizes := sizes || v_plain.sizes;
            v_number := cardinality(offsets) - cardinality(lanes);
            lanes := lanes || array_fill(n::smallint, array[v_number]);
            sources := sources || array_fill(0::smallint, array[v_number]);
            used := used || array_fill(0, array[v_number]);
            t.plain[n + 1] := v_plain.passed;
        else
            if v_exceptional then
                perform hark.sort_out_v1(p_now, t, p.queue, n, p_ttl, p_delayed);
            end if;
            select x.* into v_lane from hark.merge_v1(p_now, t, v_from, n, p_ttl, v_plain.offsets, v_plain.due_times,
                v_plain.sizes, p_wanted - v_number) x;
            offsets := offsets || v_lane.offsets;
            due_times := due_times || v_lane.due_times;
            sizes := sizes || v_lane.sizes;
            lanes := lanes || array_fill(n::smallint, array[cardinality(v_lane.offsets)]);
            sources := sources || v_lane.sources;
            used := used || v_lane.used;
            if n < 10 then
                t.plain[n + 1] := case when v_lane.rest is null then v_plain.passed
                    else greatest(t.plain[n + 1], v_lane.rest - 1) end;
                t.delayed_at[n + 1] := v_lane.delayed_at;
                t.delayed_offset[n + 1] := v_lane.delayed_offset;
            end if;
        end if;
        v_number := cardinality(offsets);
        exit when v_number >= p_wanted;
    end loop;
    if v_number < p_wanted then
        due := case when v_unfinished or t.seen < p.tail and p.lanes is not null then p_now
            else hark.next_due_v1(p_now, t, p, v_lanes, v_end, p_delayed) end;
    end if;
end $$;

-- The lanes in which outstanding of a group are free, due or not.
create or replace function hark.free_lanes_v1(p_grp integer, p_partition bigint) returns smallint[]
language plpgsql as $$
declare
    v_key bigint := p_partition << 5 | 20;
    v_lanes smallint[] := '{}';
begin
    loop
        select e.partition << 5 | e.lane into v_key from hark.outstanding e
        where (e.partition << 5 | e.lane) < v_key and (e.partition << 5 | e.lane) >= p_partition << 5
            and e.lease is null
        order by (e.partition << 5 | e.lane) desc limit 1;
        exit when not found;
        v_lanes := v_lanes || (v_key & 31)::smallint;
    end loop;
    return v_lanes;
end $$;

-- Takes notice of delayed messages that have come: those that the positions would pass unseen become outstanding.
create or replace function hark.see_v1(inout t hark.positions, p hark.partitions)
language plpgsql as $$
declare
    c_many constant bigint := 200000;
    v_last bigint := (select max(x) from unnest(p.lanes[11:20]) x);
    v_to bigint := least(p.tail, t.seen + c_many);
begin
    -- A concurrent call may have been here after p was read: then t is the newer one, and must not go back.
    if v_to <= t.seen then
        return;
    elsif v_last > t.seen and 0 < any (t.delayed_at) then
        insert into hark.outstanding (grp, partition, "offset", lane, due)
        select t.grp, t.partition, m."offset", coalesce(m.priority, 0), m.deliver_at from hark.messages m
        where m.partition = t.partition and m."offset" > greatest(t.seen, t.cursor, p.floor) and m."offset" <= v_to
            and m.deliver_at is not null and (m.deliver_at, m."offset")
                <= (t.delayed_at[coalesce(m.priority, 0) + 1], t.delayed_offset[coalesce(m.priority, 0) + 1])
        order by m."offset"
        on conflict do nothing;
        t.seen := case when v_to >= v_last then p.tail else v_to end;
    else
        t.seen := p.tail;
    end if;
end $$;

-- With `delayedProcessing` a delayed message may have to wait longer than it says: those whose own time has come become
-- outstanding, which have the time that counts.
create or replace function hark.hold_back_v1(inout t hark.positions, p hark.partitions, p_now bigint, p_delayed integer)
language plpgsql as $$
declare
    m record;
begin
    for m in
        select x.priority, y.* from generate_series(0, 9) as x(priority)
        cross join lateral (
            select z.deliver_at, z."offset", z.created_at from hark.messages z
            where (z.partition << 4 | coalesce(z.priority, 0)) = (t.partition << 4 | x.priority)
                and z.deliver_at is not null and z.deliver_at <= p_now and z."offset" <= t.seen
                and (z.deliver_at, z."offset") > (t.delayed_at[x.priority + 1], t.delayed_offset[x.priority + 1])
            order by z.deliver_at, z."offset" limit 10000
        ) as y
        where p.lanes[x.priority + 11] > greatest(t.cursor, p.floor)
    loop
        if m."offset" > greatest(t.cursor, p.floor) then
            insert into hark.outstanding (grp, partition, "offset", lane, due)
            values (t.grp, t.partition, m."offset", m.priority,
                greatest(m.deliver_at, m.created_at + p_delayed * 1000000::bigint))
            on conflict do nothing;
        end if;
        t.delayed_at[m.priority + 1] := m.deliver_at;
        t.delayed_offset[m.priority + 1] := m."offset";
    end loop;
end $$;

-- The next plain messages of a priority beyond an offset. passed: where the lane is when all of them are taken. Offsets
-- of other lanes are gone over, at most so many in one call.
create or replace function hark.list_plain_v1(
    p_now bigint, p_partition bigint, p_priority integer, p_after bigint, p_end bigint, p_ttl bigint, p_delayed integer,
    p_wanted integer,
    out offsets bigint[], out due_times bigint[], out sizes bigint[], out passed bigint
)
language plpgsql as $$
declare
    c_many constant bigint := 200000;
    v_window bigint := 5000 + p_wanted;
    v_oldest bigint := case when p_ttl > 0 then p_now - p_ttl * 1000000 else -1 end;
begin
    loop
        passed := greatest(p_after, least(p_end, p_after + v_window));
        if p_priority = 0 then
            select coalesce(array_agg(m."offset"), '{}'), coalesce(array_agg(m.created_at + p_delayed * 1000000::bigint), '{}'),
                coalesce(array_agg(m.size), '{}')
            into offsets, due_times, sizes
            from (
                select x."offset", x.created_at, length(x.payload)::bigint as size from hark.messages x
                where x.partition = p_partition and x."offset" > p_after and x."offset" <= passed
                    and x.priority is null and x.deliver_at is null and x.owner is null
                    and case when x.expires_at is null then x.created_at > v_oldest else x.expires_at > p_now end
                order by x."offset" limit p_wanted
            ) as m;
        else
            select coalesce(array_agg(m."offset"), '{}'), coalesce(array_agg(m.created_at + p_delayed * 1000000::bigint), '{}'),
                coalesce(array_agg(m.size), '{}')
            into offsets, due_times, sizes
            from (
                select x."offset", x.created_at, length(x.payload)::bigint as size from hark.messages x
                where (x.partition << 4 | x.priority) = (p_partition << 4 | p_priority) and x.priority > 0
                    and x.deliver_at is null and x."offset" > p_after and x."offset" <= passed and x.owner is null
                    and case when x.expires_at is null then x.created_at > v_oldest else x.expires_at > p_now end
                order by x."offset" limit p_wanted
            ) as m;
        end if;
        if cardinality(offsets) >= p_wanted then
            passed := offsets[p_wanted];
            return;
        end if;
        exit when passed >= p_end or v_window >= c_many;
        v_window := v_window * 8;
    end loop;
end $$;

-- Exceptions of a lane that are due, but whose message has outlived its time, are done with; those that are younger than
-- `delayedProcessing` asks for now have to wait.
create or replace function hark.sort_out_v1(
    p_now bigint, t hark.positions, p_queue integer, p_lane integer, p_ttl bigint, p_delayed integer
) returns void
language plpgsql as $$
declare
    v_extra bigint := p_delayed * 1000000::bigint;
    v_expired bigint[];
begin
    with old as (
        delete from hark.outstanding e using hark.messages m
        where (e.partition << 5 | e.lane) = (t.partition << 5 | p_lane) and e.grp::bigint = t.grp::bigint
            and e.lease is null and e.due <= p_now and m.partition = t.partition and m."offset" = e."offset"
            and coalesce(m.expires_at, case when p_ttl > 0 and m.owner is null
                then m.created_at + p_ttl * 1000000 end) <= p_now
        returning e."offset"
    )
    select array_agg(old."offset") into v_expired from old;
    perform hark.note_expired_v1(p_now, p_queue, t.grp, t.partition, hark.ranges_v1(v_expired));
    update hark.outstanding e set due = m.created_at + v_extra
    from hark.messages m
    where v_extra > 0 and (e.partition << 5 | e.lane) = (t.partition << 5 | p_lane) and e.grp::bigint = t.grp::bigint
        and e.lease is null and e.due <= p_now and m.partition = t.partition and m."offset" = e."offset"
        and m.created_at + v_extra > p_now;
end $$;

-- Sorts the plain messages, the delayed and the free outstanding of one lane into each other, those that are due; up to
-- p_wanted of them. rest: the first plain message that is not among these; delayed_at and delayed_offset: where
-- the delayed lane is when these are taken.
create or replace function hark.merge_v1(
    p_now bigint, t hark.positions, p_from bigint, p_lane integer, p_ttl bigint, p_offsets bigint[], p_due_times bigint[],
    p_sizes bigint[], p_wanted integer,
    out offsets bigint[], out due_times bigint[], out sources smallint[], out used integer[], out sizes bigint[],
    out rest bigint, out delayed_at bigint, out delayed_offset bigint
)
language plpgsql as $$
declare
    v_oldest bigint := case when p_ttl > 0 then p_now - p_ttl * 1000000 else -1 end;
    v_last record;
begin
    with plain as (
        select w."offset", w.due, 0::smallint as source, 0 as used, w.size
        from unnest(p_offsets, p_due_times, p_sizes) as w("offset", due, size)
    ), delayed as (
        select x."offset", x.deliver_at as due, 1::smallint as source, 0 as used, length(x.payload)::bigint as size
        from hark.messages x
        where p_lane < 10
            and (x.partition << 4 | coalesce(x.priority, 0)) = (t.partition << 4 | p_lane) and x.deliver_at is not null
            and (x.deliver_at, x."offset") > (t.delayed_at[p_lane + 1], t.delayed_offset[p_lane + 1])
            and x.deliver_at <= p_now and x."offset" > p_from and x."offset" <= t.seen
            and case when x.expires_at is null then x.created_at > v_oldest else x.expires_at > p_now end
        order by x.deliver_at, x."offset" limit p_wanted
    ), exceptional as (
        select e."offset", e.due, 2::smallint as source, e.attempts as used, m.size
        from (
            select x."offset", x.due, x.attempts from hark.outstanding x
            where (x.partition << 5 | x.lane) = (t.partition << 5 | p_lane) and x.grp::bigint = t.grp::bigint
                and x.lease is null and x.due <= p_now
            order by x.due, x."offset" limit p_wanted
        ) as e
        cross join lateral (
            select length(y.payload)::bigint as size from hark.messages y
            where y.partition = t.partition and y."offset" = e."offset"
            offset 0
        ) as m
    ), sorted as materialized (
        select x.*, row_number() over (order by x.due, x."offset") as n
        from (select * from plain union all select * from delayed union all select * from exceptional) as x
    )
    select coalesce(array_agg(s."offset" order by s.n) filter (where s.n <= p_wanted), '{}'),
        coalesce(array_agg(s.due order by s.n) filter (where s.n <= p_wanted), '{}'),
        coalesce(array_agg(s.source order by s.n) filter (where s.n <= p_wanted), '{}'),
        coalesce(array_agg(s.used order by s.n) filter (where s.n <= p_wanted), '{}'),
        coalesce(array_agg(s.size order by s.n) filter (where s.n <= p_wanted), '{}'),
        min(s."offset") filter (where s.n > p_wanted and s.source = 0),
        (array_agg(s.due order by s.n desc) filter (where s.n <= p_wanted and s.source = 1))[1],
        (array_agg(s."offset" order by s.n desc) filter (where s.n <= p_wanted and s.source = 1))[1]
    into offsets, due_times, sources, used, sizes, rest, delayed_at, delayed_offset
    from sorted s;
    if p_lane < 10 and cardinality(offsets) < p_wanted then
        -- All that is due is among them: what lies between and behind has outlived its time, and is passed with them.
        select x.deliver_at, x."offset" into v_last from hark.messages x
        where (x.partition << 4 | coalesce(x.priority, 0)) = (t.partition << 4 | p_lane) and x.deliver_at is not null
            and x.deliver_at <= p_now and x."offset" <= t.seen
            and (x.deliver_at, x."offset") > (t.delayed_at[p_lane + 1], t.delayed_offset[p_lane + 1])
        order by x.deliver_at desc, x."offset" desc limit 1;
        delayed_at := v_last.deliver_at;
        delayed_offset := v_last."offset";
    end if;
    delayed_at := coalesce(delayed_at, t.delayed_at[p_lane + 1]);
    delayed_offset := coalesce(delayed_offset, t.delayed_offset[p_lane + 1]);
end $$;

-- When there will be more to take, where all that is due is taken.
create or replace function hark.next_due_v1(
    p_now bigint, t hark.positions, p hark.partitions, p_lanes smallint[], p_end bigint, p_delayed integer
) returns bigint
language plpgsql as $$
declare
    v_from bigint := greatest(t.cursor, p.floor);
    v_due bigint;
begin
    if cardinality(p_lanes) > 0 then
        select min(e.due) into v_due from unnest(p_lanes) as w(lane)
        cross join lateral (
            select x.due from hark.outstanding x
            where (x.partition << 5 | x.lane) = (t.partition << 5 | w.lane) and x.grp::bigint = t.grp::bigint
                and x.lease is null and x.due > p_now
            order by x.due limit 1
        ) as e;
    end if;
    if p.lanes is not null then
        select least(v_due, min(m.deliver_at)) into v_due from generate_series(0, 9) as w(priority)
        cross join lateral (
            select x.deliver_at from hark.messages x
            where (x.partition << 4 | coalesce(x.priority, 0)) = (t.partition << 4 | w.priority)
                and x.deliver_at is not null and x.deliver_at > p_now and x."offset" > v_from
                and (x.deliver_at, x."offset") > (t.delayed_at[w.priority + 1], t.delayed_offset[w.priority + 1])
            order by x.deliver_at, x."offset" limit 1
        ) as m
        where p.lanes[w.priority + 11] > v_from;
    end if;
    if p_delayed > 0 and p_end < p.tail then
        select least(v_due, x.created_at + p_delayed * 1000000::bigint) into v_due from hark.messages x
        where x.partition = t.partition and x."offset" > greatest(p_end, v_from) and x.deliver_at is null
            and x.owner is null
        order by x."offset" limit 1;
    end if;
    return v_due;
end $$;

-- Stores how far a group is in its lanes when the first p_taken of what was listed are taken.
create or replace function hark.pass_v1(
    p_now bigint, p_listed hark.listed, offsets bigint[], lanes smallint[], due_times bigint[], sources smallint[],
    p_taken integer
) returns void
language plpgsql as $$
declare
    before hark.positions := (p_listed).before;
    t hark.positions := (p_listed).after;
    p hark.partitions := (p_listed).partition;
    v_from bigint := greatest(before.cursor, p.floor);
begin
    for n in reverse cardinality(offsets)..p_taken + 1 loop
        if sources[n] = 0 then
            t.plain[lanes[n] + 1] := offsets[n] - 1;
        elsif sources[n] = 1 then
            t.delayed_at[lanes[n] + 1] := before.delayed_at[lanes[n] + 1];
            t.delayed_offset[lanes[n] + 1] := before.delayed_offset[lanes[n] + 1];
        end if;
    end loop;
    if 1 = any (sources[1:p_taken]) then
        for n in 1..p_taken loop
            if sources[n] = 1 and (t.delayed_at[lanes[n] + 1], t.delayed_offset[lanes[n] + 1]) < (due_times[n], offsets[n])
            then
                t.delayed_at[lanes[n] + 1] := due_times[n];
                t.delayed_offset[lanes[n] + 1] := offsets[n];
            end if;
        end loop;
    end if;
    if t.plain = before.plain and t.delayed_at = before.delayed_at and t.delayed_offset = before.delayed_offset
        and t.seen = before.seen
    then
        return;
    end if;
    update hark.positions k
    set plain = t.plain, delayed_at = t.delayed_at, delayed_offset = t.delayed_offset, seen = t.seen
    where k.grp = t.grp and k.partition = t.partition;
    if (p_listed).ttl > 0 or p.special > v_from then
        perform hark.note_expired_v1(p_now, p.queue, t.grp, t.partition,
            hark.expired_v1(p_now, before, t, v_from, (p_listed).ttl));
    end if;
end $$;

-- Which of the messages that a group passed had outlived their time.
create or replace function hark.expired_v1(
    p_now bigint, before hark.positions, t hark.positions, p_from bigint, p_ttl bigint
) returns int8multirange
language sql volatile as $$
    select coalesce(range_agg(int8range(x."offset", x."offset" + 1)), '{}') from (
        select m."offset" from hark.messages m
        where m.partition = t.partition and m."offset" > greatest(p_from, before.plain[1]) and m."offset" <= t.plain[1]
            and m.priority is null and m.deliver_at is null and m.owner is null
            and coalesce(m.expires_at, case when p_ttl > 0 then m.created_at + p_ttl * 1000000 end) <= p_now
        union all
        select m."offset" from generate_series(1, 9) as w(priority)
        cross join lateral (
            select m."offset" from hark.messages m
            where (m.partition << 4 | m.priority) = (t.partition << 4 | w.priority) and m.priority > 0
                and m.deliver_at is null and m.owner is null
                and m."offset" > greatest(p_from, before.plain[w.priority + 1])
                and m."offset" <= t.plain[w.priority + 1]
                and coalesce(m.expires_at, case when p_ttl > 0 then m.created_at + p_ttl * 1000000 end) <= p_now
            offset 0
        ) as m
        union all
        select m."offset" from generate_series(0, 9) as w(priority)
        cross join lateral (
            select m."offset" from hark.messages m
            where (m.partition << 4 | coalesce(m.priority, 0)) = (t.partition << 4 | w.priority)
                and m.deliver_at is not null and m."offset" > p_from and m."offset" <= t.seen
                and (m.deliver_at, m."offset")
                    > (before.delayed_at[w.priority + 1], before.delayed_offset[w.priority + 1])
                and (m.deliver_at, m."offset") <= (t.delayed_at[w.priority + 1], t.delayed_offset[w.priority + 1])
                and coalesce(m.expires_at, case when p_ttl > 0 then m.created_at + p_ttl * 1000000 end) <= p_now
            offset 0
        ) as m
    ) as x
$$;
