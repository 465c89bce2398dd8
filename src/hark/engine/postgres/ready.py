"""What a server believes: which partitions are ready, what it delivered, which transactions may be visible late.

The database verifies each pop, so losing all of this costs latency only: what is not known is discovered.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Sequence
from itertools import count

import msgspec

from hark.clock import SECOND
from hark.engine.hints import forget_oldest
from hark.model import EmptyReason, Settlement

_turns = count(1)
_NEVER: tuple[int, EmptyReason] = (0, "")


class Ready:
    """Partitions of one group, the one served longest ago first."""

    def __init__(self) -> None:
        self.discovered: int | None = None
        """The time of the last discovery; None: there was none yet, so nothing is known."""
        self.discover_after = 0.0
        """The loop's time before which a group with work is not searched for more."""
        self.waking: dict[int, tuple[int, EmptyReason]] = {}
        """Partitions that will be ready at a time, and what they wait for."""
        self.prioritized = False
        """Whether messages may have priorities; only shared groups have use for that."""
        self.blocked = False
        """Whether a pop got nothing because of `max_in_flight`. Then a hint follows whenever fewer are in flight, until
        nothing is ready."""
        self._ready: dict[int, tuple[int, int]] = {}
        self._heap: list[tuple[int, int, int]] = []
        self._waking_heap: list[tuple[int, int]] = []
        self._served: dict[int, int] = {}
        self._received: dict[int, int] = {}
        """Turns of the last news of partitions that were not from a pop."""
        self._forgotten = 0
        self._missed: set[int] = set()
        """Partitions that got messages while they waited."""
        self._unannounced: dict[int, int] = {}
        """Partitions that pops made ready, and that no hint named yet; in shared groups with a number of messages."""
        self._leased_elsewhere: set[int] = set()
        """Partitions that are leased, possibly on another server, as the database answered."""

    def forget(self) -> None:
        """Discover everything again, because of a change that is not tracked here."""
        self.discovered = None
        self.blocked = False  # A hint wakes all waiting consumers.
        self._forgotten = next(_turns)
        self.waking.clear()
        self._waking_heap.clear()
        self._missed.clear()
        self._leased_elsewhere.clear()

    # What happened -----------------------------------------------------------------------------------------

    def add(self, partition: int) -> None:
        """A partition may be taken; the caller sends the hint."""
        self._received[partition] = next(_turns)
        self.found(partition)
        self._unannounced.pop(partition, None)

    def offer(self, partition: int) -> bool:
        """A partition got a message: it may be taken (True) unless what it waits for comes first."""
        if partition in self.waking:
            self._received[partition] = next(_turns)
            self._missed.add(partition)
            return False
        self.add(partition)
        return True

    def drained(self, partition: int) -> bool:
        """A lease ended, and left nothing; True: a message has arrived since, the partition may be taken."""
        if partition in self._missed:
            self.add(partition)
            return True
        self._received[partition] = next(_turns)
        self._stop_waiting(partition)
        return False

    def look_behind(self) -> list[int]:
        """What partitions wait for, other than leases, may be gone; returns those that may be taken now."""
        found = [partition for partition, (_, reason) in self.waking.items() if reason != "lease_held"]
        for partition in found:
            self.add(partition)
        return found

    def doubt_leases(self) -> list[int]:
        """A lease of another server ended: doubt all of those; returns the partitions that missed an arrival."""
        missed = [partition for partition in self._leased_elsewhere if partition in self._missed]
        for partition in list(self._leased_elsewhere):
            self._stop_waiting(partition)
        for partition in missed:
            self.add(partition)
        return missed

    def make_room(self, partition: int) -> bool:
        """Fewer messages of a partition are in flight; True: that kept it back, it may be taken now."""
        self._received[partition] = next(_turns)
        if self.waking.get(partition, _NEVER)[1] != "max_in_flight":
            return False
        self.add(partition)
        return True

    def is_bound(self, partition: int) -> bool:
        """Whether a limit of a partition keeps it back: new messages do not change that."""
        if self.waking.get(partition, _NEVER)[1] not in ("max_in_flight", "rate_limited"):
            return False
        self._received[partition] = next(_turns)
        return True

    # What pops find ----------------------------------------------------------------------------------------

    def now(self) -> int:
        """A turn to compare with later news."""
        return next(_turns)

    def hinted_since(self, partition: int, turn: int) -> bool:
        """Whether there was news of a partition since: then an answer on its way may be too old."""
        return max(self._received.get(partition, 0), self._forgotten) > turn

    def found(self, partition: int) -> None:
        """A partition may be taken, as a pop found."""
        self._stop_waiting(partition)
        if partition not in self._ready:
            self._enter(partition)
            self._unannounced[partition] = 1

    def _enter(self, partition: int) -> None:
        """Among the ready ones in the order in which they are tried."""
        key = self._rank(partition), self._served.get(partition, 0)
        if self._ready.get(partition) != key:
            self._ready[partition] = key
            heapq.heappush(self._heap, (*key, partition))

    def _rank(self, _partition: int) -> int:
        """What comes before turns: nothing."""
        return 0

    def put_back(self, partition: int) -> None:
        """A partition may be taken later; a hint now would be useless."""
        self.found(partition)
        self._unannounced.pop(partition, None)

    def take_unannounced(self) -> dict[int, int]:
        """The ready partitions that no hint named yet; the caller sends the hint."""
        unannounced, self._unannounced = self._unannounced, {}
        return unannounced

    def remove(self, partition: int) -> None:
        """A partition can't be taken until there is news of it."""
        self.leave(partition)
        self._stop_waiting(partition)

    def leave(self, partition: int) -> None:
        """A partition is not ready."""
        self._ready.pop(partition, None)
        self._unannounced.pop(partition, None)

    def _stop_waiting(self, partition: int) -> None:
        self.waking.pop(partition, None)
        self._missed.discard(partition)
        self._leased_elsewhere.discard(partition)

    def waits(self, partition: int, due: int, reason: EmptyReason, _now: int) -> None:
        """A partition can't be taken until a time, as the database answered."""
        self.wake_at(partition, due, reason)
        if reason == "lease_held":
            self._leased_elsewhere.add(partition)

    def wake_at(self, partition: int, due: int, reason: EmptyReason) -> None:
        """A partition may be taken from a time on."""
        self.leave(partition)
        self._leased_elsewhere.discard(partition)
        if self.waking.get(partition) != (due, reason):
            self.waking[partition] = due, reason
            heapq.heappush(self._waking_heap, (due, partition))

    def wake_due(self, now: int) -> None:
        """Move what has fallen due to the ready ones."""
        heap = self._waking_heap
        while heap and heap[0][0] <= now:
            due, partition = heapq.heappop(heap)
            if partition in self.waking and self.waking[partition][0] == due:
                self.found(partition)

    def next_wake(self) -> int | None:
        """When the next partition wakes."""
        heap = self._waking_heap
        while heap:
            due, partition = heap[0]
            if partition in self.waking and self.waking[partition][0] == due:
                return due
            heapq.heappop(heap)
        return None

    def first(self) -> tuple[int, int, int] | None:
        """The ready partition that was served longest ago, as (rank, turn, partition)."""
        heap = self._heap
        while heap:
            rank, turn, partition = heap[0]
            if self._ready.get(partition) == (rank, turn):
                return heap[0]
            heapq.heappop(heap)
        return None

    def heads(self, number: int) -> list[tuple[int, int, int]]:
        """The first of the ready partitions, as `first` answers them; they stay ready."""
        found: list[tuple[int, int, int]] = []
        while len(found) < number and (head := self.first()) is not None:
            found.append(head)
            heapq.heappop(self._heap)
        for one in found:
            heapq.heappush(self._heap, one)
        return found

    def take(self) -> int:
        """Remove the partition that `first` answered."""
        partition = heapq.heappop(self._heap)[-1]
        self.leave(partition)
        return partition

    def serve(self, partition: int) -> None:
        """A partition had its turn."""
        self.remove(partition)
        self._served[partition] = next(_turns)


class SharedReady(Ready):
    """Partitions of one group: the highest priority first, then the one served longest ago."""

    def __init__(self) -> None:
        super().__init__()
        self._tops: dict[int, int] = {}
        """The highest priority that is probably ready."""
        self._notified: dict[int, int] = {}
        """Numbers of ready messages that hints named and that were not taken, as far as is known."""
        self._announced_due: dict[int, int] = {}
        """Times when messages become ready, which hints named."""

    def forget(self) -> None:
        """Everything has to be discovered again."""
        super().forget()
        self._notified.clear()
        self._announced_due.clear()

    def _rank(self, partition: int) -> int:
        return -self._tops.get(partition, 0)

    # What happened -----------------------------------------------------------------------------------------

    def arrived(self, partition: int, number: int, top: int) -> None:
        """Messages may be taken; the caller sends the hint."""
        before = self._tops.get(partition, 0) if partition in self._ready else 0
        self._tops[partition] = max(before, top)
        self.prioritized |= top > 0
        self._notified[partition] = self._notified.get(partition, 0) + number
        self.add(partition)
        self._enter(partition)

    def later(self, partition: int, due: int) -> bool:
        """A message may be taken from a time on; True: a hint is needed, so that a consumer learns the time."""
        waking = self.waking.get(partition)
        known = self._announced_due.get(partition)
        if waking is not None and waking[0] <= due and known is not None and known <= due:
            self._received[partition] = self.now()
            return False
        self._announced_due[partition] = due
        self.add(partition)
        return True

    # What pops find ----------------------------------------------------------------------------------------

    def served(self, partition: int, number: int) -> None:
        """A partition had its turn and gave a number of messages."""
        self._served[partition] = self.now()
        if partition in self._ready:
            self._enter(partition)  # It stays ready, but behind the others: whatever is said of it next.
        self._notified[partition] = max(0, self._notified.get(partition, 0) - number)

    def has_left(self, partition: int, counts: Sequence[int]) -> None:
        """There is more to take: numbers of messages by priority, or an unknown number."""
        self._stop_waiting(partition)
        self._tops[partition] = max((priority for priority, number in enumerate(counts) if number), default=0)
        self.prioritized |= self._tops[partition] > 0
        self._enter(partition)
        self._unannounced.pop(partition, None)
        number, notified = max(1, sum(counts)), self._notified.get(partition, 0)
        if number > notified:
            self._unannounced[partition] = number - notified
            self._notified[partition] = number

    def remove(self, partition: int) -> None:
        """There is nothing to take until there is news of the partition."""
        super().remove(partition)
        self._notified.pop(partition, None)
        self._announced_due.pop(partition, None)

    def waits(self, partition: int, due: int, reason: EmptyReason, now: int) -> None:
        """There is nothing to take until a time. A hint is needed unless an earlier one named the time."""
        self.wake_at(partition, due, reason)
        self._notified.pop(partition, None)
        known = self._announced_due.get(partition)
        if reason not in ("lease_held", "max_in_flight") and (known is None or known <= now or due < known):
            self._announced_due[partition] = due
            self._unannounced[partition] = 1


# Deliveries -------------------------------------------------------------------------------------------------

MAX_REMEMBERED = 500_000
"""Messages; beyond that the oldest leases are forgotten, and what they handed out is looked up when it is settled."""

MAX_COMPLETED = 100_000


class _Lease(msgspec.Struct, eq=False):
    until: int = 0
    open: int = 0
    """Number of messages that are not settled."""
    partitions: list[int] = []
    offsets: dict[tuple[int, str], int] = {}
    """By partition and the transaction id that the producer gave."""


class Deliveries:
    """Leases that this server gave, until they are settled here or over."""

    def __init__(self) -> None:
        self._leases: dict[str, _Lease] = {}
        self._heap: list[tuple[int, str]] = []
        self._size = 0
        self._completed: dict[tuple[int, str | None, str, str], None] = {}
        """The last messages that were completed here, by group, lease, partition and name."""

    def add(self, lease: str, until: int, partition: int, number: int, named: Iterable[tuple[str, int]]) -> None:
        """A lease handed out messages of a partition; those with an id from their producer by that and the offset."""
        known = self._leases.setdefault(lease, _Lease())
        known.partitions.append(partition)
        known.open += number
        before = len(known.offsets)
        for transaction_id, offset in named:
            known.offsets[partition, transaction_id] = offset
        self._size += len(known.offsets) - before
        self.renew(lease, until)
        while self._size > MAX_REMEMBERED:
            self.end(next(iter(self._leases)))

    def find(self, lease: str | None, partition: int, transaction_id: str, own: int | None) -> int | None:
        """The offset of a message, by the transaction id that its producer gave, or `own`: that in its own id.

        None: not all that the lease handed out is known here, or it did not hand out this message.
        """
        known = self._leases.get(lease) if lease else None
        return None if known is None else known.offsets.get((partition, transaction_id)) or own or None

    def partitions_of(self, lease: str) -> Sequence[int]:
        """Where a lease handed out messages."""
        known = self._leases.get(lease)
        return () if known is None else known.partitions

    def renew(self, lease: str, until: int) -> None:
        """A lease ends at another time."""
        known = self._leases.get(lease)
        if known is not None and known.until != until:
            known.until = until
            heapq.heappush(self._heap, (until, lease))

    def settled(self, lease: str, number: int) -> bool:
        """Some of what a lease handed out is settled. True: all of it, and of one partition; False: unknown.

        (What is settled twice counts twice. The database knows whether the lease still is on one partition.)
        """
        known = self._leases.get(lease)
        if known is None:
            return False
        known.open -= number
        if known.open > 0:
            return False
        self.end(lease)
        return len(known.partitions) == 1

    def completed(self, group: int, item: Settlement) -> None:
        """A message was completed for a group under the lease that the settlement names."""
        self._completed[group, item.lease_id, item.partition_id, item.transaction_id] = None
        forget_oldest(self._completed, MAX_COMPLETED)

    def was_completed(self, group: int, item: Settlement) -> bool:
        """Whether a message was completed so, as far as this server knows."""
        key = (group, item.lease_id, item.partition_id, item.transaction_id)
        return item.lease_id is not None and key in self._completed

    def forget_completed(self) -> None:
        """A group moved: what was completed may be delivered again."""
        self._completed.clear()

    def end(self, lease: str) -> None:
        """A lease is over."""
        known = self._leases.pop(lease, None)
        if known is not None:
            self._size -= len(known.offsets)

    def next_end(self, now: int) -> int | None:
        """When the next lease ends; expired ones are forgotten."""
        while self._heap:
            until, lease = self._heap[0]
            known = self._leases.get(lease)
            if known is not None and known.until == until:
                if until > now:
                    return until
                self.end(lease)
            heapq.heappop(self._heap)
        return None


# Late transactions ------------------------------------------------------------------------------------------

# A search for what other servers did goes back a little in time. That is not enough for a transaction that runs for
# long. So every search also reads which transactions are running, and when a long one has ended, all go back to its
# beginning.


RUNNING = """array(
    with snapshot as (select pg_current_snapshot() as s)
    select x::text::bigint from snapshot cross join lateral pg_snapshot_xip(s) x
    union all
    select x from snapshot cross join lateral generate_series(
        pg_snapshot_xmax(s)::text::bigint,
        pg_snapshot_xmax(s)::text::bigint + least(age(pg_snapshot_xmax(s)::xid), 10000) - 1) x
)"""
"""SQL: the transactions of all databases that have begun and that its statement does not see. A snapshot does not list
those after the last one that has ended; `age` is the number of transactions since."""

LATE = 30 * SECOND
"""How far back every search goes."""
BUCKET = 10 * SECOND
"""Partitions are indexed by the bucket of time of their last change."""
_LONG = 10 * SECOND
"""A transaction that ended within this time is found by every search."""
_NOT_YET_RUNNING = LATE - _LONG
"""How much earlier a call may have read the clock than its transaction got its number."""
_MANY = 100


class Late:
    """The transactions that one engine has seen running, and those of them that ended after a long time."""

    def __init__(self) -> None:
        self._looks = 0
        self._looked = 0
        self._running: dict[int, int] = {}
        """By number, the time of the last search at which each was not running yet."""
        self._ended: list[tuple[int, int]] = []
        """When it was noticed that a long transaction had ended, and since when its changes may date."""

    def look(self) -> tuple[int, int]:
        """Begin a search, before the query; `note` needs the result."""
        return self._looks, self._looked

    def note(self, running: Collection[int], look: tuple[int, int], now: int) -> None:
        """Note the transactions that were running at a search, which began at the time `now`."""
        number, before = look
        for one in running:
            self._running.setdefault(one, before)
        if number != self._looks:
            return  # Another search was answered meanwhile. It may be newer, so it is unknown which have ended.
        self._looks += 1
        self._looked = now
        ended = [self._running.pop(one) for one in list(self._running) if one not in running]
        began = min(ended, default=now)
        if began < now - _LONG:
            self._ended.append((now, max(0, began - _NOT_YET_RUNNING)))
        if len(self._ended) > _MANY:
            (_, first), (noticed, second) = self._ended[:2]
            self._ended[:2] = [(noticed, min(first, second))]

    @property
    def newest(self) -> tuple[int, int] | None:
        """The last long transaction that ended; it differs after another one."""
        return self._ended[-1] if self._ended else None

    def since(self, looked: int, reach: int = LATE) -> int:
        """How far back to search, if the last search was at `looked`, and at least `reach` back."""
        return min([max(0, looked - reach), *(began for noticed, began in self._ended if noticed >= looked)])
