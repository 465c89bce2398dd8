"""The key-value part of the store: writes inside a transaction, and reads beside the writer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import apsw
import msgspec

from hark import model
from hark.clock import MILLISECOND
from hark.engine.core.store import rows_of, run, scalar
from hark.engine.keyvalue import MOST_APPENDED, MOST_NAMED, TOO_MUCH, Misfit, bounds, combine, failed_check, misfit
from hark.keys import decode_key, encode_key, prefix_bounds

_LIVE = "(expires_at is null or expires_at > {now})"
_SAVE = """
insert into kv (key, value, version, expires_at, sealed_by) values (?1, ?2, ?3, ?4, ?5)
on conflict (key) do update set
    value = excluded.value, version = excluded.version, expires_at = excluded.expires_at, sealed_by = excluded.sealed_by
"""
_NEXT_VERSION = """
insert into meta values ('key_version', 1) on conflict (key) do update set value = value + 1 returning value
"""
_ENTRIES = """
select cast('[' || group_concat('["' || hex(key) || '",' || value || ',' || version || ','
    || ifnull(expires_at, 'null') || ',' || ifnull(json_quote(sealed_by), 'null') || ']') || ']' as blob)
from ({rows})
"""
"""Entries as one JSON text, read in one step of SQLite."""
_WANTED = _ENTRIES.format(
    rows=f"select * from kv where key in (select unhex(value) from json_each(?1)) and {_LIVE.format(now='?2')}"
)
_VERSIONS = f"""
select key, version from kv where key in (select unhex(value) from json_each(?1)) and {_LIVE.format(now="?2")}
"""
_RANGE = _ENTRIES.format(
    rows=f"select * from kv where key >= ?1 and key < ?2 and {_LIVE.format(now='?3')} order by key limit ?4"
)
_REVERSE_RANGE = _RANGE.replace("order by key", "order by key desc")
_COUNT = f"select count(*) from kv where key >= ?1 and key < ?2 and {_LIVE.format(now='?3')}"
_OVER = "select key from kv where expires_at <= ?1 order by expires_at limit ?2"
_STATS = f"select count(*), total(length(key) + length(value)) from kv where {_LIVE.format(now='?1')}"


class _Row(msgspec.Struct, array_like=True, gc=False):
    key: str
    value: msgspec.Raw
    version: int
    expires_at: int | None
    sealed_by: str | None

    def entry(self) -> model.KeyEntry:
        return model.KeyEntry(
            decode_key(bytes.fromhex(self.key)), self.value, self.version, self.expires_at, self.sealed_by
        )


_decode_rows = msgspec.json.Decoder(list[_Row]).decode


class KeyBook:
    """The changes of keys in one transaction, and the notification after its commit."""

    def __init__(self, connection: apsw.Connection, now: int) -> None:
        self._connection = connection
        self._now = now
        self._changed: dict[bytes, model.Key | None] = {}
        """The changed keys by their bytes. None: the key is decoded from them."""
        self._any = False
        self._appended = 0
        """Bytes that the appends of the current request have rewritten."""

    def notification(self) -> model.KeyNotification | None:
        """The notification of the changed keys."""
        if self._any:
            return model.KeyNotification(None)
        if not self._changed:
            return None
        named = self._changed.items()
        return model.KeyNotification(tuple(decode_key(encoded) if key is None else key for encoded, key in named))

    def write(self, request: model.KeyWrite) -> model.KeyWritten | model.TransactionOutcome:
        """Apply a request completely, or return the `TransactionOutcome` with the reason why not."""
        if request.checks and (failed := self._first_failed(request.checks)) is not None:
            return failed_check(failed)
        version = int(scalar(self._connection, _NEXT_VERSION))
        run(self._connection, "savepoint keys")
        changed: dict[bytes, model.Key | None] = {}
        deleted = self._appended = 0
        sets: list[tuple[bytes, bytes, int, int | None, None]] = []
        """Rows that are saved together, because there can be many."""
        for index, mutation in enumerate(request.mutations):
            if mutation.kind == "set":
                key = encode_key(mutation.key)
                changed[key] = mutation.key
                expires_at = None if mutation.ttl_ms is None else self._now + mutation.ttl_ms * MILLISECOND
                sets.append((key, mutation.value, version, expires_at, None))
                continue
            self._connection.executemany(_SAVE, sets)
            sets = []
            try:
                deleted += self._mutate(mutation, version, changed)
            except Misfit as error:
                run(self._connection, "rollback to keys")
                run(self._connection, "release keys")
                return misfit(index, mutation, str(error))
        self._connection.executemany(_SAVE, sets)
        run(self._connection, "release keys")
        self._changed |= changed
        return model.KeyWritten(True, version, None, deleted)

    def set_undelivered(self, partition: int, offset: int, queue: str) -> None:
        """Store the payload of an undeliverable message under its keys (`keysIfUndelivered`, rule 18)."""
        sql = "select payload, extra ->> 'k', extra ->> 's', extra ->> 'r' from messages"
        sql += " where partition = ?1 and offset = ?2 and extra ->> 'k' is not null"
        for payload, keys, sealed, elsewhere in rows_of(self._connection, sql, partition, offset):
            if elsewhere is not None:  # The column has null, which would become the value.
                raise RuntimeError(f"a message with keysIfUndelivered has its payload elsewhere: {elsewhere}")
            version = int(scalar(self._connection, _NEXT_VERSION))
            encoded = [bytes.fromhex(key) for key in msgspec.json.decode(keys, type=list[str])]
            for key in encoded:
                run(self._connection, _SAVE, key, payload, version, None, queue if sealed else None)
            self._notify(encoded)

    def sweep(self, limit: int) -> int:
        """Remove expired entries. Returns their number."""
        gone = rows_of(self._connection, f"delete from kv where key in ({_OVER}) returning key", self._now, limit)
        self._notify(key for (key,) in gone)
        return len(gone)

    def _notify(self, keys: Iterable[bytes]) -> None:
        self._changed |= dict.fromkeys(keys)

    def _first_failed(self, checks: Sequence[model.KeyCheck]) -> int | None:
        """The index of the first check whose key has another version. One query reads all versions."""
        encoded = [encode_key(check.key) for check in checks]
        wanted = msgspec.json.encode([key.hex() for key in encoded]).decode()
        versions: dict[bytes, int] = dict(rows_of(self._connection, _VERSIONS, wanted, self._now))
        return next(
            (index for index, key in enumerate(encoded) if versions.get(key) != checks[index].version),
            None,
        )

    def _mutate(self, mutation: model.KeyMutation, version: int, changed: dict[bytes, model.Key | None]) -> int:
        """Apply one mutation that is not a `set`. Returns the number of deleted entries."""
        key = encode_key(mutation.key)
        changed[key] = mutation.key
        if mutation.kind == "delete":
            return self._delete(key)
        if mutation.kind == "delete_tree":
            return self._delete_tree(key, prefix_bounds(mutation.key)[1], changed)
        sql = f"select value from kv where key = ?1 and {_LIVE.format(now='?2')}"
        value = combine(mutation.kind, scalar(self._connection, sql, key, self._now), mutation.value)
        if mutation.kind in ("append", "prepend"):
            self._appended += len(value)
            if self._appended > MOST_APPENDED:
                raise Misfit(TOO_MUCH)
        run(self._connection, _SAVE, key, value, version, None, None)
        return 0

    def _delete(self, key: bytes) -> int:
        gone = rows_of(self._connection, "delete from kv where key = ?1 returning expires_at", key)
        return sum(expires_at is None or expires_at > self._now for (expires_at,) in gone)

    def _delete_tree(self, low: bytes, high: bytes, changed: dict[bytes, model.Key | None]) -> int:
        few = "select key from kv where key >= ?1 and key < ?2 limit ?3"
        keys = rows_of(self._connection, few, low, high, MOST_NAMED + 1)
        if len(keys) > MOST_NAMED:
            self._any = True
        else:
            changed |= {key: None for (key,) in keys}
        number = int(scalar(self._connection, _COUNT, low, high, self._now))
        run(self._connection, "delete from kv where key >= ?1 and key < ?2", low, high)
        return number


def read_keys(connection: apsw.Connection, now: int, keys: Sequence[model.Key]) -> list[model.KeyEntry | None]:
    """The entries of keys."""
    wanted = [encode_key(key).hex().upper() for key in keys]
    found = {row.key: row.entry() for row in _rows(connection, _WANTED, msgspec.json.encode(wanted).decode(), now)}
    return [found.get(key) for key in wanted]


def list_keys(connection: apsw.Connection, now: int, ranges: Sequence[model.KeyRange]) -> list[list[model.KeyEntry]]:
    """The entries of ranges."""
    found = []
    for one in ranges:
        sql = _REVERSE_RANGE if one.reverse else _RANGE
        found.append([row.entry() for row in _rows(connection, sql, *bounds(one), now, max(0, one.limit))])
    return found


def _rows(connection: apsw.Connection, sql: str, *parameters: int | str | bytes) -> list[_Row]:
    text = scalar(connection, sql, *parameters)
    return [] if text is None else _decode_rows(text)


def count_keys(connection: apsw.Connection, now: int, prefix: model.Key) -> int:
    """Number of entries below a prefix."""
    return int(scalar(connection, _COUNT, *prefix_bounds(prefix), now))


def key_stats(connection: apsw.Connection, now: int) -> model.KeyStats:
    """The size of the key-value store. Reads every entry."""
    [(entries, size)] = rows_of(connection, _STATS, now)
    return model.KeyStats(int(entries), int(size))
