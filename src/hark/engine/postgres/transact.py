"""The verb transact: settlements, messages and keys that are applied together or not at all; reads of keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, chain
from typing import Any

import msgspec

from hark import model
from hark.clock import MILLISECOND
from hark.engine.api import Answers
from hark.engine.hints import refusal_of
from hark.engine.keyvalue import bounds, failed_check, joined, misfit, mismatch_text, parted, repeated
from hark.engine.postgres.partitions import Store
from hark.engine.postgres.push import DUPLICATE, OPTIONS, PARTITION_ARRAYS, Notifications, Pushes
from hark.engine.postgres.push import REFUSALS as PUSH_REFUSALS
from hark.engine.postgres.settle import REFUSALS, Settlements, lease_uuid, load, note_ended
from hark.keys import decode_key, encode_key, prefix_bounds

_KINDS = {"set": 0, "delete": 1, "delete_tree": 2, "sum": 3, "min": 4, "max": 5, "append": 6, "prepend": 7}


_SETTLEMENT_REFUSED, _MESSAGE_REFUSED, _LEASE_NOT_LIVE, _LEASE_EXPIRED, _CHECK_FAILED, _MISFIT, _REPEATED = range(1, 8)
"""Codes of `transact_v1`."""
_LEASE_CODES = {_LEASE_NOT_LIVE: 3, _LEASE_EXPIRED: 2}
_OPERATIONS = ("positions", "items", "leases", "partitions", "messages", "options")
"""The arrays of `transact_v1` before those of keys, in their order."""
_Table = tuple[int, Sequence[Sequence[Any] | None]]
"""The number of rows and the columns; a column that is None has nulls only."""

_BOUNDS = "int[] " * 6
_SETTLEMENTS = (
    "int[] bigint[] boolean[] int[] bigint[] text[] bigint[] uuid[] smallint[] text[] bigint[] boolean[] uuid[] "
)
_PUSHES = (
    "bigint[] text[] text[] text[] text[] int[] int[] int[] bytea[] text[] bigint[] "
    "int[] bigint[] bigint[] bigint[] text[] smallint[] boolean[] text[] text[] text[] text[] "
)
_KEYS = "boolean[] boolean[] int[] int[] bytea[] bigint[] smallint[] bytea[] bytea[] bigint[]"
_ARGUMENTS = ", ".join(
    f"${number}::{kind}" for number, kind in enumerate((_BOUNDS + _SETTLEMENTS + _PUSHES + _KEYS).split(), 2)
)
_TRANSACT = f"select * from hark.transact_v1($1, {_ARGUMENTS})"


async def transact(store: Store, requests: Sequence[model.Transaction]) -> Answers[model.TransactionOutcome]:
    """The outcome of each transaction."""
    joint = [joined(request) for request in requests]
    settlements = [one for request in joint for one in request.operations if isinstance(one, model.Settlement)]
    while True:
        numbers = iter(await load(store, settlements))
        parts = [_Part(request, store, numbers) for request in joint]
        flags = [one.once for one in joint], [part.writes is not None for part in parts]
        arguments, ends = _arguments([part.tables() for part in parts], flags)
        [row] = await store.pool.call(_TRANSACT, *arguments)
        if row["o_stale"] is None and row["o_stale_groups"] is None:
            break
        store.forget_partitions(row["o_stale"] or ())
        store.forget_groups(row["o_stale_groups"] or ())
    outcomes: list[model.TransactionOutcome] = []
    applied: list[Settlements] = []
    notifications = Notifications(store=store)
    for number, part in enumerate(parts):
        answer = _Answer(row, ends, number)
        refusal = part.refusal(answer)
        if refusal is not None:
            outcomes.append(refusal)
        else:
            written = None if part.writes is None else model.KeyWritten(True, answer.version, None, answer.deleted)
            outcomes.append(model.TransactionOutcome(True, part.results(answer, notifications), keys=written))
            # The database sends notices of other keys that it removes.
            notifications.keys |= {encode_key(one.key): one.key for one in part.mutations}
            applied.append(part.settlements)
    await note_ended(store, applied, notifications)
    notifications.send()
    return [parted(request, outcome) for request, outcome in zip(requests, outcomes, strict=True)]


class _Part:
    """One transaction of a call."""

    def __init__(self, request: model.Transaction, store: Store, numbers: Iterator[int]) -> None:
        self._operations = request.operations
        self._required = request.required_leases
        self.settlements = Settlements(store)
        settlements = [one for one in request.operations if isinstance(one, model.Settlement)]
        self.settlements.add(1, zip(settlements, numbers, strict=False))
        self.pushes = Pushes(store)
        self.pushes.add([one for one in request.operations if isinstance(one, model.NewMessage)])
        self.writes = request.keys
        self.mutations = () if request.keys is None else request.keys.mutations

    def tables(self) -> dict[str, _Table]:
        """The arguments of `transact_v1` for this transaction."""
        groups, partitions, shared, _, *items = self.settlements.arguments()
        pushes = self.pushes.arguments()
        checks = () if self.writes is None else self.writes.checks
        options = len(pushes) - OPTIONS
        return {
            "positions": (len(self.settlements.positions), (groups, partitions, shared)),
            "items": (len(self.settlements.items), (*items, self.settlements.known)),
            "leases": (len(self._required), ([lease_uuid(lease) for lease in self._required],)),
            "partitions": (len(self.pushes.names), pushes[:PARTITION_ARRAYS]),
            "messages": (len(self.pushes.partition), pushes[PARTITION_ARRAYS:options]),
            "options": (len(self.pushes.options), pushes[options:]),
            "checks": (len(checks), ([encode_key(one.key) for one in checks], [one.version for one in checks])),
            "mutations": (
                len(self.mutations),
                (
                    [_KINDS[one.kind] for one in self.mutations],
                    [encode_key(one.key) for one in self.mutations],
                    [prefix_bounds(one.key)[1] if one.kind == "delete_tree" else one.value for one in self.mutations],
                    [None if one.ttl_ms is None else one.ttl_ms * MILLISECOND for one in self.mutations],
                ),
            ),
        }

    def refusal(self, answer: _Answer) -> model.TransactionOutcome | None:
        """Why it was not applied; None: it was."""
        code, failed = answer.code, answer.failed - 1
        if code in _LEASE_CODES:
            name, text = REFUSALS[_LEASE_CODES[code]]
            return model.TransactionOutcome(False, (), name, f"{text} (required lease {self._required[failed]})")
        if code == _SETTLEMENT_REFUSED:
            refused = self.settlements.outcomes(*answer.settled)[failed]
            index = self._index(model.Settlement, failed)
            return model.TransactionOutcome(
                False, [refused], refused.code, f"ACK operation failed: {refused.error}", index
            )
        if code == _MESSAGE_REFUSED:
            index = self._index(model.NewMessage, self.pushes.items.index(failed))
            operation = self._operations[index]
            assert isinstance(operation, model.NewMessage)
            if answer.pushed[1][failed] == DUPLICATE:
                return repeated(index, operation)
            name, text = refusal_of(PUSH_REFUSALS[answer.pushed[1][failed]], operation.queue)
            return model.TransactionOutcome(False, (), name, f"PUSH operation failed: {text}", index)
        if code == _REPEATED:
            index = self._index(model.Settlement, failed)
            return repeated(index, self._operations[index])
        if code == _CHECK_FAILED:
            return failed_check(failed)
        if code == _MISFIT:
            return misfit(failed, self.mutations[failed], mismatch_text(answer.why))
        return None

    def _index(self, kind: type[model.NewMessage | model.Settlement], number: int) -> int:
        """The index of an operation, of its number among the operations of its kind."""
        return [index for index, operation in enumerate(self._operations) if isinstance(operation, kind)][number]

    def results(self, answer: _Answer, notifications: Notifications) -> list[model.PushOutcome | model.SettleOutcome]:
        """The outcome of each operation; its effects are noted in the store."""
        partitions = self.pushes.adopt(answer.partitions)
        acks = iter(self.settlements.outcomes(*answer.settled))
        new = iter(self.pushes.outcomes(partitions, (), *answer.pushed))
        self.settlements.notify(answer.ready, answer.counts, answer.due_times, notifications)
        notifications.pushed(self.pushes.arrivals(partitions, answer.pushed[1]))
        return [next(acks) if isinstance(operation, model.Settlement) else next(new) for operation in self._operations]


def _arguments(
    parts: Sequence[dict[str, _Table]], flags: Sequence[Sequence[bool]]
) -> tuple[tuple[object, ...], dict[str, list[int]]]:
    """Those of `transact_v1` after the time; and where each transaction ends in its arrays."""
    ends: dict[str, list[int]] = {}
    arrays: dict[str, list[list[Any]]] = {}
    for name in parts[0]:
        sizes = [part[name][0] for part in parts]
        ends[name] = list(accumulate(sizes))
        if any(sizes):
            arrays[name] = [_joined(sizes, columns) for columns in zip(*(part[name][1] for part in parts), strict=True)]
        else:
            arrays[name] = [[]] * len(parts[0][name][1])
    bounds = [ends[name] for name in _OPERATIONS]
    operations = chain.from_iterable(arrays[name] for name in _OPERATIONS)
    keys = (ends["checks"], ends["mutations"], *arrays["checks"], *arrays["mutations"])
    return (*bounds, *operations, *flags, *keys), ends


def _joined(sizes: Sequence[int], columns: Sequence[Sequence[Any] | None]) -> list[Any]:
    """One array of all transactions; where one has none, it has as many nulls as it has rows."""
    return list(
        chain.from_iterable(
            [None] * size if column is None else column for size, column in zip(sizes, columns, strict=True)
        )
    )


class _Answer:
    """The part of one transaction in the answer."""

    def __init__(self, row: Any, ends: dict[str, list[int]], number: int) -> None:
        def cut(table: str, name: str) -> Any:
            return row[name][ends[table][number - 1] if number else 0 : ends[table][number]]

        self.code, self.failed, self.why = row["o_codes"][number], row["o_failed"][number], row["o_why"][number]
        self.version, self.deleted = row["o_versions"][number], row["o_deleted"][number]
        self.settled = tuple(cut("items", name) for name in ("o_item_codes", "o_released", "o_dead", "o_holders"))
        self.ready = cut("positions", "o_ready")
        self.counts = cut("positions", "o_counts")
        self.due_times = cut("positions", "o_due_times")
        self.pushed = cut("messages", "o_offsets"), cut("messages", "o_outcomes")
        self.partitions = cut("partitions", "o_partitions")


# Keys -------------------------------------------------------------------------------------------------------


def notification_of(texts: Sequence[str]) -> model.KeyNotification:
    """The keys that `notify_keys_v1` named."""
    if "any" in texts:
        return model.KeyNotification(None)
    encoded = dict.fromkeys(key for text in texts for key in text.split(","))
    return model.KeyNotification(tuple(decode_key(bytes.fromhex(key)) for key in encoded))


async def read_keys(store: Store, keys: Sequence[model.Key]) -> list[model.KeyEntry | None]:
    """The entries of keys, by position."""
    found: list[model.KeyEntry | None] = [None] * len(keys)
    if keys:
        encoded = [encode_key(key) for key in keys]
        for number, *columns in await store.pool.call("select * from hark.read_keys_v1($1, $2::bytea[])", encoded):
            found[number - 1] = _entry(store, encoded[number - 1], *columns)
    return found


async def list_keys(store: Store, ranges: Sequence[model.KeyRange]) -> list[list[model.KeyEntry]]:
    """The entries of ranges."""
    found: list[list[model.KeyEntry]] = [[] for _ in ranges]
    if not ranges:
        return found
    sql = "select * from hark.list_keys_v1($1, $2::bytea[], $3::bytea[], $4::bigint[], $5::boolean[])"
    lows, highs = zip(*map(bounds, ranges), strict=True)
    limits = [max(0, one.limit) for one in ranges]
    rows = await store.pool.call(sql, lows, highs, limits, [one.reverse for one in ranges])
    for number, *columns in rows:
        found[number - 1].append(_entry(store, *columns))
    return found


def _entry(
    store: Store, key: bytes, value: bytes, version: int, expires_at: int | None, sealed_by: str | None
) -> model.KeyEntry:
    ends = None if expires_at is None else store.to_local(expires_at)
    return model.KeyEntry(decode_key(key), msgspec.Raw(value), version, ends, sealed_by)


async def count_keys(store: Store, prefix: model.Key) -> int:
    """Number of entries below a prefix."""
    [[number]] = await store.pool.call("select hark.count_keys_v1($1, $2, $3)", *prefix_bounds(prefix))
    return int(number)


async def key_stats(store: Store) -> model.KeyStats:
    """Numbers and sizes of entries; reads every entry."""
    [row] = await store.pool.call("select * from hark.key_stats_v1($1)")
    return model.KeyStats(*row)


async def sweep_keys(store: Store, limit: int = 1000) -> int:
    """Remove expired entries."""
    [[number]] = await store.pool.call("select hark.sweep_keys_v1($1, $2)", limit)
    return int(number)
