"""Messages to push: built from a user's data, checked and ready to send."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

import msgspec

from hark.client.values import a_name, json_value, milliseconds
from hark.errors import InvalidInput
from hark.keys import InvalidKey, check_keys
from hark.model import Key

MAX_PRIORITY = 9
MAX_RETRY_DELAYS = 100
_YEAR = 365 * 86_400.0
MAX_DELAY = 10 * _YEAR
MAX_TTL = 100 * _YEAR


class NewMessage(msgspec.Struct, frozen=True, kw_only=True, gc=False, rename="camel", omit_defaults=True):
    """An item of a push in the format of the API: times in milliseconds, None is omitted."""

    queue: str
    partition: str | None = None
    payload: msgspec.Raw
    transaction_id: str
    """The idempotency key. Every message has one, so that a repeated request is safe."""
    trace_id: str | None = None
    priority: int | None = None
    delay: int | None = None
    deliver_at: str | int | None = None
    backoff_schedule: tuple[int, ...] | None = None
    ttl: int | None = None
    keys_if_undelivered: tuple[Key, ...] | None = None
    traceparent: str | None = None
    tracestate: str | None = None


def fresh_key() -> str:
    """A unique idempotency key. Later keys sort after earlier ones, which suits database indexes."""
    return f"{time.time_ns():016x}{os.urandom(8).hex()}"


def new_message(
    queue: str,
    data: object,
    *,
    partition: str | None = None,
    key: str | None = None,
    delay: float | timedelta | None = None,
    deliver_at: datetime | None = None,
    priority: int | None = None,
    ttl: float | timedelta | None = None,
    retry_delays: Sequence[float | timedelta] | None = None,
    keys_if_undelivered: Sequence[Sequence[str | float | bool]] | None = None,
    trace_id: str | uuid.UUID | None = None,
    make_key: Callable[[], str] = fresh_key,
) -> NewMessage:
    """Check the arguments and build a message. Times are seconds; `key` is the idempotency key (default: a new one).

    `data` is any value that msgspec can encode as JSON; a `msgspec.Raw` is sent byte for byte.
    """
    if delay is not None and deliver_at is not None:
        raise InvalidInput("deliver_at: give either delay or deliver_at, not both")
    return NewMessage(
        queue=a_name(queue, "queue"),
        partition=None if partition is None else a_name(partition, "partition"),
        payload=json_value(data, "data"),
        transaction_id=make_key() if key is None else a_name(key, "key"),
        trace_id=None if trace_id is None else _trace_id(trace_id),
        priority=None if priority is None else _priority(priority),
        delay=None if delay is None else milliseconds(delay, "delay", 0, MAX_DELAY),
        deliver_at=None if deliver_at is None else _moment(deliver_at),
        backoff_schedule=None if retry_delays is None else _schedule(retry_delays),
        ttl=None if ttl is None else milliseconds(ttl, "ttl", 0.001, MAX_TTL),
        keys_if_undelivered=None if keys_if_undelivered is None else _keys(keys_if_undelivered),
    )


def _priority(value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_PRIORITY:
        raise InvalidInput(f"priority: expected an integer from 0 to {MAX_PRIORITY}, got {value!r}")
    return value


def _moment(value: datetime) -> str:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise InvalidInput(f"deliver_at: expected a datetime with a time zone (datetime.now(UTC)), got {value!r}")
    return value.isoformat()


def _schedule(delays: Sequence[float | timedelta]) -> tuple[int, ...]:
    if len(delays) > MAX_RETRY_DELAYS:
        raise InvalidInput(f"retry_delays: expected at most {MAX_RETRY_DELAYS} delays, got {len(delays)}")
    return tuple(milliseconds(delay, f"retry_delays[{step}]", 0, MAX_DELAY) for step, delay in enumerate(delays))


def _keys(keys: Sequence[Sequence[str | float | bool]]) -> tuple[Key, ...]:
    try:
        return check_keys(keys)
    except InvalidKey as error:
        raise InvalidInput(f"keys_if_undelivered: {error}") from None


def _trace_id(value: str | uuid.UUID) -> str:
    try:
        return str(value if isinstance(value, uuid.UUID) else uuid.UUID(value))
    except (ValueError, AttributeError, TypeError):
        raise InvalidInput(f"trace_id: expected a UUID, got {value!r}") from None
