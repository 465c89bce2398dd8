"""Settlements, and the ends of leases: the verbs settle, renew, release, shorten and expire."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import Any, cast

import msgspec

from hark.clock import MILLISECOND, SECOND
from hark.engine.api import Answers
from hark.engine.hints import DEAD, EXPIRED, NOT_FOUND, NOT_LEASED, SUPERSEDED
from hark.engine.postgres.partitions import Group, Partition, Store
from hark.engine.postgres.push import Notifications, storable
from hark.engine.postgres.ready import RUNNING
from hark.errors import HarkError
from hark.ids import IdCodec
from hark.model import Expired, Renewal, RenewOutcome, Settlement, SettleOutcome

NO_LEASE = uuid.UUID(int=0)
"""Stands for an id that no engine ever gave."""


def lease_uuid(text: str) -> uuid.UUID:
    """An id as the database stores it."""
    try:
        return uuid.UUID(text)
    except ValueError:
        return NO_LEASE


async def _ends(store: Store, lease_ids: Sequence[str]) -> list[int | None]:
    """Ends of leases by the database's clock; None: it has ended, or never existed."""
    if not lease_ids:
        return []
    [[ends]] = await store.pool.call("select hark.lease_ends_v1($1, $2::uuid[])", list(map(lease_uuid, lease_ids)))
    return cast(list[int | None], ends)


def _delay_of(item: Settlement) -> int | None:
    """The delay for the procedures: below 0 if it applies only without a schedule."""
    if item.delay_ms is None:
        return None if not item.default_delay_ms else -item.default_delay_ms * MILLISECOND
    return item.delay_ms * MILLISECOND


_STATUSES = {"completed": 0, "failed": 1, "retry": 2, "dlq": 3}
_DAMAGED = 4
_NOWHERE = 0
"""No group or partition has this number."""

REFUSALS = {1: NOT_FOUND, 2: EXPIRED, 3: SUPERSEDED, 4: NOT_LEASED, 5: DEAD}
"""By the codes of `settle_v1`."""
_COLUMNS = 9
"""Number of arrays of `settle_v1` that describe settlements."""
_SETTLE = (
    "select * from hark.settle_v1($1, $2::int[], $3::bigint[], $4::boolean[], $5::int[], $6::int[], $7::bigint[],"
    " $8::text[], $9::bigint[], $10::uuid[], $11::smallint[], $12::text[], $13::bigint[], null, null)"
)


def partition_of(item: Settlement, codec: IdCodec) -> int:
    """The number of the partition that a settlement names, or that is in the id of its message."""
    decoded = codec.decode(item.partition_id or item.transaction_id)
    if decoded is None or bool(decoded.offset) == bool(item.partition_id):
        return _NOWHERE
    return decoded.partition


class Settlements(msgspec.Struct, eq=False):
    """Settlements that go to the database together."""

    store: Store
    items: list[Settlement] = []
    positions: list[tuple[int, int]] = []
    """Group and partition, each pair once."""
    known: list[bool] = []
    """Whether an item was completed under its lease before, as far as this server knows."""
    over: dict[str, Group] = {}
    """Leases that released a partition, and have ended."""
    unsure: dict[str, Group] = {}
    """Leases that released a partition, and of which the database knows whether they have ended."""
    _partitions: list[Partition | None] = []
    _groups: list[Group | None] = []
    _numbers: dict[tuple[int, int], int] = {}
    """Indexes of `positions`."""
    _rows: list[tuple[Any, ...]] = []
    """The columns of each item; the second is its position, counted from 1."""
    _freed: set[int] = set()
    """Indexes of positions that a lease released."""
    _settled: dict[int, int] = {}
    """The number of settled messages, by the index of their position."""

    def add(self, request: int, items: Iterable[tuple[Settlement, int]]) -> None:
        """Add the settlements of a request, with what `load` answered."""
        deliveries, decode = self.store.deliveries, self.store.codec.decode
        for item, named in items:
            known = self.store.partitions_by_id.get(named)
            number = self._position(known, item.group)
            group, partition = self.positions[number]
            transaction_id, lease = item.transaction_id, item.lease_id
            own = decode(transaction_id)
            own_offset = own.offset if own is not None and own.partition == partition else None
            offset = deliveries.find(lease, partition, transaction_id, own_offset)
            self.items.append(item)
            self._partitions.append(known)
            self.known.append(deliveries.was_completed(group, item))
            self._rows.append(
                (
                    request,
                    number + 1,
                    offset,
                    None if offset is not None else storable(transaction_id),
                    own_offset,
                    lease if offset is not None else lease_uuid(lease) if lease else None,
                    _DAMAGED if item.damaged else _STATUSES[item.status],
                    storable(item.error),
                    _delay_of(item),
                )
            )

    def _position(self, partition: Partition | None, group_name: str) -> int:
        group = None if partition is None else self.store.groups.get((partition.queue, group_name))
        key = (_NOWHERE if group is None else group.id, _NOWHERE if partition is None else partition.id)
        number = self._numbers.setdefault(key, len(self.positions))
        if number == len(self.positions):
            self.positions.append(key)
            self._groups.append(group)
        return number

    def arguments(self) -> tuple[Sequence[object] | None, ...]:
        """Those of `settle_v1` after the time."""
        columns = zip(*self._rows, strict=True) if self._rows else ((),) * _COLUMNS
        request, position, offset, transaction_id, *rest = columns
        return (
            [group for group, _ in self.positions],
            [partition for _, partition in self.positions],
            [group is not None and group.shared is not None for group in self._groups],
            request,
            position,
            offset,
            transaction_id if None in offset else None,
            *rest,
        )

    def outcomes(
        self, codes: Sequence[int], released: Sequence[bool], dead: Sequence[bool], holders: Sequence[uuid.UUID | None]
    ) -> list[SettleOutcome]:
        """The outcome of each item; what was settled is no longer remembered as delivered."""
        answers = []
        settled: dict[str, int] = {}
        freed: dict[str, Group] = {}
        for item, partition, row, code, free, dead_letter, holder in zip(
            self.items, self._partitions, self._rows, codes, released, dead, holders, strict=True
        ):
            position = row[1] - 1
            if holder is not None:
                self._settled[position] = self._settled.get(position, 0) + 1
            lease = None if holder is None or code else str(holder)
            group = self._groups[position]
            refusal, text = REFUSALS[code] if code else (None, None)
            where = (
                ()
                if partition is None or group is None
                else (partition.queue, partition.name, free, dead_letter, lease)
            )
            answers.append(SettleOutcome(item.transaction_id, not code, refusal, text, *where))
            if lease is None:
                continue
            settled[lease] = settled.get(lease, 0) + 1
            if item.status == "completed":
                self.store.deliveries.completed(self.positions[position][0], item)
            if free and group is not None:
                self._freed.add(position)
                freed[lease] = group
        over = {lease for lease, number in settled.items() if self.store.deliveries.settled(lease, number)}
        for lease, group in freed.items():
            (self.over if lease in over or group.shared is not None else self.unsure)[lease] = group
        return answers

    def notify(
        self,
        ready: Sequence[bool],
        counts: Sequence[int],
        due_times: Sequence[int | None],
        notifications: Notifications,
    ) -> None:
        """Hint the positions that can be taken again, and those that leases released; after `outcomes`."""
        for number, ((_, partition), group) in enumerate(zip(self.positions, self._groups, strict=True)):
            if group is None:
                continue
            if group.shared is not None:
                notifications.given_back(group, partition, counts[number], due_times[number])
            elif ready[number]:
                notifications.free(group, (partition,))
            elif number in self._freed:
                notifications.drained(group, partition)
            if number in self._settled:
                notifications.has_room(group, self._settled[number])


async def settle(store: Store, requests: Sequence[Sequence[Settlement]]) -> Answers[list[SettleOutcome]]:
    """Settle messages; the outcomes of each request."""
    if not any(requests):
        return [[] for _ in requests]
    while True:
        partitions = iter(await load(store, chain.from_iterable(requests)))
        batch = Settlements(store)
        for number, request in enumerate(requests):
            batch.add(number, zip(request, partitions, strict=False))
        [row] = await store.pool.call(_SETTLE, *batch.arguments())
        if row["o_stale"] is None:
            break
        store.forget_groups(row["o_stale"])
    outcomes = iter(batch.outcomes(row["o_codes"], row["o_released"], row["o_dead"], row["o_holders"]))
    notifications = Notifications(store=store)
    batch.notify(row["o_ready"], row["o_counts"], row["o_due_times"], notifications)
    await note_ended(store, [batch], notifications)
    notifications.send()
    return [list(islice(outcomes, len(request))) for request in requests]


async def load(store: Store, items: Iterable[Settlement]) -> list[int]:
    """The numbers of the partitions of settlements. What they name is looked up, as far as it is not known here."""
    partitions = store.partitions_by_id
    wanted = [(partition_of(item, store.codec), item.group) for item in items]
    await store.load_partitions(dict.fromkeys(number for number, _ in wanted if number != _NOWHERE))
    await store.load_groups(
        dict.fromkeys((partitions[partition].queue, group) for partition, group in wanted if partition in partitions)
    )
    return [number for number, _ in wanted]


async def note_ended(store: Store, batches: Iterable[Settlements], notifications: Notifications) -> None:
    """Find out which of the leases that released partitions have ended, and hint that."""
    over: dict[str, Group] = {}
    unsure: dict[str, Group] = {}
    for batch in batches:
        over |= batch.over
        unsure |= batch.unsure
    unknown = [lease for lease in unsure if lease not in over]
    with suppress(HarkError):  # What was settled is settled: without a hint of the end it is still a success.
        for lease, end in zip(unknown, await _ends(store, unknown), strict=True):
            if end is None:
                over[lease] = unsure[lease]
    for lease, group in over.items():
        notifications.ended(group.queue, group.name, lease)


# Ends of leases ---------------------------------------------------------------------------------------------

_EXPIRE = f"select *, {RUNNING} as running from hark.expire_v1($1, $2, $3, $4)"
_ENDED = 4
"""Code of `renew_v1`."""
_OVERLAP = 1 * SECOND
_LATE = 60 * SECOND
"""A lease may become visible late: each search repeats the last second, and at times the last minute."""


class Expirer:
    """Ends expired leases for one engine, of any server."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._done = (0, NO_LEASE)
        """The end and the id of the last lease that was looked at."""
        self._looked = self._looked_back = 0
        self._late_end = store.late.newest
        self.behind = False
        """Whether the last call did not get to the end of what is due."""
        self.ended = 0
        """Number of leases that it ended."""
        self.dead_lettered = 0
        """Number of messages that this dead-lettered."""

    async def expire(self, limit: int) -> Expired:
        """End what is due, at most `limit` leases."""
        store, late = self._store, self._store.late
        look = late.look()
        [row] = await store.pool.call(_EXPIRE, *self._done, limit)
        now: int = row["o_now"]
        late.note(row["running"], look, now)
        if store.pool.time is None:
            store.skew = store.clock.now() - now
        next_due: int | None = now
        self.behind = True
        if row["o_examined"] >= limit:
            self._done = row["o_last"], row["o_last_id"]
        elif late.newest is not self._late_end:
            # A long transaction has ended, which may have made leases that are over by now.
            self._late_end = late.newest
            self._done, self._looked = (late.since(self._looked, reach=0), NO_LEASE), now
        else:
            self.behind = False
            self._looked = now
            far = now - self._looked_back >= _LATE
            self._looked_back = now if far else self._looked_back
            self._done = now - (_LATE + _OVERLAP if far else _OVERLAP), NO_LEASE
            next_due = store.deliveries.next_end(now)
        free(store, zip(row["o_grps"], row["o_partitions"], row["o_ended"], row["o_counts"], strict=True))
        self.ended += row["o_leases"]
        self.dead_lettered += row["o_dead_lettered"]
        return Expired(row["o_leases"], None if next_due is None else store.to_local(next_due))


def free(store: Store, positions: Iterable[Any]) -> None:
    """Send the hints for positions and messages that are free again, with the leases that ended."""
    found = list(positions)
    if not found:
        return
    groups = {group.id: group for group in store.groups.values()}
    notifications = Notifications(store=store)
    for number, partition, lease, messages in found:
        group = groups.get(number)
        if group is None:
            continue
        if group.shared is None:
            notifications.free(group, (partition,))
        else:
            notifications.given_back(group, partition, messages)
        notifications.ended(group.queue, group.name, str(lease))
        notifications.has_room(group, messages)
    notifications.send()


async def release(store: Store, lease_ids: Sequence[str]) -> None:
    """End leases."""
    rows = await store.pool.call("select * from hark.release_v1($1, $2::uuid[])", list(map(lease_uuid, lease_ids)))
    for lease in lease_ids:
        store.deliveries.end(lease)
    free(store, rows)


async def lease_ends(store: Store, lease_ids: Sequence[str]) -> list[int | None]:
    """Ends of leases by the local clock."""
    ends = await _ends(store, lease_ids)
    return [None if end is None else store.to_local(end) for end in ends]


async def shorten(store: Store, lease_ids: Sequence[str], microseconds: int) -> None:
    """Let leases end sooner."""
    sql = "select * from hark.shorten_v1($1, $2::uuid[], $3)"
    for row in await store.pool.call(sql, list(map(lease_uuid, lease_ids)), microseconds):
        store.deliveries.renew(str(row["o_lease"]), row["o_until"])


async def renew(store: Store, requests: Sequence[Renewal]) -> Answers[RenewOutcome]:
    """Hold leases longer."""
    sql = "select * from hark.renew_v1($1, $2::uuid[], $3::bigint[])"
    leases = [lease_uuid(request.lease_id) for request in requests]
    [row] = await store.pool.call(sql, leases, [request.seconds for request in requests])
    answers: list[RenewOutcome] = []
    for request, until, code in zip(requests, row["o_until"], row["o_codes"], strict=True):
        if not code:
            store.deliveries.renew(request.lease_id, until)
            answers.append(RenewOutcome(True, store.to_local(until)))
        elif code == _ENDED:
            answers.append(RenewOutcome(False, None, "lease_expired", "Lease already expired"))
        else:
            answers.append(RenewOutcome(False, None, "lease_not_found", "Lease not found"))
    return answers
