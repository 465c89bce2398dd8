"""How much groups may take: bounds on what is in flight, and rates by a bucket of tokens."""

from __future__ import annotations

import heapq
from collections.abc import Callable, ItemsView, Iterable
from itertools import count
from math import ceil, floor
from typing import Literal, NamedTuple, TypeVar

from hark.clock import SECOND
from hark.engine.core.position import Held, Lease, Position
from hark.engine.retries import compile_schedule
from hark.errors import HarkError
from hark.ids import IdCodec
from hark.model import EmptyReason, Ending, GroupMode, Limited, Limits, QueueInfo, Subscription

K = TypeVar("K")
V = TypeVar("V")
MANY = 1 << 30
"""More than any pop asks for."""


class Room(NamedTuple):
    """How many messages a group may take now; if none, why, and when it may again."""

    left: int
    reason: EmptyReason = ""
    look_again_at: int | None = None


FREE = Room(MANY)


class Allowance:
    """What the requests of one call may take at one moment, all of them together."""

    def __init__(self, now: int) -> None:
        self._now = now
        self._reserved: dict[Bounds, int] = {}
        self._unsure: set[Bounds] = set()

    def room(self, queue: Queue, group: Group, *, auto_ack: bool) -> Room:
        """What is left for a request; what is settled at delivery is never in flight."""
        if not (queue.bounds.limited or group.bounds.limited):
            return FREE
        least = FREE
        for bounds, in_flight in ((queue.bounds, queue.in_flight), (group.bounds, group.in_flight)):
            reserved = self._reserved.get(bounds, 0)
            if bounds.limits.max_in_flight and not auto_ack:
                left = bounds.limits.max_in_flight - in_flight - reserved
                least = min(least, Room(max(0, left), "max_in_flight"))
            if bounds.limits.rate_limit:
                left = _whole_tokens(bounds, self._now) - reserved
                least = min(least, Room(max(0, left), "rate_limited", _next_token(bounds)))
        return least

    def reserve(self, queue: Queue, group: Group, number: int, *, exact: bool) -> None:
        """A request is about to take so many, or, if that is not exact, some of them."""
        for bounds in (queue.bounds, group.bounds):
            if bounds.limited:
                self._reserved[bounds] = self._reserved.get(bounds, 0) + number
                if not exact:
                    self._unsure.add(bounds)

    def is_unsure(self, queue: Queue, group: Group) -> bool:
        """Whether nobody can say what is left before those have what they get who are about to take some."""
        return queue.bounds in self._unsure or group.bounds in self._unsure

    def release(self) -> None:
        """All who were about to take some have it now."""
        self._reserved.clear()
        self._unsure.clear()

    def spend(self, queue: Queue, group: Group, number: int) -> None:
        """So many were handed out."""
        for bounds in (queue.bounds, group.bounds):
            if bounds.limits.rate_limit:
                bounds.tokens = _refill(bounds, self._now) - number


def reached_limit(queue: Queue, group: Group, now: int) -> Limited | None:
    """The bound that lets a group have nothing more now; None: there is none."""
    scopes: tuple[tuple[Literal["queue", "group"], Bounds, int], ...] = (
        ("queue", queue.bounds, queue.in_flight),
        ("group", group.bounds, group.in_flight),
    )
    for scope, bounds, in_flight in scopes:
        most = bounds.limits.max_in_flight
        if most and in_flight >= most:
            return Limited(reason="max_in_flight", scope=scope, limit=most, in_flight=in_flight)
    for scope, bounds, _ in scopes:
        rate = bounds.limits.rate_limit
        if rate and _whole_tokens(bounds, now) <= 0:
            return Limited(reason="rate_limited", scope=scope, limit=rate, until=_next_token(bounds))
    return None


def _whole_tokens(bounds: Bounds, now: int) -> int:
    """How many messages a rate lets pass now; a token that is there in half a microsecond is there."""
    return floor(_refill(bounds, now) + bounds.limits.rate_limit / SECOND / 2)


def _refill(bounds: Bounds, now: int) -> float:
    limits = bounds.limits
    capacity = limits.rate_burst or max(1, ceil(limits.rate_limit))
    if bounds.tokens is None:
        bounds.tokens, bounds.filled_at = capacity, now
    gained = limits.rate_limit * (now - bounds.filled_at) / SECOND
    bounds.tokens, bounds.filled_at = min(capacity, bounds.tokens + gained), now
    return bounds.tokens


def _next_token(bounds: Bounds) -> int:
    missing = max(0.0, 1 - (bounds.tokens or 0))
    return bounds.filled_at + round(missing / bounds.limits.rate_limit * SECOND)


# All of it but the leases is a cache of committed rows, loaded when first touched. Only who holds the lock of
# `threads.py` touches it. A write verb never changes these objects before its commit: it works on a position's `Draft`,
# which is taken over when the commit is through. A position of an ordered group with a draft is "dirty" and is not
# handed out meanwhile; what a draft of a shared one concerns is in somebody's hands.


_NEVER = (-1, "")
_REMEMBERED = 10_000
_HEAP_SLACK = 64


class Bounds:
    """How much a queue or a group may give at once, and what of that is left."""

    __slots__ = ("blocked", "filled_at", "limited", "limits", "tokens")

    def __init__(self) -> None:
        self.tokens: float | None = None
        """The tokens left of its rate; None: not used yet, so all of them."""
        self.filled_at = 0
        self.blocked = False
        """A pop got nothing because of `max_in_flight`, so a hint is needed when there is room."""
        self.set(Limits())

    def set(self, limits: Limits) -> None:
        """Take over other limits."""
        self.limits = limits
        self.limited = bool(limits.max_in_flight or limits.rate_limit)


class Queue:
    """A queue: its options and the partitions and groups that were touched since the start."""

    __slots__ = ("bounds", "created_floor", "groups", "id", "info", "name", "open", "partitions", "plain", "schedule")

    def __init__(self, queue_id: int, info: QueueInfo) -> None:
        self.id = queue_id
        self.name = info.name
        self.bounds = Bounds()
        self.partitions: dict[str, Partition] = {}
        self.groups: dict[str, Group] = {}
        self.created_floor = 0
        """Messages are created no earlier than this: after the last group that wanted only new ones."""
        self.open: dict[int, int] | None = None
        """Messages each group has yet to settle; kept only where max_size needs it, None: to be counted."""
        self.set_info(info)

    def set_info(self, info: QueueInfo) -> None:
        """Take over new options."""
        self.info = info
        self.schedule = compile_schedule(info.options)
        self.plain = not (info.options.max_size or info.options.encryption_enabled)
        """Nothing is ever refused."""
        options = info.options
        self.bounds.set(
            Limits(max_in_flight=options.max_in_flight, rate_limit=options.rate_limit, rate_burst=options.rate_burst)
        )

    @property
    def in_flight(self) -> int:
        """How many messages all its groups have on leases."""
        return sum(group.in_flight for group in self.groups.values())


class Partition:
    """A partition of a queue, as committed; `next_*` as the running transaction sees it."""

    __slots__ = (
        "coming",
        "created_at",
        "floor",
        "id",
        "last_created",
        "name",
        "next_tail",
        "prefix",
        "queue",
        "tail",
        "uid",
    )

    def __init__(self, row: PartitionRow, queue: Queue, codec: IdCodec) -> None:
        self.id, self.name, self.created_at, self.floor, self.tail, self.last_created = row
        self.queue = queue
        self.next_tail = self.tail
        self.coming: int | None = None
        """When the first delayed message of the running transaction is due. No claim may pass messages due by then."""
        self.prefix = codec.prefix(self.id)
        self.uid = codec.encode(self.id, 0)


PartitionRow = tuple[int, str, int, int, int, int]


class Group:
    """A group of a queue: its positions, which of them are ready, and which will be when."""

    __slots__ = (
        "bounds",
        "created_at",
        "discovered",
        "highest_partition",
        "id",
        "in_flight",
        "last_seen",
        "learned",
        "leases",
        "mode",
        "name",
        "paused",
        "pending",
        "positions",
        "queue_name",
        "ready",
        "ready_heap",
        "rising",
        "rising_heap",
        "subscription",
        "waking",
        "waking_heap",
    )

    def __init__(self, group_id: int, queue_name: str, name: str) -> None:
        self.id = group_id
        self.queue_name = queue_name
        self.name = name
        self.mode: GroupMode = "ordered"
        self.subscription = Subscription()
        self.highest_partition = 0
        self.paused = False
        self.pending = False
        """The commit that creates the group is in progress: no call may use it yet."""
        self.created_at = 0
        self.last_seen = 0
        self.bounds = Bounds()
        self.in_flight = 0
        """How many messages it has on leases."""
        self.learned = 0
        """The time at which a pop that found nothing will look again."""
        self.positions: dict[int, Position] = {}
        self.discovered = False
        """Whether `ready` holds the partitions that had work when the group was first touched."""
        self.ready: dict[int, tuple[int, int]] = {}
        """Partitions that may be ready, with their rank: -priority (0 in ordered groups), and the turn in which they
        were last served (0: never)."""
        self.ready_heap: list[tuple[int, int, int]] = []
        self.waking: dict[int, tuple[int, EmptyReason]] = {}
        """Partitions that will be ready at a time, and what they wait for."""
        self.waking_heap: list[tuple[int, int]] = []
        self.rising: dict[int, int] = {}
        """Ready partitions whose rank may rise at a time, because more falls due there."""
        self.rising_heap: list[tuple[int, int]] = []
        self.leases: list[tuple[int, int, Lease]] = []
        """Heap of leases by expiry; entries of leases that ended or were renewed are dropped when met."""

    def make_ready(self, partition: int, priority: int = 0) -> None:
        """Note that a partition may be taken, where there may be something of this priority."""
        known = self.ready.get(partition)
        if known is None or known[0] > -priority:
            self._set_ready(partition, priority)

    def _set_ready(self, partition: int, priority: int) -> None:
        self.waking.pop(partition, None)
        position = self.positions.get(partition)
        rank = (-priority, position.served if position is not None else 0)
        if self.ready.get(partition) == rank:
            return
        self.ready[partition] = rank
        if len(self.ready_heap) > 2 * len(self.ready) + _HEAP_SLACK:
            self.ready_heap = [(*one, number) for number, one in self.ready.items()]
            heapq.heapify(self.ready_heap)
        else:
            heapq.heappush(self.ready_heap, (*rank, partition))

    def wake_at(self, partition: int, due: int, reason: EmptyReason = "waiting") -> None:
        """Note that a partition may be taken from a time on."""
        self.ready.pop(partition, None)
        if self.waking.get(partition) != (due, reason):
            self.waking[partition] = due, reason
            heapq.heappush(self.waking_heap, (due, partition))
            if len(self.waking_heap) > 2 * len(self.waking) + _HEAP_SLACK:
                # Most of it is out of date. In place: who is going through it goes on with what is left.
                self.waking_heap[:] = [(at, number) for number, (at, _) in self.waking.items()]
                heapq.heapify(self.waking_heap)

    def note_in_flight(self, position: Position) -> None:
        """Count what leases hold of a position."""
        in_flight = position.in_flight
        self.in_flight += in_flight - position.noted
        position.noted = in_flight

    def refresh(self, position: Position, now: int) -> bool:
        """Put a position where it belongs after it changed; True when it may be taken now."""
        self.note_in_flight(position)
        priority, due = position.outlook(now)
        if priority is not None:
            self._set_ready(position.partition.id, priority)
            self._rise_at(position.partition.id, due)
            return True
        self.rising.pop(position.partition.id, None)
        if due is not None:
            self.wake_at(position.partition.id, due)
        else:
            self.ready.pop(position.partition.id, None)
            self.waking.pop(position.partition.id, None)
        return False

    def _rise_at(self, partition: int, due: int | None) -> None:
        if due is None:
            self.rising.pop(partition, None)
        elif self.rising.get(partition) != due:
            self.rising[partition] = due
            _schedule(self.rising_heap, due, partition, self.rising.items())

    def reconsider(self, partition: int, now: int) -> bool:
        """Check again whether a partition is ready; True if it can be leased now."""
        position = self.positions.get(partition)
        if position is not None:
            return self.refresh(position, now)
        self.make_ready(partition)
        return True

    def wake_due(self, now: int) -> list[int]:
        """Move what has fallen due to the ready partitions; which those are."""
        while self.rising_heap and self.rising_heap[0][0] <= now:
            due, partition = heapq.heappop(self.rising_heap)
            if self.rising.get(partition) == due:
                del self.rising[partition]
                if partition in self.ready:
                    self.reconsider(partition, now)
        heap = self.waking_heap
        woken = []
        while heap and heap[0][0] <= now:
            due, partition = heapq.heappop(heap)
            if self.waking.get(partition, _NEVER)[0] == due:
                del self.waking[partition]
                if self.reconsider(partition, now):
                    woken.append(partition)
        return woken

    def next_ready(self) -> tuple[int, int, int] | None:
        """The ready partition of the highest rank that was served longest ago, as (rank, turn, partition)."""
        heap = self.ready_heap
        while heap:
            *rank, partition = heap[0]
            if self.ready.get(partition) == tuple(rank):
                return heap[0]
            heapq.heappop(heap)
        return None

    def take_ready(self) -> int:
        """Remove the partition that `next_ready` answered."""
        partition = heapq.heappop(self.ready_heap)[2]
        del self.ready[partition]
        return partition

    def next_change(self, live: dict[str, Lease], partition: int | None = None) -> int | None:
        """The earliest time at which something may become ready by itself, anywhere or in one partition."""
        earliest = self._next_waking() if partition is None else self.waking.get(partition, (None,))[0]
        while self.leases:
            expires_at, _, lease = self.leases[0]
            if live.get(lease.id) is lease and lease.expires_at == expires_at:
                return expires_at if earliest is None else min(earliest, expires_at)
            heapq.heappop(self.leases)
        return earliest

    def _next_waking(self) -> int | None:
        while self.waking_heap:
            due, partition = self.waking_heap[0]
            if self.waking.get(partition, _NEVER)[0] == due:
                return due
            heapq.heappop(self.waking_heap)
        return None


def _schedule(heap: list[tuple[int, int]], due: int, partition: int, valid: ItemsView[int, int]) -> None:
    """Add to a schedule. It is rebuilt when most of its entries are out of date."""
    heapq.heappush(heap, (due, partition))
    if len(heap) > 2 * len(valid) + _HEAP_SLACK:
        heap[:] = [(at, number) for number, at in valid]
        heapq.heapify(heap)


def remember(known: dict[K, V], key: K, value: V) -> None:
    """Add to a table of the most recent entries."""
    known[key] = value
    if len(known) > _REMEMBERED:
        del known[next(iter(known))]


Label = tuple[str, str | None, str | None]
"""A group's name with the namespace and task that it pops from."""


class State:
    """Everything in memory; thrown away whole when a commit fails."""

    def __init__(self, codec: IdCodec, refusal: Callable[[], HarkError | None] = lambda: None) -> None:
        self.codec = codec
        self.refusal = refusal
        """Returns why nothing may be added to the store now, if so; called by the thread that writes."""
        self._turns = count(1)
        self.turns: dict[tuple[int, int], int] = {}
        """When places (group, partition) that memory has dropped were last served, so that no partition starves."""
        self.endings: dict[tuple[int, int, int], Ending] = {}
        """How groups settled the last messages (group, partition, offset) that no consumer completed."""
        self.leases_expired = 0
        """How many since the start, here."""
        self.expiries_buried = 0
        """How many messages became dead letters by that."""
        self.clear()

    def remember_turns(self) -> None:
        """Keep who was served when over a `clear`."""
        for group in self.groups.values():
            self.turns |= {(group.id, one.partition.id): one.served for one in group.positions.values() if one.served}

    def clear(self) -> None:
        """Forget everything; the object stays, as others hold it."""
        self.queues: dict[str, Queue] = {}
        self.partitions: dict[int, Partition] = {}
        self.partitions_by_uid: dict[str, Partition] = {}
        self.groups: dict[tuple[str, str], Group] = {}
        self.labels: dict[Label, tuple[Subscription, int]] = {}
        """Where groups started that pop by namespace or task, and the highest partition then."""
        self.leases: dict[str, Lease] = {}
        self.lease_heap: list[tuple[int, int, Lease]] = []
        self.expired_leases: dict[str, None] = {}
        """The last expired leases, so that late settlements get the right error."""
        self.removed: dict[tuple[int, int, int], None] = {}
        """The last messages (group, partition, offset) that were removed while leased, for the same reason."""
        self.completed: dict[tuple[int, int, int], str] = {}
        """The leases under which groups completed the last messages (group, partition, offset)."""
        self.largest_payload = 0
        self.ahead = 0
        """See `Engine.ahead`."""
        self.latest_due = 0
        """The latest time of delivery that a shared group has passed, as stored."""
        self.deleting: set[str] = set()
        """Queues whose removal is being committed."""
        self.expiring: set[Group] = set()
        """Groups with leases whose expiry is being committed: what those held is as good as free."""

    def next_turn(self) -> int:
        """A number higher than all before: who was served when, and ties among heap entries."""
        return next(self._turns)

    def add_lease(self, lease: Lease) -> None:
        """Register a lease and when it ends."""
        self.leases[lease.id] = lease
        self.schedule_expiry(lease)

    def schedule_expiry(self, lease: Lease) -> None:
        """Note a lease's (new) end."""
        entry = (lease.expires_at, self.next_turn(), lease)
        self._push_expiry(self.lease_heap, entry)
        for group in {position.group for position in lease.parts}:
            self._push_expiry(group.leases, entry)

    def _push_expiry(self, heap: list[tuple[int, int, Lease]], entry: tuple[int, int, Lease]) -> None:
        """Add to a schedule. It is rebuilt when most of its entries are of ended or renewed leases."""
        if len(heap) > 2 * len(self.leases) + _HEAP_SLACK:
            heap[:] = [one for one in heap if self.leases.get(one[2].id) is one[2] and one[2].expires_at == one[0]]
            heapq.heapify(heap)
        heapq.heappush(heap, entry)

    def next_expiry(self) -> int | None:
        """When the next lease ends."""
        heap = self.lease_heap
        while heap:
            expires_at, _, lease = heap[0]
            if self.leases.get(lease.id) is lease and lease.expires_at == expires_at:
                return expires_at
            heapq.heappop(heap)
        return None

    def is_due(self, now: int) -> bool:
        """Whether a lease has ended by now."""
        # No entry of the heap, valid or not, is earlier than the first.
        if not self.lease_heap or self.lease_heap[0][0] > now:
            return False
        due = self.next_expiry()
        return due is not None and due <= now

    def pop_expired(self, now: int) -> Lease | None:
        """Take the next lease whose time is up off the schedule."""
        expires_at = self.next_expiry()
        if expires_at is None or expires_at > now:
            return None
        return heapq.heappop(self.lease_heap)[2]

    def note_expired(self, lease: Lease) -> None:
        """A lease is over because its time was up."""
        del self.leases[lease.id]
        self.leases_expired += 1
        remember(self.expired_leases, lease.id, None)

    def note_removed(self, position: Position, held: Iterable[Held]) -> None:
        """Note leased messages that were removed."""
        for one in held:
            remember(self.removed, (position.group.id, position.partition.id, one[0]), None)

    def note_ending(self, position: Position, offset: int, ending: Ending) -> None:
        """Note how a message ended for a group without an acknowledgement."""
        remember(self.endings, (position.group.id, position.partition.id, offset), ending)

    def forget_endings(self, group: int) -> None:
        """A group begins elsewhere: what it was done with may come again."""
        self.endings = {place: ending for place, ending in self.endings.items() if place[0] != group}
        self.completed = {place: lease for place, lease in self.completed.items() if place[0] != group}

    def end_part(self, lease: Lease, position: Position) -> bool:
        """A lease has nothing to do with a position any more; True: it was the last one, and the lease is over."""
        lease.parts.pop(position, None)
        return not lease.parts and self.leases.pop(lease.id, None) is not None
