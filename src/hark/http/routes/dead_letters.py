"""Dead letters: list, requeue, delete."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from hark.broker.broker import first
from hark.errors import Conflict, InvalidInput, NotFound
from hark.http.checks import check_text, format_time_ms, name_param, time_param
from hark.http.routes.requests import broker_of, page_params, query_of, reply, text_in_path
from hark.http.routes.table import Table
from hark.model import DeadLetter, DeadLetterFilter


async def list_dead_letters(request: Request) -> Response:
    """A page of dead letters, newest failure first."""
    query = query_of(request)
    limit, offset = page_params(query)
    where = msgspec.structs.replace(_filter(query), limit=limit, offset=offset)
    page = await broker_of(request).dead_letters(where)
    return reply(
        {
            "messages": [_letter(letter) for letter in page.items],
            "pagination": {"limit": limit, "offset": offset},
            "total": page.total,
        }
    )


async def requeue(request: Request) -> Response:
    """Put a dead letter back in front of its partition, for the group it died in."""
    letter = await _find(request)
    message_id = first(await broker_of(request).engine.requeue([letter.id]))
    return reply(
        {
            "success": True,
            "deadLetterId": letter.id,
            "messageId": message_id,
            "queue": letter.queue,
            "partition": letter.partition,
            "consumerGroup": letter.group,
        }
    )


async def delete_dead_letter(request: Request) -> Response:
    """Remove one dead letter."""
    letter = await _find(request)
    deleted = await broker_of(request).engine.delete_dead_letters(DeadLetterFilter(id=letter.id))
    if not deleted:
        raise NotFound("Dead letter not found", code="dead_letter_not_found")
    return reply({"success": True, "deadLetterId": letter.id, "deleted": deleted})


async def purge_dead_letters(request: Request) -> Response:
    """Remove the dead letters of a queue, or those of it that match."""
    where = _filter(query_of(request))
    if where.queue is None:
        raise InvalidInput("queue is required")
    deleted = await broker_of(request).engine.delete_dead_letters(where)
    return reply({"success": True, "queue": where.queue, "deleted": deleted})


def _filter(query: Mapping[str, str]) -> DeadLetterFilter:
    return DeadLetterFilter(
        queue=name_param(query, "queue"),
        group=name_param(query, "consumerGroup"),
        partition=name_param(query, "partition"),
        since=time_param(query, "from"),
        until=time_param(query, "to"),
        id=check_text(query.get("id", ""), "id") or None,
    )


async def _find(request: Request) -> DeadLetter:
    """The dead letter with this id, or the only one of the message with this id."""
    group = name_param(query_of(request), "consumerGroup")
    where = DeadLetterFilter(id=text_in_path(request, "id"), group=group, limit=2)
    found = (await broker_of(request).engine.dead_letters(where)).items
    if not found:
        raise NotFound("Dead letter not found", code="dead_letter_not_found")
    if len(found) > 1:
        raise Conflict(
            "this message is a dead letter in several groups; name one with consumerGroup, or use the deadLetterId",
            code="ambiguous",
        )
    return found[0]


def _letter(letter: DeadLetter) -> dict[str, object]:
    return {
        "id": letter.message_id,
        "deadLetterId": letter.id,
        "transactionId": letter.transaction_id,
        "partitionId": letter.partition_id,
        "traceId": letter.trace_id,
        "queue": letter.queue,
        "partition": letter.partition,
        "consumerGroup": letter.group,
        "errorMessage": letter.error,
        "retryCount": max(0, letter.attempts - 1),
        "attempts": letter.attempts,
        "data": letter.payload,
        "producerSub": letter.producer,
        "createdAt": format_time_ms(letter.created_at),
        "failedAt": format_time_ms(letter.failed_at),
    }


TABLE: Table = {
    "/api/v1/dlq": {"GET": list_dead_letters, "DELETE": purge_dead_letters},
    "/api/v1/dlq/{id}": {"DELETE": delete_dead_letter},
    "/api/v1/dlq/{id}/requeue": {"POST": requeue},
}
