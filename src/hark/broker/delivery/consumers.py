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

from bisect import insort
from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterable, Iterator, KeysView, Mapping
from enum import Enum
from typing import Generic, NamedTuple, Protocol, TypeVar

from hark.errors import HarkError
from hark.model import PopRequest, PopResult

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


class _Member(Generic[C]):
    """A consumer with its filter and its state."""

    __slots__ = ("browser", "consumer", "partition", "priority", "state")

    def __init__(self, consumer: C, priority: int, partition: str | None, browser: bool) -> None:
        self.consumer = consumer
        self.priority = priority
        self.partition = partition
        self.browser = browser
        self.state = State.REMOVED


class _Ring(Generic[C]):
    """One class in the order of its turns: the notified consumers, then the others."""

    __slots__ = ("interested", "notified")

    def __init__(self) -> None:
        # Not plain dicts: a dict that is used as a queue scans all its deleted slots to find its head.
        self.notified: OrderedDict[C, None] = OrderedDict()
        self.interested: OrderedDict[C, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self.notified) + len(self.interested)


class _Level(Generic[C]):
    """The classes of one priority, by the partition that they name."""

    __slots__ = ("notified", "priority", "rings")

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.rings: dict[str | None, _Ring[C]] = {}
        self.notified: dict[str, _Ring[C]] = {}
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
        self._named: Counter[str] = Counter()
        """Number of levels in which each partition is named."""
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

    @property
    def named(self) -> KeysView[str]:
        """The partitions that waiting consumers name."""
        return self._named.keys()

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
                self._named[member.partition] += 1
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
            self._named[partition] -= 1
            if not self._named[partition]:
                del self._named[partition]
        if not level.rings:
            del self._level_of[priority]
            self._levels.remove(level)

    # Proof -----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Assert the invariants, for tests. It checks every consumer."""
        lists = [(State.NOT_INTERESTED, self._idle), (State.NON_ACQUIRING, self._browsers)]
        for ring in self._rings():
            assert ring, "a class without consumers"
            assert len(ring.notified) <= self._cap, "more told than the cap allows"
            lists += [(State.INTERESTED, ring.interested), (State.NOTIFIED, ring.notified)]
        listed = Counter(consumer for _, one in lists for consumer in one)
        assert listed == Counter(list(self._members)), "L1: not in exactly one list"
        for state in State:
            here = [consumer for kind, one in lists if kind is state for consumer in one]
            assert self._sizes[state] == len(here), f"L2: {state} is miscounted"
            assert all(self._members[one].state is state for one in here), f"L3: not {state}, but in its list"
        for member in self._members.values():
            assert not (member.browser and member.state in WAITING), "L4: a queue browser among the consumers"
            assert member.browser or member.state is not State.NON_ACQUIRING, "L4: not a browser, but browsing"
        self._check_classes()

    def _check_classes(self) -> None:
        """Assert that every consumer is in its class and that all indexes agree."""
        priorities = [level.priority for level in self._levels]
        assert priorities == sorted(set(priorities), reverse=True), "levels out of order"
        assert {one.priority: one for one in self._levels} == self._level_of, "a level that can't be found"
        names = Counter(name for level in self._levels for name in level.rings if name is not None)
        assert names == self._named, "named partitions are miscounted"
        for level in self._levels:
            notified = {name: ring for name, ring in level.rings.items() if name is not None and ring.notified}
            assert notified == level.notified, "told, but not where rebalance looks"
            for name, ring in level.rings.items():
                for consumer in (*ring.notified, *ring.interested):
                    member = self._members[consumer]
                    assert (member.priority, member.partition) == (level.priority, name), "in the wrong class"


class Consumer(Hashable, Protocol):
    """A waiting consumer. The pump calls these methods; they must not raise."""

    @property
    def priority(self) -> int:
        """Consumers with a higher priority are notified first."""

    @property
    def partition(self) -> str | None:
        """The partition that it wants, if not any."""

    @property
    def batch(self) -> int:
        """How many messages it takes at once, if it can."""

    def next_pull(self) -> PopRequest | None:
        """What to pop for it now; None: it wants nothing after all."""

    def deliver(self, result: PopResult) -> bool:
        """Take what came; False: it is not there any more, and what came goes back."""

    def came_up_empty(self) -> None:
        """There was nothing for it; it keeps its turn."""

    def failed(self, failure: HarkError) -> None:
        """The look failed, for a reason that passes; it is looked for again later."""

    def refuse(self, error: HarkError) -> None:
        """What it wants can't be."""
