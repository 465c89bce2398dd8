"""Statistics and settings of work queues."""

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
    """Settings of a work queue. The field is required, so that an empty body does not reset it."""

    lock_duration: int | None


async def show_stats(request: Request) -> Response:
    """Get statistics of a work queue. Returns the number of messages by state."""
    stats = await broker_of(request).work_queues.stats(queue_param(query_of(request)))
    answer: answers.WorkStats = {
        "pending": stats.pending,
        "processing": stats.processing,
        "dlq": stats.dlq,
        "total": stats.total,
    }
    return reply(answer)


async def show_settings(request: Request) -> Response:
    """Get the settings of a work queue. Returns the length of the lease on a message of the queue."""
    queue = queue_param(query_of(request))
    own = await broker_of(request).work_queues.lock_duration(queue)
    return reply(_settings(request, queue, own))


async def change_settings(request: Request) -> Response:
    """Change the settings of a work queue. Sets the length of new leases on messages of the queue."""
    queue = queue_param(query_of(request))
    body = await read_json(request, SettingsBody, "body")
    own = check_int(body.lock_duration or 0, "lockDuration", 0, MAX_LOCK_MS)
    await broker_of(request).work_queues.set_lock_duration(queue, own)
    return reply(_settings(request, queue, own))


def _settings(request: Request, queue: str, own: int) -> answers.WorkSettings:
    """Return the settings in effect, and whether they are the default of the server."""
    lock_duration = own or settings_of(request).queue.lock_duration
    return {"queue": queue, "lockDuration": lock_duration, "inherited": not own}


TABLE: Table = {
    f"{BASE}/queue/stats": {"GET": read(show_stats, Reach.QUERY, query=(QUEUE,), answer=answers.WorkStats)},
    f"{BASE}/queue/settings": {
        "GET": read(show_settings, Reach.QUERY, query=(QUEUE,), answer=answers.WorkSettings),
        "PUT": write(change_settings, Reach.QUERY, query=(QUEUE,), body=SettingsBody, answer=answers.WorkSettings),
    },
}
