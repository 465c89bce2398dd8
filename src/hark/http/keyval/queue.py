"""Work queues: enqueue, poll, ack, nack, cancel; their statistics, settings, dead letters and metrics."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import msgspec
from msgspec import UnsetType
from prometheus_client.metrics_core import Metric
from starlette.responses import Response

from hark.api import operations, types
from hark.api.types import OptionalRaw
from hark.api.types.keys import CancelBody, EnqueueBody, EnqueueOptions, NackBody, WorkAckBody
from hark.broker import Broker
from hark.broker.broker import first
from hark.clock import MILLISECOND
from hark.errors import Conflict, InvalidInput, NotFound
from hark.http import checks, items, responses, routing
from hark.http.admission import identity_of, permitted_labels, reached, reached_letter, stamp
from hark.http.checks import check_int, decode_json, query_params, short
from hark.http.exchange import exchange_of
from hark.http.items import MAX_ERROR_CHARACTERS
from hark.http.keyval.paths import LIMIT, OFFSET, QUEUE, answered, queue_param
from hark.http.pops import CONSUMER, WAIT, caller, timeout_param, wait_seconds
from hark.http.responses import Receive, Scope, Send, encode
from hark.http.routing import Call, Table, bind, table
from hark.model import QUEUE_MODE, DeadLetter, DeadLetterFilter, NewMessage, PopResult
from hark.model.messages import parted
from hark.prometheus import CONTENT_TYPE, counter, gauge, histogram, one, text
from hark.settings import Settings

_PAYLOAD = checks.raw_parts("value")


def new_message(queue: str, value: OptionalRaw, options: EnqueueOptions | None, where: str = "") -> NewMessage:
    """Return the checked message. Errors name a field as `{where}value` or `{where}options.delay`."""
    if isinstance(value, UnsetType):
        raise InvalidInput(f"{where}value: is required; send null to enqueue null")
    message = NewMessage(queue, payload=bytes(value))
    if options is not None:
        items.apply_options(message, options, f"{where}options", check_milliseconds)
    return message


def check_milliseconds(value: object, field: str, low: int = 0, high: int = items.MAX_DELAY_MS) -> int:
    """Return a duration in whole milliseconds, rounded up."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high:
        return math.ceil(value)
    raise InvalidInput(f"{field}: expected a number of milliseconds from {low} to {high}, got {short(value)}")


def wire_messages(result: PopResult) -> list[types.keys.WireMessage]:
    """Return delivered messages in the form of the HTTP API."""
    return [
        types.keys.WireMessage(
            message.id,
            message.payload,
            message.attempt,
            result.lease_id,
            message.priority,
            *(() if message.trace_context is None else parted(message.trace_context)),
        )
        for message in result.messages
    ]


_LOST = (routing.Failure(409, "lease_lost"), routing.Failure(409, "message_not_found"))
_ID_TEXT = "id must be a non-empty string"
_TEXTS = {"id": _ID_TEXT}


class QueueRoutes:
    """The routes of work queues, bound to a broker."""

    def __init__(self, broker: Broker, settings: Settings) -> None:
        self.broker = broker
        self._settings = settings
        self._timeout = timeout_param(settings)

    def table(self) -> Table:
        """Return the table of these routes."""
        return table(
            bind(
                operations.KEYVAL_ENQUEUE,
                self.enqueue,
                query=(QUEUE,),
                body=EnqueueBody,
                body_bytes=routing.LARGE_BODY,
                errors=(routing.MAINTENANCE, routing.QUEUE_FULL),
                raw=True,
            ),
            bind(
                operations.KEYVAL_POLL,
                self.poll,
                query=(QUEUE, WAIT, self._timeout, CONSUMER),
                errors=(routing.ANOTHER_MODE,),
                raw=True,
            ),
            bind(operations.KEYVAL_ACK, self.ack, query=(QUEUE,), body=WorkAckBody, errors=_LOST, raw=True),
            bind(operations.KEYVAL_NACK, self.nack, query=(QUEUE,), body=NackBody, errors=_LOST, raw=True),
            bind(operations.KEYVAL_CANCEL, self.cancel, query=(QUEUE,), body=CancelBody, raw=True),
        )

    @answered("queue_enqueue")
    async def enqueue(self, scope: Scope, receive: Receive) -> types.SuccessWith[str]:
        """Enqueue a message. Stores a message in a work queue, which is created if it does not exist."""
        queue = _queue(scope)
        body = await responses.decode_in_turns(await self._body(scope, receive), EnqueueBody, "body", payloads=_PAYLOAD)
        message = new_message(queue, body.value, body.options)
        stamp(identity_of(scope), [message])
        responses.carry(exchange_of(scope), [message])
        return types.keys.Enqueued(True, await self.broker.work_queues.enqueue(message))

    @answered("queue_ack")
    async def ack(self, scope: Scope, receive: Receive) -> types.keys.Settled:
        """Acknowledge a message of a work queue.

        Removes the message. Send the receipt of the delivery: then an acknowledgement after the lease expired returns
        409. Without a receipt the request settles the current delivery, and returns `found` false if there is none.
        """
        _queue(scope)
        body = decode_json(await self._body(scope, receive), WorkAckBody, "body", _TEXTS)
        return await self._settle(scope, body, "completed")

    @answered("queue_nack")
    async def nack(self, scope: Scope, receive: Receive) -> types.keys.Settled:
        """Reject a message of a work queue.

        The message is redelivered after a delay from its backoff schedule. After its last attempt it becomes a dead
        letter. The receipt has the same meaning as in an acknowledgement.
        """
        _queue(scope)
        body = decode_json(await self._body(scope, receive), NackBody, "body", _TEXTS)
        error = body.error[:MAX_ERROR_CHARACTERS] if body.error else None
        delay = None if body.delay is None else check_milliseconds(body.delay, "delay")
        return await self._settle(scope, body, "failed", error, delay)

    @answered(None)
    async def cancel(self, scope: Scope, receive: Receive) -> types.keys.Cancelled:
        """Cancel a message of a work queue.

        Removes the message if no consumer has received it. Otherwise `cancelled` is false and `reason` says why.
        """
        _queue(scope)
        body = decode_json(await self._body(scope, receive), CancelBody, "body", _TEXTS)
        message_id = await reached(identity_of(scope), self.broker, _check_id(body.id))
        [outcome] = await self.broker.engine.cancel([message_id])
        cancelled = outcome == "cancelled"
        return types.keys.Cancelled(ok=True, cancelled=cancelled, reason=None if cancelled else outcome)

    async def poll(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Receive a message of a work queue.

        Leases one message to the consumer. With `wait=true` the request waits until a message is available. Returns
        null if no message is available.
        """
        try:
            query = query_params(scope["query_string"])
            queue = queue_param(query)
            seconds = wait_seconds(query, WAIT, self._timeout)
            await receive()  # The (empty) body. From now on `receive` reports only that the client disconnected.
            consumer = CONSUMER.of(query) or caller(exchange_of(scope))
            labels = permitted_labels(identity_of(scope), queue)
            with self.broker.operations.measure("queue_dequeue"):
                result = await self.broker.work_queues.poll(
                    queue, seconds, lambda: responses.wait_until_left(receive), consumer, labels
                )
            answer = encode(types.keys.Polled(wire_messages(result)[0] if result.messages else None))
        except Exception as error:
            await responses.send_failure(send, error)
        else:
            if not await responses.send_if_there(send, receive, 200, answer, responses.NO_STORE):
                self.broker.give_back(result)

    async def _settle(
        self,
        scope: Scope,
        body: WorkAckBody,
        status: Literal["completed", "failed"],
        error: str | None = None,
        delay: int | None = None,
    ) -> types.keys.Settled:
        message_id = await reached(identity_of(scope), self.broker, _check_id(body.id))
        receipt = body.receipt
        if receipt is not None and not checks.check_text(receipt, "receipt"):
            raise InvalidInput("receipt: must not be empty; leave it out to settle the current delivery")
        outcome = await self.broker.work_queues.settle(message_id, receipt, status, error, delay)
        if outcome.success:
            return types.keys.Settled(ok=True)
        if receipt is None:
            return types.keys.Settled(ok=True, found=False)
        raise Conflict(f"receipt: {outcome.error}", code=outcome.code)

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        return await responses.read_whole(scope, receive, self._settings)


def _queue(scope: Scope) -> str:
    return queue_param(query_params(scope["query_string"]))


def _check_id(id: str) -> str:
    if not id:
        raise InvalidInput(_ID_TEXT)
    return id


# Administration --------------------------------------------------------------------------------------------

MAX_LOCK_MS = 10 * 365 * 86_400_000


async def show_stats(call: Call) -> types.keys.WorkStats:
    """Get statistics of a work queue. Returns the number of messages by state."""
    return await call.broker.work_queues.stats(queue_param(call.query))


async def show_settings(call: Call) -> types.keys.WorkSettings:
    """Get the settings of a work queue. Returns the length of the lease on a message of the queue."""
    queue = queue_param(call.query)
    return _shown_settings(call, queue, await call.broker.work_queues.lock_duration(queue))


async def change_settings(call: Call) -> types.keys.WorkSettings:
    """Change the settings of a work queue. Sets the length of new leases on messages of the queue."""
    queue = queue_param(call.query)
    body = await call.json(types.keys.SettingsBody, "body")
    own = check_int(body.value or 0, "lockDuration", 0, MAX_LOCK_MS)
    await call.broker.work_queues.set_lock_duration(queue, own, permitted_labels(call.identity, queue))
    return _shown_settings(call, queue, own)


def _shown_settings(call: Call, queue: str, own: int) -> types.keys.WorkSettings:
    """Return the settings in effect, and whether they are the default of the server."""
    return types.keys.WorkSettings(queue, own or call.settings.queue.lock_duration, inherited=not own)


_OF_QUEUE = routing.NameParam(
    "queue", "Work queue of the dead letter. Optional, because the id identifies the dead letter."
)


async def list_dead_letters(call: Call) -> list[types.keys.WorkDeadLetter]:
    """List dead letters of a work queue. Returns a page of dead letters, the newest failure first."""
    query = call.query
    where = DeadLetterFilter(queue=queue_param(query), group=QUEUE_MODE, limit=LIMIT.of(query), offset=OFFSET.of(query))
    page = await call.broker.dead_letters(where)
    return [_entry(letter) for letter in page.items]


async def get_dead_letter(call: Call) -> types.keys.WorkDeadLetter:
    """Get a dead letter of a work queue. Accepts the id of the dead letter or the id of the message."""
    page = await call.broker.dead_letters(await _one(call))
    if not page.items:
        raise _not_found()
    return _entry(page.items[0])


async def requeue(call: Call) -> types.keys.Requeued:
    """Requeue a dead letter of a work queue.

    Puts the message back at the front of its queue with a new id. It keeps its options, and its attempts start at zero.
    """
    page = await call.engine.dead_letters(await _one(call))
    if not page.items:
        raise _not_found()
    try:
        message_id = first(await call.broker.tasks.requeue([page.items[0].id]))
    except NotFound:
        raise _not_found() from None  # Another request removed it meanwhile.
    return types.keys.Requeued(ok=True, new_id=message_id, id=message_id)


async def delete_dead_letter(call: Call) -> types.keys.Ok:
    """Delete a dead letter of a work queue. Succeeds also if the dead letter does not exist."""
    await call.engine.delete_dead_letters(await _one(call))
    return types.keys.Ok(ok=True)


async def purge_dead_letters(call: Call) -> types.Single[int]:
    """Delete all dead letters of a work queue. Returns the number of deleted dead letters."""
    where = DeadLetterFilter(queue=queue_param(call.query), group=QUEUE_MODE)
    return types.keys.Deleted(await call.engine.delete_dead_letters(where))


async def _one(call: Call) -> DeadLetterFilter:
    """Return a filter for the id in the path, and for the queue if the request names one."""
    where = DeadLetterFilter(queue=_OF_QUEUE.of(call.query), group=QUEUE_MODE, ids=(call.id("id"),), limit=1)
    return await reached_letter(call.identity, call.broker, where)


def _not_found() -> NotFound:
    return NotFound("Message not found in DLQ", code="dead_letter_not_found")


def _entry(letter: DeadLetter) -> types.keys.WorkDeadLetter:
    return types.keys.WorkDeadLetter(
        id=letter.id,
        original_id=letter.message_id,
        value=letter.payload,
        attempts=letter.attempts,
        error_message=letter.error,
        original_created_at=letter.created_at // MILLISECOND,
        failed_at=letter.failed_at // MILLISECOND,
        payload_error=letter.unreadable,
    )


# Metrics ---------------------------------------------------------------------------------------------------

_STATES = {
    "pending": "Pending messages",
    "processing": "Messages in flight",
    "dlq": "Dead letters",
    "total": "Pending messages, messages in flight and dead letters",
}


async def metrics(call: Call) -> types.keys.KeyvalMetrics:
    """Get metrics of the key-value API as JSON.

    Returns counts and latencies of operations, the state of a work queue and the size of the key-value store.
    """
    tallies = call.broker.operations.tallies
    storage = await call.broker.engine.key_stats()
    return types.keys.KeyvalMetrics(
        operations=types.keys.OperationsNumbers(
            operations={
                name: types.keys.OperationNumbers(
                    tally.count, tally.errors, round(tally.milliseconds.sum / tally.count, 3)
                )
                for name, tally in tallies.items()
            },
            totals={
                "operations": sum(tally.count for tally in tallies.values()),
                "errors": sum(tally.errors for tally in tallies.values()),
            },
        ),
        queue=await show_stats(call),
        storage=types.keys.Storage(entries=storage.entries, size_bytes=storage.bytes),
    )


async def prometheus(call: Call) -> Response:
    """Get metrics of the key-value API for Prometheus. Returns the Prometheus text format."""
    storage = await call.broker.engine.key_stats()
    families = list(_operation_metrics(call.broker))
    for state, number in msgspec.structs.asdict(await show_stats(call)).items():
        families.append(gauge(f"keyval_queue_{state}", f"{_STATES[state]} of the work queue.", one(number)))
    families.append(gauge("keyval_entries_total", "Entries in the key-value store.", one(storage.entries)))
    families.append(gauge("keyval_storage_bytes", "Size of all keys and values, in bytes.", one(storage.bytes)))
    return Response(text(families), headers={"content-type": CONTENT_TYPE})


def _operation_metrics(broker: Broker) -> Iterator[Metric]:
    tallies = [({"operation": name}, tally) for name, tally in broker.operations.tallies.items()]
    counts = [(labels, tally.count) for labels, tally in tallies]
    yield counter("keyval_operations_total", "Operations, by name.", counts)
    errors = [(labels, tally.errors) for labels, tally in tallies]
    yield counter("keyval_errors_total", "Operations that failed because of the server, by name.", errors)
    yield histogram(
        "keyval_operation_duration_ms",
        "Duration of operations in milliseconds, by name.",
        [(labels, tally.milliseconds) for labels, tally in tallies],
    )


_NOT_THERE = (routing.Failure(404, "dead_letter_not_found"),)

TABLE = table(
    bind(operations.KEYVAL_SHOW_STATS, show_stats, query=(QUEUE,)),
    bind(operations.KEYVAL_SHOW_SETTINGS, show_settings, query=(QUEUE,)),
    bind(operations.KEYVAL_CHANGE_SETTINGS, change_settings, query=(QUEUE,), body=types.keys.SettingsBody),
    bind(operations.KEYVAL_LIST_DEAD_LETTERS, list_dead_letters, query=(QUEUE, LIMIT, OFFSET)),
    bind(operations.KEYVAL_PURGE_DEAD_LETTERS, purge_dead_letters, query=(QUEUE,)),
    bind(operations.KEYVAL_GET_DEAD_LETTER, get_dead_letter, query=(_OF_QUEUE,), errors=_NOT_THERE),
    bind(operations.KEYVAL_DELETE_DEAD_LETTER, delete_dead_letter, query=(_OF_QUEUE,)),
    bind(operations.KEYVAL_REQUEUE, requeue, query=(_OF_QUEUE,), errors=_NOT_THERE),
    bind(operations.KEYVAL_METRICS, metrics, query=(QUEUE,)),
    bind(operations.KEYVAL_PROMETHEUS, prometheus, query=(QUEUE,), media="text/plain"),
)
