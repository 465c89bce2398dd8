"""The consumer manager without cleverness: one list in the order of turns, and who is told worked out from nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hark.broker.delivery.consumers import State, Work


@dataclass
class Person:
    """A consumer, as it was added."""

    name: int
    priority: int
    partition: str | None
    browser: bool
    wants: bool = False
    told: bool = False


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
            person.wants, person.told = wanted, False
            self._to_the_end(person)

    def served(self, name: int) -> None:
        """Somebody got something."""
        person = self.person(name)
        if person and person.wants and not person.browser:
            person.told = False
            self._to_the_end(person)

    def _to_the_end(self, person: Person) -> None:
        self.people = [one for one in self.people if one is not person] + [person]

    def rebalance(self, work: Work) -> list[int]:
        """Let everybody in turn put a hand on one piece; of each kind the first `cap` with a hand on one are told."""
        before = {one.name for one in self.people if one.told}
        free, free_at = work.total, Counter(work.at)
        hands: Counter[tuple[int, str | None]] = Counter()
        line = sorted(self.takers(), key=lambda one: (-one.priority, self._place(one, work)))
        for person in line:
            person.told = False
            if free and (person.partition is None or free_at[person.partition]):
                free -= 1
                if person.partition is not None:
                    free_at[person.partition] -= 1
                hands[person.priority, person.partition] += 1
                person.told = hands[person.priority, person.partition] <= self.cap
        return [one.name for one in line if one.told and one.name not in before]

    @staticmethod
    def _place(person: Person, work: Work) -> int:
        """Among equals, those that name a partition come first, in the order in which the work is listed."""
        names = list(work.at)
        return names.index(person.partition) if person.partition in names else len(names)

    def takers(self) -> list[Person]:
        """Those who want to take work, in the order of their turns."""
        return [one for one in self.people if one.wants and not one.browser]

    def lane(self, partition: str | None, *, told: bool) -> list[int]:
        """Those told, or not told, with one filter: highest priority first, in the order of their turns."""
        here = [one for one in self.takers() if one.partition == partition and one.told is told]
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
        return State.NOTIFIED if person.told else State.INTERESTED

    def waits(self, partition: str | None, priority: int) -> bool:
        """Whether somebody as important or more could take work of this lane."""
        return any(one.priority >= priority and one.partition in {None, partition} for one in self.takers())
