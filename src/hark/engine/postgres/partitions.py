"""Partitions and groups that a server knows, and which of them are ready. The database verifies each pop."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any

from hark.engine.postgres.pool import Pool
from hark.ids import IdCodec
from hark.model import EmptyReason, GroupMode

# Losing all of this costs latency only: what is not known is discovered.


_turns = count(1)


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
        """Whether too many messages were in flight for somebody to take more: then he is told when there are fewer."""
        self._ready: dict[int, tuple[int, int]] = {}
        self._heap: list[tuple[int, int, int]] = []
        self._waking_heap: list[tuple[int, int]] = []
        self._served: dict[int, int] = {}
        self._hinted: dict[int, int] = {}
        """When (in turns) something was last said of a partition by anybody but a pop."""
        self._forgotten = 0
        self._missed: set[int] = set()
        """Partitions that got messages while they waited."""
        self._unannounced: dict[int, int] = {}
        """Partitions that pops made ready, and that nobody was told of; in shared groups with a number of messages."""
        self._leased_elsewhere: set[int] = set()
        """Partitions that the database said are leased, by whomever."""

    def forget(self) -> None:
        """Something changed beyond what is tracked here: everything has to be discovered again."""
        self.discovered = None
        self._forgotten = next(_turns)
        self.waking.clear()
        self._waking_heap.clear()
        self._missed.clear()
        self._leased_elsewhere.clear()

    # What happened -----------------------------------------------------------------------------------------

    def add(self, partition: int) -> None:
        """A partition may be taken, and whoever says so tells others."""
        self._hinted[partition] = next(_turns)
        self.found(partition)
        self._unannounced.pop(partition, None)

    def offer(self, partition: int) -> bool:
        """A partition got a message: it may be taken (True) unless what it waits for comes first."""
        if partition in self.waking:
            self._hinted[partition] = next(_turns)
            self._missed.add(partition)
            return False
        self.add(partition)
        return True

    def drained(self, partition: int) -> bool:
        """A lease ended, and at that time nothing was left; True: something has come since, it may be taken."""
        if partition in self._missed:
            self.add(partition)
            return True
        self._hinted[partition] = next(_turns)
        self._stop_waiting(partition)
        return False

    def look_behind(self) -> list[int]:
        """What partitions wait for, other than leases, may be gone: they may be taken; which they are."""
        found = [partition for partition, (_, reason) in self.waking.items() if reason != "lease_held"]
        for partition in found:
            self.add(partition)
        return found

    def doubt_leases(self) -> list[int]:
        """A lease of another server ended somewhere: believe in none of those; what they kept from being offered."""
        missed = [partition for partition in self._leased_elsewhere if partition in self._missed]
        for partition in list(self._leased_elsewhere):
            self._stop_waiting(partition)
        for partition in missed:
            self.add(partition)
        return missed

    # What pops find ----------------------------------------------------------------------------------------

    def now(self) -> int:
        """A turn to compare with what is heard later."""
        return next(_turns)

    def hinted_since(self, partition: int, turn: int) -> bool:
        """Whether something was said of a partition since: then an answer that was under way may be too old."""
        return max(self._hinted.get(partition, 0), self._forgotten) > turn

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
        """A partition may be taken some day, but to tell anybody of it now would be of no use."""
        self.found(partition)
        self._unannounced.pop(partition, None)

    def take_unannounced(self) -> dict[int, int]:
        """The partitions that are ready and that nobody was told of; they are told now."""
        untold, self._unannounced = self._unannounced, {}
        return untold

    def remove(self, partition: int) -> None:
        """A partition can't be taken, until something is heard of it again."""
        self._leave(partition)
        self._stop_waiting(partition)

    def _leave(self, partition: int) -> None:
        self._ready.pop(partition, None)
        self._unannounced.pop(partition, None)

    def _stop_waiting(self, partition: int) -> None:
        self.waking.pop(partition, None)
        self._missed.discard(partition)
        self._leased_elsewhere.discard(partition)

    def leased_until(self, partition: int, due: int) -> None:
        """Somebody has leased a partition; who, the database did not say."""
        self.wake_at(partition, due, "lease_held")
        self._leased_elsewhere.add(partition)

    def wake_at(self, partition: int, due: int, reason: EmptyReason) -> None:
        """A partition may be taken from a time on."""
        self._leave(partition)
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
        self._leave(partition)
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
        """The highest priority that is believed ready."""
        self._announced: dict[int, int] = {}
        """How many messages others have been told of that are still there, as far as is known."""
        self._announced_due: dict[int, int] = {}
        """Times that whoever looks learns, and that others have been told to look for."""

    def forget(self) -> None:
        """Everything has to be discovered again."""
        super().forget()
        self._announced.clear()
        self._announced_due.clear()

    def _rank(self, partition: int) -> int:
        return -self._tops.get(partition, 0)

    # What happened -----------------------------------------------------------------------------------------

    def arrived(self, partition: int, number: int, top: int) -> None:
        """So many messages may be taken, and whoever says so tells others."""
        self._raise(partition, top)
        self._announced[partition] = self._announced.get(partition, 0) + number
        self.add(partition)
        self._enter(partition)

    def later(self, partition: int, due: int) -> bool:
        """A message may be taken from a time on; True: others have to be told, so that somebody learns the time."""
        waking = self.waking.get(partition)
        known = self._announced_due.get(partition)
        if waking is not None and waking[0] <= due and known is not None and known <= due:
            self._hinted[partition] = self.now()
            return False
        self._announced_due[partition] = due
        self.add(partition)
        return True

    def _raise(self, partition: int, top: int) -> None:
        before = self._tops.get(partition, 0) if partition in self._ready else 0
        self._tops[partition] = max(before, top)
        self.prioritized |= top > 0

    # What pops find ----------------------------------------------------------------------------------------

    def served(self, partition: int, number: int) -> None:
        """A partition had its turn and gave so many messages."""
        self._served[partition] = self.now()
        if partition in self._ready:
            self._enter(partition)  # It stays ready, but behind the others: whatever is said of it next.
        self._announced[partition] = max(0, self._announced.get(partition, 0) - number)

    def has_left(self, partition: int, counts: Sequence[int]) -> None:
        """There is more to take: so many messages of each priority, or at least one look."""
        self._stop_waiting(partition)
        self._tops[partition] = max((priority for priority, number in enumerate(counts) if number), default=0)
        self.prioritized |= self._tops[partition] > 0
        self._enter(partition)
        self._unannounced.pop(partition, None)
        number, announced = max(1, sum(counts)), self._announced.get(partition, 0)
        if number > announced:
            self._unannounced[partition] = number - announced
            self._announced[partition] = number

    def has_nothing(self, partition: int) -> None:
        """There is nothing to take, until something is heard of it."""
        self.remove(partition)
        self._announced.pop(partition, None)
        self._announced_due.pop(partition, None)

    def waits(self, partition: int, due: int, reason: EmptyReason, now: int) -> None:
        """There is nothing to take until a time. Unless others know that, they have to look: then so do they."""
        self.wake_at(partition, due, reason)
        self._announced.pop(partition, None)
        known = self._announced_due.get(partition)
        if reason != "lease_held" and (known is None or known <= now or due < known):
            self._announced_due[partition] = due
            self._unannounced[partition] = 1

    def pass_by(self, partition: int) -> None:
        """Somebody else is at it."""
        self._leave(partition)


# Numbers are never used twice, so what is remembered is right or names nothing: then the database says so, it is
# forgotten, and the call is made again with names.


class Partition:
    """A partition."""

    __slots__ = ("id", "name", "prefix", "queue", "uid")

    def __init__(self, number: int, queue: str, name: str, codec: IdCodec) -> None:
        self.id = number
        self.queue = queue
        self.name = name
        self.prefix = codec.prefix(number)
        self.uid = codec.encode(number, 0)


class Group:
    """A group of a queue, with what is believed ready for it."""

    __slots__ = ("id", "mode", "name", "namespace", "queue", "queue_id", "ready", "seen_at", "shared")

    def __init__(self, number: int, queue: str, name: str, mode: GroupMode, queue_id: int | None) -> None:
        self.id = number
        self.queue = queue
        self.name = name
        self.namespace = ""
        """Of its queue, for pops by label: the priorities of queues compete only within a namespace (rule 27)."""
        self.mode = mode
        self.queue_id = queue_id
        """None: the queue did not exist when we last looked."""
        self.shared = SharedReady() if mode == "shared" else None
        """What is believed ready, of a shared group."""
        self.ready: Ready = self.shared or Ready()
        self.seen_at = 0
        """When this server last told the database that the group is alive."""


class Directory:
    """Partitions and groups by name and by number."""

    def __init__(self, pool: Pool, codec: IdCodec) -> None:
        self._pool = pool
        self._codec = codec
        self.partitions: dict[tuple[str, str], Partition] = {}
        self.partitions_by_id: dict[int, Partition] = {}
        self.groups: dict[tuple[str, str], Group] = {}
        self._groups_of: dict[str, dict[str, Group]] = {}

    # Partitions --------------------------------------------------------------------------------------------

    def adopt_partition(self, number: int, queue: str, name: str) -> Partition:
        """Remember a partition."""
        partition = self.partitions_by_id.get(number)
        if partition is None or partition.name != name:
            partition = Partition(number, queue, name, self._codec)
            self.partitions[queue, name] = self.partitions_by_id[number] = partition
        return partition

    def forget_partitions(self, numbers: Iterable[int]) -> None:
        """These partitions are not there any more."""
        for number in numbers:
            partition = self.partitions_by_id.pop(number, None)
            if partition is not None and self.partitions.get((partition.queue, partition.name)) is partition:
                del self.partitions[partition.queue, partition.name]

    async def find_partition(self, queue: str, name: str) -> Partition | None:
        """A partition by name."""
        partition = self.partitions.get((queue, name))
        if partition is None:
            row = await self._pool.fetchrow(
                "select p.id from hark.partitions p join hark.queues q on q.id = p.queue"
                " where q.name = $1 and p.name = $2",
                queue,
                name,
            )
            partition = None if row is None else self.adopt_partition(row[0], queue, name)
        return partition

    async def load_partitions(self, numbers: Iterable[int]) -> bool:
        """Partitions by number; what does not exist stays unknown. Whether one was learned."""
        rows = []
        missing = [number for number in numbers if number not in self.partitions_by_id]
        if missing:
            rows = await self._pool.fetch(
                "select p.id, q.name, p.name from hark.partitions p join hark.queues q on q.id = p.queue"
                " where p.id = any ($1::bigint[])",
                missing,
            )
            for row in rows:
                self.adopt_partition(row[0], row[1], row[2])
        return bool(rows)

    # Groups ------------------------------------------------------------------------------------------------

    def groups_of(self, queue: str) -> Iterable[Group]:
        """The groups of a queue that this server knows."""
        return self._groups_of.get(queue, {}).values()

    def adopt_group(self, number: int, queue: str, name: str, mode: GroupMode, queue_id: int | None) -> Group:
        """Remember a group, or that it is another one now."""
        group = self.groups.get((queue, name))
        if group is None or group.id != number or (group.queue_id is not None and group.queue_id != queue_id):
            group = Group(number, queue, name, mode, queue_id)
            self.groups[queue, name] = group
            self._groups_of.setdefault(queue, {})[name] = group
        group.queue_id = queue_id
        return group

    def forget_group(self, group: Group) -> None:
        """This group is not there any more, or its queue is not."""
        if self.groups.get((group.queue, group.name)) is group:
            del self.groups[group.queue, group.name]
            del self._groups_of[group.queue][group.name]

    def forget_groups(self, numbers: Iterable[int]) -> None:
        """These groups are not there any more."""
        gone = set(numbers)
        for group in [group for group in self.groups.values() if group.id in gone]:
            self.forget_group(group)

    def forget_queue(self, queue: str) -> None:
        """A queue was removed with everything in it."""
        self.forget_partitions([partition.id for partition in self.partitions.values() if partition.queue == queue])
        for group in list(self.groups_of(queue)):
            self.forget_group(group)

    async def load_groups(self, wanted: Iterable[tuple[str, str]]) -> None:
        """Groups by queue and name that are not known yet; those that do not exist stay unknown."""
        missing = [key for key in wanted if key not in self.groups]
        if not missing:
            return
        queues, names = zip(*missing, strict=True)
        rows = await self._pool.fetch(
            "select g.id, g.queue, g.name, g.mode, q.id from unnest($1::text[], $2::text[]) as w(queue, name)"
            " join hark.groups g on g.queue = w.queue and g.name = w.name left join hark.queues q on q.name = g.queue",
            queues,
            names,
        )
        for row in rows:
            self.adopt_group(*_group(row))


def _group(row: Any) -> tuple[int, str, str, GroupMode, int | None]:
    return row[0], row[1], row[2], row[3], row[4]
