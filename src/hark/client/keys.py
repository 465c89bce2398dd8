"""The key-value store: entries, atomic writes and watches."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Self, TypeVar

import msgspec
from msgspec import UNSET

from hark.api import operations, types
from hark.api.operations import Operation
from hark.api.types import OptionalRaw, decode_value
from hark.client.arguments import KeyParts, json_value, key_of, key_text, new_message, time_to_live
from hark.client.calling import Caller, Query, Request, decode, not_hark
from hark.errors import HarkError, InvalidInput
from hark.keys import MAX_KEYS
from hark.model import Key

T = TypeVar("T")


class Entry(msgspec.Struct, frozen=True):
    """A key with its value and its version."""

    key: Key
    """The key, as a tuple."""
    raw: msgspec.Raw
    """The value as JSON bytes."""
    versionstamp: str
    """Changes with every write. Later versionstamps are greater."""

    @property
    def value(self) -> Any:
        """The value, decoded from JSON."""
        return msgspec.json.decode(self.raw)

    def decode(self, shape: type[T]) -> T:
        """Decode the value as a type. Raises `InvalidInput` with the code `unexpected_value` if it does not fit."""
        return decode_value(self.raw, shape, f"the value of {self.key}")


class Change(msgspec.Struct, frozen=True):
    """A change of a key. `entry` is None if the key was deleted or expired."""

    key: Key
    entry: Entry | None

    @property
    def value(self) -> Any:
        """The new value. None also if the key was deleted or expired."""
        return None if self.entry is None else self.entry.value


def entry_of(found: types.keys.WireEntry) -> Entry | None:
    """The entry, or None if the key is missing."""
    return None if found.versionstamp is None else Entry(found.key, found.value, found.versionstamp)


Number = int | float

_REPEATABLE = frozenset({"set", "delete", "min", "max"})
"""Changes with the same result whether they are applied once or twice."""
_FINAL = frozenset({"queue_full"})
"""Codes that are not retried, because they may last."""


class KeyChanges:
    """Collects checks and changes of keys. Each method returns the same object, so calls can be chained."""

    def __init__(self) -> None:
        self._checks: list[types.keys.CheckBody] = []
        self._mutations: list[types.keys.MutationBody] = []

    def check(self, key: KeyParts, versionstamp: str | None) -> Self:
        """Require that the key has this versionstamp. None: require that the key does not exist."""
        self._checks.append(types.keys.CheckBody(key_of(key), versionstamp))
        return self

    def set(self, key: KeyParts, value: object, *, expires_in: float | timedelta | None = None) -> Self:
        """Set the value of a key. `expires_in` is a time to live in seconds; the default is no expiry."""
        return self._add("set", key, json_value(value, "value"), time_to_live(expires_in, "expires_in"))

    def delete(self, key: KeyParts) -> Self:
        """Delete this key only, not the keys below it."""
        return self._add("delete", key)

    def sum(self, key: KeyParts, value: Number) -> Self:
        """Add a number to the stored number. A missing key counts as 0."""
        return self._add("sum", key, _number(value))

    def min(self, key: KeyParts, value: Number) -> Self:
        """Store the smaller of this number and the stored number."""
        return self._add("min", key, _number(value))

    def max(self, key: KeyParts, value: Number) -> Self:
        """Store the larger of this number and the stored number."""
        return self._add("max", key, _number(value))

    def append(self, key: KeyParts, values: Sequence[object]) -> Self:
        """Append values to a stored array. A missing key counts as an empty array."""
        return self._add("append", key, _array(values))

    def prepend(self, key: KeyParts, values: Sequence[object]) -> Self:
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
        return not self._checks and all(mutation.type in _REPEATABLE for mutation in self._mutations)

    def body(self) -> types.keys.AtomicBody:
        """The request body."""
        return types.keys.AtomicBody(checks=self._checks, mutations=self._mutations)

    def _add(self, type: str, key: KeyParts, value: OptionalRaw = UNSET, expires_in: int | None = None) -> Self:
        self._mutations.append(types.keys.MutationBody(type, key=key_of(key), value=value, expires_in=expires_in))
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
        options = types.keys.EnqueueOptions(
            delay=message.delay,
            deliver_at=message.deliver_at,
            priority=message.priority,
            ttl=message.ttl,
            backoff_schedule=message.backoff_schedule,
            keys_if_undelivered=message.keys_if_undelivered,
        )
        self._mutations.append(types.keys.MutationBody("enqueue", queue=queue, value=message.payload, options=options))
        return self

    async def commit(self) -> types.keys.AtomicResult:
        """Apply everything, or nothing if a check fails: the result is then false.

        Raises `Conflict` if a change does not fit the stored value, for example a sum to a string. With checks, sums,
        appended values or messages the request is not repeated after a lost reply: it raises `ConnectionFailed`, and
        you have to read the keys to see whether it was applied.
        """
        return await self._caller.ask(operations.KEYVAL_COMMIT, body=self.body(), safe=self.repeatable, final=_FINAL)


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


WAIT_SECONDS = 30.0
_MARGIN = 10.0
"""Seconds that an answer may take beyond the requested waiting time."""
_TOO_SOON = 1.0
"""An empty answer within this many seconds means that the server did not wait: it is shutting down, or something is
wrong."""
_MAX_ADDRESS = 60_000
"""Maximum size of the query in bytes. A server accepts URLs of 65,535 bytes."""
_Poll = Operation[types.keys.PolledEntries[tuple[str, ...]]] | Operation[types.keys.PolledEntries[str]]


class KeyWatch:
    """Changes of keys, as an endless async iterator. It needs no close."""

    def __init__(
        self,
        caller: Caller,
        operation: _Poll,
        query: Query,
        *,
        initial: bool = True,
        wait: float = WAIT_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._caller = caller
        self._operation = operation
        self._query = query
        self._skip = not initial
        self._wait = wait
        self._monotonic = monotonic
        self._sleep = sleep
        self._known: str | None = None
        """The versionstamps that the server reported last. None: it has not answered yet."""
        self._failures = 0
        self._changes: deque[Change] = deque()

    def __aiter__(self) -> KeyWatch:
        return self

    async def begin(self) -> KeyWatch:
        """Send the first request, unless it was sent. Otherwise the first step sends it."""
        if self._known is None:
            await self._ask(wait=False)
            if self._skip:
                self._changes.clear()
        return self

    async def __anext__(self) -> Change:
        await self.begin()
        while not self._changes:
            await self._look()
        return self._changes.popleft()

    async def _look(self) -> None:
        """Wait for changes once. During an outage, pause."""
        requested_at = self._monotonic()
        try:
            await self._ask(wait=True)
        except HarkError as error:
            if not error.retryable:
                raise
            await self._pause(error.retry_after or 0.0)
            return
        if self._changes or self._monotonic() - requested_at >= min(_TOO_SOON, self._wait):
            self._failures = 0
        else:
            await self._pause(0.0)

    async def _ask(self, *, wait: bool) -> None:
        query = {**self._query, "versionstamps": self._known, "wait": wait, "timeout": round(self._wait * 1000)}
        size = len(Request("GET", "", query).query_string)
        if size > _MAX_ADDRESS:
            text = f"too many or too long for one watch: {size} of {_MAX_ADDRESS} bytes"
            raise InvalidInput(f"keys: {text}; watch fewer keys, or use a prefix with a smaller limit")
        polled: types.keys.PolledEntries[tuple[str, ...]] | types.keys.PolledEntries[str] = await self._caller.ask(
            self._operation, query=query, seconds=self._wait + _MARGIN
        )
        stamps = polled.versionstamps
        self._known = stamps if isinstance(stamps, str) else ",".join(stamps)
        self._changes.extend(Change(one.key, entry_of(one)) for one in polled.entries)

    async def _pause(self, at_least: float) -> None:
        self._failures += 1
        await self._sleep(max(at_least, self._caller.retry.delay(self._failures)))


class KeyValue:
    """The key-value store of the server, `client.kv`.

    A key is a tuple of strings, numbers and booleans, such as `("users", 17)`. Values are JSON.

    ```python
    await client.kv.set(("users", 17), {"name": "Ada"}, expires_in=3600)
    entry = await client.kv.get(("users", 17))
    ```
    """

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def get(self, key: KeyParts) -> Entry | None:
        """The entry of a key. None if the key does not exist."""
        found = await self._caller.find("key_not_found", operations.KEYVAL_GET_KEY, key_text(key))
        return None if found is None else entry_of(decode(found.body, operations.KEYVAL_GET_KEY.answer()))

    async def get_many(self, keys: Sequence[KeyParts]) -> list[Entry | None]:
        """The entries of several keys, in their order. None where a key does not exist."""
        checked = _several(keys)
        found: list[Entry | None] = []
        for start in range(0, len(checked), MAX_KEYS):
            body = {"keys": checked[start : start + MAX_KEYS]}
            page = await self._caller.ask(operations.KEYVAL_GET_BATCH, body=body, safe=True)
            found += [entry_of(entry) for entry in page]
        return found

    async def set(self, key: KeyParts, value: object, *, expires_in: float | timedelta | None = None) -> str:
        """Set the value of a key. Returns its new versionstamp.

        `expires_in` is a time to live in seconds (or a `timedelta`). The default is no expiry.
        """
        answer = await self._caller.ask(
            operations.KEYVAL_PUT_KEY,
            key_text(key),
            query={"expiresIn": time_to_live(expires_in, "expires_in")},
            raw_body=bytes(json_value(value, "value")),
        )
        return answer.value

    async def delete(self, key: KeyParts, *, exact: bool = True) -> int:
        """Delete a key. Returns the number of deleted entries.

        With `exact=False`, it deletes the key and all keys below it. If the request is repeated after a lost reply, the
        number is that of the second request.
        """
        answer = await self._caller.ask(operations.KEYVAL_DELETE_KEY, key_text(key), query={"exact": exact})
        return answer.value

    async def delete_many(self, keys: Sequence[KeyParts], *, exact: bool = True) -> int:
        """Delete several keys in one commit. Returns the number of deleted entries.

        With `exact=False`, it deletes the keys and all keys below them.
        """
        checked = _several(keys)
        if not checked:
            return 0
        body = {"keys": checked, "exact": exact}
        answer = await self._caller.ask(operations.KEYVAL_DELETE_BATCH, body=body, safe=True)
        return answer.value

    async def list(
        self,
        prefix: KeyParts = (),
        *,
        start: KeyParts | None = None,
        end: KeyParts | None = None,
        limit: int | None = None,
        reverse: bool = False,
        page_size: int = 100,
    ) -> AsyncIterator[Entry]:
        """Iterate over the entries below a prefix, or over all entries, in key order.

        The range is from `start` up to, but not including, `end`. `limit` is the maximum number of entries; the default
        is no limit. `reverse=True` iterates backwards. Entries are read in pages of `page_size`, and each page shows
        the state at the time it is read.
        """
        if limit is not None and limit < 1:
            raise InvalidInput(f"limit: expected at least 1, got {limit}")
        query = {
            "prefix": key_text(prefix, "prefix") if len(prefix) else None,
            "start": None if start is None else key_text(start, "start"),
            "end": None if end is None else key_text(end, "end"),
            "reverse": reverse,
        }
        cursor: str | None = None
        left = limit
        while True:
            size = page_size if left is None else min(page_size, left)
            page = await self._caller.ask(
                operations.KEYVAL_PAGINATE_KEYS, query=query | {"limit": size, "cursor": cursor}
            )
            for found in page.entries:
                entry = entry_of(found)
                if entry is None:
                    raise not_hark(
                        f"the server listed the key {found.key} without a versionstamp; check that it is a Hark server"
                    )
                yield entry
            left = None if left is None else left - len(page.entries)
            cursor = page.cursor
            if cursor is None or left == 0:
                return

    async def count(self, prefix: KeyParts = ()) -> int:
        """The number of entries below a prefix. The default is the number of all entries."""
        query = {"prefix": key_text(prefix, "prefix") if len(prefix) else None}
        return (await self._caller.ask(operations.KEYVAL_COUNT_KEYS, query=query)).value

    def atomic(self) -> Atomic:
        """A new atomic write: checks and changes of keys that are applied together or not at all.

        Call `commit` on the result to apply it.
        """
        return Atomic(self._caller)

    def watch(self, keys: Sequence[KeyParts], *, initial: bool = True) -> KeyWatch:
        """Watch keys: an endless iterator over their changes, starting with the current entries.

        With `initial=False`, it starts with the first change. After several quick writes to a key, you may see only the
        last one. The watch continues after an outage of the server. Only the first request raises `ConnectionFailed` if
        no server answers.
        """
        query: Query = {"keys": msgspec.json.encode(_several(keys)).decode()}
        return KeyWatch(self._caller, operations.KEYVAL_POLL_KEYS, query, initial=initial)

    def watch_prefix(self, prefix: KeyParts, *, limit: int = 100, initial: bool = True) -> KeyWatch:
        """Watch the keys below a prefix, as `watch` does. It covers the first `limit` keys, at most 1000."""
        query: Query = {"prefix": key_text(prefix, "prefix"), "limit": limit}
        return KeyWatch(self._caller, operations.KEYVAL_POLL_PREFIX, query, initial=initial)


def _several(keys: Sequence[KeyParts]) -> list[Key]:
    if isinstance(keys, str) or (keys and isinstance(keys[0], (str, int, float))):
        raise InvalidInput("keys: expected a list of keys, such as [('users', 17)], got one key")
    return [key_of(key, f"keys[{index}]") for index, key in enumerate(keys)]
