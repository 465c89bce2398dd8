"""Queues: configure, list, get, delete, pause, resume, purge."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from hark.broker.observing.listing import list_queues as list_queues_of
from hark.errors import InvalidInput, NotFound
from hark.http.answers import common
from hark.http.answers import queues as answers
from hark.http.checks import check_name, check_text, format_time_ms
from hark.http.edge.identities import identity_of
from hark.http.exchange import exchange_of
from hark.http.params import MAX_LIST, MAX_PAGE, BoolParam, ChoiceParam, NameParam, Param, paging
from hark.http.routes.options import OptionsBody, read_options
from hark.http.routes.places import add_places
from hark.http.routes.requests import (
    NO_QUEUE,
    broker_of,
    name_in_path,
    query_of,
    read_json,
    reply,
)
from hark.http.routes.table import Reach, Table, admin, read, write
from hark.model import Counts, PartitionStats, QueueFilter, QueueSpec, QueueStats

_PAGE = paging(MAX_LIST, MAX_LIST)
_SEARCH = Param("search", "Return only entries whose name contains this text.")
NAMESPACE = NameParam("namespace", "Return only queues in this namespace.")
TASK = NameParam("task", "Return only queues with this task.")
_PAUSED = BoolParam("paused", "Return only paused queues.")
_PARTITIONS = paging(MAX_PAGE, MAX_LIST)
_PLACES = BoolParam("places", "Include the position of each consumer group in each partition.")
_GROUP = NameParam("group", "Consumer group. The default is the group that is furthest behind.")
_SORT = ChoiceParam(
    "sort",
    "Order of the queues. `newest`: newest queue first. `name`: by name. `backlog`: largest backlog first.",
    ("newest", "name", "backlog"),
    "newest",
)


class ConfigureBody(msgspec.Struct):
    """A queue to create or configure. Null means absent."""

    queue: str | None = None
    namespace: str | None = None
    task: str | None = None
    options: OptionsBody | None = None


async def configure(request: Request) -> Response:
    """Create or configure a queue.

    Creates the queue if it does not exist. Replaces its namespace, its task and all its options; an option that is
    absent gets its default. Unknown options are ignored and listed in `ignoredOptions`.
    """
    body = await read_json(request, ConfigureBody, "configure")
    if not body.queue:
        raise InvalidInput("queue is required")
    identity_of(request).check_queue(body.queue)
    options, ignored = read_options(body.options or {}, body.queue)
    spec = QueueSpec(
        name=check_name(body.queue, "queue"),
        namespace=check_text(body.namespace or "", "namespace"),
        task=check_text(body.task or "", "task"),
        options=options,
    )
    exchange_of(request).note_target(queue=spec.name)
    info = await broker_of(request).configure(spec)
    answer: answers.ConfiguredQueue = {
        "configured": True,
        "queueId": info.id,
        "partitionId": info.partition_id,
        "queue": info.name,
        "namespace": info.namespace,
        "task": info.task,
        "options": info.options,
        "ignoredOptions": ignored,
    }
    return reply(answer)


async def list_queues(request: Request) -> Response:
    """List queues. Returns queues with their message counts; by default the newest queue first."""
    query = query_of(request)
    limit, offset = _PAGE.of(query)
    sort = _SORT.of(query)
    where = QueueFilter(
        search=_SEARCH.text(query),
        namespace=NAMESPACE.of(query),
        task=TASK.of(query),
        paused=_PAUSED.of(query) or None,
        sort="name" if sort == "name" else "newest",
        limit=limit,
        offset=offset,
    )
    identity = identity_of(request)
    page = await list_queues_of(
        broker_of(request).engine,
        where,
        visible=identity.may_use if identity.restricted else None,
        backlogs=broker_of(request).observed.backlogs if sort == "backlog" else None,
    )
    answer: answers.QueuePage = {
        "queues": [listed_queue(stats) for stats in page.items],
        "total": page.total,
        "pagination": {"limit": limit, "offset": offset},
    }
    return reply(answer)


async def show_queue(request: Request) -> Response:
    """Get a queue. Returns the queue with its options, its message counts and a page of its partitions."""
    name = name_in_path(request, "queue")
    query = query_of(request)
    limit, offset = _PARTITIONS.of(query)
    engine = broker_of(request).engine
    stats = await stats_of(request, name)
    partitions = [_partition(one) for one in await engine.partition_stats(name, _SEARCH.text(query), limit, offset)]
    if _PLACES.of(query):
        await add_places(request, name, partitions)
    answer: answers.ShownQueue = {
        **head_of(stats),
        "partitionCount": stats.partitions,
        "partitions": partitions,
        "totals": counts_of(stats.counts),
        "expired": stats.expired,
        "discarded": stats.discarded,
        "options": stats.info.options,
    }
    return reply(answer)


async def show_depth(request: Request) -> Response:
    """Get the backlog of a queue.

    Returns the number of unsettled messages of a consumer group, in total and by partition.
    """
    name = name_in_path(request, "queue")
    query = query_of(request)
    group, limit = _GROUP.of(query), _PAGE.limit.of(query)
    engine = broker_of(request).engine
    stats = await stats_of(request, name)
    if group is not None and (known := await engine.group_stats(group, name)):
        pending, partitions = known[0].lag, known[0].partitions_with_lag
        tracks = await engine.track_stats(group, name, limit=limit)
        depths = [(track.partition, track.lag) for track in tracks]
    else:
        # An unknown group would start at the first message, unless its first pop chooses another position.
        seen = [
            (item.name, item.counts.total if group else item.counts.pending + item.counts.processing)
            for item in await engine.partition_stats(name, limit=limit)
        ]
        depths = seen
        pending = stats.counts.total if group else stats.counts.pending + stats.counts.processing
        partitions = sum(1 for _, depth in seen if depth)
    answer: answers.Depth = {
        "queue": name,
        "group": group,
        "pending": pending,
        "partitionsPending": partitions,
        "conflation": False,
        "effectivePending": pending,
        "partitions": [{"partition": partition, "pending": depth} for partition, depth in depths if depth],
    }
    return reply(answer)


async def delete_queue(request: Request) -> Response:
    """Delete a queue.

    Deletes the queue with its messages, consumer groups and dead letters. Succeeds also if the queue does not exist.
    """
    name = name_in_path(request, "queue")
    [existed] = await broker_of(request).delete_queues([name])
    answer: answers.DeletedQueue = {"deleted": True, "queue": name, "existed": existed}
    return reply(answer)


async def pause_queue(request: Request) -> Response:
    """Pause a queue. The queue accepts messages, and delivers none until it is resumed."""
    return await _set_paused(request, True)


async def resume_queue(request: Request) -> Response:
    """Resume a queue. Deliveries of the queue continue."""
    return await _set_paused(request, False)


async def _set_paused(request: Request, paused: bool) -> Response:
    name = name_in_path(request, "queue")
    if not await broker_of(request).engine.pause(name, None, paused):
        raise NotFound("Queue not found", code="queue_not_found")
    answer: answers.PausedQueue = {"success": True, "queue": name, "paused": paused}
    return reply(answer)


async def purge_queue(request: Request) -> Response:
    """Purge a queue. Deletes all messages of the queue, including leased messages. Dead letters remain."""
    name = name_in_path(request, "queue")
    engine = broker_of(request).engine
    if not await engine.queue_infos([name]):
        raise NotFound("Queue not found", code="queue_not_found")
    answer: answers.PurgedQueue = {"success": True, "queue": name, "purged": await engine.purge(name)}
    return reply(answer)


async def stats_of(request: Request, name: str) -> QueueStats:
    """Return the counts of a queue; raises `NotFound` if it does not exist."""
    found = (await broker_of(request).engine.queue_stats(QueueFilter(names=[name]))).items
    if not found:
        raise NotFound("Queue not found", code="queue_not_found")
    return found[0]


def counts_of(counts: Counts) -> common.Counts:
    """Return the message counts of a queue or partition."""
    return {
        "total": counts.total,
        "pending": counts.pending,
        "processing": counts.processing,
        "completed": counts.completed,
        "failed": counts.failed,
        "deadLetter": counts.dead_letter,
    }


def listed_queue(stats: QueueStats) -> answers.ListedQueue:
    """Return a queue for a list."""
    counts = stats.counts
    return {
        **head_of(stats),
        "partitions": stats.partitions,
        "messages": {"total": counts.total, "pending": counts.pending, "processing": counts.processing},
    }


def head_of(stats: QueueStats) -> answers.QueueHead:
    """Return the id, the name and the labels of a queue."""
    info = stats.info
    return {
        "id": info.id,
        "name": info.name,
        "namespace": info.namespace,
        "task": info.task,
        "createdAt": format_time_ms(info.created_at),
        "paused": info.paused,
    }


def _partition(partition: PartitionStats) -> answers.ShownPartition:
    return {
        "id": partition.id,
        "name": partition.name,
        "createdAt": format_time_ms(partition.created_at),
        "stats": counts_of(partition.counts),
        "oldestMessage": None if partition.oldest is None else format_time_ms(partition.oldest),
        "newestMessage": None if partition.newest is None else format_time_ms(partition.newest),
    }


_LIST = (*_PAGE, _SEARCH, NAMESPACE, TASK, _PAUSED, _SORT)

TABLE: Table = {
    "/api/v1/configure": {"POST": write(configure, Reach.ITEMS, body=ConfigureBody, answer=answers.ConfiguredQueue)},
    "/api/v1/resources/queues": {"GET": read(list_queues, Reach.LISTED, query=_LIST, answer=answers.QueuePage)},
    "/api/v1/resources/queues/{queue}": {
        "GET": read(
            show_queue,
            Reach.PATH,
            query=(*_PARTITIONS, _SEARCH, _PLACES),
            answer=answers.ShownQueue,
            errors=(NO_QUEUE,),
        ),
        "DELETE": admin(delete_queue, Reach.PATH, answer=answers.DeletedQueue),
    },
    "/api/v1/resources/queues/{queue}/depth": {
        "GET": read(show_depth, Reach.PATH, query=(_PAGE.limit, _GROUP), answer=answers.Depth, errors=(NO_QUEUE,))
    },
    "/api/v1/resources/queues/{queue}/pause": {
        "POST": write(pause_queue, Reach.PATH, answer=answers.PausedQueue, errors=(NO_QUEUE,))
    },
    "/api/v1/resources/queues/{queue}/resume": {
        "POST": write(resume_queue, Reach.PATH, answer=answers.PausedQueue, errors=(NO_QUEUE,))
    },
    "/api/v1/resources/queues/{queue}/purge": {
        "POST": admin(purge_queue, Reach.PATH, answer=answers.PurgedQueue, errors=(NO_QUEUE,))
    },
}
