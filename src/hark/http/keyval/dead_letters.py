"""Dead letters of work queues: list, get, requeue, delete, purge."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from hark.broker.broker import first
from hark.clock import MILLISECOND
from hark.errors import NotFound
from hark.http.checks import name_param
from hark.http.keyval.params import BASE, limit_param, offset_param, queue_param
from hark.http.routes.requests import broker_of, query_of, reply, text_in_path
from hark.http.routes.table import Table
from hark.model import QUEUE_MODE, DeadLetter, DeadLetterFilter


async def list_dead_letters(request: Request) -> Response:
    """A page of the dead letters of a queue, newest failure first."""
    query = query_of(request)
    where = DeadLetterFilter(
        queue=queue_param(query), group=QUEUE_MODE, limit=limit_param(query), offset=offset_param(query)
    )
    page = await broker_of(request).dead_letters(where)
    return reply([_entry(letter) for letter in page.items])


async def get_dead_letter(request: Request) -> Response:
    """One dead letter, by its own id or by that of the message."""
    page = await broker_of(request).dead_letters(_one(request))
    if not page.items:
        raise _not_found()
    return reply(_entry(page.items[0]))


async def requeue(request: Request) -> Response:
    """Put a dead letter back in front of its queue, with its options and no attempts used."""
    engine = broker_of(request).engine
    page = await engine.dead_letters(_one(request))
    if not page.items:
        raise _not_found()
    try:
        message_id = first(await engine.requeue([page.items[0].id]))
    except NotFound:
        raise _not_found() from None  # Somebody else was faster.
    return reply({"ok": True, "newId": message_id, "id": message_id})


async def delete_dead_letter(request: Request) -> Response:
    """Remove one dead letter; one that is not there is removed already."""
    await broker_of(request).engine.delete_dead_letters(_one(request))
    return reply({"ok": True})


async def purge_dead_letters(request: Request) -> Response:
    """Remove all dead letters of a queue."""
    where = DeadLetterFilter(queue=queue_param(query_of(request)), group=QUEUE_MODE)
    return reply({"deletedCount": await broker_of(request).engine.delete_dead_letters(where)})


def _one(request: Request) -> DeadLetterFilter:
    """An id finds its dead letter alone; a queue that is named has to be the right one."""
    queue = name_param(query_of(request), "queue")
    return DeadLetterFilter(queue=queue, group=QUEUE_MODE, id=text_in_path(request, "id"), limit=1)


def _not_found() -> NotFound:
    return NotFound("Message not found in DLQ", code="dead_letter_not_found")


def _entry(letter: DeadLetter) -> dict[str, object]:
    return {
        "id": letter.id,
        "originalId": letter.message_id,
        "value": letter.payload,
        "attempts": letter.attempts,
        "errorMessage": letter.error,
        "originalCreatedAt": letter.created_at // MILLISECOND,
        "failedAt": letter.failed_at // MILLISECOND,
    }


TABLE: Table = {
    f"{BASE}/queue/dlq": {"GET": list_dead_letters, "DELETE": purge_dead_letters},
    f"{BASE}/queue/dlq/{{id}}": {"GET": get_dead_letter, "DELETE": delete_dead_letter},
    f"{BASE}/queue/dlq/{{id}}/requeue": {"POST": requeue},
}
