"""The verb transact: settlements and messages that happen together or not at all, many transactions in one call."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any

from hark.engine.keyvalue import joined, parted
from hark.engine.postgres.keyvalue import KeyWrites
from hark.engine.postgres.partitions import Directory
from hark.engine.postgres.pool import Pool
from hark.engine.postgres.push import NOT_YET, OPTIONS, PARTITION_ARRAYS, Notifications, Pushes
from hark.engine.postgres.settle import REFUSALS, Deliveries, Released, Settlements, Settler, lease_uuid
from hark.ids import IdCodec
from hark.model import NewMessage, PushOutcome, Settlement, SettleOutcome, Transaction, TransactionOutcome
from hark.model.messages import RESERVED, RESERVED_TEXT

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


class Transactor:
    """Applies transactions for one engine."""

    def __init__(
        self, pool: Pool, directory: Directory, deliveries: Deliveries, settler: Settler, codec: IdCodec
    ) -> None:
        self._pool = pool
        self._directory = directory
        self._deliveries = deliveries
        self._settler = settler
        self._codec = codec

    async def transact(
        self, requests: Sequence[Transaction], given: int | None, now: int, notifications: Notifications
    ) -> list[TransactionOutcome]:
        """The outcome of each transaction. `given`: the time to tell the database, `now`: what that is or will be."""
        outcomes = await self._transact([joined(request) for request in requests], given, now, notifications)
        return [parted(request, outcome) for request, outcome in zip(requests, outcomes, strict=True)]

    async def _transact(
        self, requests: Sequence[Transaction], given: int | None, now: int, notifications: Notifications
    ) -> list[TransactionOutcome]:
        settlements = [one for request in requests for one in request.operations if isinstance(one, Settlement)]
        while True:
            await self._settler.load(settlements)
            parts = [_Part(request, self._directory, self._deliveries, self._codec) for request in requests]
            row = await self._pool.fetchrow(_TRANSACT, given, *_arguments(parts))
            assert row is not None
            if row["o_stale"] is None and row["o_stale_groups"] is None:
                break
            self._directory.forget_partitions(row["o_stale"] or ())
            self._directory.forget_groups(row["o_stale_groups"] or ())
        answers: list[TransactionOutcome] = []
        released = Released()
        ends = _Ends(parts)
        for number, part in enumerate(parts):
            answer = _Answer(row, ends, number)
            code, failed = row["o_codes"][number], row["o_failed"][number]
            refusal = part.refusal(code, failed, answer) or part.keys.refusal(code, failed, row["o_why"][number])
            if refusal is not None:
                answers.append(refusal)
            else:
                written = part.keys.written(row["o_versions"][number], row["o_deleted"][number])
                answers.append(TransactionOutcome(True, part.results(answer, now, notifications), keys=written))
                notifications.keys |= part.keys.changed()
                released.join(part.settlements.released)
        await released.notify(self._pool, given, notifications)
        return answers


class _Part:
    """One transaction of a call."""

    def __init__(self, request: Transaction, directory: Directory, deliveries: Deliveries, codec: IdCodec) -> None:
        self._operations = request.operations
        self.required = request.required_leases
        self.settlements = Settlements(directory, deliveries, codec)
        self.settlements.add(1, [one for one in request.operations if isinstance(one, Settlement)])
        self.pushes = Pushes(directory, codec)
        self.pushes.add([one for one in request.operations if isinstance(one, NewMessage)])
        self.keys = KeyWrites(request.keys)

    def refusal(self, code: int, failed: int, answer: _Answer) -> TransactionOutcome | None:
        """Why nothing of it happened; None: it did."""
        if code in _LEASE_CODES:
            name, text = REFUSALS[_LEASE_CODES[code]]
            return TransactionOutcome(False, (), name, f"{text} (required lease {self.required[failed - 1]})")
        if code == _SETTLEMENT_REFUSED:
            refused = self.settlements.outcomes(*answer.settled)[failed - 1]
            index = self._index(Settlement, failed - 1)
            return TransactionOutcome(False, [refused], refused.code, f"ACK operation failed: {refused.error}", index)
        if code == _MESSAGE_REFUSED:
            index = self._index(NewMessage, self.pushes.item_at(failed - 1))
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
        """Where among all operations the one with a number among its kind is."""
        return [index for index, operation in enumerate(self._operations) if isinstance(operation, kind)][number]

    def results(self, answer: _Answer, now: int, notifications: Notifications) -> list[PushOutcome | SettleOutcome]:
        """What became of each operation; the server believes it from now on."""
        partitions = self.pushes.adopt(answer.partitions)
        acks = iter(self.settlements.outcomes(*answer.settled))
        new = iter(self.pushes.outcomes(partitions, (), *answer.pushed))
        self.settlements.notify(answer.ready, answer.counts, answer.due_times, notifications)
        notifications.arrived(self.pushes.arrivals(partitions, answer.pushed[1], now))
        return [next(acks) if isinstance(operation, Settlement) else next(new) for operation in self._operations]


class _Ends:
    """Where in the arrays of the call the part of each transaction ends."""

    def __init__(self, parts: Sequence[_Part]) -> None:
        self.positions = list(accumulate(len(part.settlements.positions) for part in parts))
        self.items = list(accumulate(len(part.settlements.items) for part in parts))
        self.leases = list(accumulate(len(part.required) for part in parts))
        self.partitions = list(accumulate(len(part.pushes.names) for part in parts))
        self.messages = list(accumulate(len(part.pushes.partition) for part in parts))
        self.options = list(accumulate(part.pushes.options_number for part in parts))
        self.checks = list(accumulate(part.keys.checks_number for part in parts))
        self.mutations = list(accumulate(part.keys.mutations_number for part in parts))


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
