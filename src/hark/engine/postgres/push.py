"""The verb push: the arrays of one call, its answers, and what became ready."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby, islice
from math import ceil
from typing import Any

import msgspec

from hark.clock import MILLISECOND
from hark.engine.api import Answers
from hark.engine.hints import HintBook, refusal_of
from hark.engine.postgres.partitions import Group, Partition, Store
from hark.engine.postgres.ready import SharedReady
from hark.keys import encode_key
from hark.model import Hint, Key, KeyNotification, NewMessage, PushOutcome
from hark.model.messages import RESERVED

DUPLICATE = 1
REFUSALS = {2: "sealing_mismatch", 3: "queue_full", 4: RESERVED}
"""Codes of `push_v1` for messages that it did not store."""
PARTITION_ARRAYS = 6
"""Number of arrays of `push_v1` that describe partitions."""
OPTIONS = 11
"""Number of arrays of `push_v1` that describe the few messages with options."""

PUSH = (
    "select * from hark.push_v1($1, $2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[], $7::int[],"
    " $8::int[], $9::int[], $10::bytea[], $11::text[], $12::bigint[], $13::int[], $14::bigint[], $15::bigint[],"
    " $16::bigint[], $17::text[], $18::smallint[], $19::boolean[], $20::text[], $21::text[], $22::text[], $23::text[])"
)


def storable(text: str | None) -> str | None:
    """Text as PostgreSQL can store it: without NUL."""
    return None if text is None else text.replace("\0", "\ufffd")


class Arrival(msgspec.Struct, eq=False):
    """Messages that came to a partition."""

    partition: Partition
    number: int = 0
    """How many of them can be taken now."""
    top: int = 0
    """The highest priority of these."""
    due: int | None = None
    """When the first of the others can be."""
    prioritized: bool = False
    """Whether any of them has a priority."""

    def add(self, priority: int, due: int, now: int) -> None:
        """Count a message."""
        self.prioritized |= priority > 0
        if due <= now:
            self.number += 1
            self.top = max(self.top, priority)
        else:
            self.due = due if self.due is None else min(self.due, due)


class Pushes(msgspec.Struct, eq=False):
    """Messages that go to the database together."""

    store: Store
    names: list[tuple[str, str]] = []
    """The partitions, each once."""
    partition: list[int] = []
    options: list[tuple[Any, ...]] = []
    """Rows of the few messages that have options."""
    items: list[int] = []
    """For each message its position in the arrays; a message that repeats another one shares that one's."""
    _known: list[Partition | None] = []
    _labels: list[tuple[str | None, str | None]] = []
    """Namespace and task for the queue of each, if it has to be made."""
    _positions: dict[tuple[str, str], int] = {}
    _counts: list[int] = []
    _ordinal: list[int] = []
    _payload: list[bytes] = []
    _transaction_id: list[str | None] = []
    _has_transaction_ids: bool = False
    _same_as: dict[int, int] = {}
    _numbers: dict[tuple[int, str], int] = {}
    """The positions of transaction ids of a partition."""

    def add(self, items: Iterable[NewMessage]) -> None:
        """Add messages. Each message pays for each line of the loop."""
        positions, counts, partition, ordinal = self._positions, self._counts, self.partition, self._ordinal
        payload, transaction_ids = self._payload, self._transaction_id
        for item in items:
            key = (item.queue, item.partition)
            number = positions.get(key)
            if number is None:
                number = self._add_partition(key, item.labels)
            transaction_id = item.transaction_id
            if transaction_id is not None:
                known = self._numbers.setdefault((number, transaction_id), len(partition))
                if known != len(partition):
                    self.items.append(known)
                    continue
                self._note_transaction_id(number, transaction_id)
            self.items.append(len(partition))
            counts[number] += 1
            partition.append(number + 1)
            ordinal.append(counts[number])
            payload.append(item.payload)
            transaction_ids.append(transaction_id)
            if (  # in place of a call, which costs every message twice as much
                item.priority
                or item.delay_ms
                or item.deliver_at is not None
                or item.ttl_ms is not None
                or item.backoff_ms is not None
                or item.sealed
                or item.trace_id is not None
                or item.producer is not None
                or item.undelivered_keys
                or item.trace_context is not None
            ):
                self.options.append(options_row(len(partition), item))

    def _add_partition(self, key: tuple[str, str], labels: tuple[str, str] | None) -> int:
        number = self._positions[key] = len(self.names)
        self.names.append(key)
        self._labels.append(labels or (None, None))
        self._known.append(self.store.partitions.get(key))
        self._counts.append(0)
        return number

    def _note_transaction_id(self, number: int, transaction_id: str) -> None:
        self._has_transaction_ids = True
        own = self.store.codec.decode(transaction_id)
        known = self._known[number]
        if own is not None and own.offset and (known is None or known.id == own.partition):
            self._same_as[len(self.partition)] = own.offset

    def arguments(self) -> tuple[Sequence[object] | None, ...]:
        """Those of `push_v1` after the time."""
        unknown = None in self._known
        options = tuple(zip(*self.options, strict=True)) if self.options else (None,) * OPTIONS
        return (
            [None if known is None else known.id for known in self._known],
            [queue for queue, _ in self.names] if unknown else None,
            [name for _, name in self.names] if unknown else None,
            [namespace for namespace, _ in self._labels] if unknown else None,
            [task for _, task in self._labels] if unknown else None,
            self._counts,
            self.partition,
            self._ordinal,
            self._payload,
            self._transaction_id if self._has_transaction_ids else None,
            [self._same_as.get(n) for n in range(len(self.partition))] if self._same_as else None,
            *options,
        )

    def adopt(self, ids: Sequence[int]) -> list[Partition]:
        """The partitions by their numbers in the answer; new ones are remembered."""
        adopt = self.store.adopt_partition
        return [known or adopt(number, *key) for known, number, key in zip(self._known, ids, self.names, strict=True)]

    def outcomes(
        self,
        partitions: Sequence[Partition],
        tails: Sequence[int],
        offsets: Sequence[int] | None,
        codes: Sequence[int] | None,
    ) -> list[PushOutcome]:
        """The outcome of each message."""
        with_prefix = self.store.codec.with_prefix
        stored: list[PushOutcome] = []
        if offsets is None or codes is None:
            for number, ordinal, transaction_id in zip(
                self.partition, self._ordinal, self._transaction_id, strict=True
            ):
                partition = partitions[number - 1]
                message_id = with_prefix(partition.prefix, tails[number - 1] + ordinal)
                stored.append(PushOutcome("queued", transaction_id or message_id, message_id, partition.uid))
        else:
            for number, transaction_id, offset, code in zip(
                self.partition, self._transaction_id, offsets, codes, strict=True
            ):
                stored.append(self._outcome(partitions[number - 1], transaction_id, offset, code))
        if len(self.items) == len(stored):
            return stored
        answered: set[int] = set()
        answers = []
        for position in self.items:
            answers.append(_repeated(stored[position]) if position in answered else stored[position])
            answered.add(position)
        return answers

    def _outcome(self, partition: Partition, transaction_id: str | None, offset: int, code: int) -> PushOutcome:
        if code in REFUSALS:
            refusal = refusal_of(REFUSALS[code], partition.queue)
            return PushOutcome("failed", transaction_id, None, partition.uid, *refusal)
        message_id = self.store.codec.with_prefix(partition.prefix, offset)
        return PushOutcome(
            "duplicate" if code == DUPLICATE else "queued", transaction_id or message_id, message_id, partition.uid
        )

    def arrivals(self, partitions: Sequence[Partition], codes: Sequence[int] | None) -> list[Arrival]:
        """The partitions that got messages, with the numbers of messages."""
        if codes is None and not self.options:
            return [Arrival(partition, number) for partition, number in zip(partitions, self._counts, strict=True)]
        found: dict[int, Arrival] = {}
        timing = {row[0] - 1: (row[5], row[1] or 0, row[2]) for row in self.options}
        now = self.store.now()
        for position, number in enumerate(self.partition):
            if codes is not None and codes[position]:
                continue
            arrival = found.get(number)
            if arrival is None:
                arrival = found[number] = Arrival(partitions[number - 1])
            priority, deliver_at, delay = timing.get(position, (0, 0, 0))
            arrival.add(priority, max(deliver_at, now + delay), now)
        return list(found.values())


def _repeated(first: PushOutcome) -> PushOutcome:
    """The outcome of a message whose transaction id another one of the same call has."""
    if first.status == "failed":
        return first
    return PushOutcome("duplicate", first.transaction_id, first.message_id, first.partition_id)


def options_row(position: int, item: NewMessage) -> tuple[Any, ...]:
    """The options of a message, as the arrays x_ of `push_v1` have them."""
    return (
        position,
        item.deliver_at,
        item.delay_ms * MILLISECOND,
        None if item.ttl_ms is None else item.ttl_ms * MILLISECOND,
        None if item.backoff_ms is None else "{" + ",".join(map(str, item.backoff_ms)) + "}",
        item.priority,
        item.sealed,
        storable(item.trace_id),
        storable(item.producer),
        _array(item.undelivered_keys) if item.undelivered_keys else None,
        item.trace_context,
    )


def _array(keys: Sequence[Key]) -> str:
    """Keys as PostgreSQL writes an array of bytes: a list of lists would have to be of equal lengths."""
    return "{" + ",".join(rf'"\\x{encode_key(key).hex()}"' for key in keys) + "}"


_FEW = 16
"""Maximum number of partitions in a hint that more messages may be in flight."""


class Notifications(HintBook, eq=False, kw_only=True):
    """The hints of one call."""

    store: Store
    keys: dict[bytes, Key] = msgspec.field(default_factory=dict)
    """Keys that were written, by their bytes (1 and True are the same to a dict)."""
    room: dict[str, int] = msgspec.field(default_factory=dict)
    """The numbers of messages that are no longer in flight, by queue."""

    def send(self) -> None:
        """Send the hints, and the keys that were written."""
        if self.keys:
            self.store.key_listener(KeyNotification(tuple(self.keys.values())))
        hints = self.hints()
        if hints:
            self.store.listener(hints)

    def pushed(self, arrivals: Iterable[Arrival]) -> None:
        """Partitions got messages: their groups may take them."""
        queues: dict[str, list[Arrival]] = {}
        for arrival in arrivals:
            queues.setdefault(arrival.partition.queue, []).append(arrival)
        for queue, pushed in queues.items():
            groups = self.store.groups_of.get(queue, {}).values()
            came = {one.partition.name: max(1, one.number) for one in pushed}
            self.arrived(queue, came, [group.name for group in groups], came)
            for group in groups:
                if group.shared is not None:
                    self._offer(group, group.shared, pushed)
                    continue
                offered = [one.partition.name for one in pushed if group.ready.offer(one.partition.id)]
                if offered:
                    self.add(queue, group.name, offered, "message")

    def _offer(self, group: Group, ready: SharedReady, pushed: Iterable[Arrival]) -> None:
        """Hint a shared group of the messages that it may take, and of the times when others become ready."""
        counts = {}
        for one in pushed:
            ready.prioritized |= one.prioritized
            if ready.waking and ready.is_bound(one.partition.id):
                continue
            if one.number:
                ready.arrived(one.partition.id, one.number, one.top)
                counts[one.partition.name] = one.number
            elif one.due is not None and ready.later(one.partition.id, one.due):
                counts[one.partition.name] = 1
        if counts:
            self.add(group.queue, group.name, counts, "message", counts)

    def free(self, group: Group, partitions: Iterable[int]) -> None:
        """Partitions may be taken by a group."""
        for partition in partitions:
            group.ready.add(partition)
            self._notify(group, partition)

    def given_back(self, group: Group, partition: int, number: int, due: int | None = None) -> None:
        """A number of messages of a shared group may be taken again, or one at a time `due`."""
        if group.shared is None:
            return
        if number:
            group.shared.arrived(partition, number, 0)
            self._notify(group, partition, number)
        elif due is not None and group.shared.later(partition, due):
            self._notify(group, partition)

    def has_room(self, group: Group, number: int) -> None:
        """Fewer messages are in flight, by this number: groups of the queue that reached their limit may take more."""
        self.room[group.queue] = self.room.get(group.queue, 0) + number

    def hints(self) -> list[Hint]:
        """The hints of the call, with those of groups that reached their limit of messages in flight."""
        for queue, number in self.room.items():
            for group in self.store.groups_of.get(queue, {}).values():
                if group.ready.blocked:
                    heads = group.ready.heads(_FEW)
                    group.ready.blocked = bool(heads)  # Some of those who wait may not hear of it.
                    for _, _, partition in heads:
                        self._notify(group, partition, ceil(number / len(heads)))
        self.room.clear()
        return super().hints()

    def drained(self, group: Group, partition: int) -> None:
        """A lease ended and left nothing behind it."""
        if group.ready.drained(partition):
            self._notify(group, partition)

    def left(self, groups: Iterable[Group]) -> None:
        """Hint what pops made ready and did not take."""
        for group in groups:
            for partition, number in group.ready.take_unannounced().items():
                self._notify(group, partition, number)

    def looked_behind(self) -> None:
        """Messages were removed: what groups wait for may be among them."""
        for group in self.store.groups.values():
            for partition in group.ready.look_behind():
                self._notify(group, partition)

    def removed(self, partitions: Iterable[Partition]) -> None:
        """Messages of partitions were removed: what comes after them need not wait for them."""
        for partition in partitions:
            groups = list(self.store.groups_of.get(partition.queue, {}).values())
            alone = all(group.shared is None for group in groups)
            for name in [None] if alone else [group.name for group in groups if group.shared is None]:
                self.add(partition.queue, name, (partition.name,))
            for group in groups:
                self.has_room(group, 1)
                if group.shared is not None:
                    if group.ready.make_room(partition.id):
                        self._notify(group, partition.id)
                elif partition.id in group.ready.waking:
                    group.ready.add(partition.id)

    def _notify(self, group: Group, partition: int, number: int = 1) -> None:
        known = self.store.partitions_by_id.get(partition)
        if known is None:
            self.add(group.queue, group.name, None)
        elif group.shared is None:
            self.add(group.queue, group.name, (known.name,))
        else:
            self.add(group.queue, group.name, (known.name,), counts={known.name: number})


async def push(store: Store, requests: Sequence[Sequence[NewMessage]]) -> Answers[list[PushOutcome]]:
    """Store messages; the outcomes of each request."""
    if not any(requests):
        return [[] for _ in requests]
    while True:
        batch = Pushes(store)
        for request in requests:
            batch.add(request)
        [row] = await store.pool.call(PUSH, *batch.arguments())
        stale, ids, tails, offsets, codes = row
        if stale is None:
            break
        store.forget_partitions(stale)
    partitions = batch.adopt(ids)
    outcomes = batch.outcomes(partitions, tails, offsets, codes)
    notifications = Notifications(store=store)
    notifications.pushed(batch.arrivals(partitions, codes))
    notifications.send()
    if len(requests) == 1:
        return [outcomes]
    each = iter(outcomes)
    return [list(islice(each, len(request))) for request in requests]


# Hints of other servers. Like all that is in `Ready`, they are verified when a consumer pops. -----------------


def on_hints(store: Store, hints: Sequence[Hint]) -> list[Hint]:
    """Take over hints of other servers; returns those for the consumers of this server."""
    if store.pool.closing:
        return []
    notifications = Notifications(store=store)
    for kind, same in groupby(hints, lambda hint: hint.kind):
        if kind == "message":
            _on_arrivals(store, list(same), notifications)
        else:
            for hint in same:
                _on_free(store, hint, notifications)
    # At the end: a lease over several queues is in several hints.
    for lease in (lease for hint in hints for lease in hint.ended):
        store.deliveries.end(lease)
    return notifications.hints()


def _on_arrivals(store: Store, hints: Sequence[Hint], notifications: Notifications) -> None:
    """Messages arrived: they are for every group here, not only for those that the other server has notified."""
    came: dict[Partition, int] = {}
    for hint in hints:
        counts = dict(zip(hint.partitions or (), hint.counts, strict=False))
        for partition in _known(store, hint):
            came[partition] = max(came.get(partition, 1), counts.get(partition.name, 1))
    notifications.pushed([Arrival(partition, number) for partition, number in came.items()])
    for hint in hints:
        # Pops discover the partitions that this server does not know.
        names = {partition.name for partition in _known(store, hint)}
        unknown = None if hint.partitions is None else [name for name in hint.partitions if name not in names]
        if unknown == []:
            continue
        groups = list(store.groups_of.get(hint.queue, {}).values())
        for group in groups if unknown is None else ():
            group.ready.forget()
        notified = [group.name for group in groups]
        notifications.arrived(hint.queue, (), notified)
        for name in (None, *notified):
            notifications.add(hint.queue, name, unknown, "message")


def _on_free(store: Store, hint: Hint, notifications: Notifications) -> None:
    for group in store.groups_of.get(hint.queue, {}).values():
        if hint.group in (None, group.name):
            _note_ready(store, group, hint, notifications)
    if hint.partitions is None or hint.partitions:
        counts = dict(zip(hint.partitions or (), hint.counts, strict=False))
        notifications.add(hint.queue, hint.group, hint.partitions, counts=counts or None)
    if hint.group is not None:
        for lease in hint.ended:
            notifications.ended(hint.queue, hint.group, lease)


def _note_ready(store: Store, group: Group, hint: Hint, notifications: Notifications) -> None:
    if hint.partitions is None:
        group.ready.forget()
    for partition in _known(store, hint):
        group.ready.add(partition.id)
    if hint.ended:
        notifications.has_room(group, sum(hint.counts) or len(hint.ended))
    if group.shared is not None:
        return  # A lease on messages does not block the partition.
    if hint.ended:
        notifications.free(group, group.ready.doubt_leases())
    for lease in hint.ended:
        for number in store.deliveries.partitions_of(lease):
            notifications.drained(group, number)


def _known(store: Store, hint: Hint) -> list[Partition]:
    partitions = store.partitions
    return [partitions[hint.queue, name] for name in hint.partitions or () if (hint.queue, name) in partitions]
