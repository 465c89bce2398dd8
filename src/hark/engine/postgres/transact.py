"""The verb transact: settlements, messages and keys that are applied together or not at all; reads of keys."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any

import msgspec

from hark.clock import MILLISECOND
from hark.engine.api import Answers
from hark.engine.keyvalue import bounds, failed_check, joined, misfit, mismatch_text, parted
from hark.engine.postgres.partitions import Store
from hark.engine.postgres.push import NOT_YET, OPTIONS, PARTITION_ARRAYS, Notifications, Pushes
from hark.engine.postgres.settle import REFUSALS, Released, Settlements, lease_uuid, load
from hark.keys import decode_key, encode_key, prefix_bounds
from hark.model import (
    Key,
    KeyEntry,
    KeyNotification,
    KeyRange,
    KeyStats,
    KeyWrite,
    KeyWritten,
    NewMessage,
    PushOutcome,
    Settlement,
    SettleOutcome,
    Transaction,
    TransactionOutcome,
)
from hark.model.messages import RESERVED, RESERVED_TEXT

CHECK_FAILED, MISFIT = 5, 6
"""Codes of `transact_v1`."""
_KINDS = {"set": 0, "delete": 1, "delete_tree": 2, "sum": 3, "min": 4, "max": 5, "append": 6, "prepend": 7}
_NO_WRITE = KeyWrite()


class KeyWrites:
    """The checks and mutations of keys of one transaction, as arrays."""

    def __init__(self, request: KeyWrite | None) -> None:
        self.given = request is not None
        self.request = request or _NO_WRITE
        self.checks = [(encode_key(check.key), check.version) for check in self.request.checks]
        self.mutations = [
            (
                _KINDS[one.kind],
                encode_key(one.key),
                prefix_bounds(one.key)[1] if one.kind == "delete_tree" else one.value,
                None if one.ttl_ms is None else one.ttl_ms * MILLISECOND,
            )
            for one in self.request.mutations
        ]

    def arguments(self) -> tuple[Sequence[Any], ...]:
        """The arrays c_ and u_ of `transact_v1`."""
        checks = zip(*self.checks, strict=True) if self.checks else ((), ())
        mutations = zip(*self.mutations, strict=True) if self.mutations else ((), (), (), ())
        return (*checks, *mutations)

    def refusal(self, code: int, failed: int, why: int) -> TransactionOutcome | None:
        """Why the transaction was not applied, if it is because of its keys."""
        if code == CHECK_FAILED:
            return failed_check(failed - 1)
        if code == MISFIT:
            return misfit(failed - 1, self.request.mutations[failed - 1], mismatch_text(why))
        return None


_SETTLEMENT_REFUSED, _MESSAGE_REFUSED, _LEASE_NOT_LIVE, _LEASE_EXPIRED = 1, 2, 3, 4
_LEASE_CODES = {_LEASE_NOT_LIVE: 3, _LEASE_EXPIRED: 2}

_BOUNDS = "int[] " * 6
_SETTLEMENTS = (
    "int[] bigint[] boolean[] int[] bigint[] text[] bigint[] uuid[] smallint[] text[] bigint[] boolean[] uuid[] "
)
_PUSHES = (
    "bigint[] text[] text[] text[] text[] int[] int[] int[] bytea[] text[] bigint[] "
    "int[] bigint[] bigint[] bigint[] text[] smallint[] boolean[] text[] text[] text[] text[] "
)
_KEYS = "boolean[] int[] int[] bytea[] bigint[] smallint[] bytea[] bytea[] bigint[]"
_ARGUMENTS = ", ".join(
    f"${number}::{kind}" for number, kind in enumerate((_BOUNDS + _SETTLEMENTS + _PUSHES + _KEYS).split(), 2)
)
_TRANSACT = f"select * from hark.transact_v1($1, {_ARGUMENTS})"


async def transact(store: Store, requests: Sequence[Transaction]) -> Answers[TransactionOutcome]:
    """The outcome of each transaction."""
    joint = [joined(request) for request in requests]
    settlements = [one for request in joint for one in request.operations if isinstance(one, Settlement)]
    while True:
        await load(store, settlements)
        parts = [_Part(request, store) for request in joint]
        row = await store.pool.fetchrow(_TRANSACT, store.time, *_arguments(parts))
        assert row is not None
        if row["o_stale"] is None and row["o_stale_groups"] is None:
            break
        store.forget_partitions(row["o_stale"] or ())
        store.forget_groups(row["o_stale_groups"] or ())
    outcomes: list[TransactionOutcome] = []
    notifications, released, ends = Notifications(store=store), Released(), _Ends(parts)
    for number, part in enumerate(parts):
        answer = _Answer(row, ends, number)
        code, failed = row["o_codes"][number], row["o_failed"][number]
        refusal = part.refusal(code, failed, answer) or part.keys.refusal(code, failed, row["o_why"][number])
        if refusal is not None:
            outcomes.append(refusal)
        else:
            versions, deleted = row["o_versions"], row["o_deleted"]
            written = KeyWritten(True, versions[number], None, deleted[number]) if part.keys.given else None
            outcomes.append(TransactionOutcome(True, part.results(answer, notifications), keys=written))
            # The database sends notices of other keys that it removes.
            notifications.keys |= {encode_key(one.key): one.key for one in part.keys.request.mutations}
            released.join(part.settlements.released)
    await released.notify(store, notifications)
    notifications.send()
    return [parted(request, outcome) for request, outcome in zip(requests, outcomes, strict=True)]


class _Part:
    """One transaction of a call."""

    def __init__(self, request: Transaction, store: Store) -> None:
        self._operations = request.operations
        self.required = request.required_leases
        self.settlements = Settlements(store)
        self.settlements.add(1, [one for one in request.operations if isinstance(one, Settlement)])
        self.pushes = Pushes(store)
        self.pushes.add([one for one in request.operations if isinstance(one, NewMessage)])
        self.keys = KeyWrites(request.keys)

    def refusal(self, code: int, failed: int, answer: _Answer) -> TransactionOutcome | None:
        """Why it was not applied; None: it was."""
        if code in _LEASE_CODES:
            name, text = REFUSALS[_LEASE_CODES[code]]
            return TransactionOutcome(False, (), name, f"{text} (required lease {self.required[failed - 1]})")
        if code == _SETTLEMENT_REFUSED:
            refused = self.settlements.outcomes(*answer.settled)[failed - 1]
            index = self._index(Settlement, failed - 1)
            return TransactionOutcome(False, [refused], refused.code, f"ACK operation failed: {refused.error}", index)
        if code == _MESSAGE_REFUSED:
            index = self._index(NewMessage, self.pushes.items.index(failed - 1))
            operation = self._operations[index]
            assert isinstance(operation, NewMessage)
            if answer.pushed[1][failed - 1] == NOT_YET:
                return TransactionOutcome(False, (), RESERVED, f"PUSH operation failed: {RESERVED_TEXT}", index)
            if answer.pushed[1][failed - 1] == 2:
                text = f"the encryption of queue {operation.queue!r} was changed during the push; retry"
                return TransactionOutcome(False, (), "sealing_mismatch", text, index)
            text = f"PUSH operation failed: queue {operation.queue!r} is full (maxSize); retry later or raise maxSize"
            return TransactionOutcome(False, (), "queue_full", text, index)
        return None

    def _index(self, kind: type[NewMessage | Settlement], number: int) -> int:
        """The index of an operation, of its number among the operations of its kind."""
        return [index for index, operation in enumerate(self._operations) if isinstance(operation, kind)][number]

    def results(self, answer: _Answer, notifications: Notifications) -> list[PushOutcome | SettleOutcome]:
        """The outcome of each operation; its effects are noted in the store."""
        partitions = self.pushes.adopt(answer.partitions)
        acks = iter(self.settlements.outcomes(*answer.settled))
        new = iter(self.pushes.outcomes(partitions, (), *answer.pushed))
        self.settlements.notify(answer.ready, answer.counts, answer.due_times, notifications)
        notifications.pushed(self.pushes.arrivals(partitions, answer.pushed[1]))
        return [next(acks) if isinstance(operation, Settlement) else next(new) for operation in self._operations]


class _Ends:
    """Ends of the parts of each transaction in the arrays of the call."""

    def __init__(self, parts: Sequence[_Part]) -> None:
        self.positions = list(accumulate(len(part.settlements.positions) for part in parts))
        self.items = list(accumulate(len(part.settlements.items) for part in parts))
        self.leases = list(accumulate(len(part.required) for part in parts))
        self.partitions = list(accumulate(len(part.pushes.names) for part in parts))
        self.messages = list(accumulate(len(part.pushes.partition) for part in parts))
        self.options = list(accumulate(len(part.pushes.options) for part in parts))
        self.checks = list(accumulate(len(part.keys.checks) for part in parts))
        self.mutations = list(accumulate(len(part.keys.mutations) for part in parts))


class _Answer:
    """The part of one transaction in the answer."""

    def __init__(self, row: Any, ends: _Ends, number: int) -> None:
        def cut(name: str, at: list[int]) -> Any:
            return row[name][at[number - 1] if number else 0 : at[number]]

        self.settled = tuple(cut(name, ends.items) for name in ("o_item_codes", "o_released", "o_dead", "o_holders"))
        self.ready = cut("o_ready", ends.positions)
        self.counts = cut("o_counts", ends.positions)
        self.due_times = cut("o_due_times", ends.positions)
        self.pushed = cut("o_offsets", ends.messages), cut("o_outcomes", ends.messages)
        self.partitions = cut("o_partitions", ends.partitions)


def _arguments(parts: Sequence[_Part]) -> tuple[object, ...]:
    """Those of `transact_v1` after the time."""
    ends = _Ends(parts)
    settlements = [part.settlements.arguments() for part in parts]
    pushes = [part.pushes.arguments() for part in parts]
    positions = [_joined(settlements, n, ends.positions) for n in (0, 1, 2)]
    items = [_joined(settlements, n, ends.items) for n in range(4, len(settlements[0]))]
    partitions = [_joined(pushes, n, ends.partitions) for n in range(PARTITION_ARRAYS)]
    messages = [_joined(pushes, n, ends.messages) for n in range(PARTITION_ARRAYS, len(pushes[0]) - OPTIONS)]
    options = [_joined(pushes, n, ends.options) for n in range(len(pushes[0]) - OPTIONS, len(pushes[0]))]
    leases = [lease_uuid(lease) for part in parts for lease in part.required]
    bounds = (ends.positions, ends.items, ends.leases, ends.partitions, ends.messages, ends.options)
    keys = [
        list(chain.from_iterable(arrays)) for arrays in zip(*(part.keys.arguments() for part in parts), strict=True)
    ]
    given = [part.keys.given for part in parts]
    known = [one for part in parts for one in part.settlements.known]
    return (
        *bounds,
        *positions,
        *items,
        known,
        leases,
        *partitions,
        *messages,
        *options,
        given,
        ends.checks,
        ends.mutations,
        *keys,
    )


def _joined(parts: Sequence[Sequence[Any]], number: int, ends: Sequence[int]) -> list[Any]:
    """One array of all transactions; where one has none, it has as many nulls as it has rows."""
    starts = (0, *ends)
    return list(
        chain.from_iterable(
            [None] * (end - start) if part[number] is None else part[number]
            for part, start, end in zip(parts, starts, ends, strict=False)
        )
    )


# Keys -------------------------------------------------------------------------------------------------------


def notification_of(texts: Sequence[str]) -> KeyNotification:
    """The keys that `notify_keys_v1` named."""
    if "any" in texts:
        return KeyNotification(None)
    encoded = dict.fromkeys(key for text in texts for key in text.split(","))
    return KeyNotification(tuple(decode_key(bytes.fromhex(key)) for key in encoded))


async def read_keys(store: Store, keys: Sequence[Key]) -> list[KeyEntry | None]:
    """The entries of keys, by position."""
    found: list[KeyEntry | None] = [None] * len(keys)
    if keys:
        encoded = [encode_key(key) for key in keys]
        for number, *columns in await store.pool.fetch(
            "select * from hark.read_keys_v1($1, $2::bytea[])", store.time, encoded
        ):
            found[number - 1] = _entry(store, encoded[number - 1], *columns)
    return found


async def list_keys(store: Store, ranges: Sequence[KeyRange]) -> list[list[KeyEntry]]:
    """The entries of ranges."""
    found: list[list[KeyEntry]] = [[] for _ in ranges]
    if not ranges:
        return found
    limits = [bounds(one) for one in ranges]
    rows = await store.pool.fetch(
        "select * from hark.list_keys_v1($1, $2::bytea[], $3::bytea[], $4::bigint[], $5::boolean[])",
        store.time,
        [low for low, _ in limits],
        [high for _, high in limits],
        [max(0, one.limit) for one in ranges],
        [one.reverse for one in ranges],
    )
    for number, *columns in rows:
        found[number - 1].append(_entry(store, *columns))
    return found


def _entry(
    store: Store, key: bytes, value: bytes, version: int, expires_at: int | None, sealed_by: str | None
) -> KeyEntry:
    ends = None if expires_at is None else store.to_local(expires_at)
    return KeyEntry(decode_key(key), msgspec.Raw(value), version, ends, sealed_by)


async def count_keys(store: Store, prefix: Key) -> int:
    """Number of entries below a prefix."""
    return int(await store.pool.fetchval("select hark.count_keys_v1($1, $2, $3)", store.time, *prefix_bounds(prefix)))


async def key_stats(store: Store) -> KeyStats:
    """Numbers and sizes of entries; reads every entry."""
    row = await store.pool.fetchrow("select * from hark.key_stats_v1($1)", store.time)
    assert row is not None
    return KeyStats(*row)


async def sweep_keys(store: Store, limit: int = 1000) -> int:
    """Remove expired entries."""
    return int(await store.pool.fetchval("select hark.sweep_keys_v1($1, $2)", store.time, limit))
