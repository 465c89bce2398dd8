"""What the SQLite engine keeps in memory: queues, partitions, groups, their tracks, and leases.

All of it but the leases is a cache of committed rows, loaded when first touched. Only who holds the lock of
`threads.py` touches it. A write verb never changes these objects before its commit: it works on a track's `Draft`,
which replaces the track's fields when the commit is through. A track with a draft is "dirty" and is not handed out
meanwhile.
"""

from __future__ import annotations

import heapq
from itertools import count

from hark.engine.retries import compile_schedule
from hark.engine.sqlite.track import Lease, Track
from hark.ids import IdCodec
from hark.model import EmptyReason, GroupMode, QueueInfo, Subscription

_NEVER = (-1, "")
_EXPIRED_REMEMBERED = 10_000
_HEAP_SLACK = 64


class Queue:
    """A queue: its options and the partitions and groups that were touched since the start."""

    __slots__ = ("created_floor", "groups", "id", "info", "open", "partitions", "plain", "schedule")

    def __init__(self, queue_id: int, info: QueueInfo) -> None:
        self.id = queue_id
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

    @property
    def name(self) -> str:
        """The queue's name."""
        return self.info.name


class Partition:
    """A partition of a queue, as committed; `next_*` as the running transaction sees it."""

    __slots__ = (
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
        self.prefix = codec.prefix(self.id)
        self.uid = codec.encode(self.id, 0)


PartitionRow = tuple[int, str, int, int, int, int]


class Group:
    """A group of a queue: its tracks, which of them are ready, and which will be when."""

    __slots__ = (
        "created_at",
        "discovered",
        "highest_partition",
        "id",
        "last_seen",
        "leases",
        "mode",
        "name",
        "paused",
        "pending",
        "queue_name",
        "ready",
        "ready_heap",
        "subscription",
        "tracks",
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
        """Its first contact is being committed: nobody may act on it yet."""
        self.created_at = 0
        self.last_seen = 0
        self.tracks: dict[int, Track] = {}
        self.discovered = False
        """Whether `ready` holds the partitions that had work when the group was first touched."""
        self.ready: dict[int, int] = {}
        """Partitions believed ready, with the turn in which they were last served (0: never)."""
        self.ready_heap: list[tuple[int, int]] = []
        self.waking: dict[int, tuple[int, EmptyReason]] = {}
        """Partitions that will be ready at a time, and what they wait for."""
        self.waking_heap: list[tuple[int, int]] = []
        self.leases: list[tuple[int, int, Lease]] = []
        """Heap of leases by expiry; entries of leases that ended or were renewed are dropped when met."""

    def make_ready(self, partition: int) -> None:
        """Note that a partition may be taken."""
        if partition in self.ready:
            return
        self.waking.pop(partition, None)
        track = self.tracks.get(partition)
        served = track.served if track is not None else 0
        self.ready[partition] = served
        heapq.heappush(self.ready_heap, (served, partition))

    def wake_at(self, partition: int, due: int, reason: EmptyReason = "waiting") -> None:
        """Note that a partition may be taken from a time on."""
        self.ready.pop(partition, None)
        if self.waking.get(partition) != (due, reason):
            self.waking[partition] = due, reason
            heapq.heappush(self.waking_heap, (due, partition))

    def refresh(self, track: Track) -> bool:
        """Put a track where it belongs after it changed; True when it may be taken now."""
        if track.lease is None and track.has_work:
            self.make_ready(track.partition.id)
            return True
        self.ready.pop(track.partition.id, None)
        self.waking.pop(track.partition.id, None)
        return False

    def wake_due(self, now: int) -> list[int]:
        """Move what has fallen due to the ready partitions; which those are."""
        heap = self.waking_heap
        woken = []
        while heap and heap[0][0] <= now:
            due, partition = heapq.heappop(heap)
            if self.waking.get(partition, _NEVER)[0] == due:
                self.make_ready(partition)
                woken.append(partition)
        return woken

    def next_ready(self) -> tuple[int, int] | None:
        """The ready partition that was served longest ago, as (turn, partition)."""
        heap = self.ready_heap
        while heap:
            served, partition = heap[0]
            if self.ready.get(partition) == served:
                return heap[0]
            heapq.heappop(heap)
        return None

    def take_ready(self) -> int:
        """Remove the partition that `next_ready` answered."""
        _, partition = heapq.heappop(self.ready_heap)
        del self.ready[partition]
        return partition

    def next_change(self, live: dict[str, Lease]) -> int | None:
        """The earliest time at which something may become ready by itself."""
        earliest = None
        while self.waking_heap:
            due, partition = self.waking_heap[0]
            if self.waking.get(partition, _NEVER)[0] == due:
                earliest = due
                break
            heapq.heappop(self.waking_heap)
        while self.leases:
            expires_at, _, lease = self.leases[0]
            if lease.id in live and lease.expires_at == expires_at:
                return expires_at if earliest is None else min(earliest, expires_at)
            heapq.heappop(self.leases)
        return earliest


Label = tuple[str, str | None, str | None]
"""A group's name with the namespace and task that it pops from."""


class State:
    """Everything in memory; thrown away whole when a commit fails."""

    def __init__(self, codec: IdCodec) -> None:
        self.codec = codec
        self._turns = count(1)
        self.clear()

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
        """The last leases that expired, so that latecomers are told what happened."""
        self.largest_payload = 0
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
        for group in {track.group for track in lease.parts}:
            self._push_expiry(group.leases, entry)

    def _push_expiry(self, heap: list[tuple[int, int, Lease]], entry: tuple[int, int, Lease]) -> None:
        """Add to a schedule; when most of it is of leases that ended or were renewed, it is made anew."""
        if len(heap) > 2 * len(self.leases) + _HEAP_SLACK:
            heap[:] = [one for one in heap if self.leases.get(one[2].id) is one[2] and one[2].expires_at == one[0]]
            heapq.heapify(heap)
        heapq.heappush(heap, entry)

    def next_expiry(self) -> int | None:
        """When the next lease ends."""
        heap = self.lease_heap
        while heap:
            expires_at, _, lease = heap[0]
            if lease.id in self.leases and lease.expires_at == expires_at:
                return expires_at
            heapq.heappop(heap)
        return None

    def pop_expired(self, now: int) -> Lease | None:
        """Take the next lease whose time is up off the schedule."""
        expires_at = self.next_expiry()
        if expires_at is None or expires_at > now:
            return None
        return heapq.heappop(self.lease_heap)[2]

    def note_expired(self, lease: Lease) -> None:
        """A lease is over because its time was up."""
        del self.leases[lease.id]
        self.expired_leases[lease.id] = None
        if len(self.expired_leases) > _EXPIRED_REMEMBERED:
            del self.expired_leases[next(iter(self.expired_leases))]

    def end_part(self, lease: Lease, track: Track) -> bool:
        """A lease has nothing to do with a track any more; True: it was the last one, and the lease is over."""
        lease.parts.pop(track, None)
        return not lease.parts and self.leases.pop(lease.id, None) is not None
