"""The route that lists the waiting consumers of this server process: pops, streams and queue browsers."""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response

from hark.access.identity import Identity
from hark.broker.delivery.browsers import Browser
from hark.broker.delivery.intentions import Intention
from hark.broker.delivery.stream import Stream, StreamConsumer
from hark.http.answers.system import Consumers, StreamSubscription, WaitingBrowser, WaitingPop, WaitingStream
from hark.http.checks import format_time_ms
from hark.http.edge.identities import identity_of
from hark.http.params import NameParam, paging
from hark.http.routes.requests import broker_of, query_of, reply
from hark.http.routes.table import Reach, Table, read

Waiting = Intention | Stream | Browser

_PAGE = paging()
_QUEUE = NameParam("queue", "Return only consumers that wait for messages of this queue.")


async def list_consumers(request: Request) -> Response:
    """List waiting consumers.

    Returns the consumers that are connected to this server process: waiting pops, then streams, then queue browsers,
    each kind in the order of arrival.
    """
    query = query_of(request)
    limit, offset = _PAGE.of(query)
    queue = _QUEUE.of(query)
    delivery = broker_of(request).delivery
    may_see = _may_see(identity_of(request))
    everybody: list[Waiting] = [*delivery.intentions, *delivery.streams, *delivery.browsers]
    found = [one for one in everybody if _is_shown(one, queue, may_see)]
    answer: Consumers = {
        "consumers": [_described(one, may_see) for one in found[offset : offset + limit]],
        "total": len(found),
        "pagination": {"limit": limit, "offset": offset},
    }
    return reply(answer)


MaySee = Callable[[str | None], bool]
"""Whether the caller may see consumers of a queue, or (None) consumers that wait by namespace or task."""


def _may_see(identity: Identity) -> MaySee:
    return lambda queue: not identity.restricted or (queue is not None and identity.may_use(queue))


def _is_shown(one: Waiting, queue: str | None, may_see: MaySee) -> bool:
    seen = [name for name in _queues_of(one) if may_see(name)]
    if queue is not None:
        return queue in seen
    return bool(seen) or may_see(None)  # A stream can be without subscriptions.


def _queues_of(one: Waiting) -> list[str | None]:
    match one:
        case Intention():
            return [one.request.queue]
        case Stream():
            return [consumer.request.queue for consumer in one.consumers.values()]
        case Browser():
            return [one.queue]


def _described(one: Waiting, may_see: MaySee) -> WaitingPop | WaitingStream | WaitingBrowser:
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
                waiting_since=format_time_ms(one.created_at),
                deadline=format_time_ms(one.deadline),
                state=one.subscription.manager.state_of(one).value,
            )
        case Stream():
            return WaitingStream(
                id=f"stream-{one.number}",
                waiting_since=format_time_ms(one.created_at),
                credit=one.credit,
                unsettled=one.unsettled,
                paused=one.paused,
                draining=one.draining,
                subscriptions=[
                    _subscription(consumer) for consumer in one.consumers.values() if may_see(consumer.request.queue)
                ],
            )
        case Browser():
            start = one.start if isinstance(one.start, str) else format_time_ms(one.start)
            return WaitingBrowser(queue=one.queue, partition=one.partition, start=start)


def _subscription(consumer: StreamConsumer) -> StreamSubscription:
    wish = consumer.request
    return StreamSubscription(
        id=consumer.name,
        queue=wish.queue,
        partition=wish.partition,
        namespace=wish.namespace,
        task=wish.task,
        consumer_group=wish.group,
        batch=wish.batch,
        priority=consumer.priority,
        consumer=wish.consumer or None,
        state=consumer.subscription.manager.state_of(consumer).value,
    )


TABLE: Table = {
    "/api/v1/consumers": {"GET": read(list_consumers, Reach.LISTED, query=(*_PAGE, _QUEUE), answer=Consumers)},
}
