"""Dead letters: list, requeue and delete, one or several at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from hark.broker.broker import first
from hark.broker.dead_letters import find_each, find_oldest
from hark.errors import Conflict, HarkError, InvalidInput, NotFound
from hark.http.answers import dead_letters as answers
from hark.http.checks import check_int, check_text, format_time_ms
from hark.http.edge.identities import check_filter, identity_of
from hark.http.edge.reaching import reached_letter
from hark.http.exchange import exchange_of
from hark.http.params import MAX_PAGE, BoolParam, IdParam, NameParam, TimeParam, paging
from hark.http.routes.requests import TOO_MANY, broker_of, query_of, read_json, reply, text_in_path
from hark.http.routes.table import Failure, Reach, Table, admin, read, write
from hark.model import DeadLetter, DeadLetterFilter

_PAGE = paging()
_QUEUE = NameParam("queue", "Match only dead letters of this queue.")
_GROUP = NameParam("consumerGroup", "Match only dead letters of this consumer group.")
_PARTITION = NameParam("partition", "Match only dead letters of partitions with this name.")
_FROM = TimeParam("from", "Match only dead letters that failed at or after this time.")
_TO = TimeParam("to", "Match only dead letters that failed at or before this time.")
_ID = IdParam("id", "Match only the dead letter with this id, or the dead letters of the message with this id.")
_SEARCH = IdParam(
    "search", "Match only dead letters whose error contains this text, without regard to the case of ASCII letters."
)
_PAYLOADS = BoolParam("payloads", "Include the payloads. Without them `data` is null.", True)
_FILTER = (_QUEUE, _GROUP, _PARTITION, _FROM, _TO, _ID, _SEARCH)


async def list_dead_letters(request: Request) -> Response:
    """List dead letters. Returns a page of matching dead letters, the newest failure first."""
    query = query_of(request)
    limit, offset = _PAGE.of(query)
    where = msgspec.structs.replace(_filter(query), payloads=_PAYLOADS.of(query), limit=limit, offset=offset)
    page = await broker_of(request).dead_letters(where)
    answer: answers.DeadLetterPage = {
        "messages": [_letter(letter) for letter in page.items],
        "pagination": {"limit": limit, "offset": offset},
        "total": page.total,
    }
    return reply(answer)


async def requeue(request: Request) -> Response:
    """Requeue a dead letter.

    Puts the message back at the front of its partition, for the consumer group in which it failed.
    """
    letter = await _find(request)
    message_id = first(await broker_of(request).engine.requeue([letter.id]))
    answer: answers.RequeuedDeadLetter = {
        "success": True,
        "deadLetterId": letter.id,
        "messageId": message_id,
        "queue": letter.queue,
        "partition": letter.partition,
        "consumerGroup": letter.group,
    }
    return reply(answer)


async def delete_dead_letter(request: Request) -> Response:
    """Delete a dead letter. Accepts the id of the dead letter, or the id of its message."""
    letter = await _find(request)
    deleted = await broker_of(request).engine.delete_dead_letters(DeadLetterFilter(ids=(letter.id,)))
    if not deleted:
        raise NotFound("Dead letter not found", code="dead_letter_not_found")
    answer: answers.DeletedDeadLetter = {"success": True, "deadLetterId": letter.id, "deleted": deleted}
    return reply(answer)


async def purge_dead_letters(request: Request) -> Response:
    """Delete the dead letters of a queue.

    Deletes all matching dead letters. The parameter `queue` is required.
    """
    where = _filter(query_of(request))
    if where.queue is None:
        raise InvalidInput("queue is required")
    deleted = await broker_of(request).engine.delete_dead_letters(where)
    answer: answers.PurgedDeadLetters = {"success": True, "queue": where.queue, "deleted": deleted}
    return reply(answer)


# Many at a time --------------------------------------------------------------------------------------------


class FilterBody(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """A filter of dead letters. Absent fields match all dead letters."""

    queue: str | None = None
    consumer_group: str | None = None
    partition: str | None = None
    since: str | None = msgspec.field(default=None, name="from")
    until: str | None = msgspec.field(default=None, name="to")
    search: str | None = None


class RequeueBody(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """The dead letters to requeue: either ids, or a filter with an optional limit."""

    ids: list[str] | None = None
    filter: FilterBody | None = None
    limit: int | None = None


class IdsBody(msgspec.Struct, forbid_unknown_fields=True):
    """The ids of dead letters, or of messages that are dead letters in one consumer group."""

    ids: list[str]


async def requeue_many(request: Request) -> Response:
    """Requeue several dead letters.

    Requeues the dead letters with the given ids, or the oldest dead letters that match the filter. The response has
    one result for each dead letter.
    """
    body = await read_json(request, RequeueBody, "body")
    engine = broker_of(request).engine
    found: Sequence[DeadLetter | HarkError]
    if body.ids is not None and body.filter is None and body.limit is None:
        ids, remaining = _check_ids(body.ids), 0
        found = await find_each(engine, ids, identity_of(request).may_use)
    elif body.filter is not None and body.ids is None:
        where = _filter(_as_query(body.filter))
        check_filter(identity_of(request), where.queue)
        most = MAX_PAGE if body.limit is None else check_int(body.limit, "limit", 1, MAX_PAGE)
        letters, remaining = await find_oldest(engine, where, most)
        found, ids = letters, [letter.id for letter in letters]
    else:
        raise InvalidInput("expected either ids, or a filter with an optional limit")
    chosen = [one.id for one in found if isinstance(one, DeadLetter)]
    _note_letters(request, found)
    outcomes = iter(await engine.requeue(chosen))
    results = [
        _result(name, one if isinstance(one, HarkError) else next(outcomes))
        for name, one in zip(ids, found, strict=True)
    ]
    requeued = sum(1 for result in results if result["success"])
    answer: answers.RequeuedDeadLetters = {"requeued": requeued, "remaining": remaining, "results": results}
    return reply(answer)


async def delete_many(request: Request) -> Response:
    """Delete several dead letters.

    Deletes the dead letters with the given ids in one commit. The response has one result for each id.
    """
    ids = _check_ids((await read_json(request, IdsBody, "body")).ids)
    engine = broker_of(request).engine
    found = await find_each(engine, ids, identity_of(request).may_use)
    own = [one.id for one in found if isinstance(one, DeadLetter)]
    _note_letters(request, found)
    deleted = await engine.delete_dead_letters(DeadLetterFilter(ids=own))
    results = [_result(name, one if isinstance(one, HarkError) else None) for name, one in zip(ids, found, strict=True)]
    answer: answers.DeletedDeadLetters = {"deleted": deleted, "results": results}
    return reply(answer)


def _note_letters(request: Request, found: Sequence[DeadLetter | HarkError]) -> None:
    """Note the queues and the number of dead letters for the audit log."""
    queues = [one.queue for one in found if isinstance(one, DeadLetter)]
    exchange_of(request).note_target(queues=sorted(set(queues)), number=len(queues))


def _check_ids(ids: list[str]) -> list[str]:
    if len(ids) > MAX_PAGE:
        raise InvalidInput(
            f"ids: at most {MAX_PAGE} in one request, got {len(ids)}; send smaller batches", code="batch_too_large"
        )
    return [check_text(one, f"ids[{index}]") for index, one in enumerate(ids)]


def _as_query(body: FilterBody) -> dict[str, str]:
    given: dict[str, str | None] = msgspec.to_builtins(body)
    return {name: value for name, value in given.items() if value is not None}


def _result(name: str, outcome: str | HarkError | None) -> answers.DeadLetterResult:
    if isinstance(outcome, HarkError):
        return {"id": name, "success": False, "error": outcome.text, "code": outcome.code}
    if outcome is None:
        return {"id": name, "success": True}
    return {"id": name, "success": True, "messageId": outcome}


def _filter(query: Mapping[str, str]) -> DeadLetterFilter:
    return DeadLetterFilter(
        queue=_QUEUE.of(query),
        group=_GROUP.of(query),
        partition=_PARTITION.of(query),
        since=_FROM.of(query),
        until=_TO.of(query),
        ids=(letter,) if (letter := _ID.of(query)) else None,
        search=_SEARCH.of(query),
    )


async def _find(request: Request) -> DeadLetter:
    """Return the dead letter with the id in the path, or the only one of the message with this id."""
    group = _GROUP.of(query_of(request))
    where = DeadLetterFilter(ids=(text_in_path(request, "id"),), group=group, payloads=False, limit=2)
    where = await reached_letter(identity_of(request), broker_of(request), where)
    found = (await broker_of(request).engine.dead_letters(where)).items
    if not found:
        raise NotFound("Dead letter not found", code="dead_letter_not_found")
    if len(found) > 1:
        raise Conflict(
            "the message is a dead letter in several consumer groups; name one with the parameter "
            "consumerGroup, or use "
            "the deadLetterId instead of the message id",
            code="ambiguous",
        )
    return found[0]


def _letter(letter: DeadLetter) -> answers.ListedDeadLetter:
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


_NOT_THE_ONE = (Failure(404, "dead_letter_not_found"), Failure(409, "ambiguous"))

TABLE: Table = {
    "/api/v1/dlq": {
        "GET": read(list_dead_letters, Reach.QUERY, query=(*_PAGE, *_FILTER, _PAYLOADS), answer=answers.DeadLetterPage),
        "DELETE": admin(purge_dead_letters, Reach.QUERY, query=_FILTER, answer=answers.PurgedDeadLetters),
    },
    "/api/v1/dlq/requeue": {
        "POST": write(
            requeue_many, Reach.ITEMS, body=RequeueBody, answer=answers.RequeuedDeadLetters, errors=(TOO_MANY,)
        )
    },
    "/api/v1/dlq/delete": {
        "POST": write(delete_many, Reach.ITEMS, body=IdsBody, answer=answers.DeletedDeadLetters, errors=(TOO_MANY,))
    },
    "/api/v1/dlq/{id}": {
        "DELETE": write(
            delete_dead_letter, Reach.ITEMS, query=(_GROUP,), answer=answers.DeletedDeadLetter, errors=_NOT_THE_ONE
        )
    },
    "/api/v1/dlq/{id}/requeue": {
        "POST": write(requeue, Reach.ITEMS, query=(_GROUP,), answer=answers.RequeuedDeadLetter, errors=_NOT_THE_ONE)
    },
}
