"""The waiting consumers of a subscription, and the choice of those that are notified of work.

```
             add                    set_interest                 rebalance
  REMOVED --------> NOT_INTERESTED <------------> INTERESTED <-------------> NOTIFIED
                     |          ^                      ^        served         |   |
                     |          |                      +-----------------------+   |
        set_interest |          +-------------- set_interest ----------------------+
                     v
               NON_ACQUIRING (a queue browser: it reads and receives nothing, so it is never notified)
```

Consumers of the same priority that can receive the same messages are one class. A class is one ring, with the consumer
that was served longest ago first; the front part of the ring is notified. A notification reserves one piece of work.
The reservations are computed again from the expected work after every event: a consumer that closes or has no credit
left leaves the ring, and the next `rebalance` notifies another one."""

from __future__ import annotations

import sys
from bisect import insort
from collections import Counter, OrderedDict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import repeat
from typing import Generic, NamedTuple, TypeVar

import msgspec

from hark.model import HintKind

C = TypeVar("C", bound=Hashable)


class State(Enum):
    """The state of a consumer in its subscription."""

    REMOVED = "removed"
    NOT_INTERESTED = "not interested"
    INTERESTED = "interested"
    NOTIFIED = "notified"
    NON_ACQUIRING = "non-acquiring"

    __hash__ = object.__hash__  # That of Enum is a Python function.


WAITING = (State.INTERESTED, State.NOTIFIED)


class Work(NamedTuple):
    """The expected ready work."""

    total: int
    """Number of pieces of work in all partitions."""
    at: Mapping[str, int]
    """Number of pieces in partitions that a consumer named; other partitions need not be listed."""


class _Member(msgspec.Struct, Generic[C], eq=False):
    """A consumer with its filter and its state."""

    consumer: C
    priority: int
    partition: str | None
    browser: bool
    state: State = State.REMOVED


class _Ring(msgspec.Struct, Generic[C], eq=False):
    """One class in the order of its turns: the notified consumers, then the others."""

    # Not plain dicts: a dict that is used as a queue scans all its deleted slots to find its head.
    notified: OrderedDict[C, None] = msgspec.field(default_factory=OrderedDict)
    interested: OrderedDict[C, None] = msgspec.field(default_factory=OrderedDict)

    def __len__(self) -> int:
        return len(self.notified) + len(self.interested)


class _Level(msgspec.Struct, Generic[C], eq=False):
    """The classes of one priority, by the partition that they name."""

    priority: int
    rings: dict[str | None, _Ring[C]] = {}
    notified: dict[str, _Ring[C]] = {}
    """Classes with a named partition and a notified consumer. `rebalance` checks them even without work."""


class ConsumerManager(Generic[C]):
    """The consumers of one subscription: pure data. Every method takes constant time for any number of consumers."""

    def __init__(self, cap: int) -> None:
        """At most `cap` consumers of each class are notified at a time."""
        if cap < 1:
            raise ValueError("with a cap below 1 no consumer would ever be notified")
        self._cap = cap
        self._members: dict[C, _Member[C]] = {}
        self._idle: OrderedDict[C, None] = OrderedDict()
        self._browsers: OrderedDict[C, None] = OrderedDict()
        self._levels: list[_Level[C]] = []
        """Highest priority first, without empty levels."""
        self._level_of: dict[int, _Level[C]] = {}
        self.named: Counter[str] = Counter()
        """The partitions that waiting consumers name, with the number of levels of each."""
        self._sizes = dict.fromkeys(State, 0)

    # Coming, going, wanting ------------------------------------------------------------------------------------

    def add(self, consumer: C, *, priority: int = 0, partition: str | None = None, browser: bool = False) -> None:
        """Add a consumer without interest. Higher priorities are served first."""
        if consumer in self._members:
            raise ValueError(f"{consumer!r} is already registered")
        member = self._members[consumer] = _Member(consumer, priority, partition, browser)
        self._move(member, State.NOT_INTERESTED)

    def remove(self, consumer: C) -> None:
        """Remove a consumer in any state. Does nothing for an unknown consumer."""
        member = self._members.pop(consumer, None)
        if member is not None:
            self._move(member, State.REMOVED)

    def set_interest(self, consumer: C, wanted: bool) -> None:
        """Set whether a consumer wants work now. Does nothing for an unknown consumer."""
        member = self._members.get(consumer)
        if member is None or wanted == (member.state is not State.NOT_INTERESTED):
            return
        wanting = State.NON_ACQUIRING if member.browser else State.INTERESTED
        self._move(member, wanting if wanted else State.NOT_INTERESTED)

    def served(self, consumer: C) -> None:
        """Give a consumer that received messages the last turn of its class."""
        member = self._members.get(consumer)
        if member is not None and member.state in WAITING:
            self._move(member, State.INTERESTED)

    # Notifying -------------------------------------------------------------------------------------------------

    def rebalance(self, work: Work) -> list[C]:
        """Notify as many consumers as there are pieces of work. Returns the newly notified ones in order of turns.

        A class claims as many pieces as it has consumers. Later classes cannot claim the same pieces, even if the cap
        allows fewer notifications at a time: the rest is notified as soon as the first ones are served.

        Within a priority, consumers that name a partition come first, because they can receive nothing else. Otherwise
        they would lose the work of their partition to a consumer that could receive other work.
        """
        notified: list[C] = []
        left, left_at = work.total, dict(work.at)
        for level in self._levels:
            for partition in [*work.at, *(name for name in level.notified if name not in work.at)]:
                ring = level.rings.get(partition)
                if ring is not None:
                    claim = min(left, left_at.get(partition, 0), len(ring))
                    left -= claim
                    left_at[partition] = left_at.get(partition, 0) - claim
                    notified += self._reserve(ring, claim)
            ring = level.rings.get(None)
            if ring is not None:
                claim = min(left, len(ring))
                left -= claim
                notified += self._reserve(ring, claim)
        return notified

    def _reserve(self, ring: _Ring[C], claim: int) -> list[C]:
        """Move the border between notified and other consumers. The order of turns does not change."""
        target = min(self._cap, claim)
        notified = []
        while len(ring.notified) > target:
            self._move(self._members[next(reversed(ring.notified))], State.INTERESTED, to_head=True)
        while len(ring.notified) < target:
            consumer = next(iter(ring.interested))
            self._move(self._members[consumer], State.NOTIFIED)
            notified.append(consumer)
        return notified

    def notified(self, partition: str | None) -> list[C]:
        """The notified consumers of this partition, or of no named partition (None), in order of turns."""
        return [consumer for ring in self._lane(partition) for consumer in ring.notified]

    def notified_lanes(self) -> list[str | None]:
        """The partitions of notified consumers; None for consumers without a named partition."""
        named = dict.fromkeys(name for level in self._levels for name in level.notified)
        return [*named, None] if self.next_notified() is not None else [*named]

    def next_notified(self, partition: str | None = None) -> C | None:
        """The first notified consumer of this partition, or of no named partition (None)."""
        return next((consumer for ring in self._lane(partition) for consumer in ring.notified), None)

    def _lane(self, partition: str | None) -> Iterator[_Ring[C]]:
        """The classes with one filter, highest priority first."""
        return (level.rings[partition] for level in self._levels if partition in level.rings)

    # Reading ---------------------------------------------------------------------------------------------------

    def state_of(self, consumer: C) -> State:
        """The state of a consumer; REMOVED for an unknown one."""
        member = self._members.get(consumer)
        return State.REMOVED if member is None else member.state

    def counts(self) -> dict[State, int]:
        """The number of consumers in each state; removed consumers are not counted."""
        return dict(self._sizes)

    def waits(self, partition: str | None, priority: int) -> bool:
        """Whether a consumer of this or a higher priority waits for work that a consumer of this lane could receive."""
        for level in self._levels:
            if level.priority < priority:
                break
            if None in level.rings or partition in level.rings:
                return True
        return False

    def count_waiting(self, partition: str) -> int:
        """The number of waiting consumers that could receive messages of a partition."""
        return sum(len(ring) for lane in (None, partition) for ring in self._lane(lane))

    def is_empty(self, partition: str | None) -> bool:
        """Whether no consumer of this partition waits, or (None) no consumer without a named partition."""
        return next(self._lane(partition), None) is None

    def iter_all(self) -> Iterator[C]:
        """All consumers, in the order in which they were added."""
        return self._still(self._members, tuple(State))

    def iter_interested(self) -> Iterator[C]:
        """Interested consumers that are not notified, highest priority first, in order of turns."""
        return self._still((one for ring in self._rings() for one in ring.interested), (State.INTERESTED,))

    def iter_notified(self) -> Iterator[C]:
        """Notified consumers, highest priority first, in order of turns."""
        return self._still((one for ring in self._rings() for one in ring.notified), (State.NOTIFIED,))

    def iter_browsers(self) -> Iterator[C]:
        """The queue browsers that wait for messages."""
        return self._still(self._browsers, (State.NON_ACQUIRING,))

    def _still(self, consumers: Iterable[C], states: tuple[State, ...]) -> Iterator[C]:
        """The consumers that are in a list now, except those that leave it before the iterator reaches them."""
        now = list(consumers)
        return (one for one in now if one in self._members and self._members[one].state in states)

    def _rings(self) -> Iterator[_Ring[C]]:
        return (ring for level in self._levels for ring in level.rings.values())

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, consumer: object) -> bool:
        return consumer in self._members

    # Moving ----------------------------------------------------------------------------------------------------

    def _move(self, member: _Member[C], target: State, *, to_head: bool = False) -> None:
        """Move a consumer from its list to another one. This is the only place that changes a state."""
        consumer, source = member.consumer, member.state
        if source is not State.REMOVED:
            del self._list_of(member)[consumer]
            self._sizes[source] -= 1
        member.state = target
        if target is not State.REMOVED:
            self._list_of(member)[consumer] = None
            self._sizes[target] += 1
            if to_head:
                self._list_of(member).move_to_end(consumer, last=False)
        if source in WAITING:
            self._tidy(member.priority, member.partition)

    def _list_of(self, member: _Member[C]) -> OrderedDict[C, None]:
        """The list of a consumer in its state. Creates its class if it is the first consumer of it."""
        if member.state is State.NOT_INTERESTED:
            return self._idle
        if member.state is State.NON_ACQUIRING:
            return self._browsers
        level = self._level_of.get(member.priority)
        if level is None:
            level = self._level_of[member.priority] = _Level(member.priority)
            insort(self._levels, level, key=lambda one: -one.priority)
        ring = level.rings.get(member.partition)
        if ring is None:
            ring = level.rings[member.partition] = _Ring()
            if member.partition is not None:
                self.named[member.partition] += 1
        if member.state is State.INTERESTED:
            return ring.interested
        if member.partition is not None:
            level.notified[member.partition] = ring
        return ring.notified

    def _tidy(self, priority: int, partition: str | None) -> None:
        """Remove an empty class, or its entry among the notified classes, after its last consumer left."""
        level = self._level_of[priority]
        ring = level.rings[partition]
        if partition is not None and not ring.notified:
            level.notified.pop(partition, None)
        if ring:
            return
        del level.rings[partition]
        if partition is not None:
            self.named[partition] -= 1
            if not self.named[partition]:
                del self.named[partition]
        if not level.rings:
            del self._level_of[priority]
            self._levels.remove(level)


# Ready work. In an ordered group one consumer at a time works on a partition, so a piece of work is a partition. In a
# shared group it is as many messages of a partition as one consumer takes. Every announcement has a mark that grows
# with each look. An empty look removes the announcements from before it began; later ones stay.


PartitionKey = tuple[str, str]
"""A queue and a partition of it."""

MOST_PARTITIONS = 10_000
"""Maximum number of remembered partitions. Above it, any look can find work."""
_MOST_COUNTS = 4
"""Maximum number of marks with counts of a partition: few looks run at a time, so older marks can be merged."""
_NEVER = -1
_ALL = sys.maxsize


class _Announced(msgspec.Struct, eq=False):
    received: int = _NEVER
    """The mark of the last hint without a count."""
    freed: int = _NEVER
    """The mark of the last such hint about released work, not about new messages."""
    counts: list[tuple[int, int]] = []
    """Marks and numbers of announced messages of a shared group, the oldest first."""
    looks: int = 0
    """The number of consumers that it takes to receive all of it."""

    def add(self, count: int, mark: int) -> None:
        """Announce a number of messages."""
        counts = self.counts
        if counts and counts[-1][0] == mark:
            counts[-1] = mark, counts[-1][1] + count
            return
        counts.append((mark, count))
        if len(counts) > _MOST_COUNTS:
            # Use the later mark: a wrong expectation costs a look, a missing one delays a message.
            counts[:2] = [(counts[1][0], counts[0][1] + counts[1][1])]

    def subtract(self, count: int, mark: int) -> None:
        """Remove messages that were announced up to a mark: a look that began there can have taken no others."""
        counts = self.counts
        while count and counts and counts[0][0] <= mark:
            announced_at, number = counts[0]
            if number > count:
                counts[0] = announced_at, number - count
                return
            count -= number
            del counts[0]


class ReadyWork:
    """The ready work of a subscription: announced by hints, and received by no consumer yet."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._mark = 0
        self._partitions: dict[PartitionKey, _Announced] = {}
        self._looks = 0
        """The number of consumers that it takes to receive the work of all partitions."""
        self._batch = self._next_batch = 1
        self._requested: dict[str | None, int] = {}
        """The marks of requested looks, by partition or (None) anywhere, whether or not work is expected there."""
        self._anywhere = 0
        """Number of consumers that may look without a known partition. It doubles after each successful look, so that
        ten looks find a thousand ready partitions."""

    def __bool__(self) -> bool:
        return bool(self._partitions or self._requested)

    def begin_look(self) -> int:
        """The mark of a look that begins now. Later hints get a higher mark."""
        self._mark += 1
        return self._mark - 1

    def add(self, partitions: Iterable[PartitionKey], kind: HintKind, counts: Sequence[int] = ()) -> bool:
        """Announce work. `counts` are numbers of messages of a shared group.

        False: there are too many partitions to remember; all lanes must look.
        """
        known = self._partitions
        if len(known) > MOST_PARTITIONS:
            known.clear()
            self._looks, self._batch = 0, self._next_batch
            return False
        for key, count in zip(partitions, counts or repeat(0), strict=False):
            announced = known.get(key)
            if announced is None:
                announced = known[key] = _Announced()
            if count:
                announced.add(count, self._mark)
            else:
                announced.received = self._mark
                if kind == "free":
                    announced.freed = self._mark
            self._recount(announced)
        return True

    def set_batch(self, batch: int) -> None:
        """Set the smallest batch size of the waiting consumers.

        A larger size takes effect when no work is expected: otherwise one consumer with a small batch that joins and
        leaves often would cause a new count each time. Until then a few consumers too many are notified.
        """
        self._next_batch = batch
        if batch < self._batch or not self._partitions:
            self._batch = batch
            for announced in self._partitions.values():
                self._recount(announced)

    def look(self, partition: str | None) -> None:
        """Request a look in a partition, or (None) anywhere."""
        self._requested[partition] = self._mark
        if partition is None:
            self._anywhere = max(1, self._anywhere)

    def took(self, key: PartitionKey, count: int, mark: int, *, leased: bool) -> bool:
        """Note the result of a look: `count` messages of a partition. Returns whether work was expected there.

        In an ordered group a leased partition is not ready, even if messages arrived during the look: its lease must
        end first, and a hint announces that. In a shared group the other messages stay ready.
        """
        announced = self._partitions.get(key)
        if announced is None:
            return False
        if (announced.freed if leased else announced.received) <= mark:
            announced.received = announced.freed = _NEVER
        announced.subtract(count, mark)
        self._keep(key, announced)
        return True

    def expect_more(self) -> None:
        """Allow more looks without a known partition, because every look found work and some of it was unexpected."""
        self._anywhere = min(2 * self._anywhere, self._most)

    def disprove(self, partition: str | None, queue: str | None, mark: int) -> None:
        """Remove announcements after an empty look in a partition, or (None) anywhere."""
        if partition is not None:
            if self._requested.get(partition, mark + 1) <= mark:
                del self._requested[partition]
            if queue is not None and (queue, partition) in self._partitions:
                self._disprove((queue, partition), mark)
            return
        for key in list(self._partitions):
            self._disprove(key, mark)
        # Without work anywhere there is none in the named partitions: their consumers need not look.
        self._requested = {lane: requested for lane, requested in self._requested.items() if requested > mark}
        if None not in self._requested:
            self._anywhere = 0

    def _disprove(self, key: PartitionKey, mark: int) -> None:
        announced = self._partitions[key]
        if announced.received <= mark:
            announced.received = announced.freed = _NEVER
        announced.subtract(_ALL, mark)
        self._keep(key, announced)

    def forget(self, partition: str) -> None:
        """Remove a partition that no consumer names any more."""
        self._requested.pop(partition, None)

    def work(self, queue: str | None, named: Collection[str]) -> Work:
        """The expected work, with the share of the named partitions."""
        at: dict[str, int] = {}
        extra = 0
        if named and queue is not None:
            partitions = self._partitions
            if len(named) <= len(partitions):
                known = [partition for partition in named if (queue, partition) in partitions]
            else:
                known = [partition for _, partition in partitions if partition in named]
            at = {partition: partitions[queue, partition].looks for partition in known}
            # A requested look without a waiting consumer is not work: it would go to consumers that cannot do it.
            for partition in self._requested:
                if partition is not None and partition in named and partition not in at:
                    at[partition] = 1
                    extra += 1
        return Work(self._looks + extra + self._anywhere, at)

    def _keep(self, key: PartitionKey, announced: _Announced) -> None:
        """Remove a partition without announced work."""
        self._recount(announced)
        if not announced.looks:
            del self._partitions[key]
            if not self._partitions:
                self._batch = self._next_batch

    def _recount(self, announced: _Announced) -> None:
        looks = -(-sum(count for _, count in announced.counts) // self._batch) + (announced.received != _NEVER)
        self._looks += looks - announced.looks
        announced.looks = looks
