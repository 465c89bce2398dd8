"""Status routes in the form of the Queen API, and the waiting consumers of this server process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from starlette.requests import Request
from starlette.responses import Response

from hark.access.identity import Identity
from hark.api import operations
from hark.api.types.base import Pagination, extended
from hark.api.types.groups import Consumers, StreamSubscription, WaitingBrowser, WaitingPop, WaitingStream
from hark.api.types.queues import QueuePage
from hark.api.types.status import (
    Analytics,
    Buffers,
    ByVerb,
    DataPoint,
    PartitionCursor,
    Status,
    StatusDeadLetters,
    StatusErrors,
    StatusLeases,
    StatusMessage,
    StatusMessages,
    StatusOfQueue,
    StatusPartition,
    StatusQueue,
    StatusQueueHead,
    StatusTotals,
    ThroughputPoint,
    TimeRange,
)
from hark.broker import Broker
from hark.broker.delivery.browsers import Browser
from hark.broker.delivery.delivery import Intention
from hark.broker.delivery.stream import Stream, StreamConsumer
from hark.broker.observer import HISTORY_SECONDS, INTERVAL_SECONDS, Point, list_queues
from hark.clock import SECOND
from hark.http.admission import identity_of
from hark.http.checks import format_time_ms, time_of
from hark.http.routes.queues import NAMESPACE, TASK, head_of, listed_queue, stats_of, total_of
from hark.http.routes.requests import NO_QUEUE, broker_of, name_in_path, now, query_of, reply
from hark.http.routes.table import ChoiceParam, NameParam, Table, TimeParam, bind, paging, table
from hark.model import MessageFilter, PartitionStats, QueueFilter, QueueStats

_Waiting = Intention | Stream | Browser

_CONSUMERS_PAGE = paging()
_CONSUMERS_QUEUE = NameParam("queue", "Return only consumers that wait for messages of this queue.")


async def list_consumers(request: Request) -> Response:
    """List waiting consumers.

    Returns the consumers that are connected to this server process: waiting pops, then streams, then queue browsers,
    each kind in the order of arrival.
    """
    query = query_of(request)
    limit, offset = _CONSUMERS_PAGE.of(query)
    queue = _CONSUMERS_QUEUE.of(query)
    delivery = broker_of(request).delivery
    may_see = _may_see(identity_of(request))
    all_processes: list[_Waiting] = [*delivery.intentions, *delivery.streams, *delivery.browsers]
    found = [one for one in all_processes if _is_shown(one, queue, may_see)]
    return reply(
        Consumers(
            items=tuple(_described(one, may_see) for one in found[offset : offset + limit]),
            total=len(found),
            pagination=Pagination(limit=limit, offset=offset),
        )
    )


MaySee = Callable[[str | None], bool]
"""Whether the caller may see consumers of a queue, or (None) consumers that wait by namespace or task."""


def _may_see(identity: Identity) -> MaySee:
    return lambda queue: not identity.restricted or (queue is not None and identity.may_use(queue))


def _is_shown(one: _Waiting, queue: str | None, may_see: MaySee) -> bool:
    seen = [name for name in _queues_of(one) if may_see(name)]
    if queue is not None:
        return queue in seen
    return bool(seen) or may_see(None)  # A stream can be without subscriptions.


def _queues_of(one: _Waiting) -> list[str | None]:
    match one:
        case Intention():
            return [one.request.queue]
        case Stream():
            return [consumer.request.queue for consumer in one.consumers.values()]
        case Browser():
            return [one.queue]


def _described(one: _Waiting, may_see: MaySee) -> WaitingPop | WaitingStream | WaitingBrowser:
    match one:
        case Intention():
            return WaitingPop(
                id=f"pop-{one.number}",
                queue=one.request.queue,
                partition=one.request.partition,
                namespace=one.request.namespace,
                task=one.request.task,
                consumer_group=one.request.group,
                batch=one.request.batch,
                priority=one.priority,
                consumer=one.request.consumer or None,
                waiting_since=time_of(one.created_at),
                deadline=time_of(one.deadline),
                state=one.subscription.manager.state_of(one).value,
            )
        case Stream():
            return WaitingStream(
                id=f"stream-{one.number}",
                waiting_since=time_of(one.created_at),
                credit=one.credit,
                unsettled=one.unsettled,
                paused=one.paused,
                draining=one.draining,
                subscriptions=tuple(
                    _subscription(consumer) for consumer in one.consumers.values() if may_see(consumer.request.queue)
                ),
            )
        case Browser():
            start = one.start if isinstance(one.start, str) else format_time_ms(one.start)
            return WaitingBrowser(queue=one.queue, partition=one.partition, start=start)


def _subscription(consumer: StreamConsumer) -> StreamSubscription:
    pop = consumer.request
    return StreamSubscription(
        id=consumer.name,
        queue=pop.queue,
        partition=pop.partition,
        namespace=pop.namespace,
        task=pop.task,
        consumer_group=pop.group,
        batch=pop.batch,
        priority=consumer.priority,
        consumer=pop.consumer or None,
        state=consumer.subscription.manager.state_of(consumer).value,
    )


CONSUMERS_TABLE: Table = table(
    bind(operations.LIST_CONSUMERS, list_consumers, query=(*_CONSUMERS_PAGE, _CONSUMERS_QUEUE))
)


_MINUTE = 60 * SECOND
_INTERVALS = {"minute": _MINUTE, "hour": 60 * _MINUTE, "day": 24 * 60 * _MINUTE}

_FROM = TimeParam("from", "Start of the period. The default is one hour ago; older data is not kept.")
_TO = TimeParam("to", "End of the period. The default is now.")
_QUEUE = NameParam(
    "queue", "Return only this queue. With a filter the throughput is empty: it is recorded only for the whole server."
)
_INTERVAL = ChoiceParam("interval", "Length of an interval.", tuple(_INTERVALS), "hour")
_PAGE = paging(100)
_MESSAGES = paging(50)
_FILTERS = (_QUEUE, NAMESPACE, TASK)


async def show_status(request: Request) -> Response:
    """Get the status of the server.

    Returns the throughput of the last hour by minute, and the message counts of the queues.
    """
    query = query_of(request)
    broker = broker_of(request)
    where = QueueFilter(
        names=None if (name := _QUEUE.of(query)) is None else [name],
        namespace=NAMESPACE.of(query),
        task=TASK.of(query),
    )
    since, until, points = _history(request)
    throughput = tuple(_throughput(start, inside) for start, inside in _buckets(points, _MINUTE))
    queues = (await broker.observed.counts.queue_stats(where)).items
    counts = total_of([stats.counts for stats in queues])
    requests, each = _by_verb(broker)
    return reply(
        Status(
            time_range=TimeRange(time_of(since), time_of(until)),
            bucket_minutes=1,
            point_count=len(throughput),
            throughput=throughput,
            queues=tuple(_queue(stats) for stats in queues),
            messages=extended(StatusMessages, counts, requests=requests, batch_efficiency=each),
            leases=StatusLeases(
                active=None,
                partitions_with_leases=None,
                total_batch_size=counts.processing,
                total_acked=broker.tallies.total.completed,
            ),
            dead_letter_queue=StatusDeadLetters(total_messages=counts.dead_letter),
            workers=(),
            errors=StatusErrors(
                db_errors=sum(broker.engine_calls.errors.values()),
                ack_failed=broker.tallies.refused_settlements,
                dlq_messages=broker.tallies.total.dead_lettered,
            ),
            stats_age=broker.observed.counts.age([stats.info.name for stats in queues], now(request)),
        )
    )


def _history(request: Request) -> tuple[int, int, list[Point]]:
    """Return the period of the request and its points; no points if the request is for some queues only."""
    query = query_of(request)
    moment = now(request)
    since = _FROM.of(query)
    until = _TO.of(query)
    since = moment - HISTORY_SECONDS * SECOND if since is None else since
    until = moment if until is None else until
    if any(param.of(query) is not None for param in _FILTERS):
        return since, until, []
    points = broker_of(request).observed.history(HISTORY_SECONDS)
    return since, until, [point for point in points if since <= point.at <= until]


def _buckets(points: Sequence[Point], width: int) -> Iterable[tuple[int, list[Point]]]:
    buckets: dict[int, list[Point]] = {}
    for point in points:
        buckets.setdefault(point.at // width * width, []).append(point)
    return buckets.items()


def _throughput(start: int, points: Sequence[Point]) -> ThroughputPoint:
    pushed = sum(point.rates.pushed for point in points) * INTERVAL_SECONDS
    settled = sum(point.rates.settled for point in points) * INTERVAL_SECONDS
    delivered = sum(point.rates.delivered for point in points) * INTERVAL_SECONDS
    dead = sum(point.rates.dead_lettered for point in points) * INTERVAL_SECONDS
    seconds = len(points) * INTERVAL_SECONDS
    return ThroughputPoint(
        timestamp=time_of(start),
        ingested=round(pushed),
        processed=round(settled),
        pop_messages=round(delivered),
        ingested_per_second=round(pushed / seconds, 2),
        processed_per_second=round(settled / seconds, 2),
        pop_per_second=round(delivered / seconds, 2),
        dlq_count=round(dead),
    )


def _queue(stats: QueueStats) -> StatusQueue:
    info = stats.info
    return StatusQueue(
        id=info.id,
        name=info.name,
        namespace=info.namespace,
        task=info.task,
        partitions=stats.partitions,
        total_consumed=stats.counts.completed,
    )


def _by_verb(broker: Broker) -> tuple[ByVerb, ByVerb]:
    """Return the number of requests since the start, and the messages per request."""
    tallies, total = broker.tallies, broker.tallies.total
    requests: ByVerb = ByVerb(push=tallies.push_requests, pop=tallies.pop_requests, ack=tallies.settle_requests)
    each: ByVerb = ByVerb(
        push=_each(total.pushed, tallies.push_requests),
        pop=_each(total.delivered, tallies.pop_requests),
        ack=_each(total.settled, tallies.settle_requests),
    )
    return requests, each


def _each(messages: int, requests: int) -> float | None:
    return round(messages / requests, 2) if requests else None


# Queues ----------------------------------------------------------------------------------------------------


async def list_status_queues(request: Request) -> Response:
    """List the status of queues. Returns queues with their message counts, the newest first."""
    query = query_of(request)
    limit, offset = _PAGE.of(query)
    identity = identity_of(request)
    page = await list_queues(
        broker_of(request).observed.counts,
        QueueFilter(namespace=NAMESPACE.of(query), task=TASK.of(query), limit=limit, offset=offset),
        visible=identity.may_use if identity.restricted else None,
    )
    return reply(
        QueuePage(
            queues=tuple(listed_queue(stats) for stats in page.items),
            total=page.total,
            pagination=Pagination(limit=limit, offset=offset),
        )
    )


async def show_status_queue(request: Request) -> Response:
    """Get the status of a queue. Returns the queue with its options and a page of its partitions."""
    name = name_in_path(request, "queue")
    limit, offset = _PAGE.of(query_of(request))
    stats = await stats_of(request, name)
    partitions = await broker_of(request).engine.partition_stats(name, None, limit, offset)
    return reply(
        StatusOfQueue(
            queue=extended(StatusQueueHead, head_of(stats), config=stats.info.options),
            partitions=tuple(_partition(one) for one in partitions),
            totals=StatusTotals(partitions=stats.partitions, messages=stats.counts),
        )
    )


def _partition(partition: PartitionStats) -> StatusPartition:
    return StatusPartition(
        id=partition.id,
        name=partition.name,
        created_at=time_of(partition.created_at),
        messages=partition.counts,
        cursor=PartitionCursor(total_consumed=partition.counts.completed),
        oldest_message=time_of(partition.oldest),
        last_activity=time_of(partition.newest),
    )


async def list_status_messages(request: Request) -> Response:
    """List the messages of a queue. Returns messages without payloads, the newest first."""
    limit, offset = _MESSAGES.of(query_of(request))
    where = MessageFilter(queue=name_in_path(request, "queue"), limit=limit, offset=offset)
    return reply(
        [
            StatusMessage(
                id=view.id,
                transaction_id=view.transaction_id,
                partition_id=view.partition_id,
                queue_path=f"{view.queue}/{view.partition}",
                queue=view.queue,
                partition=view.partition,
                status=view.state,
                created_at=time_of(view.created_at),
            )
            for view in await broker_of(request).messages(where)
        ]
    )


# Numbers over time -----------------------------------------------------------------------------------------


async def show_analytics(request: Request) -> Response:
    """Get the push rate over time. Returns the number of pushed messages of the last hour, by interval."""
    interval = _INTERVAL.of(query_of(request)) or "hour"
    since, until, points = _history(request)
    data = tuple(
        DataPoint(
            timestamp=time_of(start),
            messages=round(sum(point.rates.pushed for point in inside) * INTERVAL_SECONDS),
        )
        for start, inside in _buckets(points, _INTERVALS[interval])
    )
    return reply(Analytics(data, interval, time_of(since), time_of(until)))


async def show_buffers(request: Request) -> Response:
    """Get the state of write buffers. Always empty, because Hark stores data before it responds."""
    healthy = await broker_of(request).readiness.problem() is None
    return reply(Buffers(pending=0, failed=0, db_healthy=healthy, worker=0))


TABLE: Table = table(
    bind(operations.SHOW_STATUS, show_status, query=(_FROM, _TO, *_FILTERS)),
    bind(operations.LIST_STATUS_QUEUES, list_status_queues, query=(NAMESPACE, TASK, *_PAGE)),
    bind(operations.SHOW_STATUS_QUEUE, show_status_queue, query=_PAGE, errors=(NO_QUEUE,)),
    bind(operations.LIST_STATUS_MESSAGES, list_status_messages, query=_MESSAGES),
    bind(operations.SHOW_ANALYTICS, show_analytics, query=(_INTERVAL, _FROM, _TO, *_FILTERS)),
    bind(operations.SHOW_BUFFERS, show_buffers),
)
