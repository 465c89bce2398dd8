"""A state machine that runs the manager and a naive one on the same script and states what must hold.

The naive one is without cleverness: one list in the order of turns, and who is told worked out from nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from hark.broker.delivery.consumers import WAITING, ConsumerManager, State, Work

C = TypeVar("C", bound=Hashable)


@dataclass
class Person:
    """A consumer, as it was added."""

    name: int
    priority: int
    partition: str | None
    browser: bool
    wants: bool = False
    notified: bool = False


class NaiveManager:
    """Walks over everybody for every answer."""

    def __init__(self, cap: int) -> None:
        self.cap = cap
        self.people: list[Person] = []
        """Whoever was added, moved to the end when it gets the last turn."""

    def person(self, name: int) -> Person | None:
        """Somebody by name."""
        return next((one for one in self.people if one.name == name), None)

    def add(self, name: int, priority: int, partition: str | None, browser: bool) -> None:
        """Somebody comes."""
        self.people.append(Person(name, priority, partition, browser))

    def remove(self, name: int) -> None:
        """Somebody goes."""
        self.people = [one for one in self.people if one.name != name]

    def set_interest(self, name: int, wanted: bool) -> None:
        """Somebody wants work from now on, or not any more."""
        person = self.person(name)
        if person and person.wants != wanted:
            person.wants, person.notified = wanted, False
            self._to_the_end(person)

    def served(self, name: int) -> None:
        """Somebody got something."""
        person = self.person(name)
        if person and person.wants and not person.browser:
            person.notified = False
            self._to_the_end(person)

    def _to_the_end(self, person: Person) -> None:
        self.people = [one for one in self.people if one is not person] + [person]

    def rebalance(self, work: Work) -> list[int]:
        """Let everybody in turn put a hand on one piece; of each kind the first `cap` with a hand on one are told."""
        before = {one.name for one in self.people if one.notified}
        free, free_at = work.total, Counter(work.at)
        hands: Counter[tuple[int, str | None]] = Counter()
        order = sorted(self.takers(), key=lambda one: (-one.priority, self._rank(one, work)))
        for person in order:
            person.notified = False
            if free and (person.partition is None or free_at[person.partition]):
                free -= 1
                if person.partition is not None:
                    free_at[person.partition] -= 1
                hands[person.priority, person.partition] += 1
                person.notified = hands[person.priority, person.partition] <= self.cap
        return [one.name for one in order if one.notified and one.name not in before]

    @staticmethod
    def _rank(person: Person, work: Work) -> int:
        """Among equals, those that name a partition come first, in the order in which the work is listed."""
        names = list(work.at)
        return names.index(person.partition) if person.partition in names else len(names)

    def takers(self) -> list[Person]:
        """Those who want to take work, in the order of their turns."""
        return [one for one in self.people if one.wants and not one.browser]

    def lane(self, partition: str | None, *, notified: bool) -> list[int]:
        """Those told, or not told, with one filter: highest priority first, in the order of their turns."""
        here = [one for one in self.takers() if one.partition == partition and one.notified is notified]
        return [one.name for one in sorted(here, key=lambda one: -one.priority)]

    def state_of(self, name: int) -> State:
        """What somebody is."""
        person = self.person(name)
        if person is None:
            return State.REMOVED
        if not person.wants:
            return State.NOT_INTERESTED
        if person.browser:
            return State.NON_ACQUIRING
        return State.NOTIFIED if person.notified else State.INTERESTED

    def waits(self, partition: str | None, priority: int) -> bool:
        """Whether somebody as important or more could take work of this lane."""
        return any(one.priority >= priority and one.partition in {None, partition} for one in self.takers())


def check(manager: ConsumerManager[C]) -> None:
    """Assert the invariants of a manager."""
    lists = [(State.NOT_INTERESTED, manager._idle), (State.NON_ACQUIRING, manager._browsers)]
    for ring in manager._rings():
        assert ring, "a class without consumers"
        assert len(ring.notified) <= manager._cap, "more told than the cap allows"
        lists += [(State.INTERESTED, ring.interested), (State.NOTIFIED, ring.notified)]
    listed = Counter(consumer for _, one in lists for consumer in one)
    assert listed == Counter(list(manager._members)), "L1: not in exactly one list"
    for state in State:
        here = [consumer for kind, one in lists if kind is state for consumer in one]
        assert manager._sizes[state] == len(here), f"L2: {state} is miscounted"
        assert all(manager._members[one].state is state for one in here), f"L3: not {state}, but in its list"
    for member in manager._members.values():
        assert not (member.browser and member.state in WAITING), "L4: a queue browser among the consumers"
        assert member.browser or member.state is not State.NON_ACQUIRING, "L4: not a browser, but browsing"
    _check_classes(manager)


def _check_classes(manager: ConsumerManager[C]) -> None:
    """Assert that every consumer is in its class and that all indexes agree."""
    priorities = [level.priority for level in manager._levels]
    assert priorities == sorted(set(priorities), reverse=True), "levels out of order"
    assert {one.priority: one for one in manager._levels} == manager._level_of, "a level that can't be found"
    names = Counter(name for level in manager._levels for name in level.rings if name is not None)
    assert names == manager.named, "named partitions are miscounted"
    for level in manager._levels:
        notified = {name: ring for name, ring in level.rings.items() if name is not None and ring.notified}
        assert notified == level.notified, "told, but not where rebalance looks"
        for name, ring in level.rings.items():
            for consumer in (*ring.notified, *ring.interested):
                member = manager._members[consumer]
                assert (member.priority, member.partition) == (level.priority, name), "in the wrong class"


# A state machine that runs the manager and the naive one on the same script and states what must hold ------


PARTITIONS = ["a", "b"]
LANES = [None, *PARTITIONS]
PRIORITIES = [-1, 0, 5]
CROWD = 12
BROWSERS = range(100, 103)
NOWHERE = Work(0, {})

someone = st.integers(0, CROWD - 1)
lanes = st.sampled_from([None, None, *PARTITIONS])
classes = st.tuples(st.sampled_from([0, 0, *PRIORITIES]), lanes)
mostly = st.sampled_from([True, True, True, False])
few = st.integers(0, 3)


class ConsumerMachine(RuleBasedStateMachine):
    """Consumers come and go, want work or not, get some; work comes and goes."""

    manager_of: ClassVar[Callable[[int], ConsumerManager[int]]] = ConsumerManager

    @initialize(cap=st.sampled_from([1, 2, 3, 100]), crowd=st.lists(classes, min_size=2, max_size=CROWD))
    def start(self, cap: int, crowd: list[tuple[int, str | None]]) -> None:
        """A few wait already: with nobody there little can go wrong."""
        self.manager = type(self).manager_of(cap)
        self.naive = NaiveManager(cap)
        self.work = NOWHERE
        self.wanting: set[int] = set()
        for kind in crowd:
            self._comes(kind)

    # Steps -----------------------------------------------------------------------------------------------------

    @rule(kind=classes, now=mostly)
    def comes(self, kind: tuple[int, str | None], now: bool) -> None:
        """A consumer comes, maybe under the name of one that went, and wants work."""
        self._comes(kind)
        self._afterwards(now)

    @rule(name=someone, wanted=mostly, now=mostly)
    def wants(self, name: int, wanted: bool, now: bool) -> None:
        """Somebody gets or loses credit, maybe a second time, maybe after it went."""
        self._wants(name, wanted)
        self._afterwards(now)

    @rule(name=someone, now=mostly)
    def goes(self, name: int, now: bool) -> None:
        """Somebody closes."""
        self._goes(name)
        self._afterwards(now)

    @rule(lane=lanes, now=mostly)
    def the_next_is_served(self, lane: str | None, now: bool) -> None:
        """The pump serves the head of a lane."""
        name = self.manager.next_notified(lane)
        if name is not None:
            self._served(name, now)

    @rule(name=someone, now=mostly)
    def someone_is_served(self, name: int, now: bool) -> None:
        """A late answer finds its consumer in any state."""
        self._served(name, now)

    @rule(elsewhere=few, at=st.dictionaries(st.sampled_from(PARTITIONS), few))
    def work_changes(self, elsewhere: int, at: dict[str, int]) -> None:
        """Messages arrive, are taken, or were never there."""
        self.work = Work(elsewhere + sum(at.values()), at)
        self._rebalance()

    @rule(name=st.sampled_from(BROWSERS), partition=lanes, step=st.sampled_from(["comes", "wants", "rests", "goes"]))
    def browses(self, name: int, partition: str | None, step: str) -> None:
        """A browser does something, which changes nothing for the others (I5)."""
        before = self._picture()
        if step == "comes" and name not in self.manager:
            self.manager.add(name, partition=partition, browser=True)
            self.naive.add(name, 0, partition, browser=True)
        elif step == "goes":
            self._goes(name)
        else:
            self._wants(name, step == "wants")
        assert self._picture() == before, "I5: a browser changed something"

    def _comes(self, kind: tuple[int, str | None]) -> None:
        name = next((one for one in range(CROWD) if one not in self.manager), None)
        if name is not None:
            self.manager.add(name, priority=kind[0], partition=kind[1])
            self.naive.add(name, *kind, browser=False)
            self._wants(name, True)

    def _goes(self, name: int) -> None:
        self.manager.remove(name)
        self.naive.remove(name)
        self.wanting.discard(name)

    def _wants(self, name: int, wanted: bool) -> None:
        self.manager.set_interest(name, wanted)
        self.naive.set_interest(name, wanted)
        if wanted and name in self.manager:
            self.wanting.add(name)
        else:
            self.wanting.discard(name)

    def _served(self, name: int, now: bool) -> None:
        self.manager.served(name)
        self.naive.served(name)
        self._afterwards(now)

    def _afterwards(self, now: bool) -> None:
        """Several things may happen before somebody looks who is to be told."""
        if now:
            self._rebalance()

    def _rebalance(self) -> None:
        assert self.manager.rebalance(self.work) == self.naive.rebalance(self.work), "I9: others are told"
        self._covers()
        self._notifies_no_other()
        before = self._picture()
        assert self.manager.rebalance(self.work) == [], "I8: told a second time"
        assert self._picture() == before, "I8: a second look changed something"

    # What must hold --------------------------------------------------------------------------------------------

    @invariant()
    def is_consistent(self) -> None:
        """L1 to L4, as the manager sees itself and as the script has it."""
        check(self.manager)
        lists = [*self.manager.iter_interested(), *self.manager.iter_notified(), *self.manager.iter_browsers()]
        assert Counter(lists) == Counter(list(self.wanting)), "L1, L3: not those who want work"
        states = Counter(self.manager.state_of(name) for name in self.manager.iter_all())
        assert +Counter(self.manager.counts()) == states, "L2: miscounted"
        assert all(name in BROWSERS for name in self.manager.iter_browsers())
        assert not any(name in BROWSERS for name in self.manager.iter_notified()), "L4: a browser was told"

    @invariant()
    def equals_the_naive_one(self) -> None:
        """I9: every question has the same answer."""
        manager, naive = self.manager, self.naive
        assert sorted(manager.iter_all()) == sorted(one.name for one in naive.people)
        assert len(manager) == len(naive.people)
        for name in (*range(CROWD), *BROWSERS):
            assert manager.state_of(name) is naive.state_of(name), "I9: another state"
            assert (name in manager) is (naive.person(name) is not None)
        for lane in LANES:
            assert manager.notified(lane) == naive.lane(lane, notified=True), (
                "I9: other consumers are notified, or in another order"
            )
            assert self._interested(lane) == naive.lane(lane, notified=False), "I9: another order of turns"
            assert manager.next_notified(lane) == next(iter(naive.lane(lane, notified=True)), None)
            assert all(manager.waits(lane, one) is naive.waits(lane, one) for one in (*PRIORITIES, 1, 6))
        assert set(manager.named) == {one.partition for one in naive.takers()} - {None}

    def _covers(self) -> None:
        """I1: for each piece of work, one of the highest priority that wants it and may take it is told."""
        elsewhere = self.work.total - sum(self.work.at.values())
        for name in [name for name, number in self.work.at.items() if number] + ["elsewhere"] * (elsewhere > 0):
            may = [one for one in self.naive.takers() if one.partition in {None, name}]
            highest = max((one.priority for one in may), default=None)
            notified = [one for one in may if one.priority == highest and self._is_notified(one)]
            assert notified or not may, f"I1: no consumer is notified of the work in {name}"

    def _notifies_no_other(self) -> None:
        """I2: whoever is told finds a piece after all who come before it have taken theirs."""
        takers, at = self.naive.takers(), Counter(self.work.at)
        for person in filter(self._is_notified, takers):
            higher = Counter(one.partition for one in takers if one.priority > person.priority)
            taken = higher[None] + sum(min(at[name], higher[name]) for name in PARTITIONS)
            assert taken < self.work.total, "I2: told although higher ones want all there is"
            if person.partition is not None:
                assert higher[person.partition] < at[person.partition], "I2: told of what higher ones want"
        notified = Counter(one.partition for one in takers if self._is_notified(one))
        assert notified.total() <= self.work.total, "I2: more consumers are notified than there is work"
        assert all(notified[name] <= at[name] for name in PARTITIONS), (
            "I2: more consumers are notified than there is work there"
        )

    def _is_notified(self, person: Person) -> bool:
        return self.manager.state_of(person.name) is State.NOTIFIED

    def _interested(self, lane: str | None) -> list[int]:
        here = {one.name for one in self.naive.takers() if one.partition == lane}
        return [name for name in self.manager.iter_interested() if name in here]

    def _picture(self) -> list[tuple[list[int], list[int]]]:
        return [(self.manager.notified(lane), self._interested(lane)) for lane in LANES]
