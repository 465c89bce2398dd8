"""Where to look for a page of messages, so that it costs as little as can be: what is asked for decides the way."""

from __future__ import annotations

import apsw
import msgspec

from hark.engine.sqlite.leases import LeaseView
from hark.engine.sqlite.store import Value, scalar
from hark.model import MessageFilter

MESSAGE = """
select message.partition, message.offset, message.created_at, message.transaction_id, message.extra,
    queues.name, place.name, queues.namespace, queues.task, queues.options ->> 'priority', message.priority,
    message.deliver_at, message.owner
"""
"""The columns of a message, its place and its queue."""

_FEW_PARTITIONS = 1000
_encode = msgspec.json.Encoder().encode

_PLACE = """
cross join partitions as place on place.id = message.partition
cross join queues on queues.id = place.queue
"""
_ALL = f"from messages as message {_PLACE}"
_HELD = f"""
from json_each(:held) as held
cross join messages as message on message.partition = held.value ->> 0 and message.offset = held.value ->> 1
{_PLACE}
"""
_DEAD = f"""
from (select distinct partition, offset from dead_letters where :queue is null or queue = :queue) as dead
cross join messages as message on message.partition = dead.partition and message.offset = dead.offset
{_PLACE}
"""
_OF_PARTITION = """
from queues
cross join partitions as place on place.queue = queues.id and place.name = :partition
cross join messages as message on message.partition = place.id
"""
_OF_QUEUE = """
from queues
cross join partitions as place on place.queue = queues.id
cross join messages as message on message.partition = place.id
"""
# No more than the page takes of each partition: times never decrease with the offset, nor does the order of arrival.
_NEWEST_OF_QUEUE = """
from queues
cross join partitions as place on place.queue = queues.id
cross join messages as message on message.seq in (
    select newest.seq from messages as newest
    where newest.partition = place.id and newest.offset > place.floor
      and (:until is null or newest.created_at <= :until)
    order by newest.offset desc limit :offset + :limit)
"""

_CONDITIONS = {
    "queue": "queues.name = :queue",
    "partition": "place.name = :partition",
    "namespace": "queues.namespace = :namespace",
    "task": "queues.task = :task",
    "since": "message.created_at >= :since",
    "until": "message.created_at <= :until",
}
# Cheap to tell along indexes, and true of every message in that state; of some others too.
_STATES = {
    "pending": """
(not exists (select 1 from groups where groups.queue = queues.name)
 or exists (select 1 from groups left join tracks on tracks.grp = groups.id and tracks.partition = place.id
            where groups.queue = queues.name and message.offset > ifnull(tracks.cursor, 0)))
""",
    "completed": """
not exists (select 1 from groups left join tracks on tracks.grp = groups.id and tracks.partition = place.id
            where groups.queue = queues.name and (message.owner is null or message.owner = groups.id)
              and iif(tracks.cursor is null, groups.since is null,
                  groups.mode = 'ordered' and message.offset > tracks.cursor
                  and not exists (select 1 from ranges where ranges.grp = groups.id and ranges.partition = place.id
                                  and message.offset between ranges.first and ranges.last)))
""",
}


def page_of(connection: apsw.Connection, where: MessageFilter, leases: LeaseView) -> tuple[str, dict[str, Value]]:
    """The query for messages, newest first, with its parameters.

    It gives the page itself; where a state is asked for, all that may be in it, for whoever looks at each.
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
        source = _HELD
    elif where.state == "dead_letter":
        source = _DEAD
    elif where.queue is not None and where.partition is not None:
        source, order = _OF_PARTITION, "message.offset"
    elif where.queue is not None and _has_few_partitions(connection, where.queue):
        source = _NEWEST_OF_QUEUE if where.state is None else _OF_QUEUE
    conditions = [_CONDITIONS[name] for name, value in given.items() if value is not None]
    if where.state in _STATES:
        conditions.append(_STATES[where.state])
    sql = (
        f"{MESSAGE} {source} where {' and '.join(['message.offset > place.floor', *conditions])} order by {order} desc"
    )
    if where.state is None:
        sql += " limit :limit offset :offset"
    held = _encode(list(leases.held_places())).decode() if where.state == "processing" else None
    return sql, given | {"limit": where.limit, "offset": where.offset, "held": held}


def _has_few_partitions(connection: apsw.Connection, queue: str) -> bool:
    sql = """
        select count(*) from (
            select 1 from partitions where queue = (select id from queues where name = ?1) limit ?2)
    """
    return int(scalar(connection, sql, queue, _FEW_PARTITIONS + 1)) <= _FEW_PARTITIONS
