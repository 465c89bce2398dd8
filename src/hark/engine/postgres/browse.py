"""Single messages, dead letters and traces for administrators, and reads of queue browsers."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import asyncpg
import msgspec

from hark import model
from hark.engine.hints import check_page, ids_of, read_bound, set_state, struct_of
from hark.engine.postgres.partitions import Store
from hark.engine.postgres.pop import NO_OPTIONS, decode_options
from hark.engine.postgres.ready import BUCKET
from hark.ids import IdCodec
from hark.keys import decode_key

NOW = "(select hark.time_v1($1))"
"""The time of the call, worked out once. The first parameter is the time given; null: the database's own."""


class Where:
    """Conditions of a query, with all its parameters; others are left out, so that the plan fits the query."""

    def __init__(self, *args: object) -> None:
        self.args = list(args)
        """Parameters, first those of the query without conditions."""
        self._conditions = ["true"]

    def __str__(self) -> str:
        """The conditions in SQL."""
        return " and ".join(self._conditions)

    def also(self, condition: str, *values: object) -> None:
        """Add a condition, with `{}` for each of its values, unless the first value is None."""
        if values[0] is None:
            return
        if not can_be_stored(*values):
            self._conditions.append("false")
            return
        numbers = range(len(self.args) + 1, len(self.args) + len(values) + 1)
        self.args += values
        self._conditions.append(condition.format(*(f"${number}" for number in numbers)))

    def page(self, limit: int, offset: int) -> tuple[str, list[object]]:
        """The end of a query for some of the rows, and all its parameters."""
        count = len(self.args)
        return f"limit ${count + 1} offset ${count + 2}", [*self.args, limit, offset]


def can_be_stored(*values: object) -> bool:
    """Whether PostgreSQL can store these values; if not, no row has them."""
    return not any(isinstance(value, str) and "\0" in value for value in values)


READ = "select * from hark.read_v1($1::text[], $2::text[], $3::bigint[], $4::int[], $5)"
POSITIONS = "select * from hark.positions_v1($1, $2, $3, $4, $5)"


async def read(store: Store, requests: Sequence[model.Read]) -> list[model.ReadResult]:
    """An answer to each request."""
    bound = read_bound(len(requests))
    possible = {n: one for n, one in enumerate(requests) if can_be_stored(one.queue, one.partition)}
    rows = await store.pool.fetch(
        READ,
        [one.queue for one in possible.values()],
        [one.partition for one in possible.values()],
        [one.offset for one in possible.values()],
        [one.limit for one in possible.values()],
        bound,
    )
    found: dict[int, list[asyncpg.Record]] = {}
    numbers = list(possible)
    for row in rows:
        found.setdefault(numbers[row["request"] - 1], []).append(row)
    return [_result(store.codec, request, found.get(n, ()), bound) for n, request in enumerate(requests)]


def _result(codec: IdCodec, request: model.Read, rows: Sequence[asyncpg.Record], bound: int) -> model.ReadResult:
    if not rows:
        return model.ReadResult((), request.offset, False)
    messages = [_delivery(codec, request, row) for row in rows if not row["requeued"]]
    return model.ReadResult(messages, rows[-1]["offset"] + 1, len(rows) >= request.limit or rows[-1]["bytes"] >= bound)


def _delivery(codec: IdCodec, request: model.Read, row: asyncpg.Record) -> model.StoredMessage:
    options = NO_OPTIONS if row["options"] is None else decode_options(row["options"])
    message_id = codec.encode(row["partition"], row["offset"])
    return model.StoredMessage(
        id=message_id,
        transaction_id=row["transaction_id"] or message_id,
        trace_id=options.t,
        payload=msgspec.Raw(row["payload"]),
        sealed=options.s,
        producer=options.u,
        created_at=row["created_at"],
        queue=request.queue,
        partition=request.partition,
        partition_id=codec.encode(row["partition"], 0),
        offset=row["offset"],
        priority=options.p,
        attempt=0,
        trace_context=options.c,
        deliver_at=row["deliver_at"],
        expires_at=row["expires_at"],
        backoff_ms=None if row["backoff"] is None else tuple(row["backoff"]),
        undelivered_keys=tuple(map(decode_key, row["undelivered"] or ())),
    )


async def offsets(
    store: Store, queue: str, start: model.BrowseFrom, partition: str | None = None, changed_since: int | None = None
) -> list[model.PartitionOffset]:
    """Where a browser starts in the partitions of a queue, or in one of them."""
    if not can_be_stored(queue, partition):
        return []
    time = start if isinstance(start, int) else None
    since = None if changed_since is None else store.late.since(changed_since - store.skew)
    changed_bucket = None if since is None else since // BUCKET
    rows = await store.pool.fetch(POSITIONS, queue, partition, start == "tail", time, changed_bucket)
    return [model.PartitionOffset(name, offset) for name, offset in rows]


# Dead letters ----------------------------------------------------------------------------------------------


_COLUMNS = """uid, queue, partition as number, partition_name as partition, grp as "group", "offset", transaction_id,
    created_at, sealed is true as sealed, trace_id, producer, attempts, error, failed_at,
    coalesce(priority, 0) as priority, backoff, undelivered, trace_context"""
_BY_ID = """id in (
    select id from hark.dead_letters where uid = any({}::uuid[])
    union
    select letter.id from unnest({}::bigint[], {}::bigint[]) as address (partition, "offset")
    join hark.dead_letters as letter using (partition, "offset")
)"""


def dead_letters_where(where: model.DeadLetterFilter, codec: IdCodec) -> Where:
    """The conditions on rows of `hark.dead_letters` that a filter stands for."""
    conditions = Where()
    conditions.also("queue = {}", where.queue)
    conditions.also("grp = {}", where.group)
    conditions.also("partition_name = {}", where.partition)
    conditions.also("failed_at >= {}", where.since)
    conditions.also("failed_at <= {}", where.until)
    conditions.also('position(lower({} collate "C") in lower(error collate "C")) > 0', where.search)
    if where.ids is not None:
        # The id of a message never looks like that of a dead letter.
        addresses = [address for one in where.ids if (address := codec.decode(one)) is not None]
        uids = [uid for one in where.ids if (uid := _uuid(one)) is not None]
        conditions.also(
            _BY_ID, uids, [address.partition for address in addresses], [address.offset for address in addresses]
        )
    return conditions


def _uuid(text: str) -> uuid.UUID | None:
    """What an id stands for; None unless it is written as ids are."""
    try:
        value = uuid.UUID(text)
    except ValueError:
        return None
    return value if str(value) == text else None


async def dead_letters(store: Store, where: model.DeadLetterFilter) -> model.DeadLetters:
    """A page of dead letters, in the order of their failures, and how many there are in all."""
    matching = dead_letters_where(where, store.codec)
    total = await store.pool.fetchval(f"select count(*) from hark.dead_letters where {matching}", *matching.args)
    page, args = matching.page(where.limit, where.offset)
    payload = "payload" if where.payloads else "'null'::bytea as payload"
    order = "asc" if where.oldest_first else "desc"
    page = f"from hark.dead_letters where {matching} order by failed_at {order}, dead_letters.id {order} {page}"
    if where.payloads:
        sizes = f"select octet_length(payload) as size {page}"
        check_page(*(await store.pool.fetch(_COUNT_SIZES.format(sizes=sizes), *args))[0])
    rows = await store.pool.fetch(f"select {_COLUMNS}, {payload} {page}", *args)
    return model.DeadLetters([_dead_letter(row, store.codec) for row in rows], total)


def _dead_letter(row: asyncpg.Record, codec: IdCodec) -> model.DeadLetter:
    ids = ids_of(row, codec)
    return struct_of(
        model.DeadLetter,
        row,
        **ids | {"id": str(row["uid"]), "message_id": ids["id"]},
        payload=msgspec.Raw(row["payload"]),
        backoff_ms=None if row["backoff"] is None else tuple(row["backoff"]),
        undelivered_keys=tuple(map(decode_key, row["undelivered"] or ())),
    )


# The length of a value is known without reading it.
_COUNT_SIZES = "select count(*), coalesce(sum(size), 0)::bigint from ({sizes}) as page"


# Traces ----------------------------------------------------------------------------------------------------

# Events go with their message, and what is below the floor of its partition is gone.
_TRACES = """
hark.traces as trace
join hark.partitions as partition on partition.id = trace.partition and partition.floor < trace."offset"
join hark.queues as queue on queue.id = partition.queue
"""


async def traces(
    store: Store,
    partition_id: str | None = None,
    transaction_id: str | None = None,
    name: str | None = None,
    limit: int = 100,
    offset: int = 0,
) -> tuple[list[model.Trace], int]:
    """Events of one message, oldest first, or of one name, newest first; and how many there are in all."""
    where = Where()
    if name is not None:
        order = "desc"
        where.also("trace.id in (select trace_names.trace from hark.trace_names where trace_names.name = {})", name)
    else:
        order = "asc"
        view = await message(store, partition_id or "", transaction_id or "")
        address = None if view is None else store.codec.decode(view.id)
        if address is None:
            return [], 0
        where.also('trace.partition = {} and trace."offset" = {}', *address)
    total = await store.pool.fetchval(f"select count(*) from {_TRACES} where {where}", *where.args)
    page, args = where.page(limit, offset)
    page = f"""
        from (
            select trace.id as event_id, trace.uid, trace.event, trace.data, trace.grp as "group", trace.created_at,
                trace.partition as number, trace."offset", queue.name as queue, partition.name as partition
            from {_TRACES} where {where} order by trace.id {order} {page}
        ) as page
        cross join lateral (
            select * from hark.messages as message
            where message.partition = page.number and message."offset" = page."offset"
            offset 0
        ) as message
        """
    sizes = f"select octet_length(page.data) + octet_length(message.payload) as size {page}"
    check_page(*(await store.pool.fetch(_COUNT_SIZES.format(sizes=sizes), *args))[0])
    rows = await store.pool.fetch(
        f"""
        select page.*, message.transaction_id, message.payload, message.sealed is true as sealed,
            array(select x.name from hark.trace_names as x where x.trace = page.event_id order by 1) as names
        {page}
        order by page.event_id {order}
        """,
        *args,
    )
    return [_trace(row, store.codec) for row in rows], total


def _trace(row: asyncpg.Record, codec: IdCodec) -> model.Trace:
    ids = ids_of(row, codec) | {"id": str(row["uid"])}
    return struct_of(model.Trace, row, **ids, data=msgspec.Raw(row["data"]), payload=msgspec.Raw(row["payload"]))


async def trace_names(store: Store, limit: int = 50, offset: int = 0) -> tuple[list[model.TraceName], int]:
    """Names of events, the last used first, and how many there are."""
    named = f"hark.trace_names join ({_TRACES}) on trace.id = trace_names.trace"
    total = await store.pool.fetchval(f"select count(distinct trace_names.name) from {named}")
    rows = await store.pool.fetch(
        f"""
        select trace_names.name, count(*) as traces, count(distinct (trace.partition, trace."offset")) as messages,
            max(trace.created_at) as last_seen
        from {named}
        group by trace_names.name order by max(trace.id) desc limit $1 offset $2
        """,
        limit,
        offset,
    )
    return [model.TraceName(*row) for row in rows], total


_decode_groups = msgspec.json.Decoder(list[model.GroupView]).decode

# The state of a message in each group of its queue. A requeued message belongs to one group only.
_GROUPS = f"""(
    select json_agg(json_build_object(
        'group', grp.name,
        'state', case
            when dead.id is not null then 'dead_letter'
            when requeued."offset" is null and case
                when position.grp is null then grp.since is not null and message.partition <= grp.highest_partition
                    and message.created_at <= grp.since
                when position.plain is not null then exception."offset" is null and (message.owner is not null
                    or hark.passed_v1(position, message."offset", message.priority, message.deliver_at))
                else message."offset" <= position.cursor or position.settled @> message."offset"
            end then 'completed'
            when holding.until is not null then 'processing'
            when late.due is not null then 'scheduled'
            else 'pending'
        end,
        'reason', case when late.due > coalesce(message.deliver_at, 0) then 'retry' else 'delayed' end,
        'due_at', late.due,
        'attempts', coalesce(dead.attempts, retry.attempts, exception.attempts, 0),
        'error', case when dead.id is null then coalesce(retry.error, exception.error) else dead.error end,
        'lease_expires_at', holding.until) order by grp.name)
    from hark.groups as grp
    left join hark.positions as position on position.grp = grp.id and position.partition = message.partition
    left join hark.retries as retry
        on retry.grp = grp.id and retry.partition = message.partition and retry."offset" = message."offset"
    left join hark.outstanding as exception
        on exception.grp = grp.id and exception.partition = message.partition
        and exception."offset" = message."offset"
    left join hark.requeued
        on requeued.grp = grp.id and requeued.partition = message.partition and requeued."offset" = message."offset"
    left join hark.dead_letters as dead
        on dead.partition = message.partition and dead."offset" = message."offset" and dead.grp = grp.name
    cross join lateral (
        select case
            when exception.until > {NOW} then exception.until
            when position.leased @> message."offset" and position.lease_until > {NOW} then position.lease_until
        end
    ) as holding (until)
    left join lateral (
        select time.due from (select greatest(message.deliver_at, retry.due, exception.due)) as time (due)
        where time.due > {NOW}
    ) as late (due) on true
    where grp.queue = queue.name and (message.owner is null or message.owner = grp.id)
) as groups"""

# The messages at wanted places, which have an order (n).
_MESSAGES = f"""
select message.partition as number, message."offset", message.created_at, message.transaction_id, message.trace_id,
    message.producer, coalesce(message.priority, 0) as priority, message.deliver_at, message.sealed is true as sealed,
    queue.name as queue, partition.name as partition, queue.namespace, queue.task, queue.priority as queue_priority,
    {NOW} as now, {_GROUPS}
"""
_FROM = """
cross join lateral (
    select * from hark.messages as message
    where message.partition = wanted.partition and message."offset" = wanted."offset"
    offset 0
) as message
join hark.partitions as partition on partition.id = wanted.partition
join hark.queues as queue on queue.id = partition.queue
order by wanted.n
"""

_NEWEST = f"""
{_MESSAGES}
from (
    select * from hark.newest_messages_v1({NOW}, $2, $3, $4, $5, $6, $7, $8, $9) order by n offset $10
) as wanted
{_FROM}
"""

_ONE = f"""
{_MESSAGES}, message.payload
from (select 1 as n, $2::bigint as partition, hark.find_message_v1($2, $3, $4) as "offset") as wanted
{_FROM}
"""


async def messages(store: Store, where: model.MessageFilter) -> list[model.MessageView]:
    """A page of messages, newest first, without payloads."""
    names = (where.queue, where.partition, where.namespace, where.task)
    if not can_be_stored(*names):
        return []
    rows = await store.pool.call(
        _NEWEST, *names, where.state, where.since, where.until, where.offset + where.limit, where.offset
    )
    return [_view(row, store.codec) for row in rows]


async def message(store: Store, partition_id: str, transaction_id: str) -> model.MessageView | None:
    """One message with its payload, by transaction id or message id."""
    address = store.codec.decode(partition_id)
    if address is None or not can_be_stored(transaction_id):
        return None
    own = store.codec.decode(transaction_id)
    offset = own.offset if own is not None and own.partition == address.partition else None
    for row in await store.pool.call(_ONE, address.partition, transaction_id, offset):
        view = _view(row, store.codec)
        view.payload = msgspec.Raw(row["payload"])
        return view
    return None


def _view(row: asyncpg.Record, codec: IdCodec) -> model.MessageView:
    groups = [] if row["groups"] is None else _decode_groups(row["groups"])
    view = struct_of(model.MessageView, row, **ids_of(row, codec), state="pending", groups=groups)
    set_state(view, groups, row["now"])
    return view
