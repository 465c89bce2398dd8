"""Checks and changes of keys that are applied together or not at all."""

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
"""Changes with the same result whether they are applied once or twice."""
_FINAL = frozenset({"queue_full"})
"""Codes that are not retried, because they may last."""


class AtomicResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of an atomic write. `ok` is False if a check failed; nothing was written then."""

    ok: bool
    versionstamp: str | None = None
    """Versionstamp of everything that it wrote."""
    ids: tuple[str, ...] = ()
    """Ids of the enqueued messages, in order."""

    def __bool__(self) -> bool:
        return self.ok


class KeyChanges:
    """Collects checks and changes of keys. Each method returns the same object, so calls can be chained."""

    def __init__(self) -> None:
        self._checks: list[dict[str, object]] = []
        self._mutations: list[dict[str, object]] = []

    def check(self: Self, key: KeyParts, versionstamp: str | None) -> Self:
        """Require that the key has this versionstamp. None: require that the key does not exist."""
        self._checks.append({"key": key_of(key), "versionstamp": versionstamp})
        return self

    def set(self: Self, key: KeyParts, value: object, *, expires_in: float | timedelta | None = None) -> Self:
        """Set the value of a key. `expires_in` is a time to live in seconds; the default is no expiry."""
        expires = time_to_live(expires_in, "expires_in")
        return self._add("set", key, json_value(value, "value"), {} if expires is None else {"expiresIn": expires})

    def delete(self: Self, key: KeyParts) -> Self:
        """Delete this key only, not the keys below it."""
        return self._add("delete", key)

    def sum(self: Self, key: KeyParts, value: Number) -> Self:
        """Add a number to the stored number. A missing key counts as 0."""
        return self._add("sum", key, _number(value))

    def min(self: Self, key: KeyParts, value: Number) -> Self:
        """Store the smaller of this number and the stored number."""
        return self._add("min", key, _number(value))

    def max(self: Self, key: KeyParts, value: Number) -> Self:
        """Store the larger of this number and the stored number."""
        return self._add("max", key, _number(value))

    def append(self: Self, key: KeyParts, values: Sequence[object]) -> Self:
        """Append values to a stored array. A missing key counts as an empty array."""
        return self._add("append", key, _array(values))

    def prepend(self: Self, key: KeyParts, values: Sequence[object]) -> Self:
        """Prepend values to a stored array. A missing key counts as an empty array."""
        return self._add("prepend", key, _array(values))

    @property
    def empty(self) -> bool:
        """Whether nothing was collected."""
        return not self._checks and not self._mutations

    @property
    def repeatable(self) -> bool:
        """Whether the request can be repeated after a lost reply.

        A repeated check would fail because of the first request's own write; a repeated sum would be added twice.
        """
        return not self._checks and all(mutation["type"] in _REPEATABLE for mutation in self._mutations)

    def body(self) -> dict[str, object]:
        """The request body."""
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
    """An atomic write to the key-value store: `client.kv.atomic()` creates it, `commit` applies it.

    result = await client.kv.atomic().check(("stock", 7), entry.versionstamp).set(("stock", 7), 4).commit()
    if not result:
        ...  # Another client changed the key.
    """

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
        """Push a message to a work queue in the same commit. Times are seconds or a `timedelta`.

        The options mean the same as in `Queue.push`.
        """
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
        """Apply everything, or nothing if a check fails: the result is then false.

        Raises `Conflict` if a change does not fit the stored value, for example a sum to a string. With checks, sums,
        appended values or messages the request is not repeated after a lost reply: it raises `ConnectionFailed`, and
        you have to read the keys to see whether it was applied.
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
