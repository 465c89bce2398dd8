"""Statistics, settings, dead letters and metrics of work queues."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from prometheus_client.metrics_core import Metric
from starlette.requests import Request
from starlette.responses import Response

from hark.api import operations
from hark.api.types.keys import (
    Deleted,
    KeyvalMetrics,
    Ok,
    OperationNumbers,
    OperationsNumbers,
    Requeued,
    SettingsBody,
    Storage,
    WorkDeadLetter,
    WorkSettings,
    WorkStats,
)
from hark.broker.broker import first
from hark.broker.tallies import Operations
from hark.clock import MILLISECOND
from hark.errors import NotFound
from hark.http.admission import identity_of, permitted_labels, reached_letter
from hark.http.checks import check_int
from hark.http.keyval.paths import LIMIT, OFFSET, QUEUE, queue_param
from hark.http.routes.requests import broker_of, check_page, query_of, read_json, reply, settings_of, text_in_path
from hark.http.routes.table import Failure, NameParam, Table, bind, table
from hark.model import QUEUE_MODE, DeadLetter, DeadLetterFilter
from hark.prometheus import CONTENT_TYPE, counter, gauge, histogram, one, text

_STATES = {
    "pending": "Pending messages",
    "processing": "Messages in flight",
    "dlq": "Dead letters",
    "total": "Pending messages, messages in flight and dead letters",
}


async def metrics(request: Request) -> Response:
    """Get metrics of the key-value API as JSON.

    Returns counts and latencies of operations, the state of a work queue and the size of the key-value store.
    """
    broker = broker_of(request)
    tallies = broker.operations.tallies()
    storage = await broker.engine.key_stats()
    return reply(
        KeyvalMetrics(
            operations=OperationsNumbers(
                operations={
                    name: OperationNumbers(
                        count=tally.count,
                        errors=tally.errors,
                        avg_latency_ms=round(tally.milliseconds.sum / tally.count, 3),
                    )
                    for name, tally in tallies.items()
                },
                totals={
                    "operations": sum(tally.count for tally in tallies.values()),
                    "errors": sum(tally.errors for tally in tallies.values()),
                },
            ),
            queue=await _queue(request),
            storage=Storage(entries=storage.entries, size_bytes=storage.bytes),
        )
    )


async def prometheus(request: Request) -> Response:
    """Get metrics of the key-value API for Prometheus. Returns the Prometheus text format."""
    broker = broker_of(request)
    storage = await broker.engine.key_stats()
    families = list(_operation_metrics(broker.operations))
    for state, number in msgspec.structs.asdict(await _queue(request)).items():
        families.append(gauge(f"keyval_queue_{state}", f"{_STATES[state]} of the work queue.", one(number)))
    families.append(gauge("keyval_entries_total", "Entries in the key-value store.", one(storage.entries)))
    families.append(gauge("keyval_storage_bytes", "Size of all keys and values, in bytes.", one(storage.bytes)))
    return Response(text(families), headers={"content-type": CONTENT_TYPE})


async def _queue(request: Request) -> WorkStats:
    stats = await broker_of(request).work_queues.stats(queue_param(query_of(request)))
    return WorkStats(pending=stats.pending, processing=stats.processing, dlq=stats.dlq, total=stats.total)


def _operation_metrics(operations: Operations) -> Iterator[Metric]:
    tallies = operations.tallies()
    yield counter(
        "keyval_operations_total",
        "Operations, by name.",
        [({"operation": name}, tally.count) for name, tally in tallies.items()],
    )
    yield counter(
        "keyval_errors_total",
        "Operations that failed because of the server, by name.",
        [({"operation": name}, tally.errors) for name, tally in tallies.items()],
    )
    yield histogram(
        "keyval_operation_duration_ms",
        "Duration of operations in milliseconds, by name.",
        [({"operation": name}, tally.milliseconds) for name, tally in tallies.items()],
    )


METRICS_TABLE: Table = table(
    bind(operations.KEYVAL_METRICS, metrics, query=(QUEUE,)),
    bind(operations.KEYVAL_PROMETHEUS, prometheus, query=(QUEUE,), media="text/plain"),
)


MAX_LOCK_MS = 10 * 365 * 86_400_000


async def show_stats(request: Request) -> Response:
    """Get statistics of a work queue. Returns the number of messages by state."""
    stats = await broker_of(request).work_queues.stats(queue_param(query_of(request)))
    return reply(WorkStats(pending=stats.pending, processing=stats.processing, dlq=stats.dlq, total=stats.total))


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
    labels = permitted_labels(identity_of(request), queue)
    await broker_of(request).work_queues.set_lock_duration(queue, own, labels)
    return reply(_settings(request, queue, own))


def _settings(request: Request, queue: str, own: int) -> WorkSettings:
    """Return the settings in effect, and whether they are the default of the server."""
    lock_duration = own or settings_of(request).queue.lock_duration
    return WorkSettings(queue=queue, lock_duration=lock_duration, inherited=not own)


TABLE: Table = table(
    bind(operations.KEYVAL_SHOW_STATS, show_stats, query=(QUEUE,)),
    bind(operations.KEYVAL_SHOW_SETTINGS, show_settings, query=(QUEUE,)),
    bind(operations.KEYVAL_CHANGE_SETTINGS, change_settings, query=(QUEUE,), body=SettingsBody),
)


_OF_QUEUE = NameParam("queue", "Work queue of the dead letter. Optional, because the id identifies the dead letter.")


async def list_dead_letters(request: Request) -> Response:
    """List dead letters of a work queue. Returns a page of dead letters, the newest failure first."""
    query = query_of(request)
    where = DeadLetterFilter(queue=queue_param(query), group=QUEUE_MODE, limit=LIMIT.of(query), offset=OFFSET.of(query))
    page = await broker_of(request).dead_letters(where)
    check_page(letter.payload for letter in page.items)
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
    return reply(Requeued(ok=True, new_id=message_id, id=message_id))


async def delete_dead_letter(request: Request) -> Response:
    """Delete a dead letter of a work queue. Succeeds also if the dead letter does not exist."""
    await broker_of(request).engine.delete_dead_letters(await _one(request))
    return reply(Ok(ok=True))


async def purge_dead_letters(request: Request) -> Response:
    """Delete all dead letters of a work queue. Returns the number of deleted dead letters."""
    where = DeadLetterFilter(queue=queue_param(query_of(request)), group=QUEUE_MODE)
    return reply(Deleted(deleted_count=await broker_of(request).engine.delete_dead_letters(where)))


async def _one(request: Request) -> DeadLetterFilter:
    """Return a filter for the id in the path, and for the queue if the request names one."""
    queue = _OF_QUEUE.of(query_of(request))
    where = DeadLetterFilter(queue=queue, group=QUEUE_MODE, ids=(text_in_path(request, "id"),), limit=1)
    return await reached_letter(identity_of(request), broker_of(request), where)


def _not_found() -> NotFound:
    return NotFound("Message not found in DLQ", code="dead_letter_not_found")


def _entry(letter: DeadLetter) -> WorkDeadLetter:
    return WorkDeadLetter(
        id=letter.id,
        original_id=letter.message_id,
        value=letter.payload,
        attempts=letter.attempts,
        error_message=letter.error,
        original_created_at=letter.created_at // MILLISECOND,
        failed_at=letter.failed_at // MILLISECOND,
        payload_error=letter.unreadable,
    )


_NOT_THERE = (Failure(404, "dead_letter_not_found"),)

DEAD_LETTERS_TABLE: Table = table(
    bind(operations.KEYVAL_LIST_DEAD_LETTERS, list_dead_letters, query=(QUEUE, LIMIT, OFFSET)),
    bind(operations.KEYVAL_PURGE_DEAD_LETTERS, purge_dead_letters, query=(QUEUE,)),
    bind(operations.KEYVAL_GET_DEAD_LETTER, get_dead_letter, query=(_OF_QUEUE,), errors=_NOT_THERE),
    bind(operations.KEYVAL_DELETE_DEAD_LETTER, delete_dead_letter, query=(_OF_QUEUE,)),
    bind(operations.KEYVAL_REQUEUE, requeue, query=(_OF_QUEUE,), errors=_NOT_THERE),
)
