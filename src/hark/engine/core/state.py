"""The state in memory: queues, partitions, groups and leases."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from itertools import count
from typing import TypeVar

import msgspec

from hark.api.options import limits_of
from hark.engine.core.limits import Bounds, Each, Room, narrower
from hark.engine.core.position import NEVER, Lease, LeasedMessage, Position
from hark.engine.hints import forget_oldest
from hark.engine.retries import compile_schedule
from hark.errors import HarkError
from hark.ids import IdCodec
from hark.model import EmptyReason, Ending, GroupMode, QueueInfo, Subscription

K = TypeVar("K")
V = TypeVar("V")
# Everything except leases is a cache of committed rows, loaded at the first use. Only the thread that holds the lock of
# the engine uses it. A write verb never changes these objects before its commit: it changes the draft of a position,
# which is applied after the commit. Nothing is delivered from a position of an ordered group with a draft. A draft of a
# shared group concerns only leased messages.

_NEVER = (-1, "")
REMEMBERED = 10_000
"""Number of recent entries that tables of settled messages and ended leases keep."""
_HEAP_SLACK = 64


class Queue:
    """A queue: its options, and the partitions and groups that were used since the start."""

    __slots__ = ("bounds", "created_floor", "groups", "id", "info", "name", "open", "partitions", "plain", "schedule")

    def __init__(self, queue_id: int, info: QueueInfo) -> None:
        self.id = queue_id
        self.name = info.name
        self.bounds = Bounds()
        self.partitions: dict[str, Partition] = {}
        self.groups: dict[str, Group] = {}
        self.created_floor = 0
        """Earliest creation time of messages: after the start of the last group that receives only new ones."""
        self.open: dict[int, int] | None = None
        """Number of unsettled messages by group, used for `max_size`; None: not counted."""
        self.set_info(info)

    def set_info(self, info: QueueInfo) -> None:
        """Replace the options."""
        self.info = info
        self.schedule = compile_schedule(info.options)
        self.plain = not (info.options.max_size or info.options.encryption_enabled)
        """The queue never rejects a message."""
        self.bounds.set(limits_of(info.options))
        for group in self.groups.values():
            group.limit(self)

    @property
    def in_flight(self) -> int:
        """Number of leased messages of all groups."""
        return sum(group.in_flight for group in self.groups.values())


class Partition(msgspec.Struct, eq=False):
    """A partition of a queue, as committed; `next_tail` in the running transaction."""

    id: int
    name: str
    created_at: int
    floor: int
    tail: int
    last_created: int
    queue: Queue
    prefix: str
    """The part that the ids of its messages share."""
    uid: str
    next_tail: int
    coming: int | None = None
    """Due time of the first delayed message in the running transaction. No claim may pass messages due by then."""


class Group(msgspec.Struct, eq=False):
    """A group of a queue: its positions, the ready ones, and when others become ready."""

    id: int
    queue_name: str
    name: str
    mode: GroupMode = "ordered"
    subscription: Subscription = Subscription()
    highest_partition: int = 0
    paused: bool = False
    created_at: int = 0
    last_seen: int = 0
    pending: bool = False
    """The commit that creates the group is in progress: no call may use it yet."""
    bounds: Bounds = msgspec.field(default_factory=Bounds)
    limited: bool = False
    """Whether there is any limit, of the queue or of the group."""
    each: Each | None = None
    """The limits in each partition, of the queue and of the group together."""
    in_flight: int = 0
    """Number of leased messages."""
    learned: int = 0
    """The time at which a pop that found nothing will look again."""
    positions: dict[int, Position] = {}
    discovered: bool = False
    """Whether `ready` contains the partitions that had work when the group was first used."""
    ready: dict[int, tuple[int, int]] = {}
    """Partitions that may be ready, with their rank: -priority (0 in ordered groups), and the turn in which they
    were last served (0: never)."""
    ready_heap: list[tuple[int, int, int]] = []
    waking: dict[int, tuple[int, EmptyReason]] = {}
    """Partitions that become ready at a time, and why they wait; `NEVER`: after a settlement."""
    waking_heap: list[tuple[int, int]] = []
    rising: dict[int, int] = {}
    """Ready partitions whose rank may rise at a time, because more messages become due."""
    rising_heap: list[tuple[int, int]] = []
    leases: list[tuple[int, int, Lease]] = []
    """Heap of leases by expiry. Entries of ended and renewed leases are dropped when they are reached."""

    def limit(self, queue: Queue) -> None:
        """Apply the limits of the queue and the group's own."""
        self.each = narrower(queue.bounds.each, self.bounds.each)
        self.limited = queue.bounds.limited or self.bounds.limited or self.each is not None

    def make_ready(self, partition: int, priority: int = 0, *, lower: bool = False) -> None:
        """Mark a partition as ready for messages of this priority. `lower`: also if it is ready for a higher one."""
        known = self.ready.get(partition)
        if known is not None and known[0] <= -priority and not lower:
            return
        self.waking.pop(partition, None)
        position = self.positions.get(partition)
        rank = (-priority, position.served if position is not None else 0)
        if known == rank:
            return
        self.ready[partition] = rank
        if len(self.ready_heap) > 2 * len(self.ready) + _HEAP_SLACK:
            self.ready_heap = [(*one, number) for number, one in self.ready.items()]
            heapq.heapify(self.ready_heap)
        else:
            heapq.heappush(self.ready_heap, (*rank, partition))

    def wake_at(self, partition: int, due: int, reason: EmptyReason = "waiting") -> None:
        """Mark a partition as ready from a time on."""
        self.ready.pop(partition, None)
        if self.waking.get(partition) != (due, reason):
            self.waking[partition] = due, reason
            heapq.heappush(self.waking_heap, (due, partition))
            if len(self.waking_heap) > 2 * len(self.waking) + _HEAP_SLACK:
                # Most entries are out of date. The list stays the same, because `wake_due` may be iterating over it.
                self.waking_heap[:] = [(at, number) for number, (at, _) in self.waking.items()]
                heapq.heapify(self.waking_heap)

    def hold_back(self, partition: int, room: Room) -> None:
        """Mark a partition as ready from the time at which its limit allows a message, or after a settlement."""
        self.wake_at(partition, NEVER if room.look_again_at is None else room.look_again_at, room.reason)

    def must_learn(self, partition: int, now: int) -> bool:
        """Whether a partition waits for a time that no consumer knows, so that one must pop to learn it."""
        due = self.waking.get(partition, _NEVER)[0]
        return 0 <= due < NEVER and not now < self.learned <= due

    def rise_at(self, partition: int, due: int) -> None:
        """Look at the rank of a ready partition again at a time."""
        if self.rising.get(partition) != due:
            self.rising[partition] = due
            heapq.heappush(self.rising_heap, (due, partition))
            if len(self.rising_heap) > 2 * len(self.rising) + _HEAP_SLACK:
                self.rising_heap[:] = [(at, number) for number, at in self.rising.items()]
                heapq.heapify(self.rising_heap)

    def reevaluate(self, partition: int, now: int) -> bool:
        """Check again whether a partition is ready. True: it is ready now."""
        position = self.positions.get(partition)
        if position is not None:
            return position.refresh(now)
        self.make_ready(partition)
        return True

    def wake_due(self, now: int) -> list[int]:
        """Mark due partitions as ready. Returns them."""
        while self.rising_heap and self.rising_heap[0][0] <= now:
            due, partition = heapq.heappop(self.rising_heap)
            if self.rising.get(partition) == due:
                del self.rising[partition]
                if partition in self.ready:
                    self.reevaluate(partition, now)
        heap = self.waking_heap
        woken = []
        while heap and heap[0][0] <= now:
            due, partition = heapq.heappop(heap)
            if self.waking.get(partition, _NEVER)[0] == due:
                del self.waking[partition]
                if self.reevaluate(partition, now):
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
        """Remove the partition that `next_ready` returned."""
        partition = heapq.heappop(self.ready_heap)[2]
        del self.ready[partition]
        return partition

    def next_change(self, live: dict[str, Lease], partition: int | None = None) -> int | None:
        """The earliest time at which a partition, or the given one, may become ready without a hint."""
        while self.waking_heap and self.waking.get(self.waking_heap[0][1], _NEVER)[0] != self.waking_heap[0][0]:
            heapq.heappop(self.waking_heap)
        first = self.waking_heap[0][0] if self.waking_heap else None
        earliest = first if partition is None else self.waking.get(partition, (None,))[0]
        while self.leases:
            expires_at, _, lease = self.leases[0]
            if live.get(lease.id) is lease and lease.expires_at == expires_at:
                return expires_at if earliest is None else min(earliest, expires_at)
            heapq.heappop(self.leases)
        return None if earliest == NEVER else earliest


def remember(known: dict[K, V], key: K, value: V) -> None:
    """Add to a table of the most recent entries."""
    known[key] = value
    forget_oldest(known, REMEMBERED)


Label = tuple[str, str | None, str | None]
"""The name of a group, and the namespace and task that it pops from."""


class State:
    """All state in memory. It is dropped and loaded again when a commit fails."""

    def __init__(self, codec: IdCodec, refusal: Callable[[], HarkError | None] = lambda: None) -> None:
        self.codec = codec
        self.refusal = refusal
        """Returns the reason if nothing may be added to the store now. The writer thread calls it."""
        self._turns = count(1)
        self.turns: dict[tuple[int, int], int] = {}
        """The last served turns of positions (group, partition) that memory dropped, so that no partition starves."""
        self.endings: dict[tuple[int, int, int], Ending] = {}
        """The last messages (group, partition, offset) that ended without an acknowledgement."""
        self.leases_expired = 0
        """Number of expired leases since the start."""
        self.expiries_dead_lettered = 0
        """Number of messages that were dead-lettered because their lease expired."""
        self.clear()

    def remember_turns(self) -> None:
        """Keep the last served turns over a `clear`."""
        for group in self.groups.values():
            self.turns |= {(group.id, one.partition.id): one.served for one in group.positions.values() if one.served}

    def clear(self) -> None:
        """Drop all state. The object stays, because other objects refer to it."""
        self.queues: dict[str, Queue] = {}
        self.partitions: dict[int, Partition] = {}
        self.partitions_by_uid: dict[str, Partition] = {}
        self.groups: dict[tuple[str, str], Group] = {}
        self.labels: dict[Label, tuple[Subscription, int]] = {}
        """The starts of groups that pop by namespace or task, and the highest partition at that time."""
        self.leases: dict[str, Lease] = {}
        self.lease_heap: list[tuple[int, int, Lease]] = []
        self.expired_leases: dict[str, None] = {}
        """The last expired leases, so that late settlements get the right error."""
        self.removed: dict[tuple[int, int, int], None] = {}
        """The last messages (group, partition, offset) that were removed while leased, for the same purpose."""
        self.completed: dict[tuple[int, int, int], str] = {}
        """The leases of the last completed messages (group, partition, offset)."""
        self.largest_payload = 0
        self.ahead = 0
        """See `Engine.ahead`."""
        self.latest_due = 0
        """The latest stored delivery time that a shared group has passed."""
        self.deleting: set[str] = set()
        """Queues whose deletion is being committed."""
        self.expiring: set[Group] = set()
        """Groups with leases whose expiry is being committed."""

    def metrics(self) -> dict[str, float]:
        """Counts of leases that expired."""
        return {"leases_expired": self.leases_expired, "expiries_dead_lettered": self.expiries_dead_lettered}

    def next_turn(self) -> int:
        """The next number of a sequence. It orders served positions, and equal heap entries."""
        return next(self._turns)

    def add_lease(self, lease: Lease) -> None:
        """Add a lease."""
        self.leases[lease.id] = lease
        self.schedule_expiry(lease)

    def schedule_expiry(self, lease: Lease) -> None:
        """Schedule the (new) expiry of a lease."""
        entry = (lease.expires_at, self.next_turn(), lease)
        self._push_expiry(self.lease_heap, entry)
        for group in {position.group for position in lease.parts}:
            self._push_expiry(group.leases, entry)

    def _push_expiry(self, heap: list[tuple[int, int, Lease]], entry: tuple[int, int, Lease]) -> None:
        """Add to a heap. It is rebuilt when most of its entries are of ended or renewed leases."""
        if len(heap) > 2 * len(self.leases) + _HEAP_SLACK:
            heap[:] = [one for one in heap if self.leases.get(one[2].id) is one[2] and one[2].expires_at == one[0]]
            heapq.heapify(heap)
        heapq.heappush(heap, entry)

    def next_expiry(self) -> int | None:
        """Expiry of the next lease."""
        heap = self.lease_heap
        while heap:
            expires_at, _, lease = heap[0]
            if self.leases.get(lease.id) is lease and lease.expires_at == expires_at:
                return expires_at
            heapq.heappop(heap)
        return None

    def is_due(self, now: int) -> bool:
        """Whether a lease has expired."""
        # The first entry of the heap is the earliest, valid or not.
        if not self.lease_heap or self.lease_heap[0][0] > now:
            return False
        due = self.next_expiry()
        return due is not None and due <= now

    def pop_expired(self, now: int) -> Lease | None:
        """Remove the next expired lease from the heap."""
        expires_at = self.next_expiry()
        if expires_at is None or expires_at > now:
            return None
        return heapq.heappop(self.lease_heap)[2]

    def note_expired(self, lease: Lease) -> None:
        """Note an expired lease."""
        del self.leases[lease.id]
        self.leases_expired += 1
        remember(self.expired_leases, lease.id, None)

    def note_removed(self, position: Position, leased: Iterable[LeasedMessage]) -> None:
        """Note leased messages that were removed."""
        for one in leased:
            remember(self.removed, (position.group.id, position.partition.id, one[0]), None)

    def note_ending(self, position: Position, offset: int, ending: Ending) -> None:
        """Note how a message ended for a group without an acknowledgement."""
        remember(self.endings, (position.group.id, position.partition.id, offset), ending)

    def forget_endings(self, group: int) -> None:
        """Forget settled messages of a group that moved: they may be delivered again."""
        self.endings = {key: ending for key, ending in self.endings.items() if key[0] != group}
        self.completed = {key: lease for key, lease in self.completed.items() if key[0] != group}

    def detach(self, lease: Lease, position: Position) -> bool:
        """Detach a lease from a position. True: it was the last one, and the lease has ended."""
        lease.parts.pop(position, None)
        return not lease.parts and self.leases.pop(lease.id, None) is not None
