"""Checks and changes of keys that happen together or not at all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TypeVar

import msgspec

from hark.client.calling import Caller
from hark.client.parameters import KeyParts, key_of, time_to_live
from hark.client.producing.new_message import new_message
from hark.client.values import json_value
from hark.errors import InvalidInput

Self = TypeVar("Self", bound="KeyChanges")
Number = int | float

_REPEATABLE = frozenset({"set", "delete", "min", "max"})
"""What is the same whether it is done once or twice."""
_FINAL = frozenset({"queue_full"})
"""Not waited out: it may last."""


class AtomicResult(msgspec.Struct, frozen=True, kw_only=True):
    """Whether an atomic write happened; false: a check failed and nothing did."""

    ok: bool
    versionstamp: str | None = None
    """Of all that it wrote."""
    ids: tuple[str, ...] = ()
    """Of the messages that it enqueued, in order."""

    def __bool__(self) -> bool:
        return self.ok


class KeyChanges:
    """Collects checks and changes; each method returns the collection, for the next one."""

    def __init__(self) -> None:
        self._checks: list[dict[str, object]] = []
        self._mutations: list[dict[str, object]] = []

    def check(self: Self, key: KeyParts, versionstamp: str | None) -> Self:
        """The key must have this version, or with None must not be there."""
        self._checks.append({"key": key_of(key), "versionstamp": versionstamp})
        return self

    def set(self: Self, key: KeyParts, value: object, *, expires_in: float | timedelta | None = None) -> Self:
        """Set the value of a key, for so many seconds or for good."""
        expires = time_to_live(expires_in, "expires_in")
        return self._add("set", key, json_value(value, "value"), {} if expires is None else {"expiresIn": expires})

    def delete(self: Self, key: KeyParts) -> Self:
        """Remove this key alone."""
        return self._add("delete", key)

    def sum(self: Self, key: KeyParts, value: Number) -> Self:
        """Add a number to what is stored; without an entry it is the value."""
        return self._add("sum", key, _number(value))

    def min(self: Self, key: KeyParts, value: Number) -> Self:
        """Keep the smaller one of a number and what is stored."""
        return self._add("min", key, _number(value))

    def max(self: Self, key: KeyParts, value: Number) -> Self:
        """Keep the larger one of a number and what is stored."""
        return self._add("max", key, _number(value))

    def append(self: Self, key: KeyParts, values: Sequence[object]) -> Self:
        """Put values behind those of a stored array."""
        return self._add("append", key, _array(values))

    def prepend(self: Self, key: KeyParts, values: Sequence[object]) -> Self:
        """Put values before those of a stored array."""
        return self._add("prepend", key, _array(values))

    @property
    def empty(self) -> bool:
        """Whether nothing was collected."""
        return not self._checks and not self._mutations

    @property
    def repeatable(self) -> bool:
        """Whether it may be sent again after a lost reply.

        A check would fail then, by what the first one wrote; a sum would be added twice.
        """
        return not self._checks and all(mutation["type"] in _REPEATABLE for mutation in self._mutations)

    def body(self) -> dict[str, object]:
        """All of it as the wire has it."""
        return {"checks": self._checks, "mutations": self._mutations}

    def _add(
        self: Self,
        type: str,
        key: KeyParts,
        value: msgspec.Raw | None = None,
        more: dict[str, object] | None = None,
    ) -> Self:
        mutation: dict[str, object] = {"type": type, "key": key_of(key)}
        if value is not None:
            mutation["value"] = value
        self._mutations.append(mutation | (more or {}))
        return self


class Atomic(KeyChanges):
    """An atomic write of the key-value store; `await atomic.commit()` does it."""

    def __init__(self, caller: Caller) -> None:
        super().__init__()
        self._caller = caller

    def enqueue(
        self,
        value: object,
        *,
        queue: str = "default",
        delay: float | timedelta | None = None,
        deliver_at: datetime | None = None,
        priority: int | None = None,
        ttl: float | timedelta | None = None,
        retry_delays: Sequence[float | timedelta] | None = None,
        keys_if_undelivered: Sequence[KeyParts] | None = None,
    ) -> Atomic:
        """Push a message to a work queue, with the options of a push; times are in seconds."""
        message = new_message(
            queue,
            value,
            delay=delay,
            deliver_at=deliver_at,
            priority=priority,
            ttl=ttl,
            retry_delays=retry_delays,
            keys_if_undelivered=keys_if_undelivered,
        )
        options = {
            "delay": message.delay,
            "deliverAt": message.deliver_at,
            "priority": message.priority,
            "ttl": message.ttl,
            "backoffSchedule": message.backoff_schedule,
            "keysIfUndelivered": message.keys_if_undelivered,
        }
        self._mutations.append({"type": "enqueue", "queue": queue, "value": message.payload, "options": options})
        return self

    async def commit(self) -> AtomicResult:
        """Do all of it, or nothing if a check fails. Raises `Conflict` when a change does not fit what is stored.

        With checks, sums, appended values or messages it is not sent again when the reply is lost, but raises
        `ConnectionFailed`: read what is there and decide.
        """
        return await self._caller.read(
            AtomicResult, "POST", "/keyval/api/atomic", body=self.body(), safe=self.repeatable, final=_FINAL
        )


def _number(value: Number) -> msgspec.Raw:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidInput(f"value: expected a number, got {value!r}")
    if not math.isfinite(value):
        raise InvalidInput(f"value: expected a finite number, got {value!r}")
    return json_value(value, "value")


def _array(values: Sequence[object]) -> msgspec.Raw:
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
        raise InvalidInput(f"values: expected a list of values, got {type(values).__name__}")
    return json_value(list(values), "values")
