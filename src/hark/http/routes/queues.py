"""Queues: configure, list, show, delete, pause, resume, purge."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from hark.errors import InvalidInput, NotFound
from hark.http.checks import check_name, check_text, format_time_ms, name_param
from hark.http.routes.options import read_options
from hark.http.routes.requests import (
    MAX_LIST,
    MAX_PAGE,
    broker_of,
    name_in_path,
    page_params,
    query_of,
    read_json,
    reply,
)
from hark.http.routes.table import Table
from hark.model import Counts, PartitionStats, QueueSpec, QueueStats


class ConfigureBody(msgspec.Struct):
    """A queue as a client describes it; null means absent."""

    queue: str | None = None
    namespace: str | None = None
    task: str | None = None
    options: dict[str, msgspec.Raw] | None = None


async def configure(request: Request) -> Response:
    """Make a queue, or replace all its options."""
    body = await read_json(request, ConfigureBody, "configure")
    if not body.queue:
        raise InvalidInput("queue is required")
    options, ignored = read_options(body.options or {}, body.queue)
    spec = QueueSpec(
        name=check_name(body.queue, "queue"),
        namespace=check_text(body.namespace or "", "namespace"),
        task=check_text(body.task or "", "task"),
        options=options,
    )
    info = await broker_of(request).configure(spec)
    return reply(
        {
            "configured": True,
            "queueId": info.id,
            "partitionId": info.partition_id,
            "queue": info.name,
            "namespace": info.namespace,
            "task": info.task,
            "options": info.options,
            "ignoredOptions": ignored,
        }
    )


async def list_queues(request: Request) -> Response:
    """Queues with their counts, newest first."""
    query = query_of(request)
    limit, offset = page_params(query, MAX_LIST, MAX_LIST)
    search, namespace, task = query.get("search"), name_param(query, "namespace"), name_param(query, "task")
    queues = [
        stats
        for stats in await broker_of(request).engine.queue_stats()
        if (not search or search in stats.info.name)
        and (namespace is None or stats.info.namespace == namespace)
        and (task is None or stats.info.task == task)
    ]
    return reply(
        {
            "queues": [
                _head(stats)
                | {
                    "partitions": stats.partitions,
                    "messages": {
                        "total": stats.counts.total,
                        "pending": stats.counts.pending,
                        "processing": stats.counts.processing,
                    },
                }
                for stats in queues[offset : offset + limit]
            ]
        }
    )


async def show_queue(request: Request) -> Response:
    """One queue with its options and a page of its partitions."""
    name = name_in_path(request, "queue")
    query = query_of(request)
    limit, offset = page_params(query, MAX_PAGE, MAX_LIST)
    engine = broker_of(request).engine
    stats = await _stats(request, name)
    search = query.get("search") or None
    partitions = await engine.partition_stats(name, search, limit, offset)
    return reply(
        _head(stats)
        | {
            "partitionCount": stats.partitions,
            "partitions": [_partition(partition) for partition in partitions],
            "totals": counts_of(stats.counts),
            "expired": stats.expired,
            "discarded": stats.discarded,
            "options": stats.info.options,
        }
    )


async def show_depth(request: Request) -> Response:
    """What one group, or the one furthest behind, has still to do: the sum and a page of partitions."""
    name = name_in_path(request, "queue")
    query = query_of(request)
    group = name_param(query, "group")
    limit, _ = page_params(query, MAX_LIST, MAX_LIST)
    engine = broker_of(request).engine
    stats = await _stats(request, name)
    if group is not None and (known := await engine.group_stats(group, name)):
        pending, partitions = known[0].lag, known[0].partitions_with_lag
        tracks = await engine.track_stats(group, name, limit=limit)
        depths = [(track.partition, track.lag) for track in tracks]
    else:
        # A group that never came starts at the first message, unless it says otherwise when it comes.
        seen = [
            (item.name, item.counts.total if group else item.counts.pending + item.counts.processing)
            for item in await engine.partition_stats(name, limit=limit)
        ]
        depths = seen
        pending = stats.counts.total if group else stats.counts.pending + stats.counts.processing
        partitions = sum(1 for _, depth in seen if depth)
    return reply(
        {
            "queue": name,
            "group": group,
            "pending": pending,
            "partitionsPending": partitions,
            "conflation": False,
            "effectivePending": pending,
            "partitions": [{"partition": partition, "pending": depth} for partition, depth in depths if depth],
        }
    )


async def delete_queue(request: Request) -> Response:
    """Remove a queue with everything in it; a queue that is not there is removed already."""
    name = name_in_path(request, "queue")
    [existed] = await broker_of(request).delete_queues([name])
    return reply({"deleted": True, "queue": name, "existed": existed})


async def pause_queue(request: Request) -> Response:
    """Stop deliveries of a queue."""
    return await _set_paused(request, True)


async def resume_queue(request: Request) -> Response:
    """Let deliveries of a queue go on."""
    return await _set_paused(request, False)


async def _set_paused(request: Request, paused: bool) -> Response:
    name = name_in_path(request, "queue")
    if not await broker_of(request).engine.pause(name, None, paused):
        raise NotFound("Queue not found", code="queue_not_found")
    return reply({"success": True, "queue": name, "paused": paused})


async def purge_queue(request: Request) -> Response:
    """Remove all messages of a queue, leased ones too."""
    name = name_in_path(request, "queue")
    engine = broker_of(request).engine
    if not await engine.queue_infos([name]):
        raise NotFound("Queue not found", code="queue_not_found")
    return reply({"success": True, "queue": name, "purged": await engine.purge(name)})


async def _stats(request: Request, name: str) -> QueueStats:
    found = await broker_of(request).engine.queue_stats(name)
    if not found:
        raise NotFound("Queue not found", code="queue_not_found")
    return found[0]


def counts_of(counts: Counts) -> dict[str, int]:
    """The six numbers of a queue or partition."""
    return {
        "total": counts.total,
        "pending": counts.pending,
        "processing": counts.processing,
        "completed": counts.completed,
        "failed": counts.failed,
        "deadLetter": counts.dead_letter,
    }


def _head(stats: QueueStats) -> dict[str, object]:
    info = stats.info
    return {
        "id": info.id,
        "name": info.name,
        "namespace": info.namespace,
        "task": info.task,
        "createdAt": format_time_ms(info.created_at),
        "paused": info.paused,
    }


def _partition(partition: PartitionStats) -> dict[str, object]:
    return {
        "id": partition.id,
        "name": partition.name,
        "createdAt": format_time_ms(partition.created_at),
        "stats": counts_of(partition.counts),
        "oldestMessage": None if partition.oldest is None else format_time_ms(partition.oldest),
        "newestMessage": None if partition.newest is None else format_time_ms(partition.newest),
    }


TABLE: Table = {
    "/api/v1/configure": {"POST": configure},
    "/api/v1/resources/queues": {"GET": list_queues},
    "/api/v1/resources/queues/{queue}": {"GET": show_queue, "DELETE": delete_queue},
    "/api/v1/resources/queues/{queue}/depth": {"GET": show_depth},
    "/api/v1/resources/queues/{queue}/pause": {"POST": pause_queue},
    "/api/v1/resources/queues/{queue}/resume": {"POST": resume_queue},
    "/api/v1/resources/queues/{queue}/purge": {"POST": purge_queue},
}
