"""The key-value half: the arrays of a transaction, and reads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from hark.clock import MILLISECOND, Clock
from hark.engine.api import Answers, KeyListener, ignore_keys
from hark.engine.keyvalue import StatsMemory, bounds, failed_check, misfit, mismatch_text, written_of
from hark.engine.postgres.pool import Pool
from hark.errors import HarkError
from hark.keys import decode_key, encode_key, prefix_bounds
from hark.model import (
    Key,
    KeyEntry,
    KeyNotification,
    KeyRange,
    KeyStats,
    KeyWrite,
    KeyWritten,
    Transaction,
    TransactionOutcome,
)

CHECK_FAILED, MISFIT = 5, 6
"""Codes of `transact_v1`."""
_KINDS = {"set": 0, "delete": 1, "delete_tree": 2, "sum": 3, "min": 4, "max": 5, "append": 6, "prepend": 7}
_NO_WRITE = KeyWrite()
_ANY = "any"
ToLocal = Callable[[int], int]
"""A time of the database by the local clock."""


class KeyWrites:
    """What one transaction says of keys, as arrays."""

    def __init__(self, request: KeyWrite | None) -> None:
        self.given = request is not None
        self._request = request or _NO_WRITE
        self._checks = [(encode_key(check.key), check.version) for check in self._request.checks]
        self._mutations = [
            (
                _KINDS[one.kind],
                encode_key(one.key),
                prefix_bounds(one.key)[1] if one.kind == "delete_tree" else one.value,
                None if one.ttl_ms is None else one.ttl_ms * MILLISECOND,
            )
            for one in self._request.mutations
        ]

    @property
    def checks_number(self) -> int:
        """How many checks there are."""
        return len(self._checks)

    @property
    def mutations_number(self) -> int:
        """How many mutations there are."""
        return len(self._mutations)

    def arguments(self) -> tuple[Sequence[Any], ...]:
        """The arrays c_ and u_ of `transact_v1`."""
        checks = zip(*self._checks, strict=True) if self._checks else ((), ())
        mutations = zip(*self._mutations, strict=True) if self._mutations else ((), (), (), ())
        return (*checks, *mutations)

    def refusal(self, code: int, failed: int, why: int) -> TransactionOutcome | None:
        """Why nothing of the transaction happened, if it is because of its keys."""
        if code == CHECK_FAILED:
            return failed_check(failed - 1)
        if code == MISFIT:
            return misfit(failed - 1, self._request.mutations[failed - 1], mismatch_text(why))
        return None

    def written(self, version: int, deleted: int) -> KeyWritten | None:
        """What became of it."""
        return KeyWritten(True, version, None, deleted) if self.given else None

    def changed(self) -> dict[bytes, Key]:
        """The keys that it names, by their bytes; what else it removes the database tells."""
        return {encode_key(mutation.key): mutation.key for mutation in self._request.mutations}


def notification_of(notices: Sequence[str]) -> KeyNotification:
    """What `tell_keys_v1` said."""
    if _ANY in notices:
        return KeyNotification(None)
    encoded = dict.fromkeys(key for text in notices for key in text.split(","))
    return KeyNotification(tuple(decode_key(bytes.fromhex(key)) for key in encoded))


async def read_keys(pool: Pool, given: int | None, keys: Sequence[Key], to_local: ToLocal) -> list[KeyEntry | None]:
    """The entries of keys, by position."""
    found: list[KeyEntry | None] = [None] * len(keys)
    if keys:
        encoded = [encode_key(key) for key in keys]
        for number, *columns in await pool.fetch("select * from hark.read_keys_v1($1, $2::bytea[])", given, encoded):
            found[number - 1] = _entry(to_local, encoded[number - 1], *columns)
    return found


async def list_keys(
    pool: Pool, given: int | None, ranges: Sequence[KeyRange], to_local: ToLocal
) -> list[list[KeyEntry]]:
    """The entries of ranges."""
    found: list[list[KeyEntry]] = [[] for _ in ranges]
    if not ranges:
        return found
    limits = [bounds(one) for one in ranges]
    rows = await pool.fetch(
        "select * from hark.list_keys_v1($1, $2::bytea[], $3::bytea[], $4::bigint[], $5::boolean[])",
        given,
        [low for low, _ in limits],
        [high for _, high in limits],
        [max(0, one.limit) for one in ranges],
        [one.reverse for one in ranges],
    )
    for number, *columns in rows:
        found[number - 1].append(_entry(to_local, *columns))
    return found


def _entry(
    to_local: ToLocal, key: bytes, value: bytes, version: int, expires_at: int | None, sealed_by: str | None
) -> KeyEntry:
    ends = None if expires_at is None else to_local(expires_at)
    return KeyEntry(decode_key(key), msgspec.Raw(value), version, ends, sealed_by)


async def count_keys(pool: Pool, given: int | None, prefix: Key) -> int:
    """How many entries are below a prefix."""
    return int(await pool.fetchval("select hark.count_keys_v1($1, $2, $3)", given, *prefix_bounds(prefix)))


async def key_stats(pool: Pool, given: int | None) -> KeyStats:
    """How much there is; looks at every entry."""
    row = await pool.fetchrow("select * from hark.key_stats_v1($1)", given)
    assert row is not None
    return KeyStats(*row)


pass


class KeyVerbs(ABC):
    """Each is one call of a procedure; `write_keys` is a transaction that has nothing but keys and messages."""

    _pool: Pool

    def __init__(self, local_clock: Clock) -> None:
        self._local_clock = local_clock
        self._key_listener: KeyListener = ignore_keys
        self._key_stats = StatsMemory(lambda: key_stats(self._pool, self._now))

    @property
    @abstractmethod
    def _now(self) -> int | None: ...

    @abstractmethod
    async def transact(self, requests: Sequence[Transaction]) -> Answers[TransactionOutcome]:
        """See `Engine.transact`."""

    @abstractmethod
    def _to_local(self, time: int) -> int: ...

    async def read_keys(self, keys: Sequence[Key]) -> list[KeyEntry | None]:
        """See `KeyValueEngine.read_keys`."""
        return await read_keys(self._pool, self._now, keys, self._to_local)

    async def list_keys(self, ranges: Sequence[KeyRange]) -> list[list[KeyEntry]]:
        """See `KeyValueEngine.list_keys`."""
        return await list_keys(self._pool, self._now, ranges, self._to_local)

    async def count_keys(self, prefix: Key) -> int:
        """See `KeyValueEngine.count_keys`."""
        return await count_keys(self._pool, self._now, prefix)

    async def write_keys(self, requests: Sequence[KeyWrite]) -> Answers[KeyWritten]:
        """See `KeyValueEngine.write_keys`."""
        outcomes = await self.transact([Transaction((), keys=request) for request in requests])
        return [outcome if isinstance(outcome, HarkError) else written_of(outcome) for outcome in outcomes]

    async def sweep_keys(self, limit: int = 1000) -> int:
        """See `KeyValueEngine.sweep_keys`."""
        return int(await self._pool.fetchval("select hark.sweep_keys_v1($1, $2)", self._now, limit))

    async def key_stats(self) -> KeyStats:
        """See `KeyValueEngine.key_stats`."""
        return await self._key_stats.stats(self._local_clock.now())

    def _notify_keys(self, changed: Iterable[Key]) -> None:
        """Keys were written by a call that has come back."""
        keys = tuple(changed)
        if keys:
            self._key_listener(KeyNotification(keys))

    def _on_key_notices(self, notices: Sequence[str]) -> None:
        """The database said which keys a call changed besides."""
        self._key_listener(notification_of(notices))
