"""Overview of the server: namespaces, tasks, totals, lag, the last hour, and live samples."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from statistics import fmean, median

from starlette.requests import Request
from starlette.responses import Response

from hark.access.identity import Identity
from hark.api import operations
from hark.api.types.base import extended
from hark.api.types.queues import (
    LabelCounts,
    Lag,
    Namespace,
    Namespaces,
    Overview,
    Refreshed,
    Spread,
    Task,
    Tasks,
    Throughput,
)
from hark.api.types.server import BusyQueue, History, HistorySample, LatencyMs, LiveSample, Stopped, Waiting
from hark.broker import Broker
from hark.broker.observer import HISTORY_SECONDS, INTERVAL_SECONDS, Point, Sample, Watcher
from hark.clock import SECOND
from hark.http.admission import identity_of
from hark.http.checks import time_of
from hark.http.responses import Receive, Scope, Send, encode, send_failure
from hark.http.routes.queues import groups_of, queues_of, total_of
from hark.http.routes.requests import broker_of, now, query_of, reply
from hark.http.routes.table import EVENTS, MAX_LIST, IntParam, Table, bind, paging, table
from hark.http.sse import PING_SECONDS, ClientWriter, SseOptions, event, send_events
from hark.model import QueueFilter, QueueStats
from hark.settings import Settings

_SECONDS = IntParam("seconds", "Length of the period, in seconds.", HISTORY_SECONDS, INTERVAL_SECONDS, HISTORY_SECONDS)
_PING = event(b"ping", b"{}")


async def show_history(request: Request) -> Response:
    """Get the history of the last hour.

    Returns one sample for every ten seconds: the throughput of this server process, and the depths of the store.
    """
    points = broker_of(request).observed.history(_SECONDS.of(query_of(request)))
    return reply(History(interval_seconds=INTERVAL_SECONDS, samples=tuple(point_of(point) for point in points)))


def point_of(point: Point) -> HistorySample:
    """Return a point in the form of the HTTP API."""
    rates, latency, depths, oldest = point.rates, point.latency, point.depths, point.oldest_waiting_seconds
    return HistorySample(
        at=time_of(point.at),
        pushed_per_second=round(rates.pushed, 2),
        delivered_per_second=round(rates.delivered, 2),
        settled_per_second=round(rates.settled, 2),
        failed_per_second=round(rates.failed, 2),
        dead_lettered_per_second=round(rates.dead_lettered, 2),
        backlog=None if depths is None else depths.backlog,
        scheduled=None if depths is None else depths.scheduled,
        in_flight=None if depths is None else depths.in_flight,
        oldest_waiting_seconds=None if oldest is None else round(oldest, 1),
        latency_ms=LatencyMs(
            p50=None if latency is None else round(latency.p50, 2),
            p99=None if latency is None else round(latency.p99, 2),
        ),
    )


def sample_of(sample: Sample) -> LiveSample:
    """Return a sample in the form of the HTTP API."""
    depths, standing = sample.point.depths, sample.standing
    return extended(
        LiveSample,
        point_of(sample.point),
        queues=None if depths is None else depths.queues,
        partitions=None if depths is None else depths.partitions,
        dead_letters=None if depths is None else depths.dead_letters,
        waiting=Waiting(pops=standing.pops, streams=standing.streams, browsers=standing.browsers),
        maintenance=Stopped(push=standing.push_maintenance, pop=standing.pop_maintenance),
        busiest=tuple(
            BusyQueue(
                queue=one.queue,
                pushed_per_second=round(one.pushed, 2),
                delivered_per_second=round(one.delivered, 2),
                settled_per_second=round(one.settled, 2),
            )
            for one in sample.busiest
        ),
        changed=tuple(sample.changed),
        more=sample.more,
    )


def restricted_sample_of(sample: Sample, identity: Identity) -> LiveSample:
    """Return a sample for a restricted token, without other queues and without totals."""
    shown = sample_of(sample)
    return LiveSample(
        at=shown.at,
        maintenance=shown.maintenance,
        busiest=tuple(one for one in shown.busiest if identity.may_use(one.queue)),
        changed=tuple(name for name in shown.changed if identity.may_use(name)),
        more=shown.more,
    )


class SampleEvents:
    """The route of live samples, bound to a broker. Each sample is encoded once for all clients."""

    def __init__(self, broker: Broker, settings: Settings, ping_seconds: float = PING_SECONDS) -> None:
        self._broker = broker
        self._sse_options = SseOptions(
            opening=_PING, ping=_PING, ping_seconds=ping_seconds, stall_seconds=settings.limits.stalled_seconds
        )
        self._sample: Sample | None = None
        self._encoded = b""

    def table(self) -> Table:
        """Return the table of this route."""
        return table(bind(operations.WATCH, self.watch, media=EVENTS, raw=True))

    async def watch(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream live samples.

        Sends a server-sent event `sample` every second, with rates, depths and the names of the queues that changed.
        """
        try:
            watcher = self._broker.observed.watch()
        except Exception as error:
            await send_failure(send, error)
            return
        identity = identity_of(scope)
        await send_events(
            scope,
            receive,
            send,
            watcher,
            lambda writer: self._write_samples(watcher, writer, identity),
            self._sse_options,
        )

    async def _write_samples(self, watcher: Watcher, writer: ClientWriter, identity: Identity) -> None:
        while (sample := await watcher.next()) is not None:
            if identity.restricted:
                await writer.write(event(b"sample", encode(restricted_sample_of(sample, identity))))
            else:
                await writer.write(self._event(sample))

    def _event(self, sample: Sample) -> bytes:
        if sample is not self._sample:
            self._sample, self._encoded = sample, event(b"sample", encode(sample_of(sample)))
        return self._encoded


HISTORY_TABLE: Table = table(bind(operations.SHOW_HISTORY, show_history, query=(_SECONDS,)))


_PAGE = paging(MAX_LIST, MAX_LIST)


async def list_namespaces(request: Request) -> Response:
    """List namespaces. Returns the namespaces of all queues, with totals."""
    found = await _by_label(request, lambda stats: stats.info.namespace)
    return reply(Namespaces(namespaces=tuple(Namespace(name, *_together(queues)) for name, queues in found)))


async def list_tasks(request: Request) -> Response:
    """List tasks. Returns the tasks of all queues, with totals."""
    found = await _by_label(request, lambda stats: stats.info.task)
    return reply(Tasks(tasks=tuple(Task(name, *_together(queues)) for name, queues in found)))


async def _by_label(request: Request, label: Callable[[QueueStats], str]) -> list[tuple[str, list[QueueStats]]]:
    limit, offset = _PAGE.of(query_of(request))
    queues: dict[str, list[QueueStats]] = {}
    for stats in await _queues(request):
        if label(stats):
            queues.setdefault(label(stats), []).append(stats)
    return sorted(queues.items())[offset : offset + limit]


async def _queues(request: Request) -> list[QueueStats]:
    """Return the queues that the caller may use."""
    names = await queues_of(request)
    return list((await broker_of(request).observed.counts.queue_stats(QueueFilter(names=names))).items)


def _together(queues: Sequence[QueueStats]) -> tuple[int, int, LabelCounts]:
    """Return the number of queues, of their partitions and of their messages."""
    total = total_of([stats.counts for stats in queues])
    return (
        len(queues),
        sum(stats.partitions for stats in queues),
        LabelCounts(total=total.total, pending=total.pending, scheduled=total.scheduled),
    )


async def show_overview(request: Request) -> Response:
    """Get an overview. Returns totals over all queues, and the lag of the consumer groups."""
    queues, groups = await asyncio.gather(_queues(request), groups_of(request))
    moment = now(request)
    waiting = [
        max(0.0, (moment - group.oldest_waiting) / SECOND) for group in groups if group.oldest_waiting is not None
    ]
    return reply(
        Overview(
            queues=len(queues),
            partitions=sum(stats.partitions for stats in queues),
            namespaces=len({stats.info.namespace for stats in queues} - {""}),
            tasks=len({stats.info.task for stats in queues} - {""}),
            messages=total_of([stats.counts for stats in queues]),
            lag=Lag(time=_spread(waiting), offset=_spread([group.lag for group in groups])),
            throughput=_throughput(request),
            timestamp=time_of(moment),
            stats_age=broker_of(request).observed.counts.age([stats.info.name for stats in queues], moment),
        )
    )


def _throughput(request: Request) -> Throughput:
    """Return the throughput of this server process in the last second; not for restricted tokens."""
    sample = broker_of(request).observed.latest
    if sample is None or identity_of(request).restricted:
        return Throughput(ingested_per_second=None, processed_per_second=None)
    rates = sample.point.rates
    return Throughput(ingested_per_second=round(rates.pushed, 2), processed_per_second=round(rates.settled, 2))


async def refresh_stats(request: Request) -> Response:
    """Refresh statistics. The next survey of large queues begins sooner; all other statistics are always current."""
    broker_of(request).observed.attend()
    return reply(Refreshed(skipped=True, reason="statistics are kept current without it"))


def _spread(values: Sequence[float]) -> Spread:
    if not values:
        return Spread(avg=0, median=0, min=0, max=0)
    return Spread(avg=fmean(values), median=median(values), min=min(values), max=max(values))


TABLE: Table = table(
    bind(operations.LIST_NAMESPACES, list_namespaces, query=_PAGE),
    bind(operations.LIST_TASKS, list_tasks, query=_PAGE),
    bind(operations.SHOW_OVERVIEW, show_overview),
    bind(operations.REFRESH_STATS, refresh_stats),
)
