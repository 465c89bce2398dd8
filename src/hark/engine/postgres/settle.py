"""What this server handed out, so that a settlement need not look for its message in the database."""

from __future__ import annotations

import heapq
import uuid
from collections.abc import Iterable, Sequence

from hark.clock import MILLISECOND
from hark.engine.postgres.partitions import Directory, Group, Partition
from hark.engine.postgres.pool import Pool
from hark.engine.postgres.push import Notifications, storable
from hark.errors import HarkError
from hark.ids import IdCodec
from hark.model import Settlement, SettleOutcome

MAX_REMEMBERED = 500_000
"""Messages; beyond that the oldest leases are forgotten, and what they handed out is looked up when it is settled."""

MAX_COMPLETED = 100_000


class Deliveries:
    """Leases that this server gave, until they are settled here or over."""

    def __init__(self) -> None:
        self._offsets: dict[str, dict[tuple[int, str], int]] = {}
        self._until: dict[str, int] = {}
        self._open: dict[str, int] = {}
        self._partitions: dict[str, list[int]] = {}
        self._heap: list[tuple[int, str]] = []
        self._size = 0
        self._completed: dict[tuple[int, str | None, str, str], None] = {}
        """The last messages that were completed here, by group, lease, partition and name."""

    def add(self, lease: str, until: int, partition: int, number: int, named: Iterable[tuple[str, int]]) -> None:
        """A lease handed out messages of a partition; those with an id from their producer by that and the offset."""
        self._partitions.setdefault(lease, []).append(partition)
        self._open[lease] = self._open.get(lease, 0) + number
        offsets = self._offsets.setdefault(lease, {})
        before = len(offsets)
        for transaction_id, offset in named:
            offsets[partition, transaction_id] = offset
        self._size += len(offsets) - before
        self.renew(lease, until)
        while self._size > MAX_REMEMBERED:
            self.end(next(iter(self._offsets)))

    def find(self, lease: str, partition: int, transaction_id: str) -> int | None:
        """The offset of a message by the transaction id that its producer gave."""
        return self._offsets.get(lease, {}).get((partition, transaction_id))

    def partitions_of(self, lease: str) -> Sequence[int]:
        """Where a lease handed out messages."""
        return self._partitions.get(lease, ())

    def knows(self, lease: str | None) -> bool:
        """Whether all that a lease handed out is known here."""
        return lease in self._offsets

    def renew(self, lease: str, until: int) -> None:
        """A lease ends at another time."""
        if lease in self._offsets and self._until.get(lease) != until:
            self._until[lease] = until
            heapq.heappush(self._heap, (until, lease))

    def settled(self, lease: str, number: int) -> bool:
        """Some of what a lease handed out is settled. True: all of it, and of one partition; False: who knows.

        (What is said twice counts twice. Of one partition the database says whether the lease still is on it.)
        """
        if lease not in self._open:
            return False
        self._open[lease] -= number
        if self._open[lease] > 0:
            return False
        alone = len(self._partitions[lease]) == 1
        self.end(lease)
        return alone

    def completed(self, group: int, item: Settlement) -> None:
        """A message was completed for a group under the lease that the settlement names."""
        self._completed[group, item.lease_id, item.partition_id, item.transaction_id] = None
        if len(self._completed) > MAX_COMPLETED:
            del self._completed[next(iter(self._completed))]

    def was_completed(self, group: int, item: Settlement) -> bool:
        """Whether that is so of a message, as far as it is known here."""
        key = (group, item.lease_id, item.partition_id, item.transaction_id)
        return item.lease_id is not None and key in self._completed

    def forget_completed(self) -> None:
        """A group moved: what was completed may be delivered again."""
        self._completed.clear()

    def end(self, lease: str) -> None:
        """A lease is over."""
        self._size -= len(self._offsets.pop(lease, ()))
        self._until.pop(lease, None)
        self._open.pop(lease, None)
        self._partitions.pop(lease, None)

    def next_end(self, now: int) -> int | None:
        """When the next lease ends; those whose time is up are forgotten."""
        while self._heap:
            until, lease = self._heap[0]
            if self._until.get(lease) == until:
                if until > now:
                    return until
                self.end(lease)
            heapq.heappop(self._heap)
        return None


NO_LEASE = uuid.UUID(int=0)
"""Stands for what a client sent as a lease id and no engine ever gave."""


def lease_uuid(text: str) -> uuid.UUID:
    """A lease id as the database has it."""
    try:
        return uuid.UUID(text)
    except ValueError:
        return NO_LEASE


async def lease_ends(pool: Pool, given: int | None, lease_ids: Sequence[str]) -> list[int | None]:
    """When leases end, by the database's clock; None: over, or never was."""
    if not lease_ids:
        return []
    ends: list[int | None] = await pool.fetchval(
        "select hark.lease_ends_v1($1, $2::uuid[])", given, [lease_uuid(lease_id) for lease_id in lease_ids]
    )
    return ends


class Released:
    """Leases that let go of a partition in one call: some are over, of others the database has to say."""

    def __init__(self) -> None:
        self._over: dict[str, Group] = {}
        self._unsure: dict[str, Group] = {}

    def add(self, lease: str, group: Group, *, over: bool) -> None:
        """A lease let go of a partition of a group."""
        (self._over if over else self._unsure)[lease] = group

    def join(self, other: Released) -> None:
        """Take over what another part of the call found."""
        self._over |= other._over
        self._unsure |= other._unsure

    async def notify(self, pool: Pool, given: int | None, notifications: Notifications) -> None:
        """Find out which are over, and tell."""
        unsure = [lease for lease in self._unsure if lease not in self._over]
        try:
            ends = await lease_ends(pool, given, unsure)
        except HarkError:  # What was settled is settled: that nobody can be told of an end is no failure of it.
            unsure, ends = [], []
        for lease, end in zip(unsure, ends, strict=True):
            if end is None:
                self._over[lease] = self._unsure[lease]
        for lease, group in self._over.items():
            notifications.ended(group, lease)


_STATUSES = {"completed": 0, "failed": 1, "retry": 2, "dlq": 3}
_DAMAGED = 4
_NOWHERE = 0
"""No group or partition has this number."""

_EXPIRED_TEXT = "Invalid or expired lease: its time is up"
_SUPERSEDED_TEXT = "Invalid or expired lease: the message was not last delivered under this lease"
REFUSALS = {
    1: ("not_found", "Message not found"),
    2: ("lease_expired", _EXPIRED_TEXT),
    3: ("lease_invalid", _SUPERSEDED_TEXT),
    4: ("not_leased", "Invalid or expired lease: the group does not hold this message"),
    5: ("dead_lettered", "The message is in the dead letters already"),
}

_SETTLE = (
    "select * from hark.settle_v1($1, $2::int[], $3::bigint[], $4::boolean[], $5::int[], $6::int[], $7::bigint[],"
    " $8::text[], $9::bigint[], $10::uuid[], $11::smallint[], $12::text[], $13::bigint[], null, null)"
)


def partition_of(item: Settlement, codec: IdCodec) -> int:
    """The number of the partition that a settlement names, or that the id of its message says."""
    decoded = codec.decode(item.partition_id or item.transaction_id)
    if decoded is None or bool(decoded.offset) == bool(item.partition_id):
        return _NOWHERE
    return decoded.partition


class Settlements:
    """Settlements that go to the database together."""

    def __init__(self, directory: Directory, deliveries: Deliveries, codec: IdCodec) -> None:
        self._directory = directory
        self._deliveries = deliveries
        self._codec = codec
        self.items: list[Settlement] = []
        self.partitions: list[Partition | None] = []
        self.positions: list[tuple[int, int]] = []
        """Group and partition, each pair once."""
        self.groups: list[Group | None] = []
        self._positions: dict[tuple[int, int], int] = {}
        self.request: list[int] = []
        self.position: list[int] = []
        self.offset: list[int | None] = []
        self.transaction_id: list[str | None] = []
        self.own: list[int | None] = []
        self.lease: list[uuid.UUID | str | None] = []
        self.status: list[int] = []
        self.error: list[str | None] = []
        self.delay: list[int | None] = []
        self.known: list[bool] = []
        """Whether an item was completed under its lease before, as far as this server knows."""
        self.released = Released()
        self._freed: set[int] = set()
        """Positions of positions that a lease let go of."""
        self._settled: set[int] = set()
        """Positions of positions where something was settled."""

    def add(self, request: int, items: Iterable[Settlement]) -> None:
        """Add the settlements of a request; their partitions and groups have been loaded as far as they exist."""
        deliveries, decode = self._deliveries, self._codec.decode
        for item in items:
            known = self._directory.partitions_by_id.get(partition_of(item, self._codec))
            number = self._position(known, item.group)
            group, partition = self.positions[number]
            self.items.append(item)
            self.partitions.append(known)
            self.request.append(request)
            self.position.append(number + 1)
            transaction_id, lease = item.transaction_id, item.lease_id
            own = decode(transaction_id)
            own_offset = own.offset if own is not None and own.partition == partition else None
            offset = None if lease is None else deliveries.find(lease, partition, transaction_id)
            if offset is None and own_offset and deliveries.knows(lease):
                offset = own_offset
            self.offset.append(offset)
            self.transaction_id.append(None if offset is not None else storable(transaction_id))
            self.own.append(own_offset)
            self.lease.append(lease if offset is not None else lease_uuid(lease) if lease else None)
            self.status.append(_DAMAGED if item.damaged else _STATUSES[item.status])
            self.error.append(storable(item.error))
            self.delay.append(None if item.delay_ms is None else item.delay_ms * MILLISECOND)
            self.known.append(deliveries.was_completed(group, item))

    def _position(self, partition: Partition | None, group_name: str) -> int:
        group = None if partition is None else self._directory.groups.get((partition.queue, group_name))
        key = (_NOWHERE if group is None else group.id, _NOWHERE if partition is None else partition.id)
        number = self._positions.get(key)
        if number is None:
            number = self._positions[key] = len(self.positions)
            self.positions.append(key)
            self.groups.append(group)
        return number

    def arguments(self) -> tuple[object, ...]:
        """Those of `settle_v1` after the time."""
        return (
            [group for group, _ in self.positions],
            [partition for _, partition in self.positions],
            [group is not None and group.shared is not None for group in self.groups],
            self.request,
            self.position,
            self.offset,
            self.transaction_id if None in self.offset else None,
            self.own,
            self.lease,
            self.status,
            self.error,
            self.delay,
        )

    def outcomes(
        self,
        codes: Sequence[int],
        released: Sequence[bool],
        dead: Sequence[bool],
        holders: Sequence[uuid.UUID | None],
    ) -> list[SettleOutcome]:
        """What became of each item; what was settled is no longer remembered as delivered."""
        answers = []
        settled: dict[str, int] = {}
        freed: dict[str, Group] = {}
        for item, partition, position, code, free, dead_letter, holder in zip(
            self.items, self.partitions, self.position, codes, released, dead, holders, strict=True
        ):
            lease = None if holder is None or code else str(holder)
            answers.append(self._outcome(item, partition, position, code, free, dead_letter, lease))
            if lease is None:
                continue
            settled[lease] = settled.get(lease, 0) + 1
            if item.status == "completed":
                self._deliveries.completed(self.positions[position - 1][0], item)
            group = self.groups[position - 1]
            if free and group is not None:
                self._freed.add(position - 1)
                freed[lease] = group
        over = {lease for lease, number in settled.items() if self._deliveries.settled(lease, number)}
        for lease, group in freed.items():
            self.released.add(lease, group, over=lease in over or group.shared is not None)
        self._settled = {
            position - 1 for position, holder in zip(self.position, holders, strict=True) if holder is not None
        }
        return answers

    def _outcome(
        self,
        item: Settlement,
        partition: Partition | None,
        position: int,
        code: int,
        released: bool,
        dead: bool,
        lease: str | None,
    ) -> SettleOutcome:
        refusal, text = REFUSALS[code] if code else (None, None)
        if partition is None or self.groups[position - 1] is None:
            return SettleOutcome(item.transaction_id, not code, refusal, text)
        return SettleOutcome(
            item.transaction_id, not code, refusal, text, partition.queue, partition.name, released, dead, lease
        )

    def notify(
        self,
        ready: Sequence[bool],
        counts: Sequence[int],
        due_times: Sequence[int | None],
        notifications: Notifications,
    ) -> None:
        """Positions that can be taken again, and those that leases let go of; after `outcomes`."""
        for number, ((_, partition), group) in enumerate(zip(self.positions, self.groups, strict=True)):
            if group is None:
                continue
            if group.shared is not None:
                notifications.given_back(group, partition, counts[number], due_times[number])
            elif ready[number]:
                notifications.free(group, (partition,))
            elif number in self._freed:
                notifications.drained(group, partition)
            if number in self._settled:
                notifications.has_room(group)


class Settler:
    """Settles for one engine."""

    def __init__(self, pool: Pool, directory: Directory, deliveries: Deliveries, codec: IdCodec) -> None:
        self._pool = pool
        self._directory = directory
        self._deliveries = deliveries
        self._codec = codec

    async def settle(
        self, requests: Sequence[Sequence[Settlement]], given: int | None, notifications: Notifications
    ) -> list[list[SettleOutcome]]:
        """The outcomes of each request."""
        if not any(requests):
            return [[] for _ in requests]
        while True:
            await self.load(item for request in requests for item in request)
            batch = Settlements(self._directory, self._deliveries, self._codec)
            for number, request in enumerate(requests):
                batch.add(number, request)
            row = await self._pool.fetchrow(_SETTLE, given, *batch.arguments())
            assert row is not None
            if row["o_stale"] is None:
                break
            self._directory.forget_groups(row["o_stale"])
        outcomes = iter(batch.outcomes(row["o_codes"], row["o_released"], row["o_dead"], row["o_holders"]))
        batch.notify(row["o_ready"], row["o_counts"], row["o_due_times"], notifications)
        await batch.released.notify(self._pool, given, notifications)
        return [[next(outcomes) for _ in request] for request in requests]

    async def load(self, items: Iterable[Settlement]) -> None:
        """Find what the settlements name, as far as it is not known here."""
        partitions = self._directory.partitions_by_id
        wanted = [(partition_of(item, self._codec), item.group) for item in items]
        await self._directory.load_partitions(list(dict.fromkeys(number for number, _ in wanted if number != _NOWHERE)))
        await self._directory.load_groups(
            dict.fromkeys(
                (partitions[partition].queue, group) for partition, group in wanted if partition in partitions
            )
        )
