"""Who waits in a subscription, and who of them is told that there is work.

```
             add                    set_interest                 rebalance
  REMOVED --------> NOT_INTERESTED <------------> INTERESTED <-------------> NOTIFIED
                     |          ^                      ^        served         |   |
                     |          |                      +-----------------------+   |
        set_interest |          +-------------- set_interest ----------------------+
                     v
               NON_ACQUIRING (a browser: it looks and takes nothing, so it is never told)
```

Consumers of the same priority that may take the same things are one class. A class is one ring, the consumer that was
served longest ago first; its front part is told. Being told is a reservation of one piece of work. It is worked out
anew from what is believed ready after every event, so nobody has to hand anything on: a consumer that closes or loses
its credit leaves the ring, and the next `rebalance` tells somebody else.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterable, Iterator, KeysView, Mapping
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

C = TypeVar("C", bound=Hashable)


class State(Enum):
    """What a consumer is to its subscription."""

    REMOVED = "removed"
    NOT_INTERESTED = "not interested"
    INTERESTED = "interested"
    NOTIFIED = "notified"
    NON_ACQUIRING = "non-acquiring"


WAITING = (State.INTERESTED, State.NOTIFIED)


class Work(NamedTuple):
    """What is believed ready."""

    total: int
    """Pieces of work, wherever they are."""
    at: Mapping[str, int]
    """How many of them are in partitions that some consumer named; others need not be listed."""


class _Member(Generic[C]):
    """A consumer, with what it may take and where it stands."""

    __slots__ = ("browser", "consumer", "partition", "priority", "state")

    def __init__(self, consumer: C, priority: int, partition: str | None, browser: bool) -> None:
        self.consumer = consumer
        self.priority = priority
        self.partition = partition
        self.browser = browser
        self.state = State.REMOVED


class _Ring(Generic[C]):
    """One class in the order of its turns: those told, then those not told."""

    __slots__ = ("interested", "notified")

    def __init__(self) -> None:
        # Not plain dicts: one that is used as a queue walks over all its dead slots to find its head.
        self.notified: OrderedDict[C, None] = OrderedDict()
        self.interested: OrderedDict[C, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self.notified) + len(self.interested)


class _Level(Generic[C]):
    """The classes of one priority, by the partition that they name."""

    __slots__ = ("priority", "rings", "told")

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.rings: dict[str | None, _Ring[C]] = {}
        self.told: dict[str, _Ring[C]] = {}
        """Those that name a partition and have somebody told: all that must be looked at where no work is."""


class ConsumerManager(Generic[C]):
    """The consumers of one subscription: pure data, every verb in constant time however many they are."""

    def __init__(self, cap: int) -> None:
        """At most `cap` consumers of each class are told at once."""
        if cap < 1:
            raise ValueError("With a cap below 1 nobody would ever be told.")
        self._cap = cap
        self._members: dict[C, _Member[C]] = {}
        self._idle: OrderedDict[C, None] = OrderedDict()
        self._browsers: OrderedDict[C, None] = OrderedDict()
        self._levels: list[_Level[C]] = []
        """Highest priority first, only those with somebody in them."""
        self._level_of: dict[int, _Level[C]] = {}
        self._named: Counter[str] = Counter()
        """In how many levels a partition is named."""
        self._sizes = dict.fromkeys(State, 0)

    # Coming, going, wanting ------------------------------------------------------------------------------------

    def add(self, consumer: C, *, priority: int = 0, partition: str | None = None, browser: bool = False) -> None:
        """Let a consumer in; it wants nothing yet. Higher numbers are served first."""
        if consumer in self._members:
            raise ValueError(f"{consumer!r} is there already.")
        member = self._members[consumer] = _Member(consumer, priority, partition, browser)
        self._move(member, State.NOT_INTERESTED)

    def remove(self, consumer: C) -> None:
        """Let a consumer go, whatever it was doing; one that is gone already stays gone."""
        member = self._members.pop(consumer, None)
        if member is not None:
            self._move(member, State.REMOVED)

    def set_interest(self, consumer: C, wanted: bool) -> None:
        """Say that a consumer wants work now, or that it does not; of one that is gone this says nothing."""
        member = self._members.get(consumer)
        if member is None or wanted == (member.state is not State.NOT_INTERESTED):
            return
        wanting = State.NON_ACQUIRING if member.browser else State.INTERESTED
        self._move(member, wanting if wanted else State.NOT_INTERESTED)

    def served(self, consumer: C) -> None:
        """Give a consumer that got something the last turn of its class."""
        member = self._members.get(consumer)
        if member is not None and member.state in WAITING:
            self._move(member, State.INTERESTED)

    # Telling ---------------------------------------------------------------------------------------------------

    def rebalance(self, work: Work) -> list[C]:
        """Tell as many as there is work for, and no more; answers those newly told, in the order of their turns.

        A class claims as many pieces as it has consumers, and what it claims is no longer there for the classes after
        it, also where the cap lets it tell fewer at once: the rest of it is told as soon as these are served.

        Within a priority those that name a partition come first, because they can take nothing else. Told last, they
        would lose the work of their partition to a consumer that could as well have taken another's.
        """
        told: list[C] = []
        left, left_at = work.total, dict(work.at)
        for level in self._levels:
            for partition in [*work.at, *(name for name in level.told if name not in work.at)]:
                ring = level.rings.get(partition)
                if ring is not None:
                    claim = min(left, left_at.get(partition, 0), len(ring))
                    left -= claim
                    left_at[partition] = left_at.get(partition, 0) - claim
                    told += self._reserve(ring, claim)
            ring = level.rings.get(None)
            if ring is not None:
                claim = min(left, len(ring))
                left -= claim
                told += self._reserve(ring, claim)
        return told

    def _reserve(self, ring: _Ring[C], claim: int) -> list[C]:
        """Move the border between told and not told; nobody changes its turn."""
        target = min(self._cap, claim)
        told = []
        while len(ring.notified) > target:
            self._move(self._members[next(reversed(ring.notified))], State.INTERESTED, to_head=True)
        while len(ring.notified) < target:
            consumer = next(iter(ring.interested))
            self._move(self._members[consumer], State.NOTIFIED)
            told.append(consumer)
        return told

    def notified(self, partition: str | None) -> list[C]:
        """Those told who named this partition, or who named none, in the order of their turns."""
        return [consumer for ring in self._lane(partition) for consumer in ring.notified]

    def told_lanes(self) -> list[str | None]:
        """The partitions that those told have named; None for those who named none."""
        named = dict.fromkeys(name for level in self._levels for name in level.told)
        return [*named, None] if self.next_notified() is not None else [*named]

    def next_notified(self, partition: str | None = None) -> C | None:
        """The first of those told who named this partition, or who named none."""
        return next((consumer for ring in self._lane(partition) for consumer in ring.notified), None)

    def _lane(self, partition: str | None) -> Iterator[_Ring[C]]:
        """The classes with one filter, highest priority first."""
        return (level.rings[partition] for level in self._levels if partition in level.rings)

    # Looking ---------------------------------------------------------------------------------------------------

    def state_of(self, consumer: C) -> State:
        """What a consumer is; whoever is not known is removed."""
        member = self._members.get(consumer)
        return State.REMOVED if member is None else member.state

    def counts(self) -> dict[State, int]:
        """How many there are in each state; nobody keeps count of those who went."""
        return dict(self._sizes)

    def waits(self, partition: str | None, priority: int) -> bool:
        """Whether somebody of this priority or a higher one wants work that a consumer of this lane could take."""
        for level in self._levels:
            if level.priority < priority:
                break
            if None in level.rings or partition in level.rings:
                return True
        return False

    def count_waiting(self, partition: str) -> int:
        """How many want work and could take it from a partition."""
        return sum(len(ring) for lane in (None, partition) for ring in self._lane(lane))

    def is_empty(self, partition: str | None) -> bool:
        """Whether nobody wants work who named this partition, or (None) who named none."""
        return next(self._lane(partition), None) is None

    @property
    def named(self) -> KeysView[str]:
        """The partitions that somebody who wants work has named."""
        return self._named.keys()

    def iter_all(self) -> Iterator[C]:
        """Everybody, in the order of their coming."""
        return self._still(self._members, tuple(State))

    def iter_interested(self) -> Iterator[C]:
        """Those who want work and are not told, highest priority first, in the order of their turns."""
        return self._still((one for ring in self._rings() for one in ring.interested), (State.INTERESTED,))

    def iter_notified(self) -> Iterator[C]:
        """Those told, highest priority first, in the order of their turns."""
        return self._still((one for ring in self._rings() for one in ring.notified), (State.NOTIFIED,))

    def iter_browsers(self) -> Iterator[C]:
        """The browsers that want to see messages."""
        return self._still(self._browsers, (State.NON_ACQUIRING,))

    def _still(self, consumers: Iterable[C], states: tuple[State, ...]) -> Iterator[C]:
        """Those in a list now, without the ones that leave it before their turn comes."""
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
        """Take a consumer off its list and append it to another: the only place where a state changes."""
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
        """Where a consumer in this state is kept; makes the class that it is the first of."""
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
            level.told[member.partition] = ring
        return ring.notified

    def _tidy(self, priority: int, partition: str | None) -> None:
        """Forget that a class has somebody told, or anybody at all, when the last one left."""
        level = self._level_of[priority]
        ring = level.rings[partition]
        if partition is not None and not ring.notified:
            level.told.pop(partition, None)
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
        """Assert what must hold between any two calls; for tests, it looks at everybody."""
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
            assert not (member.browser and member.state in WAITING), "L4: a browser among those who take"
            assert member.browser or member.state is not State.NON_ACQUIRING, "L4: not a browser, but browsing"
        self._check_classes()

    def _check_classes(self) -> None:
        """Assert that everybody is in the class of its own and that the ways to it agree."""
        priorities = [level.priority for level in self._levels]
        assert priorities == sorted(set(priorities), reverse=True), "levels out of order"
        assert {one.priority: one for one in self._levels} == self._level_of, "a level that can't be found"
        names = Counter(name for level in self._levels for name in level.rings if name is not None)
        assert names == self._named, "named partitions are miscounted"
        for level in self._levels:
            told = {name: ring for name, ring in level.rings.items() if name is not None and ring.notified}
            assert told == level.told, "told, but not where rebalance looks"
            for name, ring in level.rings.items():
                for consumer in (*ring.notified, *ring.interested):
                    member = self._members[consumer]
                    assert (member.priority, member.partition) == (level.priority, name), "in the wrong class"
