"""What the SQLite engine keeps in memory: queues, partitions, groups, their tracks, and leases.

All of it but the leases is a cache of committed rows, loaded when first touched. Only who holds the lock of
`threads.py` touches it. A write verb never changes these objects before its commit: it works on a track's `Draft`,
which replaces the track's fields when the commit is through. A track with a draft is "dirty" and is not handed out
meanwhile.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterator
from itertools import count

from hark.ids import IdCodec
from hark.model import EmptyReason, GroupMode, QueueInfo, QueueOptions, Subscription

MAX_RANGES = 10_000
"""Beyond so many ranges only the head of a partition is delivered (rule 13)."""
_NEVER = (-1, "")
_EXPIRED_REMEMBERED = 10_000


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


def compile_schedule(options: QueueOptions) -> tuple[int, ...]:
    """The delay before each retry in milliseconds (rule 14)."""
    delays = []
    delay = float(options.retry_delay)
    for _ in range(options.retry_limit):
        delays.append(int(min(delay, options.retry_max_delay)))
        delay = min(delay * options.retry_multiplier, options.retry_max_delay)
    return tuple(delays)


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


class Retry:
    """A message that used attempts, or that waits."""

    __slots__ = ("attempts", "due", "error")

    def __init__(self, attempts: int, due: int, error: str | None) -> None:
        self.attempts = attempts
        self.due = due
        self.error = error


class Part:
    """What a lease handed out of one partition."""

    __slots__ = ("handed", "last", "open")

    def __init__(self, handed: int, last: int) -> None:
        self.handed = handed
        self.open = handed
        self.last = last

    def extend(self, handed: int, last: int) -> None:
        """More was handed out under the same lease."""
        self.handed += handed
        self.open += handed
        self.last = max(self.last, last)


class Lease:
    """One consumer's expiring hold, over one or more partitions."""

    __slots__ = ("expires_at", "id", "parts")

    def __init__(self, lease_id: str, expires_at: int) -> None:
        self.id = lease_id
        self.expires_at = expires_at
        self.parts: dict[Track, Part] = {}


Held = tuple[int, Lease, "tuple[int, ...] | None"]
"""Under what a message was last delivered: its offset, the lease, and the message's own retry schedule."""


class Draft:
    """A track as the running transaction leaves it."""

    __slots__ = (
        "cursor",
        "front",
        "gone",
        "probe",
        "ranges",
        "released",
        "retries",
        "settled_at",
        "touched_ranges",
        "voided",
        "wiped",
    )

    def __init__(self, track: Track) -> None:
        self.cursor = track.cursor
        self.ranges = list(track.ranges)
        self.retries = dict(track.retries)
        self.front = list(track.front)
        self.probe = track.probe
        self.settled_at = track.settled_at
        self.released = False
        """The lease no longer blocks the partition."""
        self.gone: set[str] = set()
        """Transaction ids that are no longer held."""
        self.voided = False
        """All leases on the track are void."""
        self.touched_ranges: set[int] = set(track.unsaved)
        """First offsets of ranges that were added, changed or removed."""
        self.wiped = False
        """Nothing that is stored about the track beyond its cursor counts any more."""

    def settle(self, first: int, last: int) -> None:
        """Mark offsets as done: the cursor moves over them when they continue it, else they are kept as a range."""
        ranges, touched = self.ranges, self.touched_ranges
        if first <= self.cursor + 1:
            if last <= self.cursor:
                return
            self.cursor = last
            while ranges and ranges[0][0] <= self.cursor + 1:
                touched.add(ranges[0][0])
                self.cursor = max(self.cursor, ranges[0][1])
                del ranges[0]
            if self.probe and self.cursor >= self.probe:
                self.probe = 0
            return
        at = bisect_right(ranges, (first, last))
        if at and ranges[at - 1][1] >= first - 1:
            at -= 1
            first = ranges[at][0]
        end = at
        while end < len(ranges) and ranges[end][0] <= last + 1:
            touched.add(ranges[end][0])
            last = max(last, ranges[end][1])
            end += 1
        touched.add(first)
        ranges[at:end] = [(first, last)]


class Track:
    """A group's place in a partition."""

    __slots__ = (
        "cursor",
        "draft",
        "front",
        "group",
        "held",
        "lease",
        "partition",
        "probe",
        "ranges",
        "retries",
        "served",
        "settled_at",
        "unsaved",
    )

    def __init__(self, group: Group, partition: Partition) -> None:
        self.group = group
        self.partition = partition
        self.cursor = 0
        self.ranges: list[tuple[int, int]] = []
        self.retries: dict[int, Retry] = {}
        self.front: list[int] = []
        self.probe = 0
        self.settled_at: int | None = None
        self.lease: Lease | None = None
        self.held: dict[str, Held] = {}
        self.served = 0
        self.draft: Draft | None = None
        self.unsaved: set[int] = set()
        """First offsets of ranges that are not stored yet, because the track itself is not."""

    def begin(self, cursor: int, holes: list[int]) -> None:
        """Start where the group has not been before; where there is no message it is done already."""
        self.cursor = cursor
        draft = Draft(self)
        for offset in holes:
            draft.settle(offset, offset)
        self.cursor, self.ranges = draft.cursor, draft.ranges
        self.unsaved = {first for first, _ in self.ranges}

    @property
    def has_work(self) -> bool:
        """Whether something is unsettled, ready or not."""
        return self.cursor < self.partition.tail or bool(self.front)

    def is_settled(self, offset: int) -> bool:
        """Whether the group is done with an offset, as the running transaction sees it."""
        cursor, ranges, front = (
            (self.draft.cursor, self.draft.ranges, self.draft.front)
            if self.draft is not None
            else (self.cursor, self.ranges, self.front)
        )
        if offset in front:
            return False
        if offset <= cursor:
            return True
        at = bisect_right(ranges, (offset, 1 << 62))
        return at > 0 and ranges[at - 1][1] >= offset

    def rise_to(self, floor: int) -> None:
        """Leave what was removed from the partition behind."""
        self.cursor = max(self.cursor, floor)
        while self.ranges and self.ranges[0][0] <= self.cursor + 1:
            self.cursor = max(self.cursor, self.ranges.pop(0)[1])

    def open_intervals(self) -> Iterator[tuple[int, int]]:
        """Unsettled offsets in order of delivery, requeued ones first."""
        for offset in self.front:
            yield offset, offset
        position = max(self.cursor, self.partition.floor) + 1
        for first, last in self.ranges:
            if position < first:
                yield position, first - 1
            position = max(position, last + 1)
        if position <= self.partition.tail:
            yield position, self.partition.tail

    def publish(self) -> None:
        """The transaction is committed: take over its draft."""
        draft = self.draft
        if draft is None:
            return
        self.draft = None
        self.cursor, self.ranges, self.retries = draft.cursor, draft.ranges, draft.retries
        self.front, self.probe, self.settled_at = draft.front, draft.probe, draft.settled_at
        self.unsaved = set()
        if draft.voided:
            self.held.clear()
        for transaction_id in draft.gone:
            self.held.pop(transaction_id, None)
        if draft.released or draft.voided:
            self.lease = None


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

    def wake_due(self, now: int) -> None:
        """Move what has fallen due to the ready partitions."""
        heap = self.waking_heap
        while heap and heap[0][0] <= now:
            due, partition = heapq.heappop(heap)
            if self.waking.get(partition, _NEVER)[0] == due:
                self.make_ready(partition)

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
        self.groups: dict[tuple[str, str], Group] = {}
        self.labels: dict[Label, tuple[Subscription, int]] = {}
        """Where groups started that pop by namespace or task, and the highest partition then."""
        self.leases: dict[str, Lease] = {}
        self.lease_heap: list[tuple[int, int, Lease]] = []
        self.expired_leases: dict[str, None] = {}
        """The last leases that expired, so that latecomers are told what happened."""
        self.largest_payload = 0
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
        heapq.heappush(self.lease_heap, entry)
        for group in {track.group for track in lease.parts}:
            heapq.heappush(group.leases, entry)

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

    def end_part(self, lease: Lease, track: Track) -> None:
        """A lease has nothing to do with a track any more; it ends with its last one."""
        lease.parts.pop(track, None)
        if not lease.parts:
            self.leases.pop(lease.id, None)
