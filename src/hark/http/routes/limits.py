"""Limits of a consumer group of a queue: messages in flight, and messages per second."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from hark.errors import NotFound
from hark.http.answers.groups import ShownLimits
from hark.http.routes.options import LimitsBody, read_limits
from hark.http.routes.requests import NO_GROUP, broker_of, name_in_path, read_json, reply
from hark.http.routes.table import Reach, Table, read, write
from hark.model import Limits


async def show_limits(request: Request) -> Response:
    """Get the limits of a consumer group of a queue. A limit of 0 means no limit."""
    group, queue = name_in_path(request, "group"), name_in_path(request, "queue")
    found = await broker_of(request).engine.group_stats(group, queue)
    if not found:
        raise _no_group()
    return _answer(group, queue, found[0].limits)


async def limit_group(request: Request) -> Response:
    """Set the limits of a consumer group of a queue. Replaces all limits; an absent limit becomes 0 (no limit)."""
    group, queue = name_in_path(request, "group"), name_in_path(request, "queue")
    limits = read_limits(await read_json(request, dict[str, msgspec.Raw], "limits"))
    if not await broker_of(request).engine.limit_group(queue, group, limits):
        raise _no_group()
    return _answer(group, queue, limits)


def _no_group() -> NotFound:
    return NotFound("Consumer group not found", code="group_not_found")


def _answer(group: str, queue: str, limits: Limits) -> Response:
    answer: ShownLimits = {"success": True, "consumerGroup": group, "queueName": queue, "limits": limits}
    return reply(answer)


TABLE: Table = {
    "/api/v1/consumer-groups/{group}/queues/{queue}/limits": {
        "GET": read(show_limits, Reach.PATH, answer=ShownLimits, errors=(NO_GROUP,)),
        "PUT": write(limit_group, Reach.PATH, body=LimitsBody, answer=ShownLimits, errors=(NO_GROUP,)),
    },
}
