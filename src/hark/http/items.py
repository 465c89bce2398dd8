"""Items of pushes, acknowledgements and renewals: the form of the HTTP API and its checks."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, get_args

import msgspec
from msgspec import UNSET

from hark.api.types import Single, renamed
from hark.api.types.delivery import AckAnswer, AckBody, PushItem, TaskEndBody
from hark.api.types.messages import ExtendedLease, RenewalAnswer
from hark.broker import Broker
from hark.errors import InvalidInput
from hark.http import checks
from hark.http.checks import check_int, check_name, check_text, decode_unbounded, short, time_of
from hark.ids import has_location
from hark.keys import InvalidKey, check_keys
from hark.model import Key, NewMessage, Renewal, RenewOutcome, Settlement, SettleOutcome, StepRef, TaskEnd
from hark.model.admin import labels_of
from hark.model.messages import (
    MAX_STATE,
    NULL_PAYLOAD,
    TaskEndState,
    UniqueUntil,
    is_traceparent,
    is_tracestate,
    trace_context,
)

if TYPE_CHECKING:
    from hark.api.types.keys import EnqueueOptions

MAX_PRIORITY = 9
MAX_BACKOFF_STEPS = 100
YEAR_MS = 365 * 86_400_000
MAX_DELAY_MS = 10 * YEAR_MS
MAX_TTL_MS = 100 * YEAR_MS

UNIQUE_UNTIL: tuple[UniqueUntil, ...] = get_args(UniqueUntil)
NO_PAYLOAD = msgspec.Raw(NULL_PAYLOAD)
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII | re.IGNORECASE)

ITEM_TEXTS = {
    "items": "items array is required",
    "queue": "Queue must be a string",
    "partition": "Partition must be a string",
    "transactionId": "TransactionId must be a string",
    "traceId": "TraceId must be a string",
}
"""Error texts that clients rely on, for `decode_json`."""


PushBody = renamed(Single[list[PushItem]], "PushBody", "The messages to push.", value="items")

payloads_in = checks.raw_parts("payload", "items", texts=ITEM_TEXTS)
"""Returns the payloads of a push, for `check_values`."""


@cache
def _many() -> Any:
    return msgspec.defstruct("Many", [("items", checks.array_of(PushItem))])


def items_in(body: bytes, *, many: bool = False) -> list[PushItem]:
    """Return the items of a push, unchecked. `many`: the body has many values, so items are counted first."""
    if many:
        return list(checks.elements(decode_unbounded(body, _many(), "body", ITEM_TEXTS).items))
    return decode_unbounded(body, PushBody, "body", ITEM_TEXTS).value


def to_new_message(item: PushItem, index: int, where: str = "items") -> NewMessage:
    """Return the checked message. Errors name a field as `where[index].field`."""
    where = f"{where}[{index}]"
    message = NewMessage(
        check_name(item.queue, f"{where}.queue"),
        check_name(item.partition, f"{where}.partition"),
        NULL_PAYLOAD if item.payload is UNSET else bytes(item.payload),
        check_text(item.transaction_id, f"{where}.transactionId") or None,
    )
    if item.message_id and message.transaction_id is None:
        message.transaction_id = check_text(item.message_id, f"{where}.messageId")
    if item.namespace is not None or item.task is not None:
        message.labels = _labels(item, where)
    if item.trace_id:
        if not _UUID.fullmatch(item.trace_id):
            raise InvalidInput(f"{where}.traceId: expected a UUID, got {short(item.trace_id)}")
        message.trace_id = item.trace_id
    apply_options(message, item, where, check_int)
    return message


def apply_options(
    message: NewMessage, options: PushItem | EnqueueOptions, where: str, check: Callable[[Any, str, int, int], int]
) -> None:
    """Set the checked options of a message. `check` checks durations."""
    if options.priority is not None:
        message.priority = check_int(options.priority, f"{where}.priority", 0, MAX_PRIORITY)
    if options.delay is not None:
        message.delay_ms = check(options.delay, f"{where}.delay", 0, MAX_DELAY_MS)
    if options.deliver_at is not None:
        if options.delay is not None:
            raise InvalidInput(f"{where}.deliverAt: give either delay or deliverAt, not both")
        message.deliver_at = checks.parse_time(options.deliver_at, f"{where}.deliverAt")
    if options.backoff_schedule is not None:
        delays, field = options.backoff_schedule, f"{where}.backoffSchedule"
        if len(delays) > MAX_BACKOFF_STEPS:
            raise InvalidInput(f"{field}: at most {MAX_BACKOFF_STEPS} entries, got {len(delays)}")
        message.backoff_ms = tuple(check(one, f"{field}[{step}]", 0, MAX_DELAY_MS) for step, one in enumerate(delays))
    if options.ttl is not None:
        message.ttl_ms = check(options.ttl, f"{where}.ttl", 1, MAX_TTL_MS)
    if options.keys_if_undelivered is not UNSET:
        message.undelivered_keys = _undelivered_keys(options.keys_if_undelivered, f"{where}.keysIfUndelivered")
    if options.unique_key is not None:
        message.unique_key = check_name(options.unique_key, f"{where}.uniqueKey")
    if options.unique_until is not None:
        if options.unique_key is None:
            raise InvalidInput(f"{where}.uniqueUntil: is allowed only together with uniqueKey")
        until = next((one for one in UNIQUE_UNTIL if one == options.unique_until), None)
        if until is None:
            expected = " or ".join(UNIQUE_UNTIL)
            raise InvalidInput(f"{where}.uniqueUntil: expected {expected}, got {short(options.unique_until)}")
        message.unique_until = until
    if options.traceparent or options.tracestate:
        message.trace_context = _check_context(options.traceparent or "", options.tracestate or "", where)


def check_not_unique(message: NewMessage, where: str) -> NewMessage:
    """Refuse a unique key where a message is part of a larger whole."""
    if message.unique_key is not None:
        raise InvalidInput(
            f"{where}.uniqueKey: is not supported here; push the message by itself, with POST /api/v1/push"
        )
    return message


def _labels(item: PushItem, where: str) -> tuple[str, str]:
    """Return the labels for the queue if this push makes it (rule 2). One that is absent follows from the name."""
    namespace, task = labels_of(item.queue)
    if item.namespace is not None:
        namespace = check_text(item.namespace, f"{where}.namespace")
    if item.task is not None:
        task = check_text(item.task, f"{where}.task")
    return namespace, task


def _check_context(traceparent: str, tracestate: str, where: str) -> str:
    """Return the checked trace context of a message."""
    if not is_traceparent(traceparent):
        raise InvalidInput(
            f"{where}.traceparent: expected version-traceid-spanid-flags in lower-case hexadecimal digits (W3C Trace "
            f"Context), got {short(traceparent)}"
        )
    if tracestate and not is_tracestate(tracestate):
        raise InvalidInput(f"{where}.tracestate: expected at most {MAX_STATE} printable ASCII characters")
    return trace_context(traceparent, tracestate)


def _undelivered_keys(given: msgspec.Raw, field: str) -> tuple[Key, ...]:
    """Return the checked keys that receive the payload of an undeliverable message; null means none."""
    value = bytes(given)
    if value == b"null":
        return ()
    try:
        return check_keys(checks.decode_json(value, object, field))
    except InvalidKey as error:
        raise InvalidInput(f"{field}: {error}") from None


def too_many(field: str, most: int, number: int, where: str = "request") -> InvalidInput:
    """Return the error for a list that is longer than the setting allows."""
    return InvalidInput(
        f"{field}: at most {most} in one {where} (setting limits.max_batch), got {number}; send smaller batches",
        code="batch_too_large",
    )


MAX_ERROR_CHARACTERS = 10_000
"""Longer error texts are cut."""

ACK_TEXTS = {
    "acknowledgments": "acknowledgments array is required",
    "transactionId": "Each acknowledgment must have a valid transactionId string",
    "partitionId": "Each acknowledgment must have a valid partitionId string to ensure message uniqueness",
}
"""Error texts that clients rely on, for `decode_json`."""

_WAITING = ("failed", "retry")
"""Statuses after which the message is redelivered."""


def settlement_of(ack: AckBody, group: str, where: str) -> Settlement:
    """Return one checked settlement. It has no partition if it names the message by its id."""
    if not ack.transaction_id:
        text = f"{where}transactionId: {ACK_TEXTS['transactionId']}" if where else "transactionId is required"
        raise InvalidInput(text)
    # A message id contains its partition; a transaction id is unique only within its partition.
    if not ack.partition_id and not has_location(ack.transaction_id):
        required = "partitionId is required to ensure message uniqueness"
        raise InvalidInput(f"{where}partitionId: {ACK_TEXTS['partitionId']}" if where else required)
    status = checks.check_status(ack.status or "completed", f"{where}status")
    if ack.delay is not None:
        if status not in _WAITING:
            raise InvalidInput(f"{where}delay: allowed only with status failed or retry, got status {status}")
        check_int(ack.delay, f"{where}delay", 0, checks.MAX_NUMBER)
    if ack.default_delay is not None:
        if status != "failed":
            raise InvalidInput(f"{where}defaultDelay: allowed only with status failed, got status {status}")
        check_int(ack.default_delay, f"{where}defaultDelay", 0, checks.MAX_NUMBER)
    error = ack.error[:MAX_ERROR_CHARACTERS] if ack.error else None
    task = None if ack.task is None else _task_end(ack.task, status, f"{where}task.")
    return Settlement(
        ack.transaction_id,
        ack.partition_id or "",
        status,
        ack.lease_id,
        error,
        ack.delay,
        group,
        task=task,
        default_delay_ms=ack.default_delay,
    )


_ENDS: dict[str, tuple[TaskEndState, ...]] = {
    "completed": ("done", "cancelled"),
    "failed": ("failed",),
    "dlq": ("failed",),
}


def _task_end(end: TaskEndBody, status: str, where: str) -> TaskEnd:
    """Return how a task ended, checked."""
    states = _ENDS.get(status, ())
    state = next((one for one in states if one == end.state), None)
    if state is None:
        expected = " or ".join(states) or "no task"
        raise InvalidInput(f"{where}state: expected {expected} with the status {status}, got {short(end.state)}")
    seconds = check_int(end.result_ttl, f"{where}resultTtl", 1, MAX_SECONDS)
    transaction_id = check_name(end.transaction_id, f"{where}transactionId")
    flow = None
    if end.flow is not None:
        flow = StepRef(
            check_text(end.flow.queue, f"{where}flow.queue"),
            check_text(end.flow.id, f"{where}flow.id"),
            check_text(end.flow.path, f"{where}flow.path"),
        )
    ttl_ms = seconds * 1000
    return TaskEnd(transaction_id=transaction_id, state=state, result=bytes(end.result), ttl_ms=ttl_ms, flow=flow)


def ack_answers(outcomes: Sequence[SettleOutcome]) -> list[AckAnswer]:
    """Return the results of settlements, in the order of the request."""
    return [
        AckAnswer(
            index,
            outcome.transaction_id,
            outcome.success,
            outcome.error,
            outcome.queue,
            outcome.partition,
            outcome.lease_released,
            outcome.dead_lettered,
            outcome.code,
        )
        for index, outcome in enumerate(outcomes)
    ]


DEFAULT_SECONDS = 60
MAX_SECONDS = 10 * 365 * 86_400


def renewal_seconds(seconds: int | None) -> int:
    """Return the checked length of a renewal, in seconds from now."""
    return DEFAULT_SECONDS if seconds is None else check_int(seconds, "seconds", 1, MAX_SECONDS)


async def renew_all(
    broker: Broker, lease_ids: Sequence[str], seconds: int | None, most: int
) -> tuple[RenewalAnswer, ...]:
    """Renew several leases in shared calls to the store. The results have the order of the leases."""
    if len(lease_ids) > most:
        raise too_many("leaseIds", most, len(lease_ids))
    wanted = renewal_seconds(seconds)
    for index, lease_id in enumerate(lease_ids):
        check_text(lease_id, f"leaseIds[{index}]")
    outcomes = await asyncio.gather(*(broker.renew(Renewal(lease_id, wanted)) for lease_id in lease_ids))
    return tuple(
        RenewalAnswer(
            lease_id, outcome.success, time_of(outcome.expires_at), outcome.error, outcome.code, outcome.cancelled
        )
        for lease_id, outcome in zip(lease_ids, outcomes, strict=True)
    )


def extended_lease(lease_id: str, outcome: RenewOutcome) -> ExtendedLease:
    """Return the result of the renewal of one lease. The official clients read the time under different names."""
    expires = time_of(outcome.expires_at)
    return ExtendedLease(
        index=0,
        lease_id=lease_id,
        success=outcome.success,
        renewed=int(outcome.success),
        error=outcome.error,
        expires_at=expires,
        new_expires_at=expires,
        lease_expires_at=expires,
        code=None if outcome.success else outcome.code,
        cancelled=outcome.cancelled,
    )
