"""Status routes in the form of the Queen API. Values that Hark does not record are null."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from starlette.requests import Request
from starlette.responses import Response

from hark.broker import Broker
from hark.broker.observing.history import HISTORY_SECONDS, INTERVAL_SECONDS
from hark.broker.observing.listing import list_queues
from hark.broker.observing.samples import Point
from hark.clock import SECOND
from hark.http.answers import queues as queue_answers
from hark.http.answers import status as answers
from hark.http.checks import format_time_ms
from hark.http.edge.identities import identity_of
from hark.http.params import ChoiceParam, NameParam, TimeParam, paging
from hark.http.routes.queues import NAMESPACE, TASK, counts_of, head_of, listed_queue, stats_of
from hark.http.routes.requests import NO_QUEUE, broker_of, name_in_path, now, query_of, reply
from hark.http.routes.table import Reach, Table, read
from hark.model import Counts, MessageFilter, PartitionStats, QueueFilter, QueueStats

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
    throughput = [_throughput(start, inside) for start, inside in _buckets(points, _MINUTE)]
    queues = (await broker.engine.queue_stats(where)).items
    counts = _sum([stats.counts for stats in queues])
    requests, each = _by_verb(broker)
    answer: answers.Status = {
        "timeRange": answers.TimeRange(format_time_ms(since), format_time_ms(until)),
        "bucketMinutes": 1,
        "pointCount": len(throughput),
        "throughput": throughput,
        "queues": [_queue(stats) for stats in queues],
        "messages": {**counts_of(counts), "requests": requests, "batchEfficiency": each},
        "leases": {
            "active": None,
            "partitionsWithLeases": None,
            "totalBatchSize": counts.processing,
            "totalAcked": broker.tallies.total.completed,
        },
        "deadLetterQueue": {"totalMessages": counts.dead_letter, "affectedPartitions": None, "topErrors": None},
        "workers": [],
        "errors": {
            "dbErrors": sum(broker.engine_calls.errors.values()),
            "ackFailed": broker.tallies.refused_settlements,
            "dlqMessages": broker.tallies.total.dead_lettered,
        },
        "statsAge": 0,
    }
    return reply(answer)


def _history(request: Request) -> tuple[int, int, list[Point]]:
    """Return the period of the request and its points; no points if the request is for some queues only."""
    query = query_of(request)
    moment = now()
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


def _throughput(start: int, points: Sequence[Point]) -> answers.ThroughputPoint:
    pushed = sum(point.rates.pushed for point in points) * INTERVAL_SECONDS
    settled = sum(point.rates.settled for point in points) * INTERVAL_SECONDS
    delivered = sum(point.rates.delivered for point in points) * INTERVAL_SECONDS
    dead = sum(point.rates.dead_lettered for point in points) * INTERVAL_SECONDS
    seconds = len(points) * INTERVAL_SECONDS
    return {
        "timestamp": format_time_ms(start),
        "ingested": round(pushed),
        "processed": round(settled),
        "popMessages": round(delivered),
        "ingestedPerSecond": round(pushed / seconds, 2),
        "processedPerSecond": round(settled / seconds, 2),
        "popPerSecond": round(delivered / seconds, 2),
        "dlqCount": round(dead),
        "avgLagMs": None,
        "maxLagMs": None,
        "avgEventLoopLagMs": None,
        "maxEventLoopLagMs": None,
        "minFreeSlots": None,
        "dbErrors": None,
        "ackFailed": None,
        "queenCpuUserPct": None,
        "queenCpuSysPct": None,
        "queenRssMb": None,
        "dbPoolActive": None,
        "dbPoolIdle": None,
        "dbPoolSize": None,
    }


def _queue(stats: QueueStats) -> answers.StatusQueue:
    info = stats.info
    return {
        "id": info.id,
        "name": info.name,
        "namespace": info.namespace,
        "task": info.task,
        "partitions": stats.partitions,
        "totalConsumed": stats.counts.completed,
    }


def _sum(counts: Sequence[Counts]) -> Counts:
    names = Counts.__struct_fields__
    return Counts(**{name: sum(getattr(one, name) for one in counts) for name in names})


def _by_verb(broker: Broker) -> tuple[answers.ByVerb, answers.ByVerb]:
    """Return the number of requests since the start, and the messages per request."""
    tallies, total = broker.tallies, broker.tallies.total
    asked: answers.ByVerb = {
        "push": tallies.push_requests,
        "pop": tallies.pop_requests,
        "ack": tallies.settle_requests,
    }
    each: answers.ByVerb = {
        "push": _each(total.pushed, tallies.push_requests),
        "pop": _each(total.delivered, tallies.pop_requests),
        "ack": _each(total.settled, tallies.settle_requests),
    }
    return asked, each


def _each(messages: int, requests: int) -> float | None:
    return round(messages / requests, 2) if requests else None


# Queues ----------------------------------------------------------------------------------------------------


async def list_status_queues(request: Request) -> Response:
    """List the status of queues. Returns queues with their message counts, the newest first."""
    query = query_of(request)
    limit, offset = _PAGE.of(query)
    identity = identity_of(request)
    page = await list_queues(
        broker_of(request).engine,
        QueueFilter(namespace=NAMESPACE.of(query), task=TASK.of(query), limit=limit, offset=offset),
        visible=identity.may_use if identity.restricted else None,
    )
    answer: queue_answers.QueuePage = {
        "queues": [listed_queue(stats) for stats in page.items],
        "total": page.total,
        "pagination": {"limit": limit, "offset": offset},
    }
    return reply(answer)


async def show_status_queue(request: Request) -> Response:
    """Get the status of a queue. Returns the queue with its options and a page of its partitions."""
    name = name_in_path(request, "queue")
    limit, offset = _PAGE.of(query_of(request))
    stats = await stats_of(request, name)
    partitions = await broker_of(request).engine.partition_stats(name, None, limit, offset)
    answer: answers.StatusOfQueue = {
        "queue": {**head_of(stats), "config": stats.info.options},
        "partitions": [_partition(one) for one in partitions],
        "totals": {"partitions": stats.partitions, "messages": counts_of(stats.counts)},
    }
    return reply(answer)


def _partition(partition: PartitionStats) -> answers.StatusPartition:
    return {
        "id": partition.id,
        "name": partition.name,
        "createdAt": format_time_ms(partition.created_at),
        "messages": counts_of(partition.counts),
        "cursor": {"totalConsumed": partition.counts.completed, "batchesConsumed": None},
        "oldestMessage": None if partition.oldest is None else format_time_ms(partition.oldest),
        "lastActivity": None if partition.newest is None else format_time_ms(partition.newest),
    }


async def list_status_messages(request: Request) -> Response:
    """List the messages of a queue. Returns messages without payloads, the newest first."""
    limit, offset = _MESSAGES.of(query_of(request))
    where = MessageFilter(queue=name_in_path(request, "queue"), limit=limit, offset=offset)
    answer: list[answers.StatusMessage] = [
        {
            "id": view.id,
            "transactionId": view.transaction_id,
            "partitionId": view.partition_id,
            "queuePath": f"{view.queue}/{view.partition}",
            "queue": view.queue,
            "partition": view.partition,
            "status": view.state,
            "createdAt": format_time_ms(view.created_at),
        }
        for view in await broker_of(request).engine.messages(where)
    ]
    return reply(answer)


# Numbers over time -----------------------------------------------------------------------------------------


async def show_analytics(request: Request) -> Response:
    """Get the push rate over time. Returns the number of pushed messages of the last hour, by interval."""
    interval = _INTERVAL.of(query_of(request)) or "hour"
    since, until, points = _history(request)
    data = [
        answers.DataPoint(
            timestamp=format_time_ms(start),
            messages=round(sum(point.rates.pushed for point in inside) * INTERVAL_SECONDS),
        )
        for start, inside in _buckets(points, _INTERVALS[interval])
    ]
    return reply(answers.Analytics(data, interval, format_time_ms(since), format_time_ms(until)))


async def show_buffers(request: Request) -> Response:
    """Get the state of write buffers. Always empty, because Hark stores data before it responds."""
    healthy = await broker_of(request).readiness.problem() is None
    answer: answers.Buffers = {"pending": 0, "failed": 0, "dbHealthy": healthy, "worker": 0}
    return reply(answer)


TABLE: Table = {
    "/api/v1/status": {
        "GET": read(show_status, Reach.SERVER, query=(_FROM, _TO, *_FILTERS), answer=answers.Status),
    },
    "/api/v1/status/queues": {
        "GET": read(list_status_queues, Reach.LISTED, query=(NAMESPACE, TASK, *_PAGE), answer=queue_answers.QueuePage),
    },
    "/api/v1/status/queues/{queue}": {
        "GET": read(show_status_queue, Reach.PATH, query=_PAGE, answer=answers.StatusOfQueue, errors=(NO_QUEUE,)),
    },
    "/api/v1/status/queues/{queue}/messages": {
        "GET": read(list_status_messages, Reach.PATH, query=_MESSAGES, answer=list[answers.StatusMessage]),
    },
    "/api/v1/status/analytics": {
        "GET": read(show_analytics, Reach.SERVER, query=(_INTERVAL, _FROM, _TO, *_FILTERS), answer=answers.Analytics),
    },
    "/api/v1/status/buffers": {"GET": read(show_buffers, Reach.NOTHING, answer=answers.Buffers)},
}
