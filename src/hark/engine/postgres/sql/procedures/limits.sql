-- How much queues and groups may deliver: a rate, and a number of messages in flight.

-- What is left of the limits of some groups and of their queues, in arrays with an entry for each limit: whom it bounds
-- (o_grps 0: all groups of the queue), how many messages may still be taken, whether it is a rate, and if there is less
-- than one token, when there will be one. Null where nothing is limited. The caller is the only one to claim under
-- these limits until it commits.
create or replace function hark.limits_v1(p_now bigint, p_grps integer[],
    out o_queues integer[], out o_grps integer[], out o_left bigint[], out o_rate boolean[], out o_due bigint[]
)
language plpgsql as $$
declare
    w record;
    v_tokens double precision;
    v_size double precision;
begin
    for w in
        select q.id as queue, x.grp, x.max_in_flight, x.rate_limit, x.rate_burst
        from (select distinct grp from unnest(p_grps) as grp) as c
        join hark.groups g on g.id = c.grp
        join hark.queues q on q.name = g.queue
        cross join lateral (values (0, q.max_in_flight, q.rate_limit, q.rate_burst),
            (g.id, g.max_in_flight, g.rate_limit, g.rate_burst)) as x(grp, max_in_flight, rate_limit, rate_burst)
        where x.max_in_flight > 0 or x.rate_limit > 0
        group by 1, 2, 3, 4, 5
        order by 1, 2
    loop
        insert into hark.allowances (queue, grp) values (w.queue, w.grp) on conflict do nothing;
        perform 1 from hark.allowances a where a.queue = w.queue and a.grp = w.grp for update;
        if w.max_in_flight > 0 then
            o_queues := o_queues || w.queue;
            o_grps := o_grps || w.grp;
            o_left := o_left || greatest(0, w.max_in_flight - hark.count_in_flight_v1(p_now, w.queue, w.grp));
            o_rate := o_rate || false;
            o_due := o_due || null::bigint;
        end if;
        if w.rate_limit > 0 then
            v_size := hark.bucket_size_v1(w.rate_limit, w.rate_burst);
            select case when a.at is null then v_size
                else least(v_size, a.tokens + greatest(0, p_now - a.at) * w.rate_limit / 1000000) end
            into v_tokens from hark.allowances a where a.queue = w.queue and a.grp = w.grp;
            update hark.allowances a set tokens = v_tokens, at = p_now where a.queue = w.queue and a.grp = w.grp;
            o_queues := o_queues || w.queue;
            o_grps := o_grps || w.grp;
            o_left := o_left || hark.whole_tokens_v1(v_tokens, w.rate_limit);
            o_rate := o_rate || true;
            o_due := o_due || hark.next_token_v1(p_now, v_tokens, w.rate_limit);
        end if;
    end loop;
end $$;

-- How many messages of a queue, or of one group of it, are on live leases; what is not any more leaves the list.
create or replace function hark.count_in_flight_v1(p_now bigint, p_queue integer, p_grp integer) returns bigint
language plpgsql as $$
declare
    v_number bigint;
begin
    with listed as materialized (
        select f.queue, f.grp, f.partition, f.lease, coalesce(o.number, s.number, 0) as number
        from hark.in_flight f
        left join lateral (
            select hark.size_v1(t.leased) as number from hark.positions t
            where t.grp = f.grp and t.partition = f.partition and t.lease = f.lease and t.lease_until > p_now
        ) as o on true
        left join lateral (
            select sum(x.number)::bigint as number from hark.leases l
            cross join lateral (
                select count(*) as number from hark.outstanding e
                where e.partition = f.partition and e.until = l.until and e.lease = l.id and e.lease is not null
                    and e.grp + 0 = f.grp and e.until > p_now
            ) as x
            where l.id = f.lease
        ) as s on true
        where f.queue = p_queue and (p_grp = 0 or f.grp = p_grp)
    ), over as (
        delete from hark.in_flight f using listed l
        where l.number = 0 and f.queue = l.queue and f.grp = l.grp and f.partition = l.partition and f.lease = l.lease
    )
    select coalesce(sum(number), 0) into v_number from listed;
    return v_number;
end $$;

-- Something was taken under limits: the tokens are spent, and what is on a lease now is listed.
create or replace function hark.spend_v1(l_queues integer[], l_grps integer[], l_spent bigint[], l_rate boolean[],
    i_queue integer[], i_grp integer[], i_partition bigint[], i_lease uuid[]
) returns void
language plpgsql as $$
begin
    update hark.allowances a set tokens = a.tokens - l.spent
    from unnest(l_queues, l_grps, l_spent, l_rate) as l(queue, grp, spent, rate)
    where l.rate and l.spent > 0 and a.queue = l.queue and a.grp = l.grp;
    insert into hark.in_flight (queue, grp, partition, lease)
    select distinct i.queue, i.grp, i.partition, i.lease
    from unnest(i_queue, i_grp, i_partition, i_lease) as i(queue, grp, partition, lease)
    where exists (
        select 1 from unnest(l_queues, l_rate) as l(queue, rate) where l.queue = i.queue and not l.rate)
    on conflict do nothing;
end $$;

-- Lists what is in flight in a queue: when a limit comes, much may be already.
create or replace function hark.list_in_flight_v1(p_queue integer) returns void
language sql volatile as $$
    insert into hark.in_flight (queue, grp, partition, lease)
    select p_queue, t.grp, t.partition, t.lease from hark.partitions p
    join hark.positions t on t.partition = p.id
    where p.queue = p_queue and t.lease is not null
    union
    select p_queue, e.grp, e.partition, e.lease from hark.partitions p
    join hark.outstanding e on e.partition = p.id and e.until > 0 and e.lease is not null
    where p.queue = p_queue
    on conflict do nothing;
$$;

-- Bounds what a group may take. False: there is no such group.
create or replace function hark.limit_group_v1(p_queue text, p_group text, p_max_in_flight integer,
    p_rate_limit double precision, p_rate_burst integer, p_max_in_flight_per_partition integer,
    p_rate_limit_per_partition double precision, p_rate_burst_per_partition integer
) returns boolean
language plpgsql as $$
declare
    v_queue integer;
begin
    update hark.groups
    set max_in_flight = p_max_in_flight, rate_limit = p_rate_limit, rate_burst = p_rate_burst,
        max_in_flight_per_partition = p_max_in_flight_per_partition,
        rate_limit_per_partition = p_rate_limit_per_partition, rate_burst_per_partition = p_rate_burst_per_partition
    where queue = p_queue and name = p_group;
    if not found then
        return false;
    end if;
    select id into v_queue from hark.queues where name = p_queue;
    if p_max_in_flight > 0 and v_queue is not null then
        perform hark.list_in_flight_v1(v_queue);
    end if;
    return true;
end $$;

-- What the limits of a partition leave for a group, the narrower ones of the queue and of the group: how many messages
-- more may be in flight (null: any number), how many the rate allows (null: any number), and if that is none, when one.
-- The caller holds the lock of the position, or only wants to know.
create or replace function hark.room_in_v1(p_now bigint, p_grp integer, p_partition bigint,
    out o_most integer, out o_free bigint, out o_rate double precision, out o_tokens double precision,
    out o_left bigint, out o_due bigint
)
language plpgsql as $$
declare
    l record;
begin
    select least(nullif(q.max_in_flight_per_partition, 0), nullif(g.max_in_flight_per_partition, 0)) as most,
        least(nullif(q.rate_limit_per_partition, 0), nullif(g.rate_limit_per_partition, 0)) as rate,
        least(hark.bucket_size_v1(q.rate_limit_per_partition, q.rate_burst_per_partition),
            hark.bucket_size_v1(g.rate_limit_per_partition, g.rate_burst_per_partition)) as size,
        k.tokens, k.tokens_at, k.plain is not null as shared, k.lease_until, k.leased
    into l
    from hark.positions k join hark.groups g on g.id = k.grp join hark.queues q on q.name = g.queue
    where k.grp = p_grp and k.partition = p_partition;
    if l.most is not null then
        o_most := l.most;
        if l.shared then
            select l.most - count(*) into o_free from hark.outstanding e
            where e.partition = p_partition and e.until > p_now and e.lease is not null and e.grp + 0 = p_grp;
        else
            o_free := l.most - case when l.lease_until > p_now then hark.size_v1(l.leased) else 0 end;
        end if;
        o_free := greatest(0, o_free);
    end if;
    if l.rate is not null then
        o_rate := l.rate;
        o_tokens := case when l.tokens is null then l.size
            else least(l.size, l.tokens + greatest(0, p_now - l.tokens_at) * l.rate / 1000000) end;
        o_left := hark.whole_tokens_v1(o_tokens, o_rate);
        o_due := hark.next_token_v1(p_now, o_tokens, o_rate);
    end if;
end $$;

-- How many tokens a bucket has room for; null: there is no rate.
create or replace function hark.bucket_size_v1(p_rate double precision, p_burst integer) returns double precision
language sql immutable as $$
    select case when p_rate > 0 then coalesce(nullif(p_burst, 0), greatest(1, ceil(p_rate))) end
$$;

-- What comes in less than half a microsecond is there: times are whole ones.
create or replace function hark.whole_tokens_v1(p_tokens double precision, p_rate double precision) returns bigint
language sql immutable as $$
    select greatest(0, floor(p_tokens + p_rate * 0.0000005 + 0.000000001))::bigint
$$;

-- When there will be one token.
create or replace function hark.next_token_v1(p_now bigint, p_tokens double precision, p_rate double precision)
returns bigint
language sql immutable as $$
    select p_now + greatest(1, round((1 - p_tokens) * 1000000 / p_rate))::bigint
$$;

-- Of positions of shared groups where messages were settled: those that were at their limit of messages in flight, with
-- about the number of messages that can be taken now. One that was beyond its limit is named at each settlement, because
-- those of other sessions at the same time cannot be seen.
create or replace function hark.room_made_v1(p_now bigint, t_grp integer[], t_partition bigint[], t_settled boolean[],
    i_position integer[], i_holder uuid[]
) returns table (n integer, number integer)
language sql volatile as $$
    select w.n::integer, greatest(1, least(b.most - x.leased, x.settled))::integer
    from unnest(t_grp, t_partition, t_settled) with ordinality as w(grp, partition, settled, n)
    cross join lateral (
        select least(nullif(q.max_in_flight_per_partition, 0), nullif(g.max_in_flight_per_partition, 0)) as most
        from hark.groups g join hark.queues q on q.name = g.queue
        where g.id = w.grp and (q.max_in_flight_per_partition > 0 or g.max_in_flight_per_partition > 0) offset 0
    ) as b
    cross join lateral (
        select (
            select count(*) from hark.outstanding e
            where e.partition = w.partition and e.until > p_now and e.lease is not null and e.grp + 0 = w.grp
        ) as leased, (
            select count(*) from unnest(i_position, i_holder) as i(position, holder)
            where i.position = w.n and i.holder is not null
        ) as settled
        offset 0
    ) as x
    where w.settled and x.leased + x.settled >= b.most and exists (
        select 1 from hark.positions k join hark.partitions p on p.id = k.partition
        where k.grp = w.grp and k.partition = w.partition and (p.tail > k.plain[1] or p.lanes is not null or exists (
            select 1 from hark.outstanding e where e.grp = w.grp and e.partition = w.partition and e.lease is null)))
$$;
