"""Dead letters: list, requeue, delete and import, one or several at a time."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from hark.api import operations
from hark.api.types.base import Pagination
from hark.api.types.dead_letters import (
    DeadLetterPage,
    DeadLetterResult,
    DeletedDeadLetter,
    DeletedDeadLetters,
    FilterBody,
    IdsBody,
    ImportedDeadLetters,
    ListedDeadLetter,
    PurgedDeadLetters,
    RequeueBody,
    RequeuedDeadLetter,
    RequeuedDeadLetters,
)
from hark.broker.broker import first
from hark.broker.work_queues import find_each, find_oldest
from hark.errors import Conflict, HarkError, InvalidInput, NotFound
from hark.http.admission import check_filter, identity_of, reached_letter, stamp
from hark.http.checks import (
    array_of,
    check_int,
    check_name,
    check_text,
    decode_unbounded,
    elements,
    parse_moment,
    raw_default,
    short,
    time_of,
)
from hark.http.exchange import exchange_of
from hark.http.items import MAX_ERROR_CHARACTERS, NO_KEYS, NO_PAYLOAD, PushItem, to_new_message
from hark.http.routes.requests import (
    MAINTENANCE,
    NO_QUEUE,
    TOO_MANY,
    broker_of,
    check_page,
    query_of,
    read_json,
    reply,
    settings_of,
    text_in_path,
)
from hark.http.routes.table import (
    LARGE_BODY,
    MAX_PAGE,
    BoolParam,
    Failure,
    IdParam,
    NameParam,
    Table,
    TimeParam,
    bind,
    paging,
    table,
)
from hark.ids import has_location
from hark.model import DeadLetter, DeadLetterFilter, NewDeadLetter

_PAGE = paging()
_MOST_ATTEMPTS = 2**31 - 1
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
    check_page(letter.payload for letter in page.items)
    return reply(
        DeadLetterPage(
            items=tuple(_letter(letter) for letter in page.items),
            pagination=Pagination(limit=limit, offset=offset),
            total=page.total,
        )
    )


async def requeue(request: Request) -> Response:
    """Requeue a dead letter.

    Puts the message back at the front of its partition, for the consumer group in which it failed.
    """
    letter = await _find(request)
    message_id = first(await broker_of(request).engine.requeue([letter.id]))
    return reply(
        RequeuedDeadLetter(
            success=True,
            dead_letter_id=letter.id,
            message_id=message_id,
            queue=letter.queue,
            partition=letter.partition,
            consumer_group=letter.group,
        )
    )


async def delete_dead_letter(request: Request) -> Response:
    """Delete a dead letter. Accepts the id of the dead letter, or the id of its message."""
    letter = await _find(request)
    deleted = await broker_of(request).engine.delete_dead_letters(DeadLetterFilter(ids=(letter.id,)))
    if not deleted:
        raise NotFound("Dead letter not found", code="dead_letter_not_found")
    return reply(DeletedDeadLetter(success=True, dead_letter_id=letter.id, deleted=deleted))


async def purge_dead_letters(request: Request) -> Response:
    """Delete the dead letters of a queue.

    Deletes all matching dead letters. The parameter `queue` is required.
    """
    where = _filter(query_of(request))
    if where.queue is None:
        raise InvalidInput("queue is required")
    deleted = await broker_of(request).engine.delete_dead_letters(where)
    return reply(PurgedDeadLetters(success=True, queue=where.queue, deleted=deleted))


# Many at a time --------------------------------------------------------------------------------------------


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
    results = tuple(
        _result(name, one if isinstance(one, HarkError) else next(outcomes))
        for name, one in zip(ids, found, strict=True)
    )
    requeued = sum(1 for result in results if result.success)
    return reply(RequeuedDeadLetters(requeued=requeued, remaining=remaining, results=results))


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
    results = tuple(
        _result(name, one if isinstance(one, HarkError) else None) for name, one in zip(ids, found, strict=True)
    )
    return reply(DeletedDeadLetters(deleted=deleted, results=results))


# Dead letters of other stores -----------------------------------------------------------------------------------


class DeadLetterItem(msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """A dead letter of another store, with the options of its message."""

    id: str
    partition: str
    consumer_group: str
    transaction_id: str
    payload: msgspec.Raw
    error: str
    attempts: int
    created_at: str | int
    failed_at: str | int
    trace_id: str = ""
    priority: int | None = None
    backoff_schedule: list[int] | None = None
    keys_if_undelivered: msgspec.Raw = raw_default(NO_KEYS)
    traceparent: str | None = None
    tracestate: str | None = None


class ImportBody(msgspec.Struct, forbid_unknown_fields=True):
    """The dead letters to import."""

    items: list[DeadLetterItem]


class _Carrier(msgspec.Struct, gc=False):
    payload: msgspec.Raw = raw_default(NO_PAYLOAD)


@cache
def _carriers() -> Any:
    return msgspec.defstruct("Carriers", [("items", array_of(_Carrier))])


def _payloads(body: bytes) -> Iterator[msgspec.Raw]:
    for item in elements(decode_unbounded(body, _carriers(), "body").items):
        yield item.payload


async def import_dead_letters(request: Request) -> Response:
    """Import dead letters.

    Stores dead letters of another store in the queue that the parameter `queue` names. It must exist. A dead letter
    whose id, or whose message in the same consumer group, is a dead letter already is a duplicate and changes nothing.
    """
    queue = _QUEUE.of(query_of(request))
    items = (await read_json(request, ImportBody, "body", payloads=_payloads)).items
    if queue is None:
        raise InvalidInput("queue is required")
    most = settings_of(request).limits.max_batch
    if len(items) > most:
        raise InvalidInput(
            f"items: at most {most} in one request (setting limits.max_batch), got {len(items)}; send smaller batches",
            code="batch_too_large",
        )
    letters = [_imported(item, queue, index) for index, item in enumerate(items)]
    stamp(identity_of(request), [letter.message for letter in letters])
    exchange_of(request).note_target(queues=[queue], number=len(letters))
    stored = sum(await broker_of(request).import_dead_letters(letters))
    return reply(ImportedDeadLetters(imported=stored, duplicates=len(letters) - stored))


def _imported(item: DeadLetterItem, queue: str, index: int) -> NewDeadLetter:
    where = f"items[{index}]"
    message = PushItem(
        queue,
        item.partition,
        item.payload,
        item.transaction_id,
        item.trace_id,
        item.priority,
        backoff_schedule=item.backoff_schedule,
        keys_if_undelivered=item.keys_if_undelivered,
        traceparent=item.traceparent,
        tracestate=item.tracestate,
    )
    return NewDeadLetter(
        message=to_new_message(message, index),
        id=_check_uuid(item.id, f"{where}.id"),
        group=check_name(item.consumer_group, f"{where}.consumerGroup"),
        attempts=check_int(item.attempts, f"{where}.attempts", 0, _MOST_ATTEMPTS),
        error=item.error[:MAX_ERROR_CHARACTERS],
        created_at=parse_moment(item.created_at, f"{where}.createdAt"),
        failed_at=parse_moment(item.failed_at, f"{where}.failedAt"),
    )


def _check_uuid(text: str, field: str) -> str:
    """Return the id of a dead letter. It must not look like the id of a message."""
    try:
        if str(uuid.UUID(text)) == text and not has_location(text):
            return text
    except ValueError:
        pass
    raise InvalidInput(f"{field}: expected the deadLetterId of an export, a UUID, got {short(text)}")


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


def _result(name: str, outcome: str | HarkError | None) -> DeadLetterResult:
    if isinstance(outcome, HarkError):
        return DeadLetterResult(id=name, success=False, error=outcome.text, code=outcome.code)
    if outcome is None:
        return DeadLetterResult(id=name, success=True)
    return DeadLetterResult(id=name, success=True, message_id=outcome)


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


def _letter(letter: DeadLetter) -> ListedDeadLetter:
    return ListedDeadLetter(
        id=letter.message_id,
        dead_letter_id=letter.id,
        transaction_id=letter.transaction_id,
        partition_id=letter.partition_id,
        trace_id=letter.trace_id,
        queue=letter.queue,
        partition=letter.partition,
        consumer_group=letter.group,
        error=letter.error,
        retry_count=max(0, letter.attempts - 1),
        attempts=letter.attempts,
        payload=letter.payload,
        payload_error=letter.unreadable,
        producer_sub=letter.producer,
        created_at=time_of(letter.created_at),
        failed_at=time_of(letter.failed_at),
    )


_NOT_THE_ONE = (Failure(404, "dead_letter_not_found"), Failure(409, "ambiguous"))

TABLE: Table = table(
    bind(operations.LIST_DEAD_LETTERS, list_dead_letters, query=(*_PAGE, *_FILTER, _PAYLOADS)),
    bind(operations.PURGE_DEAD_LETTERS, purge_dead_letters, query=_FILTER),
    bind(operations.REQUEUE_MANY, requeue_many, body=RequeueBody, errors=(TOO_MANY,)),
    bind(
        operations.IMPORT_DEAD_LETTERS,
        import_dead_letters,
        query=(_QUEUE,),
        body=ImportBody,
        body_bytes=LARGE_BODY,
        errors=(NO_QUEUE, TOO_MANY, MAINTENANCE),
    ),
    bind(operations.DELETE_MANY, delete_many, body=IdsBody, errors=(TOO_MANY,)),
    bind(operations.DELETE_DEAD_LETTER, delete_dead_letter, query=(_GROUP,), errors=_NOT_THE_ONE),
    bind(operations.REQUEUE, requeue, query=(_GROUP,), errors=_NOT_THE_ONE),
)
