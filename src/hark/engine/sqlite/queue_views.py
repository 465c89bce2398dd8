"""Pages of queues with counts: what a page costs depends on the queues that are on it, not on all there are."""

from __future__ import annotations

import apsw
import msgspec

from hark.engine.sqlite.leases import LeaseView
from hark.engine.sqlite.sql import OPEN, STORED, WANTS_PLACE
from hark.engine.sqlite.views import counts_from
from hark.model import QueueFilter, QueueInfo, QueueOptions, QueuePage, QueueStats

_ORDERS = {"newest": "id desc", "name": "name"}
_CONDITIONS = {
    "names": "name in (select value from json_each(:names))",
    "search": "instr(name, :search)",
    "namespace": "namespace = :namespace",
    "task": "task = :task",
    "paused": "paused = :paused",
}

# Joined from the page outwards, whatever the planner thinks of the sizes of the tables.
_PAGE = f"""
with page as materialized (select * from queues where {{where}} order by {{order}} limit :limit offset :offset),
open as materialized (
    select queues.id as queue, groups.id as grp, sum({OPEN}) as open
    from page as queues
    cross join groups on groups.queue = queues.name
    cross join partitions as place on place.queue = queues.id
    left join tracks as track on track.grp = groups.id and track.partition = place.id
    where {WANTS_PLACE}
    group by queues.id, groups.id),
worst as (select queue, grp, max(open) as open from open group by queue),
sizes as materialized (
    select place.queue as queue, count(*) as partitions, sum({STORED}) as total
    from page cross join partitions as place on place.queue = page.id group by place.queue)
select page.uid, page.name, page.namespace, page.task, page.options, page.created_at, page.paused, page.expired,
    page.discarded, ifnull(sizes.partitions, 0), ifnull(sizes.total, 0), worst.grp,
    ifnull(worst.open, ifnull(sizes.total, 0)),
    (select count(*) from dead_letters where dead_letters.queue = page.name),
    (select count(*) from groups cross join retries on retries.grp = groups.id
        where groups.queue = page.name and retries.attempts > 0)
    + (select count(*) from groups cross join exceptions on exceptions.grp = groups.id
        where groups.queue = page.name and exceptions.attempts > 0)
from page
left join sizes on sizes.queue = page.id
left join worst on worst.queue = page.id
order by page.{{order}}
"""

_decode_options = msgspec.json.Decoder(QueueOptions).decode


def queue_stats(connection: apsw.Connection, leases: LeaseView, where: QueueFilter) -> QueuePage:
    """A page of queues with counts, and how many there are."""
    given = {
        "names": None if where.names is None else msgspec.json.encode(list(where.names)).decode(),
        "search": where.search,
        "namespace": where.namespace,
        "task": where.task,
        "paused": where.paused,
    }
    matching = " and ".join(_CONDITIONS[name] for name, value in given.items() if value is not None) or "true"
    total = int(connection.execute(f"select count(*) from queues where {matching}", given).get)
    sql = _PAGE.format(where=matching, order=_ORDERS[where.sort])
    page = given | {"limit": -1 if where.limit is None else where.limit, "offset": where.offset}
    return QueuePage([_stats(leases, row) for row in connection.execute(sql, page)], total)


def _stats(leases: LeaseView, row: apsw.SQLiteValues) -> QueueStats:
    uid, name, namespace, task, options, created_at, paused, *rest = row
    expired, discarded, partitions, total, group, open_, dead, failed = (
        None if number is None else int(str(number)) for number in rest
    )
    return QueueStats(
        info=QueueInfo(
            id=str(uid),
            name=str(name),
            namespace=str(namespace),
            task=str(task),
            options=_decode_options(str(options)),
            created_at=int(str(created_at)),
            paused=bool(paused),
        ),
        partitions=partitions or 0,
        counts=counts_from(
            total or 0, open_ or 0, 0 if group is None else leases.held_by_group(group), failed or 0, dead or 0
        ),
        expired=expired or 0,
        discarded=discarded or 0,
    )
