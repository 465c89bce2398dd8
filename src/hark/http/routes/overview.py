"""Overview of the server: namespaces, tasks, totals and lag."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean, median

from starlette.requests import Request
from starlette.responses import Response

from hark.clock import SECOND
from hark.http.answers import queues as answers
from hark.http.checks import format_time_ms
from hark.http.edge.identities import identity_of
from hark.http.params import MAX_LIST, paging
from hark.http.routes.queues import counts_of
from hark.http.routes.requests import broker_of, now, query_of, reply
from hark.http.routes.table import Reach, Table, admin, read
from hark.model import Counts, QueueFilter, QueueStats

_PAGE = paging(MAX_LIST, MAX_LIST)


async def list_namespaces(request: Request) -> Response:
    """List namespaces. Returns the namespaces of all queues, with totals."""
    found = await _by_label(request, lambda stats: stats.info.namespace)
    answer: answers.Namespaces = {"namespaces": [{"namespace": name, **queues} for name, queues in found]}
    return reply(answer)


async def list_tasks(request: Request) -> Response:
    """List tasks. Returns the tasks of all queues, with totals."""
    found = await _by_label(request, lambda stats: stats.info.task)
    answer: answers.Tasks = {"tasks": [{"task": name, **queues} for name, queues in found]}
    return reply(answer)


async def _by_label(request: Request, label: Callable[[QueueStats], str]) -> list[tuple[str, answers.LabelledQueues]]:
    limit, offset = _PAGE.of(query_of(request))
    queues: dict[str, list[QueueStats]] = {}
    for stats in await _queues(request):
        if label(stats):
            queues.setdefault(label(stats), []).append(stats)
    return [(name, _together(members)) for name, members in sorted(queues.items())[offset : offset + limit]]


async def _queues(request: Request) -> list[QueueStats]:
    """Return the queues that the caller may use."""
    found = (await broker_of(request).engine.queue_stats(QueueFilter())).items
    return [stats for stats in found if identity_of(request).may_use(stats.info.name)]


def _together(queues: Sequence[QueueStats]) -> answers.LabelledQueues:
    return {
        "queues": len(queues),
        "partitions": sum(stats.partitions for stats in queues),
        "messages": {
            "total": sum(stats.counts.total for stats in queues),
            "pending": sum(stats.counts.pending for stats in queues),
        },
    }


async def show_overview(request: Request) -> Response:
    """Get an overview. Returns totals over all queues, and the lag of the consumer groups."""
    queues = await _queues(request)
    groups = await broker_of(request).engine.group_stats()
    groups = [stats for stats in groups if identity_of(request).may_use(stats.queue)]
    moment = now()
    waiting = [
        max(0.0, (moment - group.oldest_waiting) / SECOND) for group in groups if group.oldest_waiting is not None
    ]
    answer: answers.Overview = {
        "queues": len(queues),
        "partitions": sum(stats.partitions for stats in queues),
        "namespaces": len({stats.info.namespace for stats in queues} - {""}),
        "tasks": len({stats.info.task for stats in queues} - {""}),
        "messages": counts_of(_sum([stats.counts for stats in queues])),
        "lag": {"time": _spread(waiting), "offset": _spread([group.lag for group in groups])},
        "throughput": _throughput(request),
        "timestamp": format_time_ms(moment),
        "statsAge": 0,
    }
    return reply(answer)


def _throughput(request: Request) -> answers.Throughput:
    """Return the throughput of this server process in the last second; not for restricted tokens."""
    sample = broker_of(request).observed.latest
    if sample is None or identity_of(request).restricted:
        return {"ingestedPerSecond": None, "processedPerSecond": None}
    rates = sample.point.rates
    return {"ingestedPerSecond": round(rates.pushed, 2), "processedPerSecond": round(rates.settled, 2)}


async def refresh_stats(_request: Request) -> Response:
    """Refresh statistics. Does nothing, because statistics are always current; exists for compatibility."""
    answer: answers.Refreshed = {"skipped": True, "reason": "statistics are always current"}
    return reply(answer)


def _sum(counts: Sequence[Counts]) -> Counts:
    return Counts(
        total=sum(item.total for item in counts),
        pending=sum(item.pending for item in counts),
        processing=sum(item.processing for item in counts),
        completed=sum(item.completed for item in counts),
        failed=sum(item.failed for item in counts),
        dead_letter=sum(item.dead_letter for item in counts),
    )


def _spread(values: Sequence[float]) -> answers.Spread:
    if not values:
        return {"avg": 0, "median": 0, "min": 0, "max": 0}
    return {"avg": fmean(values), "median": median(values), "min": min(values), "max": max(values)}


TABLE: Table = {
    "/api/v1/resources/namespaces": {
        "GET": read(list_namespaces, Reach.LISTED, query=_PAGE, answer=answers.Namespaces)
    },
    "/api/v1/resources/tasks": {"GET": read(list_tasks, Reach.LISTED, query=_PAGE, answer=answers.Tasks)},
    "/api/v1/resources/overview": {"GET": read(show_overview, Reach.LISTED, answer=answers.Overview)},
    "/api/v1/stats/refresh": {"POST": admin(refresh_stats, Reach.SERVER, answer=answers.Refreshed)},
}
