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
            v_size := coalesce(nullif(w.rate_burst, 0), greatest(1, ceil(w.rate_limit)));
            select case when a.at is null then v_size
                else least(v_size, a.tokens + greatest(0, p_now - a.at) * w.rate_limit / 1000000) end
            into v_tokens from hark.allowances a where a.queue = w.queue and a.grp = w.grp;
            update hark.allowances a set tokens = v_tokens, at = p_now where a.queue = w.queue and a.grp = w.grp;
            o_queues := o_queues || w.queue;
            o_grps := o_grps || w.grp;
            -- What comes in less than half a microsecond is there: times are whole ones.
            o_left := o_left || greatest(0, floor(v_tokens + w.rate_limit * 0.0000005 + 0.000000001))::bigint;
            o_rate := o_rate || true;
            o_due := o_due || p_now + greatest(1, round((1 - v_tokens) * 1000000 / w.rate_limit))::bigint;
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
    p_rate_limit double precision, p_rate_burst integer
) returns boolean
language plpgsql as $$
declare
    v_queue integer;
begin
    update hark.groups
    set max_in_flight = p_max_in_flight, rate_limit = p_rate_limit, rate_burst = p_rate_burst
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
