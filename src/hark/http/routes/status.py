"""Overview of the server: totals, namespaces, tasks, the last hour, live samples, waiting consumers; status routes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, median
from typing import TypeVar

import msgspec

from hark.access.tokens import Identity
from hark.api import operations, types
from hark.broker import Broker
from hark.broker.delivery.browsers import Browser
from hark.broker.delivery.delivery import Intention
from hark.broker.delivery.stream import Stream, StreamConsumer
from hark.broker.observer import HISTORY_SECONDS, INTERVAL_SECONDS, Point, Sample, Watcher
from hark.clock import SECOND, format_time_ms
from hark.http import routing
from hark.http.admission import identity_of
from hark.http.checks import time_of
from hark.http.responses import Receive, Scope, Send, answer_of, encode
from hark.http.routes.queues import NAMESPACE, TASK, groups_of, queue_page, queues_of, stats_of, total_of
from hark.http.routing import Call, Table, bind, table
from hark.http.sse import PING_SECONDS, ClientWriter, SseOptions, event, send_events
from hark.model import MessageFilter, QueueFilter, QueueStats
from hark.settings import Settings

# Overview --------------------------------------------------------------------------------------------------

_LABELS_PAGE = routing.paging(routing.MAX_LIST, routing.MAX_LIST)


async def list_namespaces(call: Call) -> types.Single[tuple[types.queues.Namespace, ...]]:
    """List namespaces. Returns the namespaces of all queues, with totals."""
    found = await _by_label(call, lambda stats: stats.info.namespace)
    return types.queues.Namespaces(tuple(types.queues.Namespace(name, *_together(queues)) for name, queues in found))


async def list_tasks(call: Call) -> types.Single[tuple[types.queues.Task, ...]]:
    """List tasks. Returns the tasks of all queues, with totals."""
    found = await _by_label(call, lambda stats: stats.info.task)
    return types.queues.Tasks(tuple(types.queues.Task(name, *_together(queues)) for name, queues in found))


async def _by_label(call: Call, label: Callable[[QueueStats], str]) -> list[tuple[str, list[QueueStats]]]:
    page = _LABELS_PAGE.of(call.query)
    queues: dict[str, list[QueueStats]] = {}
    for stats in await _queues(call):
        if label(stats):
            queues.setdefault(label(stats), []).append(stats)
    return sorted(queues.items())[page.offset : page.offset + page.limit]


async def _queues(call: Call) -> Sequence[QueueStats]:
    names = await queues_of(call)
    return (await call.broker.observed.counts.queue_stats(QueueFilter(names=names))).items


def _together(queues: Sequence[QueueStats]) -> tuple[int, int, types.queues.LabelCounts]:
    """Return the number of queues, of their partitions and of their messages."""
    total = total_of([stats.counts for stats in queues])
    return len(queues), sum(stats.partitions for stats in queues), answer_of(types.queues.LabelCounts, total)


async def show_overview(call: Call) -> types.queues.Overview:
    """Get an overview. Returns totals over all queues, and the lag of the consumer groups."""
    queues, groups = await asyncio.gather(_queues(call), groups_of(call))
    moment = call.now()
    waiting = [
        max(0.0, (moment - group.oldest_waiting) / SECOND) for group in groups if group.oldest_waiting is not None
    ]
    sample = call.broker.observed.latest
    rates = None if sample is None or call.identity.restricted else sample.point.rates  # Those of the last second.
    return types.queues.Overview(
        queues=len(queues),
        partitions=sum(stats.partitions for stats in queues),
        namespaces=len({stats.info.namespace for stats in queues} - {""}),
        tasks=len({stats.info.task for stats in queues} - {""}),
        messages=total_of([stats.counts for stats in queues]),
        lag=types.queues.Lag(time=_spread(waiting), offset=_spread([group.lag for group in groups])),
        throughput=types.queues.Throughput()
        if rates is None
        else types.queues.Throughput(round(rates.pushed, 2), round(rates.settled, 2)),
        timestamp=time_of(moment),
        stats_age=call.broker.observed.counts.age(await queues_of(call), [stats.info.name for stats in queues], moment),
    )


async def refresh_stats(call: Call) -> types.queues.Refreshed:
    """Refresh statistics. The next survey of large queues begins sooner; all other statistics are always current."""
    call.broker.observed.attend()
    return types.queues.Refreshed(skipped=True, reason="statistics are kept current without it")


def _spread(values: Sequence[float]) -> types.queues.Spread:
    if not values:
        return types.queues.Spread(avg=0, median=0, min=0, max=0)
    return types.queues.Spread(avg=fmean(values), median=median(values), min=min(values), max=max(values))


# The last hour, and live samples ---------------------------------------------------------------------------

_SECONDS = routing.IntParam(
    "seconds", "Length of the period, in seconds.", HISTORY_SECONDS, INTERVAL_SECONDS, HISTORY_SECONDS
)
_PING = event(b"ping", b"{}")


async def show_history(call: Call) -> types.server.History:
    """Get the history of the last hour.

    Returns one sample for every ten seconds: the throughput of this server process, and the depths of the store.
    """
    points = call.broker.observed.history(_SECONDS.of(call.query))
    return types.server.History(INTERVAL_SECONDS, tuple(_history_sample(point) for point in points))


def _history_sample(point: Point) -> types.server.HistorySample:
    rates, latency, depths, oldest = point.rates, point.latency, point.depths, point.oldest_waiting_seconds
    return types.server.HistorySample(
        at=time_of(point.at),
        **{f"{name}_per_second": round(value, 2) for name, value in msgspec.structs.asdict(rates).items()},
        backlog=None if depths is None else depths.backlog,
        scheduled=None if depths is None else depths.scheduled,
        in_flight=None if depths is None else depths.in_flight,
        oldest_waiting_seconds=None if oldest is None else round(oldest, 1),
        latency_ms=types.server.LatencyMs()
        if latency is None
        else types.server.LatencyMs(p50=round(latency.p50, 2), p99=round(latency.p99, 2)),
    )


def sample_of(sample: Sample) -> types.server.LiveSample:
    """Return a sample in the form of the HTTP API."""
    depths = sample.point.depths
    return answer_of(
        types.server.LiveSample,
        _history_sample(sample.point),
        queues=None if depths is None else depths.queues,
        partitions=None if depths is None else depths.partitions,
        dead_letters=None if depths is None else depths.dead_letters,
        waiting=sample.waiting,
        maintenance=sample.maintenance,
        busiest=sample.busiest,
        changed=sample.changed,
        more=sample.more,
    )


def restricted_sample_of(sample: Sample, identity: Identity) -> types.server.LiveSample:
    """Return a sample for a restricted token, without other queues and without totals."""
    shown = sample_of(sample)
    return types.server.LiveSample(
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
        return table(bind(operations.WATCH, self.watch, media=routing.EVENTS, raw=True))

    async def watch(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream live samples.

        Sends a server-sent event `sample` every second, with rates, depths and the names of the queues that changed.
        """
        identity = identity_of(scope)

        async def opened() -> Watcher:
            return self._broker.observed.watch()

        async def write_samples(watcher: Watcher, client: ClientWriter) -> None:
            while (sample := await watcher.next()) is not None:
                if identity.restricted:
                    await client.write(event(b"sample", encode(restricted_sample_of(sample, identity))))
                else:
                    await client.write(self._event(sample))

        await send_events(scope, receive, send, opened, write_samples, self._sse_options)

    def _event(self, sample: Sample) -> bytes:
        if sample is not self._sample:
            self._sample, self._encoded = sample, event(b"sample", encode(sample_of(sample)))
        return self._encoded


# Waiting consumers -----------------------------------------------------------------------------------------

_Waiting = Intention | Stream | Browser
Subscription = TypeVar("Subscription", bound=types.groups.StreamSubscription)

_CONSUMERS_PAGE = routing.paging()
_CONSUMERS_QUEUE = routing.NameParam("queue", "Return only consumers that wait for messages of this queue.")


async def list_consumers(call: Call) -> types.Page[types.groups.WaitingConsumer]:
    """List waiting consumers.

    Returns the consumers that are connected to this server process: waiting pops, then streams, then queue browsers,
    each kind in the order of arrival.
    """
    page = _CONSUMERS_PAGE.of(call.query)
    queue = _CONSUMERS_QUEUE.of(call.query)
    delivery = call.broker.delivery
    waiting: list[_Waiting] = [*delivery.intentions, *delivery.streams, *delivery.browsers]
    found = [one for one in waiting if _is_shown(one, queue, call.identity)]
    shown = found[page.offset : page.offset + page.limit]
    described = tuple(_described(one, call.identity) for one in shown)
    return types.groups.Consumers(items=described, total=len(found), pagination=page)


def _may_see(identity: Identity, queue: str | None) -> bool:
    """Return whether the caller may see consumers of a queue, or (None) those that wait by namespace or task."""
    return not identity.restricted or (queue is not None and identity.may_use(queue))


def _is_shown(one: _Waiting, queue: str | None, identity: Identity) -> bool:
    seen = [name for name in _queues_of(one) if _may_see(identity, name)]
    if queue is not None:
        return queue in seen
    return bool(seen) or not identity.restricted  # A stream can be without subscriptions.


def _queues_of(one: _Waiting) -> list[str | None]:
    match one:
        case Intention():
            return [one.request.queue]
        case Stream():
            return [consumer.request.queue for consumer in one.consumers.values()]
        case Browser():
            return [one.queue]


def _described(one: _Waiting, identity: Identity) -> types.groups.WaitingConsumer:
    match one:
        case Intention():
            return _subscription(
                types.groups.WaitingPop,
                one,
                id=f"pop-{one.number}",
                waiting_since=time_of(one.created_at),
                deadline=time_of(one.deadline),
            )
        case Stream():
            return types.groups.WaitingStream(
                id=f"stream-{one.number}",
                waiting_since=time_of(one.created_at),
                credit=one.credit,
                unsettled=one.unsettled,
                paused=one.paused,
                draining=one.draining,
                subscriptions=tuple(
                    _subscription(types.groups.StreamSubscription, consumer, id=consumer.name)
                    for consumer in one.consumers.values()
                    if _may_see(identity, consumer.request.queue)
                ),
            )
        case Browser():
            start = one.start if isinstance(one.start, str) else format_time_ms(one.start)
            return types.groups.WaitingBrowser(queue=one.queue, partition=one.partition, start=start)


def _subscription(shape: type[Subscription], consumer: Intention | StreamConsumer, **others: object) -> Subscription:
    return answer_of(
        shape,
        consumer.request,
        consumer_group=consumer.request.group,
        priority=consumer.priority,
        consumer=consumer.request.consumer or None,
        state=consumer.subscription.manager.state_of(consumer).value,
        **others,
    )


# Status routes in the form of the Queen API ----------------------------------------------------------------

_MINUTE = 60 * SECOND
_INTERVALS = {"minute": _MINUTE, "hour": 60 * _MINUTE, "day": 24 * 60 * _MINUTE}

_FROM = routing.TimeParam("from", "Start of the period. The default is one hour ago; older data is not kept.")
_TO = routing.TimeParam("to", "End of the period. The default is now.")
_QUEUE = routing.NameParam(
    "queue", "Return only this queue. With a filter the throughput is empty: it is recorded only for the whole server."
)
_INTERVAL = routing.ChoiceParam("interval", "Length of an interval.", tuple(_INTERVALS), "hour")
_PAGE = routing.paging(100)
_MESSAGES = routing.paging(50)
_FILTERS = (_QUEUE, NAMESPACE, TASK)


async def show_status(call: Call) -> types.server.Status:
    """Get the status of the server.

    Returns the throughput of the last hour by minute, and the message counts of the queues.
    """
    query = call.query
    broker, tallies = call.broker, call.broker.tallies
    name = _QUEUE.of(query)
    where = QueueFilter(names=None if name is None else [name], namespace=NAMESPACE.of(query), task=TASK.of(query))
    since, until, points = _history(call)
    throughput = tuple(_throughput(start, inside) for start, inside in _buckets(points, _MINUTE))
    queues = (await broker.observed.counts.queue_stats(where)).items
    counts = total_of([stats.counts for stats in queues])
    requests = types.server.ByVerb(tallies.push_requests, tallies.pop_requests, tallies.settle_requests)
    each = types.server.ByVerb(
        push=_each(tallies.total.pushed, tallies.push_requests),
        pop=_each(tallies.total.delivered, tallies.pop_requests),
        ack=_each(tallies.total.settled, tallies.settle_requests),
    )
    return types.server.Status(
        time_range=types.server.TimeRange(time_of(since), time_of(until)),
        bucket_minutes=1,
        point_count=len(throughput),
        throughput=throughput,
        queues=tuple(
            answer_of(
                types.server.StatusQueue,
                stats.info,
                partitions=stats.partitions,
                total_consumed=stats.counts.completed,
            )
            for stats in queues
        ),
        messages=answer_of(types.server.StatusMessages, counts, requests=requests, batch_efficiency=each),
        leases=types.server.StatusLeases(
            active=None,
            partitions_with_leases=None,
            total_batch_size=counts.processing,
            total_acked=tallies.total.completed,
        ),
        dead_letter_queue=types.server.StatusDeadLetters(total_messages=counts.dead_letter),
        workers=(),
        errors=types.server.StatusErrors(
            db_errors=sum(broker.engine_calls.errors.values()),
            ack_failed=tallies.refused_settlements,
            dlq_messages=tallies.total.dead_lettered,
        ),
        stats_age=broker.observed.counts.age(where.names, [stats.info.name for stats in queues], call.now()),
    )


def _each(messages: int, requests: int) -> float | None:
    return round(messages / requests, 2) if requests else None


def _history(call: Call) -> tuple[int, int, list[Point]]:
    """Return the period of the request and its points; no points if the request is for some queues only."""
    query = call.query
    moment = call.now()
    since = _FROM.of(query)
    until = _TO.of(query)
    since = moment - HISTORY_SECONDS * SECOND if since is None else since
    until = moment if until is None else until
    filters = [param.of(query) for param in _FILTERS]
    if any(value is not None for value in filters):
        return since, until, []
    points = call.broker.observed.history(HISTORY_SECONDS)
    return since, until, [point for point in points if since <= point.at <= until]


def _buckets(points: Sequence[Point], width: int) -> Iterable[tuple[int, list[Point]]]:
    buckets: dict[int, list[Point]] = {}
    for point in points:
        buckets.setdefault(point.at // width * width, []).append(point)
    return buckets.items()


def _throughput(start: int, points: Sequence[Point]) -> types.server.ThroughputPoint:
    pushed, settled, delivered, dead = (
        sum(getattr(point.rates, name) for point in points) * INTERVAL_SECONDS
        for name in ("pushed", "settled", "delivered", "dead_lettered")
    )
    seconds = len(points) * INTERVAL_SECONDS
    return types.server.ThroughputPoint(
        timestamp=time_of(start),
        ingested=round(pushed),
        processed=round(settled),
        pop_messages=round(delivered),
        ingested_per_second=round(pushed / seconds, 2),
        processed_per_second=round(settled / seconds, 2),
        pop_per_second=round(delivered / seconds, 2),
        dlq_count=round(dead),
    )


async def list_status_queues(call: Call) -> types.Page[types.queues.ListedQueue]:
    """List the status of queues. Returns queues with their message counts, the newest first."""
    where = QueueFilter(namespace=NAMESPACE.of(call.query), task=TASK.of(call.query))
    return await queue_page(call, where, _PAGE.of(call.query))


async def show_status_queue(call: Call) -> types.server.StatusOfQueue:
    """Get the status of a queue. Returns the queue with its options and a page of its partitions."""
    name = call.name("queue")
    page = _PAGE.of(call.query)
    stats = await stats_of(call, name)
    partitions = (
        answer_of(
            types.server.StatusPartition,
            one,
            messages=one.counts,
            cursor=types.server.PartitionCursor(total_consumed=one.counts.completed),
            oldest_message=time_of(one.oldest),
            last_activity=time_of(one.newest),
        )
        for one in await call.engine.partition_stats(name, None, page.limit, page.offset)
    )
    return types.server.StatusOfQueue(
        queue=answer_of(types.server.StatusQueueHead, stats.info, config=stats.info.options),
        partitions=tuple(partitions),
        totals=types.server.StatusTotals(partitions=stats.partitions, messages=stats.counts),
    )


async def list_status_messages(call: Call) -> list[types.server.StatusMessage]:
    """List the messages of a queue. Returns messages without payloads, the newest first."""
    page = _MESSAGES.of(call.query)
    where = MessageFilter(queue=call.name("queue"), limit=page.limit, offset=page.offset)
    return [
        answer_of(types.server.StatusMessage, view, queue_path=f"{view.queue}/{view.partition}", status=view.state)
        for view in await call.broker.messages(where)
    ]


async def show_analytics(call: Call) -> types.server.Analytics:
    """Get the push rate over time. Returns the number of pushed messages of the last hour, by interval."""
    interval = _INTERVAL.of(call.query) or "hour"
    since, until, points = _history(call)
    data = (
        types.server.DataPoint(time_of(start), round(sum(point.rates.pushed for point in inside) * INTERVAL_SECONDS))
        for start, inside in _buckets(points, _INTERVALS[interval])
    )
    return types.server.Analytics(time_of(since), time_of(until), tuple(data), interval)


async def show_buffers(call: Call) -> types.server.Buffers:
    """Get the state of write buffers. Always empty, because Hark stores data before it responds."""
    healthy = await call.broker.readiness.problem() is None
    return types.server.Buffers(pending=0, failed=0, db_healthy=healthy, worker=0)


TABLE = table(
    bind(operations.LIST_NAMESPACES, list_namespaces, query=_LABELS_PAGE),
    bind(operations.LIST_TASKS, list_tasks, query=_LABELS_PAGE),
    bind(operations.SHOW_OVERVIEW, show_overview),
    bind(operations.REFRESH_STATS, refresh_stats),
    bind(operations.SHOW_HISTORY, show_history, query=(_SECONDS,)),
    bind(operations.LIST_CONSUMERS, list_consumers, query=(*_CONSUMERS_PAGE, _CONSUMERS_QUEUE)),
    bind(operations.SHOW_STATUS, show_status, query=(_FROM, _TO, *_FILTERS)),
    bind(operations.LIST_STATUS_QUEUES, list_status_queues, query=(NAMESPACE, TASK, *_PAGE)),
    bind(operations.SHOW_STATUS_QUEUE, show_status_queue, query=_PAGE, errors=(routing.NO_QUEUE,)),
    bind(operations.LIST_STATUS_MESSAGES, list_status_messages, query=_MESSAGES),
    bind(operations.SHOW_ANALYTICS, show_analytics, query=(_INTERVAL, _FROM, _TO, *_FILTERS)),
    bind(operations.SHOW_BUFFERS, show_buffers),
)
