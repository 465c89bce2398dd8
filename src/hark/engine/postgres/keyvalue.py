"""The key-value half: the arrays of a transaction, and reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from hark.clock import MILLISECOND
from hark.engine.keyvalue import bounds, failed_check, misfit, mismatch_text
from hark.engine.postgres.pool import Pool
from hark.keys import decode_key, encode_key, prefix_bounds
from hark.model import Key, KeyEntry, KeyNews, KeyRange, KeyStats, KeyWrite, KeyWritten, TransactionOutcome

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


def news_of(told: Sequence[str]) -> KeyNews:
    """What `tell_keys_v1` said."""
    if _ANY in told:
        return KeyNews(None)
    encoded = dict.fromkeys(key for text in told for key in text.split(","))
    return KeyNews(tuple(decode_key(bytes.fromhex(key)) for key in encoded))


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
