"""The whole server at a glance: namespaces, tasks, totals, lags."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean, median

from starlette.requests import Request
from starlette.responses import Response

from hark.clock import SECOND
from hark.http.checks import format_time_ms
from hark.http.routes.queues import counts_of
from hark.http.routes.requests import MAX_LIST, broker_of, now, page_params, query_of, reply
from hark.http.routes.table import Table
from hark.model import Counts, QueueStats


async def list_namespaces(request: Request) -> Response:
    """Namespaces that queues are labelled with."""
    return reply({"namespaces": await _by_label(request, "namespace", lambda stats: stats.info.namespace)})


async def list_tasks(request: Request) -> Response:
    """Tasks that queues are labelled with."""
    return reply({"tasks": await _by_label(request, "task", lambda stats: stats.info.task)})


async def _by_label(request: Request, name: str, label: Callable[[QueueStats], str]) -> list[object]:
    limit, offset = page_params(query_of(request), MAX_LIST, MAX_LIST)
    queues: dict[str, list[QueueStats]] = {}
    for stats in await broker_of(request).engine.queue_stats():
        if label(stats):
            queues.setdefault(label(stats), []).append(stats)
    return [
        {
            name: text,
            "queues": len(members),
            "partitions": sum(stats.partitions for stats in members),
            "messages": {
                "total": sum(stats.counts.total for stats in members),
                "pending": sum(stats.counts.pending for stats in members),
            },
        }
        for text, members in sorted(queues.items())[offset : offset + limit]
    ]


async def show_overview(request: Request) -> Response:
    """Totals over all queues, and how far behind the groups are."""
    engine = broker_of(request).engine
    queues, groups = await engine.queue_stats(), await engine.group_stats()
    moment = now()
    waiting = [
        max(0.0, (moment - group.oldest_waiting) / SECOND) for group in groups if group.oldest_waiting is not None
    ]
    return reply(
        {
            "queues": len(queues),
            "partitions": sum(stats.partitions for stats in queues),
            "namespaces": len({stats.info.namespace for stats in queues} - {""}),
            "tasks": len({stats.info.task for stats in queues} - {""}),
            "messages": counts_of(_sum([stats.counts for stats in queues])),
            "lag": {"time": _spread(waiting), "offset": _spread([group.lag for group in groups])},
            # Nothing counts per second yet; null says so, where 0 would be a false number.
            "throughput": {"ingestedPerSecond": None, "processedPerSecond": None},
            "timestamp": format_time_ms(moment),
            "statsAge": 0,
        }
    )


async def refresh_stats(_request: Request) -> Response:
    """Statistics are counted when they are asked for, so that there is nothing to refresh."""
    return reply({"skipped": True, "reason": "statistics are always current"})


def _sum(counts: Sequence[Counts]) -> Counts:
    return Counts(
        total=sum(item.total for item in counts),
        pending=sum(item.pending for item in counts),
        processing=sum(item.processing for item in counts),
        completed=sum(item.completed for item in counts),
        failed=sum(item.failed for item in counts),
        dead_letter=sum(item.dead_letter for item in counts),
    )


def _spread(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {"avg": 0, "median": 0, "min": 0, "max": 0}
    return {"avg": fmean(values), "median": median(values), "min": min(values), "max": max(values)}


TABLE: Table = {
    "/api/v1/resources/namespaces": {"GET": list_namespaces},
    "/api/v1/resources/tasks": {"GET": list_tasks},
    "/api/v1/resources/overview": {"GET": show_overview},
    "/api/v1/stats/refresh": {"POST": refresh_stats},
}
