"""Dead letters of work queues: list, get, requeue, delete, purge."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from hark.broker.broker import first
from hark.clock import MILLISECOND
from hark.errors import NotFound
from hark.http.answers import keyval as answers
from hark.http.edge.identities import identity_of
from hark.http.edge.reaching import reached_letter
from hark.http.keyval.params import BASE, LIMIT, OFFSET, QUEUE, queue_param
from hark.http.params import NameParam
from hark.http.routes.requests import broker_of, query_of, reply, text_in_path
from hark.http.routes.table import Failure, Reach, Table, admin, read, write
from hark.model import QUEUE_MODE, DeadLetter, DeadLetterFilter

_OF_QUEUE = NameParam("queue", "Work queue of the dead letter. Optional, because the id identifies the dead letter.")


async def list_dead_letters(request: Request) -> Response:
    """List dead letters of a work queue. Returns a page of dead letters, the newest failure first."""
    query = query_of(request)
    where = DeadLetterFilter(queue=queue_param(query), group=QUEUE_MODE, limit=LIMIT.of(query), offset=OFFSET.of(query))
    page = await broker_of(request).dead_letters(where)
    return reply([_entry(letter) for letter in page.items])


async def get_dead_letter(request: Request) -> Response:
    """Get a dead letter of a work queue. Accepts the id of the dead letter or the id of the message."""
    page = await broker_of(request).dead_letters(await _one(request))
    if not page.items:
        raise _not_found()
    return reply(_entry(page.items[0]))


async def requeue(request: Request) -> Response:
    """Requeue a dead letter of a work queue.

    Puts the message back at the front of its queue with a new id. It keeps its options, and its attempts start at zero.
    """
    engine = broker_of(request).engine
    page = await engine.dead_letters(await _one(request))
    if not page.items:
        raise _not_found()
    try:
        message_id = first(await engine.requeue([page.items[0].id]))
    except NotFound:
        raise _not_found() from None  # Another request removed it meanwhile.
    answer: answers.Requeued = {"ok": True, "newId": message_id, "id": message_id}
    return reply(answer)


async def delete_dead_letter(request: Request) -> Response:
    """Delete a dead letter of a work queue. Succeeds also if the dead letter does not exist."""
    await broker_of(request).engine.delete_dead_letters(await _one(request))
    answer: answers.Ok = {"ok": True}
    return reply(answer)


async def purge_dead_letters(request: Request) -> Response:
    """Delete all dead letters of a work queue. Returns the number of deleted dead letters."""
    where = DeadLetterFilter(queue=queue_param(query_of(request)), group=QUEUE_MODE)
    answer: answers.Deleted = {"deletedCount": await broker_of(request).engine.delete_dead_letters(where)}
    return reply(answer)


async def _one(request: Request) -> DeadLetterFilter:
    """Return a filter for the id in the path, and for the queue if the request names one."""
    queue = _OF_QUEUE.of(query_of(request))
    where = DeadLetterFilter(queue=queue, group=QUEUE_MODE, ids=(text_in_path(request, "id"),), limit=1)
    return await reached_letter(identity_of(request), broker_of(request), where)


def _not_found() -> NotFound:
    return NotFound("Message not found in DLQ", code="dead_letter_not_found")


def _entry(letter: DeadLetter) -> answers.WorkDeadLetter:
    return {
        "id": letter.id,
        "originalId": letter.message_id,
        "value": letter.payload,
        "attempts": letter.attempts,
        "errorMessage": letter.error,
        "originalCreatedAt": letter.created_at // MILLISECOND,
        "failedAt": letter.failed_at // MILLISECOND,
    }


_LETTERS = f"{BASE}/queue/dlq"
_NOT_THERE = (Failure(404, "dead_letter_not_found"),)

TABLE: Table = {
    _LETTERS: {
        "GET": read(list_dead_letters, Reach.QUERY, query=(QUEUE, LIMIT, OFFSET), answer=list[answers.WorkDeadLetter]),
        "DELETE": admin(purge_dead_letters, Reach.QUERY, query=(QUEUE,), answer=answers.Deleted),
    },
    f"{_LETTERS}/{{id}}": {
        "GET": read(get_dead_letter, Reach.ITEMS, query=(_OF_QUEUE,), answer=answers.WorkDeadLetter, errors=_NOT_THERE),
        "DELETE": write(delete_dead_letter, Reach.ITEMS, query=(_OF_QUEUE,), answer=answers.Ok),
    },
    f"{_LETTERS}/{{id}}/requeue": {
        "POST": write(requeue, Reach.ITEMS, query=(_OF_QUEUE,), answer=answers.Requeued, errors=_NOT_THERE)
    },
}
