"""Work queues as administrators see them: statistics and settings."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from hark.http.answers import keyval as answers
from hark.http.checks import check_int
from hark.http.keyval.params import BASE, QUEUE, queue_param
from hark.http.routes.requests import broker_of, query_of, read_json, reply, settings_of
from hark.http.routes.table import Reach, Table, read, write

MAX_LOCK_MS = 10 * 365 * 86_400_000


class SettingsBody(msgspec.Struct, rename="camel"):
    """What a queue does differently from what the server's settings say; null and 0: nothing.

    Required: a body about something else must not take away what was set before.
    """

    lock_duration: int | None


async def show_stats(request: Request) -> Response:
    """How many messages of a queue are in which state."""
    stats = await broker_of(request).work_queues.stats(queue_param(query_of(request)))
    answer: answers.WorkStats = {
        "pending": stats.pending,
        "processing": stats.processing,
        "dlq": stats.dlq,
        "total": stats.total,
    }
    return reply(answer)


async def show_settings(request: Request) -> Response:
    """How long consumers of a queue hold a message."""
    queue = queue_param(query_of(request))
    own = await broker_of(request).work_queues.lock_duration(queue)
    return reply(_settings(request, queue, own))


async def change_settings(request: Request) -> Response:
    """Say how long consumers of a queue hold a message from now on."""
    queue = queue_param(query_of(request))
    body = await read_json(request, SettingsBody, "body")
    own = check_int(body.lock_duration or 0, "lockDuration", 0, MAX_LOCK_MS)
    await broker_of(request).work_queues.set_lock_duration(queue, own)
    return reply(_settings(request, queue, own))


def _settings(request: Request, queue: str, own: int) -> answers.WorkSettings:
    """What holds, and whether that is the server's word or the queue's own."""
    lock_duration = own or settings_of(request).queue.lock_duration
    return {"queue": queue, "lockDuration": lock_duration, "inherited": not own}


TABLE: Table = {
    f"{BASE}/queue/stats": {"GET": read(show_stats, Reach.QUERY, query=(QUEUE,), answer=answers.WorkStats)},
    f"{BASE}/queue/settings": {
        "GET": read(show_settings, Reach.QUERY, query=(QUEUE,), answer=answers.WorkSettings),
        "PUT": write(change_settings, Reach.QUERY, query=(QUEUE,), body=SettingsBody, answer=answers.WorkSettings),
    },
}
