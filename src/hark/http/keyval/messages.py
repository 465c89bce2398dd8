"""Messages of work queues: the form of the HTTP API and its checks."""

from __future__ import annotations

import math

import msgspec

from hark.errors import InvalidInput
from hark.http.checks import check_int, parse_moment, raw_default, short
from hark.http.push_items import (
    MAX_BACKOFF_STEPS,
    MAX_DELAY_MS,
    MAX_DEPTH,
    MAX_PRIORITY,
    MAX_TTL_MS,
    check_context,
    payload_too_deep,
    undelivered_keys,
)
from hark.model import NewMessage, PopResult
from hark.model.trace_context import parted

ABSENT = msgspec.Raw(b"null")
"""A missing field; compared by identity to distinguish it from an explicit null."""


class EnqueueOptions(msgspec.Struct, gc=False, rename="camel"):
    """Options of a message. Null means absent."""

    delay: int | float | None = None
    deliver_at: str | int | None = None
    backoff_schedule: list[int | float] | None = None
    keys_if_undelivered: msgspec.Raw = raw_default(ABSENT)
    priority: int | None = None
    ttl: int | float | None = None
    traceparent: str | None = None
    tracestate: str | None = None


class EnqueueBody(msgspec.Struct, gc=False):
    """A message to enqueue."""

    value: msgspec.Raw = raw_default(ABSENT)
    options: EnqueueOptions | None = None


class WireMessage(msgspec.Struct, gc=False, omit_defaults=True):
    """A delivered message. Its receipt identifies this delivery."""

    id: str
    value: msgspec.Raw
    attempts: int
    receipt: str
    priority: int = 0
    traceparent: str | None = None
    tracestate: str | None = None


def new_message(queue: str, value: msgspec.Raw, options: EnqueueOptions | None, where: str = "") -> NewMessage:
    """Return the checked message. Errors name a field as `{where}value` or `{where}options.delay`."""
    if value is ABSENT:
        raise InvalidInput(f"{where}value: is required; send null to enqueue null")
    payload = bytes(value)
    if payload_too_deep(payload):
        raise InvalidInput(f"{where}value: must be nested at most {MAX_DEPTH} levels deep")
    message = NewMessage(queue, payload=payload)
    if options is not None:
        _apply(message, options, f"{where}options")
    return message


def _apply(message: NewMessage, options: EnqueueOptions, where: str) -> None:
    if options.delay is not None:
        message.delay_ms = check_milliseconds(options.delay, f"{where}.delay")
    if options.deliver_at is not None:
        if options.delay is not None:
            raise InvalidInput(f"{where}.deliverAt: give either delay or deliverAt, not both")
        message.deliver_at = parse_moment(options.deliver_at, f"{where}.deliverAt")
    if options.backoff_schedule is not None:
        message.backoff_ms = _backoff(options.backoff_schedule, f"{where}.backoffSchedule")
    if options.priority is not None:
        message.priority = check_int(options.priority, f"{where}.priority", 0, MAX_PRIORITY)
    if options.ttl is not None:
        message.ttl_ms = check_milliseconds(options.ttl, f"{where}.ttl", 1, MAX_TTL_MS)
    message.undelivered_keys = undelivered_keys(options.keys_if_undelivered, f"{where}.keysIfUndelivered")
    if options.traceparent or options.tracestate:
        message.trace_context = check_context(options.traceparent or "", options.tracestate or "", where)


def check_milliseconds(value: float, field: str, low: int = 0, high: int = MAX_DELAY_MS) -> int:
    """Return a duration in whole milliseconds, rounded up."""
    if low <= value <= high:
        return math.ceil(value)
    raise InvalidInput(f"{field}: expected a number of milliseconds from {low} to {high}, got {short(value)}")


def _backoff(schedule: list[int | float], field: str) -> tuple[int, ...]:
    if len(schedule) > MAX_BACKOFF_STEPS:
        raise InvalidInput(f"{field}: at most {MAX_BACKOFF_STEPS} entries, got {len(schedule)}")
    return tuple(check_milliseconds(delay, f"{field}[{step}]") for step, delay in enumerate(schedule))


def wire_messages(result: PopResult) -> list[WireMessage]:
    """Return delivered messages in the form of the HTTP API."""
    return [
        WireMessage(
            message.id,
            message.payload,
            message.attempt,
            result.lease_id,
            message.priority,
            *(() if message.trace_context is None else parted(message.trace_context)),
        )
        for message in result.messages
    ]
