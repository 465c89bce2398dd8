"""Lists of messages, dead letters and traces, and the reads of queue browsers."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import apsw
import msgspec

from hark import model
from hark.engine.core.explain import LeaseView
from hark.engine.core.groups import conditions
from hark.engine.core.position import Stored
from hark.engine.core.schema import HAS_LANES, LAST_CREATED, TAIL
from hark.engine.core.store import NO_EXTRA, Extra, Value, extra_of, payload_of, records_of, rows_of, scalar
from hark.engine.hints import check_page, ids_of, read_bound, set_state, struct_of
from hark.ids import IdCodec
from hark.keys import decode_key

MESSAGE = """
select message.partition as number, message.offset, message.created_at, message.transaction_id, message.extra,
    queues.name as queue, partition.name as partition, queues.namespace, queues.task, message.priority,
    ifnull(queues.options ->> 'priority', 0) as queue_priority, message.deliver_at, message.owner
"""
"""The columns of a message, its partition and its queue."""

_FEW_PARTITIONS = 1000
_encode = msgspec.json.Encoder().encode

_PARTITION = """
cross join partitions as partition on partition.id = message.partition
cross join queues on queues.id = partition.queue
"""
# `length` of a blob reads no page of it. The size of a payload elsewhere is beside its place.
_PAYLOAD_SIZE = "ifnull(extra ->> '$.r[2]', length(payload))"
_ALL = f"from messages as message {_PARTITION}"
_LEASED = f"""
from json_each(:leased) as leased
cross join messages as message on message.partition = leased.value ->> 0 and message.offset = leased.value ->> 1
{_PARTITION}
"""
_DEAD = f"""
from (select distinct partition, offset from dead_letters where :queue is null or queue = :queue) as dead
cross join messages as message on message.partition = dead.partition and message.offset = dead.offset
{_PARTITION}
"""
_SCHEDULED = f"""
from (
    select partition, offset from messages indexed by messages_delayed
    where deliver_at is not null and deliver_at > :now
    union select partition, offset from retries where due > :now
    union select partition, offset from outstanding where available_at > :now) as late
cross join messages as message on message.partition = late.partition and message.offset = late.offset
{_PARTITION}
"""
_OF_PARTITION = """
from queues
cross join partitions as partition on partition.queue = queues.id and partition.name = :partition
cross join messages as message on message.partition = partition.id
"""
_LATEST = f"""
from (select seq from messages order by seq desc limit 20000) as latest
cross join messages as message on message.seq = latest.seq
{_PARTITION}
"""
# At most one page of each partition: times and `seq` never decrease with the offset.
_NEWEST_OF_QUEUE = """
from queues
cross join partitions as partition on partition.queue = queues.id
cross join messages as message on message.seq in (
    select newest.seq from messages as newest
    where newest.partition = partition.id and newest.offset > partition.floor
      and (:until is null or newest.created_at <= :until)
    order by newest.offset desc limit :offset + :limit)
"""

_CONDITIONS = {
    "queue": "queues.name = :queue",
    "partition": "partition.name = :partition",
    "namespace": "queues.namespace = :namespace",
    "task": "queues.task = :task",
    "since": "message.created_at >= :since",
    "until": "message.created_at <= :until",
}
# A dead letter of a group of its queue is neither pending nor completed.
_ALIVE = """not exists (
    select 1 from dead_letters as dead cross join groups on groups.queue = queues.name and groups.name = dead.grp
    where dead.partition = message.partition and dead.offset = message.offset)
"""
# Conditions that use indexes. They are true of every message in the state, and of some others.
_STATES = {
    "pending": f"""
{_ALIVE} and
(not exists (select 1 from groups where groups.queue = queues.name)
 or exists (select 1 from groups left join positions on positions.grp = groups.id and positions.partition = partition.id
            where groups.queue = queues.name and message.offset > ifnull(positions.cursor, 0)))
""",
    "completed": f"""
{_ALIVE} and
not exists (select 1 from groups left join positions on positions.grp = groups.id and positions.partition = partition.id
            where groups.queue = queues.name and (message.owner is null or message.owner = groups.id)
              and iif(positions.cursor is null, groups.since is null,
                  groups.mode = 'ordered' and message.offset > positions.cursor
                  and not exists (select 1 from ranges where ranges.grp = groups.id and ranges.partition = partition.id
                                  and message.offset between ranges.first and ranges.last)))
""",
}

# The last offset that may be in a state; 0: none. A requeued message is for one group only.
_EDGES = {
    "pending": f"""iif(
    not exists (select 1 from groups where groups.queue = queues.name)
    or exists (select 1 from gaps where gaps.partition = partition.id and gaps.owner != 0)
    or exists (
        select 1 from groups
        left join positions as position on position.grp = groups.id and position.partition = partition.id
        where groups.queue = queues.name and case
            when position.cursor is null
            then groups.since is null or partition.id > groups.highest_partition or {LAST_CREATED} > groups.since
            when groups.mode = 'ordered' then position.cursor < partition.last
                or exists (select 1 from requeued where requeued.grp = groups.id and requeued.partition = partition.id)
            else {HAS_LANES.format(partition="partition.id")}
                or exists (select 1 from outstanding
                    where outstanding.grp = groups.id and outstanding.partition = partition.id)
                or partition.last > max(position.cursor, ifnull((select cursor from lanes
                    where lanes.grp = groups.id and lanes.partition = partition.id and lanes.priority = 0), 0)) end),
    partition.last, 0)""",
    "completed": """iif(
    exists (select 1 from gaps where gaps.partition = partition.id and gaps.owner != 0), partition.last, (
    select min(case
        when position.cursor is null and (groups.since is null or partition.id > groups.highest_partition
            or partition.created_at > groups.since) then 0
        when position.cursor is null or groups.mode = 'shared' then partition.last
        else max(position.cursor, ifnull((select ranges.last from ranges
            where ranges.grp = groups.id and ranges.partition = partition.id
            order by ranges.first desc limit 1), 0)) end)
    from groups left join positions as position on position.grp = groups.id and position.partition = partition.id
    where groups.queue = queues.name))""",
}
# Without a position, a group has settled exactly the messages that are not newer than its start.
_STARTS = """ifnull((
    select min(groups.since)
    from groups left join positions as position on position.grp = groups.id and position.partition = partition.id
    where groups.queue = queues.name and position.cursor is null and partition.id <= groups.highest_partition
      and not exists (select 1 from gaps where gaps.partition = partition.id and gaps.owner != 0)),
    9223372036854775807)"""
_ENDS = f"""
with partition as materialized (
    select partition.*, {TAIL} as last
    from queues cross join partitions as partition on partition.queue = queues.id where {{where}}),
edge as materialized (
    select partition.id, partition.queue, partition.floor, {{edge}} as edge
    from partition cross join queues on queues.id = partition.queue),
bounded as materialized (
    select partition.id, partition.floor, edge, {{until}} as until
    from edge as partition cross join queues on queues.id = partition.queue where edge > partition.floor),
newest as materialized (
    select id, edge, until, (select seq from messages
        where messages.partition = id and offset > floor and offset <= edge and created_at <= until
        order by offset desc limit 1) as seq
    from bounded)
select newest.seq, newest.id, newest.edge, newest.until from newest cross join messages on messages.seq = newest.seq
where :since is null or messages.created_at >= :since
"""
_BACK = f"""
{MESSAGE}, message.seq
from messages as message {_PARTITION}
where message.partition = :partition_id and message.offset <= :edge and message.offset > partition.floor
  and (:since is null or message.created_at >= :since) and message.created_at <= :until and {_ALIVE}
order by message.offset desc
"""


def _newest_in_state(
    connection: apsw.Connection, where: model.MessageFilter, parameters: dict[str, Value]
) -> Iterator[dict[str, Any]]:
    """Messages that may be pending or completed, newest first.

    The partitions are sorted by their newest message that may be in the state, and each is read only when needed.
    """
    names = ("queue", "partition", "namespace", "task")
    matching = " and ".join(_CONDITIONS[name] for name in names if parameters[name] is not None) or "true"
    until = "9223372036854775807" if where.until is None else ":until"
    if where.state == "completed":
        until = f"min({until}, {_STARTS})"
    sql = _ENDS.format(where=matching, edge=_EDGES[where.state or ""], until=until)
    named = {name: value for name, value in parameters.items() if f":{name}" in sql}
    newest_first = [(-seq, *partition_id) for seq, *partition_id in rows_of(connection, sql, **named)]
    heapq.heapify(newest_first)
    read: dict[int, tuple[dict[str, Any], Iterator[dict[str, Any]]]] = {}
    while newest_first:
        _, partition_id, edge, newest = heapq.heappop(newest_first)
        if partition_id in read:
            row, rest = read.pop(partition_id)
            yield row
        else:
            bounds: dict[str, Value] = {"partition_id": partition_id, "edge": edge, "since": where.since}
            rest = records_of(connection, _BACK, **bounds, until=newest)
        following = next(rest, None)
        if following is not None:
            read[partition_id] = (following, rest)
            heapq.heappush(newest_first, (-following["seq"], partition_id, edge, newest))


def _page_of(
    connection: apsw.Connection, where: model.MessageFilter, leases: LeaseView
) -> tuple[str, dict[str, Value]]:
    """The query for messages, newest first, with its parameters.

    Without a state it returns the page itself, else all candidates, which the caller checks. Pending and completed
    messages are searched among the latest messages only; `_newest_in_state` finds the others.
    """
    given: dict[str, Value] = {
        "queue": where.queue,
        "partition": where.partition,
        "namespace": where.namespace,
        "task": where.task,
        "since": where.since,
        "until": where.until,
    }
    source, order = _ALL, "message.seq"
    if where.state == "processing":
        source = _LEASED
    elif where.state == "scheduled":
        source = _SCHEDULED
    elif where.state == "dead_letter":
        source = _DEAD
    elif where.state is not None:
        source = _LATEST
    elif where.queue is not None and where.partition is not None:
        source, order = _OF_PARTITION, "message.offset"
    elif where.queue is not None and _has_few_partitions(connection, where.queue):
        source = _NEWEST_OF_QUEUE
    conditions = [_CONDITIONS[name] for name, value in given.items() if value is not None]
    if where.state in _STATES:
        conditions.append(_STATES[where.state])
    wanted = " and ".join(["message.offset > partition.floor", *conditions])
    sql = f"{MESSAGE} {source} where {wanted} order by {order} desc"
    if where.state is None:
        sql += " limit :limit offset :offset"
    leased = _encode(list(leases.leased_messages())).decode() if where.state == "processing" else None
    return sql, given | {"limit": where.limit, "offset": where.offset, "leased": leased, "now": leases.now}


def _has_few_partitions(connection: apsw.Connection, queue: str) -> bool:
    sql = """
        select count(*) from (
            select 1 from partitions where queue = (select id from queues where name = ?1) limit ?2)
    """
    return int(scalar(connection, sql, queue, _FEW_PARTITIONS + 1)) <= _FEW_PARTITIONS


_FROM = """
from messages as message
join partitions as partition on partition.id = message.partition
join queues on queues.id = partition.queue
where message.offset > partition.floor
"""
_GROUPS = """
select groups.id, groups.name, groups.since, groups.highest_partition, position.cursor,
    exists (select 1 from ranges where grp = groups.id and ranges.partition = ?2 and ?3 between first and last),
    exists (select 1 from requeued where grp = groups.id and requeued.partition = ?2 and requeued.offset = ?3),
    (select json_array(attempts, error, due) from retries
        where grp = groups.id and retries.partition = ?2 and retries.offset = ?3),
    (select json_array(attempts, error, 0) from dead_letters
        where dead_letters.grp = groups.name and dead_letters.partition = ?2 and dead_letters.offset = ?3),
    groups.mode = 'shared' and (?6 is not null or exists (select 1 from lanes
        where lanes.grp = groups.id and lanes.partition = ?2 and lanes.priority = ?4
          and iif(?5 is null, lanes.cursor >= ?3, (lanes.due, lanes.due_offset) >= (?5, ?3)))),
    (select json_array(attempts, error, available_at) from outstanding
        where grp = groups.id and outstanding.partition = ?2 and outstanding.offset = ?3)
from groups
left join positions as position on position.grp = groups.id and position.partition = ?2
where groups.queue = ?1
order by groups.name
"""


def messages(connection: apsw.Connection, leases: LeaseView, where: model.MessageFilter) -> list[model.MessageView]:
    """A page of messages, newest first."""
    sql, parameters = _page_of(connection, where, leases)
    found = (_view(connection, leases, row) for row in records_of(connection, sql, **parameters))
    if where.state is None:
        return list(found)
    pages = [found]
    if where.state in ("pending", "completed"):
        older = _newest_in_state(connection, where, parameters)
        # The latest messages of the store may all be of other queues.
        pages = [*(pages if where.queue is None else ()), (_view(connection, leases, row) for row in older)]
    page: list[model.MessageView] = []
    for views in pages:
        matching = (view for view in views if view.state == where.state)
        page = list(islice(matching, where.offset, where.offset + where.limit))
        if len(page) == where.limit:
            break
    return page


def message(
    connection: apsw.Connection, leases: LeaseView, partition_id: str, transaction_id: str
) -> model.MessageView | None:
    """One message with its payload."""
    address = leases.codec.decode(partition_id)
    if address is None:
        return None
    own = leases.codec.decode(transaction_id)
    offset = own.offset if own is not None and own.partition == address.partition else None
    sql = (
        f"{MESSAGE}, message.payload {_FROM} and message.partition = ?1"
        " and (message.transaction_id = ?2 or message.offset = ?3) order by message.transaction_id is null limit 1"
    )
    found = records_of(connection, sql, address.partition, transaction_id, offset)
    return next((_view(connection, leases, row) for row in found), None)


def _values_of(row: dict[str, Any], codec: IdCodec) -> dict[str, Any]:
    """The fields of a message that rows have encoded: its ids, its rare attributes, and its payload if it was read."""
    extra = extra_of(row["extra"])
    values = ids_of(row, codec) | attributes_of(extra)
    return values | {"payload": payload_of(msgspec.Raw(row["payload"]), extra)} if "payload" in row else values


def attributes_of(extra: Extra) -> dict[str, Any]:
    """The rare attributes of a message, by the names of the fields."""
    return {
        "trace_id": extra.t,
        "producer": extra.u,
        "sealed": extra.s,
        "backoff_ms": extra.b,
        "undelivered_keys": tuple(decode_key(bytes.fromhex(key)) for key in extra.k),
        "trace_context": extra.c,
    }


def _view(connection: apsw.Connection, leases: LeaseView, row: dict[str, Any]) -> model.MessageView:
    message = Stored(row["number"], row["offset"], row["priority"], row["deliver_at"], row["owner"])
    groups = list(_groups(connection, leases, row["queue"], message, row["created_at"]))
    view = struct_of(model.MessageView, row, **_values_of(row, leases.codec), state="pending", groups=groups)
    set_state(view, groups, leases.now)
    return view


def _groups(
    connection: apsw.Connection, leases: LeaseView, queue: str, message: Stored, created_at: int
) -> Iterator[model.GroupView]:
    partition, offset, _, deliver_at, owner = message
    for group_id, name, since, highest, cursor, in_range, is_requeued, retry, dead, passed, exception in rows_of(
        connection, _GROUPS, queue, *message
    ):
        if owner not in (None, group_id):
            continue
        expires_at = leases.leased.get((group_id, partition), {}).get(offset)
        before_start = cursor is None and since is not None and partition <= highest and created_at <= since
        done = before_start or in_range or passed or (cursor is not None and offset <= cursor)
        settled = done and not is_requeued and exception is None
        attempts, error, due = msgspec.json.decode(dead or retry or exception or b"[0,null,0]")
        due = max(due, deliver_at or 0)
        state: model.MessageState = "pending"
        if dead:
            state = "dead_letter"
        elif settled:
            state = "completed"
        elif expires_at is not None:
            state = "processing"
        elif due > leases.now:
            state = "scheduled"
        yield model.GroupView(
            group=name,
            state=state,
            attempts=attempts,
            error=error,
            lease_expires_at=expires_at,
            reason="delayed" if due == deliver_at else "retry",
            due_at=due,
        )


# Dead letters ----------------------------------------------------------------------------------------------


def dead_letters(connection: apsw.Connection, leases: LeaseView, where: model.DeadLetterFilter) -> model.DeadLetters:
    """A page of dead letters, in the order of their failures."""
    matching, values = conditions(where, leases.codec)
    total = scalar(connection, f"select count(*) from dead_letters where {matching}", *values)
    payload = "payload, extra"
    if not where.payloads:  # Then `extra` must not say where they are.
        payload = "cast('null' as blob) as payload, json_remove(extra, '$.r') as extra"
    order = "asc" if where.oldest_first else "desc"
    page = f"from dead_letters where {matching} order by failed_at {order}, id {order} limit ? offset ?"
    values += [where.limit, where.offset]
    if where.payloads:
        _check_sizes(connection, f"select {_PAYLOAD_SIZE} as size {page}", values)
    rows = records_of(
        connection,
        'select uid, partition as number, offset, transaction_id, queue, partition_name as partition, grp as "group",'
        f" attempts, error, created_at, failed_at, priority, {payload} {page}",
        *values,
    )
    return model.DeadLetters([_dead_letter(row, leases.codec) for row in rows], int(total))


def _check_sizes(connection: apsw.Connection, sizes: str, values: Sequence[Value]) -> None:
    check_page(*rows_of(connection, f"select count(*), ifnull(sum(size), 0) from ({sizes})", *values)[0])


def _dead_letter(row: dict[str, Any], codec: IdCodec) -> model.DeadLetter:
    values = _values_of(row, codec)
    return struct_of(model.DeadLetter, row, **values | {"id": row["uid"], "message_id": values["id"]})


# Traces ----------------------------------------------------------------------------------------------------


def traces(
    connection: apsw.Connection,
    leases: LeaseView,
    partition_id: str | None = None,
    transaction_id: str | None = None,
    name: str | None = None,
    limit: int = 100,
    offset: int = 0,
) -> tuple[list[model.Trace], int]:
    """Events of one message, oldest first, or of one name, newest first."""
    if name is not None:
        condition = "traces.id in (select trace from trace_names where name = ?1)"
        order = "desc"
        values: list[str | int | None] = [name, None]
    else:
        view = message(connection, leases, partition_id or "", transaction_id or "")
        address = None if view is None else leases.codec.decode(view.id)
        if address is None:
            return [], 0
        condition = "traces.partition = ?1 and traces.offset = ?2"
        order, values = "asc", [*address]
    total = scalar(connection, f"select count(*) from traces where {condition} and ?2 is ?2", *values)
    page = f"""
        from traces
        join messages as message on message.partition = traces.partition and message.offset = traces.offset
        join partitions as partition on partition.id = traces.partition
        join queues on queues.id = partition.queue
        where {condition} and ?2 is ?2
        order by traces.id {order} limit ?3 offset ?4
    """
    values += [limit, offset]
    _check_sizes(connection, f"select length(traces.data) + {_PAYLOAD_SIZE} as size {page}", values)
    rows = records_of(
        connection,
        f"""
        select traces.uid, traces.event, traces.data, traces.grp as "group", traces.created_at,
            (select json_group_array(name) from trace_names where trace = traces.id) as names,
            message.transaction_id, traces.partition as number, traces.offset, queues.name as queue,
            partition.name as partition, message.payload, message.extra
        {page}
        """,
        *values,
    )
    return [_trace(row, leases.codec) for row in rows], int(total)


def _trace(row: dict[str, Any], codec: IdCodec) -> model.Trace:
    values = _values_of(row, codec) | {"id": row["uid"], "data": msgspec.Raw(row["data"])}
    return struct_of(model.Trace, row, **values | {"names": msgspec.json.decode(row["names"], type=list[str])})


def trace_names(
    connection: apsw.Connection, _leases: LeaseView, limit: int = 50, offset: int = 0
) -> tuple[list[model.TraceName], int]:
    """Names of events, the last used first."""
    total = scalar(connection, "select count(distinct name) from trace_names")
    rows = rows_of(
        connection,
        """
        select trace_names.name, count(*), count(distinct traces.partition || ':' || traces.offset),
            max(traces.created_at)
        from trace_names join traces on traces.id = trace_names.trace
        group by trace_names.name order by max(traces.id) desc limit ?1 offset ?2
        """,
        limit,
        offset,
    )
    return [model.TraceName(*row) for row in rows], int(total)


# Reads -----------------------------------------------------------------------------------------------------


class ReadRow(msgspec.Struct, array_like=True, gc=False):
    """A message for a queue browser; `request` is the index of the request."""

    request: int
    partition: int
    offset: int
    created_at: int
    priority: int
    deliver_at: int | None
    owner: int | None
    transaction_id: str | None
    extra: Extra | None
    bytes: int
    """The size of all payloads up to this one."""
    payload: msgspec.Raw


_decode_rows = msgspec.json.Decoder(list[ReadRow]).decode

_SIZE = "ifnull(message.extra ->> '$.r[2]', length(message.payload))"
# Each request steps from message to message along the index, up to its limit of messages and of bytes (?2).
READ = f"""
with recursive wanted as (
    select request.key as request, request.value ->> 3 as room,
        (select first.seq from messages as first
         where first.partition = partition.id and first.offset >= max(request.value ->> 2, partition.floor + 1)
         order by first.offset limit 1) as seq
    from json_each(?1) as request
    cross join queues on queues.name = request.value ->> 0
    cross join partitions as partition on partition.queue = queues.id and partition.name = request.value ->> 1
),
walk (request, room, partition, offset, seq, bytes) as (
    select wanted.request, wanted.room, message.partition, message.offset, message.seq, {_SIZE}
    from wanted
    cross join messages as message on message.seq = wanted.seq
    where wanted.room > 0
    union all
    select walk.request, walk.room - 1, message.partition, message.offset, message.seq,
        walk.bytes + {_SIZE}
    from walk
    cross join messages as message on message.seq = (
        select next.seq from messages as next
        where next.partition = walk.partition and next.offset > walk.offset
        order by next.offset limit 1)
    where walk.room > 1 and walk.bytes < ?2
)
select cast('[' || group_concat(
    '[' || walk.request || ',' || message.partition || ',' || message.offset || ',' || message.created_at
    || ',' || message.priority || ',' || ifnull(message.deliver_at, 'null') || ',' || ifnull(message.owner, 'null')
    || ',' || ifnull(json_quote(message.transaction_id), 'null') || ',' || ifnull(message.extra, 'null')
    || ',' || walk.bytes || ',' || message.payload || ']') || ']' as blob)
from walk
cross join messages as message on message.seq = walk.seq
"""

# Times never decrease with the offset, so binary search finds the last message created at or before a time.
_EARLY = """
(select message.created_at from messages as message
 where message.partition = halving.partition and message.offset >= (halving.low + halving.high + 1) / 2
 order by message.offset limit 1) <= :time
"""
_AFTER_TIME = f"""
with recursive halving (partition, name, low, high) as (
    select partition.id, partition.name, partition.floor, {TAIL} {{partitions}}
    union all
    select partition, name, iif({_EARLY}, (low + high + 1) / 2, low), iif({_EARLY}, high, (low + high + 1) / 2 - 1)
    from halving where low < high
)
select name, low + 1 from halving where low = high order by name
"""
_PARTITIONS = "from partitions as partition where partition.queue = (select id from queues where name = :queue)"


def read(connection: apsw.Connection, codec: IdCodec, requests: Sequence[model.Read]) -> list[model.ReadResult]:
    """The result of each request."""
    bound = read_bound(len(requests))
    wanted = [(request.queue, request.partition, request.offset, request.limit) for request in requests]
    text = scalar(connection, READ, msgspec.json.encode(wanted).decode(), bound)
    found: list[list[ReadRow]] = [[] for _ in requests]
    for row in [] if text is None else _decode_rows(text):
        found[row.request].append(row)
    return [_result(codec, request, rows, bound) for request, rows in zip(requests, found, strict=True)]


def _result(codec: IdCodec, request: model.Read, rows: Sequence[ReadRow], bound: int) -> model.ReadResult:
    if not rows:
        return model.ReadResult((), request.offset, False)
    messages = [_delivery(codec, request, row) for row in rows if row.owner is None]
    return model.ReadResult(messages, rows[-1].offset + 1, len(rows) >= request.limit or rows[-1].bytes >= bound)


def _delivery(codec: IdCodec, request: model.Read, row: ReadRow) -> model.StoredMessage:
    extra = row.extra or NO_EXTRA
    message_id = codec.encode(row.partition, row.offset)
    return model.StoredMessage(
        **attributes_of(extra),
        id=message_id,
        transaction_id=row.transaction_id or message_id,
        payload=payload_of(row.payload, extra),
        created_at=row.created_at,
        queue=request.queue,
        partition=request.partition,
        partition_id=codec.encode(row.partition, 0),
        offset=row.offset,
        priority=row.priority,
        attempt=0,
        deliver_at=row.deliver_at,
        expires_at=extra.x or None,
    )


def offsets(
    connection: apsw.Connection, queue: str, start: model.BrowseFrom, partition: str | None
) -> list[model.PartitionOffset]:
    """The start offsets of a browser in the partitions of a queue, or in one of them."""
    partitions = _PARTITIONS if partition is None else f"{_PARTITIONS} and partition.name = :partition"
    if start == "head":
        sql = f"select partition.name, partition.floor + 1 {partitions} order by partition.name"
    elif start == "tail":
        sql = f"select partition.name, {TAIL} + 1 {partitions} order by partition.name"
    else:
        sql = _AFTER_TIME.format(partitions=partitions)
    rows = connection.execute(sql, {"queue": queue, "partition": partition, "time": start})
    return [model.PartitionOffset(str(name), int(str(offset))) for name, offset in rows]
