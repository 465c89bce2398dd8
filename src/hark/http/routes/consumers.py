"""Who waits on this server: pops, streams and browsers."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from hark.broker.delivery.browsers import Browser
from hark.broker.delivery.intentions import Intention
from hark.broker.delivery.stream import Stream, StreamConsumer
from hark.http.checks import format_time_ms, name_param
from hark.http.routes.requests import broker_of, page_params, query_of, reply
from hark.http.routes.table import Table
from hark.model import PopRequest

Waiting = Intention | Stream | Browser


async def list_consumers(request: Request) -> Response:
    """Pops, then streams, then browsers, each kind in the order in which they came."""
    query = query_of(request)
    limit, offset = page_params(query)
    queue = name_param(query, "queue")
    delivery = broker_of(request).delivery
    everybody: list[Waiting] = [*delivery.intentions, *delivery.streams, *delivery.browsers]
    found = everybody if queue is None else [one for one in everybody if _waits_for(one, queue)]
    return reply(
        {
            "consumers": [_described(one) for one in found[offset : offset + limit]],
            "total": len(found),
            "pagination": {"limit": limit, "offset": offset},
        }
    )


def _waits_for(one: Waiting, queue: str) -> bool:
    match one:
        case Intention():
            return one.request.queue == queue
        case Stream():
            return any(consumer.request.queue == queue for consumer in one.consumers.values())
        case Browser():
            return one.queue == queue


def _described(one: Waiting) -> dict[str, object]:
    match one:
        case Intention():
            return {
                "kind": "pop",
                "id": f"pop-{one.number}",
                **_wish(one.request),
                "priority": one.priority,
                "waitingSince": format_time_ms(one.created_at),
                "deadline": format_time_ms(one.deadline),
                "state": one.subscription.manager.state_of(one).value,
            }
        case Stream():
            return {
                "kind": "stream",
                "id": f"stream-{one.number}",
                "waitingSince": format_time_ms(one.created_at),
                "credit": one.credit,
                "unsettled": one.unsettled,
                "paused": one.paused,
                "draining": one.draining,
                "subscriptions": [_subscription(consumer) for consumer in one.consumers.values()],
            }
        case Browser():
            start = one.start if isinstance(one.start, str) else format_time_ms(one.start)
            return {"kind": "browser", "queue": one.queue, "partition": one.partition, "from": start}


def _subscription(consumer: StreamConsumer) -> dict[str, object]:
    return {
        "id": consumer.name,
        **_wish(consumer.request),
        "priority": consumer.priority,
        "state": consumer.subscription.manager.state_of(consumer).value,
    }


def _wish(request: PopRequest) -> dict[str, object]:
    return {
        "queue": request.queue,
        "partition": request.partition,
        "namespace": request.namespace,
        "task": request.task,
        "consumerGroup": request.group,
        "batch": request.batch,
    }


TABLE: Table = {"/api/v1/consumers": {"GET": list_consumers}}
