"""Dead letters: list, requeue, delete and import, one or several at a time."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import msgspec

from hark.api import operations, types
from hark.api.types.dead_letters import DeadLetterItem, ImportBody
from hark.api.types.delivery import PushItem
from hark.broker.broker import first
from hark.broker.work_queues import find_each, find_oldest
from hark.errors import Conflict, HarkError, InvalidInput, NotFound
from hark.http import routing
from hark.http.admission import check_filter, reached_letter, stamp
from hark.http.checks import check_int, check_name, check_text, parse_time, raw_parts, short
from hark.http.items import MAX_ERROR_CHARACTERS, to_new_message, too_many
from hark.http.responses import answer_of
from hark.http.routing import Call, Query, bind, table
from hark.ids import has_location
from hark.model import DeadLetter, DeadLetterFilter, NewDeadLetter

_PAGE = routing.paging()
_MOST_ATTEMPTS = 2**31 - 1
_QUEUE = routing.NameParam("queue", "Match only dead letters of this queue.")
_GROUP = routing.NameParam("consumerGroup", "Match only dead letters of this consumer group.")
_PARTITION = routing.NameParam("partition", "Match only dead letters of partitions with this name.")
_FROM = routing.TimeParam("from", "Match only dead letters that failed at or after this time.")
_TO = routing.TimeParam("to", "Match only dead letters that failed at or before this time.")
_ID = routing.NameParam(
    "id", "Match only the dead letter with this id, or the dead letters of the message with this id."
)
_SEARCH = routing.NameParam(
    "search", "Match only dead letters whose error contains this text, without regard to the case of ASCII letters."
)
_PAYLOADS = routing.BoolParam("payloads", "Include the payloads. Without them `data` is null.", True)
_FILTER = (_QUEUE, _GROUP, _PARTITION, _FROM, _TO, _ID, _SEARCH)


async def list_dead_letters(call: Call) -> types.Page[types.dead_letters.ListedDeadLetter]:
    """List dead letters. Returns a page of matching dead letters, the newest failure first."""
    page = _PAGE.of(call.query)
    where = msgspec.structs.replace(
        _filter(call.query), payloads=_PAYLOADS.of(call.query), limit=page.limit, offset=page.offset
    )
    found = await call.broker.dead_letters(where)
    letters = tuple(_letter(letter) for letter in found.items)
    return types.dead_letters.DeadLetterPage(items=letters, pagination=page, total=found.total)


async def requeue(call: Call) -> types.dead_letters.RequeuedDeadLetter:
    """Requeue a dead letter.

    Puts the message back at the front of its partition, for the consumer group in which it failed.
    """
    letter = await _find(call)
    message_id = first(await call.broker.tasks.requeue([letter.id]))
    return answer_of(
        types.dead_letters.RequeuedDeadLetter,
        letter,
        success=True,
        dead_letter_id=letter.id,
        message_id=message_id,
        consumer_group=letter.group,
    )


async def delete_dead_letter(call: Call) -> types.dead_letters.DeletedCount:
    """Delete a dead letter. Accepts the id of the dead letter, or the id of its message."""
    letter = await _find(call)
    deleted = await call.engine.delete_dead_letters(DeadLetterFilter(ids=(letter.id,)))
    if not deleted:
        raise _not_found()
    return types.dead_letters.DeletedDeadLetter(True, letter.id, deleted)


async def purge_dead_letters(call: Call) -> types.dead_letters.DeletedCount:
    """Delete the dead letters of a queue.

    Deletes all matching dead letters. The parameter `queue` is required.
    """
    where = _filter(call.query)
    if where.queue is None:
        raise InvalidInput("queue is required")
    deleted = await call.engine.delete_dead_letters(where)
    return types.dead_letters.PurgedDeadLetters(True, where.queue, deleted)


# Many at a time --------------------------------------------------------------------------------------------


async def requeue_many(call: Call) -> types.dead_letters.RequeuedDeadLetters:
    """Requeue several dead letters.

    Requeues the dead letters with the given ids, or the oldest dead letters that match the filter. The response has
    one result for each dead letter.
    """
    body = await call.json(types.dead_letters.RequeueBody, "body")
    found: Sequence[DeadLetter | HarkError]
    if body.ids is not None and body.filter is None and body.limit is None:
        ids, remaining = _check_ids(body.ids), 0
        found = await find_each(call.engine, ids, call.identity.may_use)
    elif body.filter is not None and body.ids is None:
        given = msgspec.to_builtins(body.filter)
        where = _filter({name: value for name, value in given.items() if value is not None})
        check_filter(call.identity, where.queue)
        most = routing.MAX_PAGE if body.limit is None else check_int(body.limit, "limit", 1, routing.MAX_PAGE)
        letters, remaining = await find_oldest(call.engine, where, most)
        found, ids = letters, [letter.id for letter in letters]
    else:
        raise InvalidInput("expected either ids, or a filter with an optional limit")
    outcomes = iter(await call.broker.tasks.requeue(_note_letters(call, found)))
    results = tuple(
        _result(name, one if isinstance(one, HarkError) else next(outcomes))
        for name, one in zip(ids, found, strict=True)
    )
    requeued = sum(1 for result in results if result.success)
    return types.dead_letters.RequeuedDeadLetters(requeued=requeued, remaining=remaining, results=results)


async def delete_many(call: Call) -> types.dead_letters.DeletedDeadLetters:
    """Delete several dead letters.

    Deletes the dead letters with the given ids in one commit. The response has one result for each id.
    """
    ids = _check_ids((await call.json(types.dead_letters.IdsBody, "body")).items)
    found = await find_each(call.engine, ids, call.identity.may_use)
    deleted = await call.engine.delete_dead_letters(DeadLetterFilter(ids=_note_letters(call, found)))
    results = tuple(
        _result(name, one if isinstance(one, HarkError) else None) for name, one in zip(ids, found, strict=True)
    )
    return types.dead_letters.DeletedDeadLetters(deleted=deleted, results=results)


# Dead letters of other stores -----------------------------------------------------------------------------------


async def import_dead_letters(call: Call) -> types.dead_letters.ImportedDeadLetters:
    """Import dead letters.

    Stores dead letters of another store in the queue that the parameter `queue` names. It must exist. A dead letter
    whose id, or whose message in the same consumer group, is a dead letter already is a duplicate and changes nothing.
    """
    queue = _QUEUE.of(call.query)
    items = (await call.json(ImportBody, "body", payloads=raw_parts("payload", "items"))).items
    if queue is None:
        raise InvalidInput("queue is required")
    most = call.settings.limits.max_batch
    if len(items) > most:
        raise too_many("items", most, len(items))
    letters = [_imported(item, queue, index) for index, item in enumerate(items)]
    stamp(call.identity, [letter.message for letter in letters])
    call.exchange.note_target(queues=[queue], number=len(letters))
    stored = sum(await call.broker.import_dead_letters(letters))
    return types.dead_letters.ImportedDeadLetters(imported=stored, duplicates=len(letters) - stored)


def _imported(item: DeadLetterItem, queue: str, index: int) -> NewDeadLetter:
    where = f"items[{index}]"
    return NewDeadLetter(
        message=to_new_message(answer_of(PushItem, item, queue=queue), index),
        id=_check_uuid(item.id, f"{where}.id"),
        group=check_name(item.consumer_group, f"{where}.consumerGroup"),
        attempts=check_int(item.attempts, f"{where}.attempts", 0, _MOST_ATTEMPTS),
        error=item.error[:MAX_ERROR_CHARACTERS],
        created_at=parse_time(item.created_at, f"{where}.createdAt"),
        failed_at=parse_time(item.failed_at, f"{where}.failedAt"),
    )


def _check_uuid(text: str, field: str) -> str:
    """Return the id of a dead letter. It must not look like the id of a message."""
    try:
        if str(uuid.UUID(text)) == text and not has_location(text):
            return text
    except ValueError:
        pass
    raise InvalidInput(f"{field}: expected the deadLetterId of an export, a UUID, got {short(text)}")


def _note_letters(call: Call, found: Sequence[DeadLetter | HarkError]) -> list[str]:
    """Note the queues and the number of dead letters for the audit log, and return the ids of the dead letters."""
    letters = [one for one in found if isinstance(one, DeadLetter)]
    call.exchange.note_target(queues=sorted({one.queue for one in letters}), number=len(letters))
    return [one.id for one in letters]


def _check_ids(ids: list[str]) -> list[str]:
    if len(ids) > routing.MAX_PAGE:
        raise InvalidInput(
            f"ids: at most {routing.MAX_PAGE} in one request, got {len(ids)}; send smaller batches",
            code="batch_too_large",
        )
    return [check_text(one, f"ids[{index}]") for index, one in enumerate(ids)]


def _result(name: str, outcome: str | HarkError | None) -> types.dead_letters.DeadLetterResult:
    if isinstance(outcome, HarkError):
        return types.dead_letters.DeadLetterResult(id=name, success=False, error=outcome.text, code=outcome.code)
    return types.dead_letters.DeadLetterResult(id=name, success=True, message_id=outcome)


def _filter(query: Query) -> DeadLetterFilter:
    return DeadLetterFilter(
        queue=_QUEUE.of(query),
        group=_GROUP.of(query),
        partition=_PARTITION.of(query),
        since=_FROM.of(query),
        until=_TO.of(query),
        ids=(letter,) if (letter := _ID.of(query)) else None,
        search=_SEARCH.of(query),
    )


async def _find(call: Call) -> DeadLetter:
    """Return the dead letter with the id in the path, or the only one of the message with this id."""
    where = DeadLetterFilter(ids=(call.id("id"),), group=_GROUP.of(call.query), payloads=False, limit=2)
    where = await reached_letter(call.identity, call.broker, where)
    found = (await call.engine.dead_letters(where)).items
    if not found:
        raise _not_found()
    if len(found) > 1:
        raise Conflict(
            "the message is a dead letter in several consumer groups; name one with the parameter consumerGroup, or "
            "use the deadLetterId instead of the message id",
            code="ambiguous",
        )
    return found[0]


def _not_found() -> NotFound:
    return NotFound("Dead letter not found", code="dead_letter_not_found")


def _letter(letter: DeadLetter) -> types.dead_letters.ListedDeadLetter:
    return answer_of(
        types.dead_letters.ListedDeadLetter,
        letter,
        id=letter.message_id,
        dead_letter_id=letter.id,
        consumer_group=letter.group,
        retry_count=max(0, letter.attempts - 1),
        payload_error=letter.unreadable,
        producer_sub=letter.producer,
    )


_NOT_THE_ONE = (routing.Failure(404, "dead_letter_not_found"), routing.Failure(409, "ambiguous"))

TABLE = table(
    bind(operations.LIST_DEAD_LETTERS, list_dead_letters, query=(*_PAGE, *_FILTER, _PAYLOADS)),
    bind(operations.PURGE_DEAD_LETTERS, purge_dead_letters, query=_FILTER),
    bind(operations.REQUEUE_MANY, requeue_many, body=types.dead_letters.RequeueBody, errors=(routing.TOO_MANY,)),
    bind(
        operations.IMPORT_DEAD_LETTERS,
        import_dead_letters,
        query=(_QUEUE,),
        body=ImportBody,
        body_bytes=routing.LARGE_BODY,
        errors=(routing.NO_QUEUE, routing.TOO_MANY, routing.MAINTENANCE),
    ),
    bind(operations.DELETE_MANY, delete_many, body=types.dead_letters.IdsBody, errors=(routing.TOO_MANY,)),
    bind(operations.DELETE_DEAD_LETTER, delete_dead_letter, query=(_GROUP,), errors=_NOT_THE_ONE),
    bind(operations.REQUEUE, requeue, query=(_GROUP,), errors=_NOT_THE_ONE),
)
