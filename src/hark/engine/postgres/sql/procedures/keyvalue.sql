-- The key-value half (rule 25): write_keys_v1 (inside transact_v1), read_keys_v1, list_keys_v1, count_keys_v1,
-- sweep_keys_v1, key_stats_v1; and set_undelivered_v1 for messages that can't be delivered.
--
-- Keys and ranges come encoded. An entry whose time is over is not there. Values are combined by the rules of
-- engine/keyvalue.py, to the same bytes.

-- Locks keys until the end of the transaction, present or not, and what is in the ranges [p_lows, p_highs): always in
-- the order of keys, so that two transactions never wait for each other. What is absent gets a row of version 0, which
-- no other transaction ever sees: it becomes an entry, or unlock_keys_v1 removes it.
create or replace function hark.lock_keys_v1(p_keys bytea[], p_lows bytea[], p_highs bytea[]) returns void
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
as $$
begin
    insert into hark.kv as k (key, value, version)
    select w.key, '', 0 from (
        select unnest(p_keys)
        union
        select e.key from unnest(p_lows, p_highs) as r(low, high) join hark.kv e on e.key >= r.low and e.key < r.high
    ) as w(key)
    order by w.key
    on conflict (key) do update set version = k.version where false;
end $$;

create or replace function hark.unlock_keys_v1(p_keys bytea[]) returns void
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
as $$
begin
    delete from hark.kv k using unnest(p_keys) as w(key) where k.key = w.key and k.version = 0;
end $$;

-- Tells the server that keys were changed by something else than what it asked for; more than a thousand: any.
create or replace function hark.notify_keys_v1(p_keys bytea[]) returns void
language plpgsql as $$
begin
    if cardinality(p_keys) > 0 then
        raise info using errcode = 'HK100', message = case when cardinality(p_keys) > 1000 then 'any'
            else (select string_agg(encode(w.key, 'hex'), ',') from unnest(p_keys) as w(key)) end;
    end if;
end $$;

-- Checks and changes keys, which the caller has locked unless it only sets keys; if it is refused the caller undoes what
-- was done.
--
-- u_kind: 0 set, 1 delete, 2 delete with all below (u_value is the first key behind those), 3 sum, 4 min, 5 max,
-- 6 append, 7 prepend. o_code: 0 done, 5 check o_failed does not hold, 6 mutation o_failed does not fit, o_why says why.
create or replace function hark.write_keys_v1(
    p_now bigint, c_key bytea[], c_version bigint[],
    u_kind smallint[], u_key bytea[], u_value bytea[], u_ttl bigint[],
    out o_code smallint, out o_failed integer, out o_why smallint, out o_version bigint, out o_deleted bigint
)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_gone bytea[];
    v_value bytea;
    v_appended bigint := 0;
begin
    o_code := 0; o_why := 0; o_deleted := 0;
    select min(c.n)::integer into o_failed
    from unnest(c_key, c_version) with ordinality as c(key, version, n)
    left join hark.kv k on k.key = c.key and k.version > 0 and (k.expires_at is null or k.expires_at > p_now)
    where k.version is distinct from c.version;
    if o_failed is not null then
        o_code := 5;
        return;
    end if;
    o_version := nextval('hark.kv_version');
    if 0 = all (u_kind) then
        -- The common case, in one statement and in the order of keys. Of a key that is set twice the last value counts.
        insert into hark.kv as k (key, value, version, expires_at)
        select distinct on (u.key) u.key, u.value, o_version, p_now + u.ttl
        from unnest(u_key, u_value, u_ttl) with ordinality as u(key, value, ttl, n)
        order by u.key, u.n desc
        on conflict (key) do update
        set value = excluded.value, version = excluded.version, expires_at = excluded.expires_at, sealed_by = null;
        return;
    end if;
    for n in 1..cardinality(u_kind) loop
        if u_kind[n] in (1, 2) then
            with gone as (
                delete from hark.kv k
                where k.key >= u_key[n] and k.key < case u_kind[n] when 2 then u_value[n] else u_key[n] || '\x00' end
                returning k.key, k.version > 0 and (k.expires_at is null or k.expires_at > p_now) as live
            )
            select array_agg(key) filter (where live) into v_gone from gone;
            o_deleted := o_deleted + coalesce(cardinality(v_gone), 0);
            if u_kind[n] = 2 then
                perform hark.notify_keys_v1(v_gone);
            end if;
            continue;
        end if;
        v_value := u_value[n];
        if u_kind[n] > 2 then
            select c.value, c.why into v_value, o_why
            from hark.combine_v1(u_kind[n], (
                select k.value from hark.kv k
                where k.key = u_key[n] and k.version > 0 and (k.expires_at is null or k.expires_at > p_now)), v_value) c;
            if o_why = 0 and u_kind[n] in (6, 7) then
                v_appended := v_appended + octet_length(v_value);
                if v_appended > 256 << 20 then
                    o_why := 7;
                end if;
            end if;
            if o_why <> 0 then
                o_code := 6;
                o_failed := n;
                return;
            end if;
        end if;
        insert into hark.kv as k (key, value, version, expires_at)
        values (u_key[n], v_value, o_version, case u_kind[n] when 0 then p_now + u_ttl[n] end)
        on conflict (key) do update
        set value = excluded.value, version = excluded.version, expires_at = excluded.expires_at, sealed_by = null;
    end loop;
end $$;

-- Puts the payload of a message that can't be delivered under the keys that it names (rule 18).
create or replace function hark.set_undelivered_v1(p_partition bigint, p_offset bigint, p_queue text) returns void
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_keys bytea[];
    v_payload bytea;
    v_sealed boolean;
begin
    select m.undelivered, m.payload, m.sealed into v_keys, v_payload, v_sealed from hark.messages m
    where m.partition = p_partition and m."offset" = p_offset and m.undelivered is not null;
    if not found then
        return;
    end if;
    perform hark.lock_keys_v1(v_keys, null, null);
    update hark.kv k
    set value = v_payload, version = v.version, expires_at = null, sealed_by = case when v_sealed then p_queue end
    from nextval('hark.kv_version') as v(version), unnest(v_keys) as w(key)
    where k.key = w.key;
    perform hark.notify_keys_v1(v_keys);
end $$;

-- Values that are combined -----------------------------------------------------------------------------------

-- The number in a JSON text: null if it is something else, or not exact. whole: the same, if it is written as an integer.
create or replace function hark.number_v1(p_json bytea, out number double precision, out whole bigint)
language plpgsql immutable as $$
declare
    v_json bytea := btrim(p_json, '\x20090a0d');
    v_text text;
begin
    -- What does not begin like a number may be long, and need not be looked at.
    if substring(v_json for 1) not between '\x2d' and '\x39' then
        return;
    end if;
    v_text := convert_from(v_json, 'UTF8');
    if v_text !~ '^-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?$' then
        return;
    elsif v_text !~ '^-?[0-9]+$' then
        number := v_text::double precision + 0;
    elsif abs(v_text::numeric) <= 9007199254740992 then
        whole := v_text::bigint;
        number := whole;
    end if;
exception
    when numeric_value_out_of_range then
        number := null;
end $$;

-- A number in JSON, always in the same way.
create or replace function hark.number_text_v1(p_number double precision) returns bytea
language sql immutable set extra_float_digits = 1 as $$
    select convert_to(case when abs(p_number) <= 9007199254740992 and p_number = trunc(p_number)
        then p_number::bigint::text else p_number::text end, 'UTF8')
$$;

-- What is between the brackets of an array; null: it is none.
create or replace function hark.elements_v1(p_json bytea) returns bytea
language sql immutable as $$
    select case when substring(a.json for 1) = '\x5b'
        then btrim(substring(a.json from 2 for octet_length(a.json) - 2), '\x20090a0d') end
    from btrim(p_json, '\x20090a0d') as a(json)
$$;

-- why: 0, or the number of the reason in engine/keyvalue.py.
create or replace function hark.combine_v1(
    p_kind smallint, p_stored bytea, p_value bytea, out value bytea, out why smallint
)
language plpgsql immutable as $$
declare
    v_new record;
    v_old record;
    v_before bytea;
    v_behind bytea;
begin
    why := 0;
    if p_kind > 5 then
        v_behind := hark.elements_v1(p_value);
        v_before := case when p_stored is null then '' else hark.elements_v1(p_stored) end;
        why := case when v_behind is null then 4 when v_before is null then 5
            when octet_length(v_before) + octet_length(v_behind) > 16 << 20 then 6 else 0 end;
        if why <> 0 then
            return;
        end if;
        if p_kind = 7 then
            select v_behind, v_before into v_before, v_behind;
        end if;
        value := '\x5b' || v_before
            || case when octet_length(v_before) > 0 and octet_length(v_behind) > 0 then '\x2c'::bytea else '' end
            || v_behind || '\x5d';
        return;
    end if;
    select * into v_new from hark.number_v1(p_value);
    select * into v_old from hark.number_v1(p_stored);
    if v_new.number is null or (p_stored is not null and v_old.number is null) then
        why := case when v_new.number is null then 1 else 2 end;
    elsif p_kind <> 3 or p_stored is null then
        value := hark.number_text_v1(
            case when p_kind = 4 then least(v_old.number, v_new.number) else greatest(v_old.number, v_new.number) end);
    elsif abs(v_old.whole + v_new.whole) > 9007199254740992 then
        why := 3;
    else
        value := hark.number_text_v1(v_old.number + v_new.number);
    end if;
exception
    when numeric_value_out_of_range then
        why := 3;
end $$;

-- Reading ----------------------------------------------------------------------------------------------------

create or replace function hark.read_keys_v1(p_now bigint, p_keys bytea[])
returns table (n bigint, value bytea, version bigint, expires_at bigint, sealed_by text)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
as $$
declare
    v_now bigint := hark.time_v1(p_now);
begin
    return query
    select w.n, k.value, k.version, k.expires_at, k.sealed_by
    from unnest(p_keys) with ordinality as w(key, n) join hark.kv k on k.key = w.key
    where k.expires_at is null or k.expires_at > v_now;
end $$;

-- Entries of ranges [p_lows, p_highs), a page of each; r is the number of the range.
create or replace function hark.list_keys_v1(
    p_now bigint, p_lows bytea[], p_highs bytea[], p_limits bigint[], p_reverse boolean[]
)
returns table (r integer, key bytea, value bytea, version bigint, expires_at bigint, sealed_by text)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_now bigint := hark.time_v1(p_now);
begin
    for n in 1..cardinality(p_lows) loop
        if p_reverse[n] then
            return query
            select n, k.key, k.value, k.version, k.expires_at, k.sealed_by from hark.kv k
            where k.key >= p_lows[n] and k.key < p_highs[n] and (k.expires_at is null or k.expires_at > v_now)
            order by k.key desc limit p_limits[n];
        else
            return query
            select n, k.key, k.value, k.version, k.expires_at, k.sealed_by from hark.kv k
            where k.key >= p_lows[n] and k.key < p_highs[n] and (k.expires_at is null or k.expires_at > v_now)
            order by k.key limit p_limits[n];
        end if;
    end loop;
end $$;

create or replace function hark.count_keys_v1(p_now bigint, p_low bytea, p_high bytea) returns bigint
language plpgsql
set enable_seqscan = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_now bigint := hark.time_v1(p_now);
begin
    return (
        select count(*) from hark.kv k
        where k.key >= p_low and k.key < p_high and (k.expires_at is null or k.expires_at > v_now));
end $$;

create or replace function hark.key_stats_v1(p_now bigint, out entries bigint, out bytes bigint)
language sql volatile as $$
    select count(*), coalesce(sum(octet_length(k.key) + octet_length(k.value)), 0)::bigint
    from hark.time_v1(p_now) as t(now), hark.kv k where k.expires_at is null or k.expires_at > t.now
$$;

-- Removes entries whose time is over, at most p_limit, and passes by those that another transaction is writing.
create or replace function hark.sweep_keys_v1(p_now bigint, p_limit bigint) returns bigint
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_now bigint := hark.time_v1(p_now);
    v_gone bytea[];
begin
    with over as materialized (
        select e.key from hark.kv e where e.expires_at <= v_now order by e.expires_at limit p_limit
        for update skip locked
    ), gone as (
        delete from hark.kv k using over where k.key = over.key returning k.key
    )
    select array_agg(key) into v_gone from gone;
    perform hark.notify_keys_v1(v_gone);
    return coalesce(cardinality(v_gone), 0);
end $$;
