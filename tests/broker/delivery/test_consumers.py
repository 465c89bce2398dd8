"""The consumer manager: the cases of the delivery contract, written out."""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING

import pytest

from hark.broker.delivery import consumers
from hark.broker.delivery.consumers import ConsumerManager, State, Work

MANY = 100


def anywhere(total: int) -> Work:
    """Work that lies in partitions that nobody named."""
    return Work(total, {})


def at(**numbers: int) -> Work:
    """Work that lies in partitions that somebody named."""
    return Work(sum(numbers.values()), numbers)


def waiting(*names: str, cap: int = MANY) -> ConsumerManager[str]:
    """A manager with equal consumers that want work."""
    manager: ConsumerManager[str] = ConsumerManager(cap)
    for name in names:
        join(manager, name)
    return manager


def join(manager: ConsumerManager[str], name: str, *, priority: int = 0, partition: str | None = None) -> None:
    """One more that wants work."""
    manager.add(name, priority=priority, partition=partition)
    manager.set_interest(name, True)


# Who is told when --------------------------------------------------------------------------------------------------


def steps_of(script: str) -> list[tuple[str, str]]:
    """`name@partition+5` joins; `2>a,b`: of two pieces of work these are told; `served:a` and so on."""
    return [(word, rest) for word, _, rest in (step.replace(">", ":").partition(":") for step in script.split())]


def perform(manager: ConsumerManager[str], word: str, rest: str) -> None:
    """One step of a script."""
    names = [name for name in rest.split(",") if name]
    if word == "joins":
        for one in names:
            target, _, priority = one.partition("+")
            name, _, partition = target.partition("@")
            join(manager, name, priority=int(priority or 0), partition=partition or None)
    elif word in ("wants", "blocks"):
        manager.set_interest(rest, word == "wants")
    elif word == "closes":
        manager.remove(rest)
    elif word == "served":
        manager.served(rest)
    elif word == "turns":
        assert list(manager.iter_interested()) == names
    elif word.startswith("told"):
        assert manager.notified(word.partition("@")[2] or None) == names
        assert manager.next_notified(word.partition("@")[2] or None) == next(iter(names), None)
    elif word.isdigit():
        assert manager.rebalance(anywhere(int(word))) == names
    else:
        numbers = dict(one.split("=") for one in word.split(","))
        assert manager.rebalance(at(**{name: int(number) for name, number in numbers.items()})) == names
    manager.check()


@pytest.mark.parametrize(
    ("cap", "script"),
    [
        pytest.param(MANY, script, id=name)
        for name, script in {
            "one push tells one of two and the next push the other": "joins:a,b 1>a told:a turns:b served:a 0> 1>b",
            "a second push before the first is taken tells the other": "joins:a,b 1>a 2>b told:a,b",
            "a stale hint costs nobody its turn": "joins:a,b,c 2>a,b 0> turns:a,b,c",
            "who loses credit and comes back waits behind the others": "joins:a,b blocks:a wants:a 1>b",
            "wanting twice keeps the turn and the reservation": "joins:a,b wants:a 1>a wants:a told:a",
            "one that was served without being told waits behind the others": "joins:a,b served:a turns:b,a",
            "the told one closes and an equal is told": "joins:a,b 1>a closes:a 1>b told:b",
            "the told one closes and a lower one is told": "joins:a,b+-7 1>a closes:a 1>b told:b",
            "the told one blocks and an equal is told": "joins:a,b 1>a blocks:a 1>b told:b",
            "the told one blocks and a lower one is told": "joins:a,b+-7 1>a blocks:a 1>b told:b",
            "what a closed one says later changes nothing": "joins:a,b closes:a wants:a served:a closes:a turns:b",
            "served does not wake one that wants nothing": "joins:a blocks:a served:a turns: 1>",
            "a low one is told of what the high ones leave": "joins:low,high+5,top+9 2>top,high 3>low",
            "a high one gains credit and the low one is back at the head": (
                "joins:low,too 1>low joins:high+1 1>high told:high turns:low,too served:high blocks:high 1>low"
            ),
            "those told are listed by priority": "joins:a,b,high+3 3>high,a,b told:high,a,b",
            "who named a partition is told of nothing else": "joins:p@p+9,any q=1>any q=0,p=1>p told@p:p told:",
            "who named it is told before an equal that named none": "joins:any,p@p p=1>p p=2>any",
            "a higher one without a filter comes before it": "joins:p@p,any+1 p=1>any",
            "work that left a partition takes the news back": "joins:p@p,q@q p=1,q=1>p,q q=1> told@p: told@q:q",
            "an empty manager tells nobody": "p=1,q=2> told:",
        }.items()
    ]
    + [
        pytest.param(2, "joins:a,b,c 9>a,b served:a 8>c", id="no more than the cap of one class at once"),
        # What the cap keeps the high ones from being told of is still theirs.
        pytest.param(2, "joins:low,h1+1,h2+1,h3+1 3>h1,h2 4>low", id="the cap does not let a lower priority pass"),
    ],
)
def test_who_is_notified_when(cap: int, script: str) -> None:
    manager = waiting(cap=cap)
    for word, rest in steps_of(script):
        perform(manager, word, rest)


def test_three_consumers_and_a_hundred_bursts_of_four_share_134_133_133() -> None:
    manager = waiting("a", "b", "c")
    got: Counter[str] = Counter()
    for _ in range(100):
        for left in (4, 3, 2, 1):
            manager.rebalance(anywhere(left))
            name = manager.next_notified()
            assert name is not None
            got[name] += 1
            manager.served(name)
        manager.rebalance(anywhere(0))
    assert got == {"a": 134, "b": 133, "c": 133}


def test_waits_asks_for_this_priority_or_a_higher_one_that_named_the_partition_or_none() -> None:
    manager = waiting()
    join(manager, "p", partition="p", priority=2)
    assert [manager.waits("p", 2), manager.waits("p", 1)] == [True, True]
    assert not any([manager.waits("p", 3), manager.waits("q", 0), manager.waits(None, 0)])
    join(manager, "any", priority=1)
    assert [manager.waits("q", 1), manager.waits(None, 1), manager.waits(None, 2)] == [True, True, False]
    manager.set_interest("any", False)
    assert not manager.waits(None, 1)


def test_named_lists_the_partitions_that_are_waited_for_and_a_second_of_the_same_name_and_no_cap_are_refused() -> None:
    manager = waiting("any")
    join(manager, "p", partition="p")
    join(manager, "p too", partition="p", priority=4)
    manager.add("q", partition="q")
    assert manager.named == {"p"}
    manager.remove("p")
    assert manager.named == {"p"}
    manager.set_interest("p too", False)
    assert not manager.named
    with pytest.raises(ValueError, match="already"):
        manager.add("any")
    with pytest.raises(ValueError, match="cap"):
        ConsumerManager[str](0)  # It would never notify a consumer.


def test_a_browser_is_never_notified_and_takes_no_ones_turn() -> None:
    manager = waiting("a")
    manager.add("browser", priority=9, browser=True)
    manager.set_interest("browser", True)
    assert manager.state_of("browser") is State.NON_ACQUIRING
    assert manager.rebalance(anywhere(2)) == ["a"]
    manager.served("browser")
    assert list(manager.iter_browsers()) == ["browser"]
    assert not manager.waits(None, 9)
    manager.set_interest("browser", False)
    assert manager.state_of("browser") is State.NOT_INTERESTED
    assert list(manager.iter_browsers()) == []
    manager.check()


def test_counts_are_by_state_and_a_closed_one_is_in_none() -> None:
    manager = waiting("a", "b")
    manager.add("idle")
    manager.add("browser", browser=True)
    manager.set_interest("browser", True)
    manager.rebalance(anywhere(1))
    assert manager.counts() == {
        State.REMOVED: 0,
        State.NOT_INTERESTED: 1,
        State.INTERESTED: 1,
        State.NOTIFIED: 1,
        State.NON_ACQUIRING: 1,
    }
    assert len(manager) == 4
    manager.remove("a")
    assert manager.state_of("a") is State.REMOVED
    assert "a" not in manager
    assert list(manager.iter_all()) == ["b", "idle", "browser"]


def test_the_lists_may_change_while_someone_walks_over_them() -> None:
    manager = waiting("a", "b", "c", "d")
    manager.rebalance(anywhere(4))
    seen = []
    for name in manager.iter_notified():
        seen.append(name)
        manager.remove("b")
        manager.set_interest("d", False)
        manager.served(name)
        join(manager, f"after {name}")
    assert seen == ["a", "c"]
    for name in manager.iter_all():
        manager.remove(name)
    assert len(manager) == 0
    assert not list(manager.iter_interested())
    manager.check()


# What a message costs the consumer manager: the same however many wait. Steps are counted, not timed -------


if TYPE_CHECKING:
    from _typeshed import TraceFunction


class Steps:
    """Counts lines of the manager that run, and entries of its lists that are walked over inside one line."""

    def __init__(self) -> None:
        self.taken = 0

    def of(self, action: Callable[[], None]) -> int:
        """How many steps an action takes."""
        before, outer = self.taken, sys.gettrace()
        sys.settrace(self._trace)
        try:
            action()
        finally:
            sys.settrace(outer)
        return self.taken - before

    def _trace(self, frame: FrameType, event: str, _: object) -> TraceFunction | None:
        if frame.f_code.co_filename != consumers.__file__:
            return None
        self.taken += event == "line"
        return self._trace


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    """A counter that every list of the manager reports to."""
    counter = Steps()

    class CountingDict(OrderedDict[int, None]):
        def __iter__(self) -> Iterator[int]:
            for key in super().__iter__():
                counter.taken += 1
                yield key

        def __reversed__(self) -> Iterator[int]:
            for key in super().__reversed__():
                counter.taken += 1
                yield key

    monkeypatch.setattr(consumers, "OrderedDict", CountingDict)
    return counter


def crowd(size: int, partition_of: Callable[[int], str | None]) -> ConsumerManager[int]:
    """So many that wait."""
    manager: ConsumerManager[int] = ConsumerManager(100)
    for name in range(size):
        manager.add(name, partition=partition_of(name))
        manager.set_interest(name, True)
    return manager


def a_message(manager: ConsumerManager[int], work: Work, lane: str | None) -> None:
    """One arrives, the next one in turn is told, takes it, goes, and comes back: all verbs of the delivery path."""
    manager.rebalance(work)
    name = manager.next_notified(lane)
    assert name is not None
    assert manager.notified(lane) == [name]
    manager.served(name)
    manager.rebalance(Work(0, {}))
    assert manager.waits(lane, 0)
    assert manager.counts()
    manager.set_interest(name, False)
    manager.remove(name)
    manager.add(name, partition=lane)
    manager.set_interest(name, True)


@pytest.mark.parametrize("named", [False, True])
def test_a_message_takes_the_same_steps_with_ten_thousand_waiters_as_with_ten(steps: Steps, named: bool) -> None:
    """Also if each of them named a partition of its own."""

    def one_message(manager: ConsumerManager[int]) -> int:
        work = Work(1, {"p7": 1}) if named else Work(1, {})
        return steps.of(lambda: a_message(manager, work, "p7" if named else None))

    few, many = [crowd(size, lambda name: f"p{name}" if named else None) for size in (10, 10_000)]
    counts = {one_message(manager) for manager in (few, many) for _ in range(5)}
    assert len(counts) == 1, counts
    assert counts.pop() > 50, "the counter counts nothing"

    def walk(manager: ConsumerManager[int]) -> None:
        assert len(list(manager.iter_interested())) == len(manager)

    assert steps.of(lambda: walk(many)) > 50 * steps.of(lambda: walk(few)), "a walk over all of them would be counted"
