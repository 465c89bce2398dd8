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


def at(**pieces: int) -> Work:
    """Work that lies in partitions that somebody named."""
    return Work(sum(pieces.values()), pieces)


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


# Turns -----------------------------------------------------------------------------------------------------------


def test_of_two_idle_consumers_one_push_tells_exactly_one_and_the_next_push_the_other() -> None:
    manager = waiting("a", "b")
    assert manager.rebalance(anywhere(1)) == ["a"]
    assert manager.notified(None) == ["a"]
    assert manager.state_of("b") is State.INTERESTED
    manager.served("a")
    assert manager.rebalance(anywhere(0)) == []
    assert manager.rebalance(anywhere(1)) == ["b"]


def test_a_second_push_before_the_first_is_taken_tells_the_other() -> None:
    manager = waiting("a", "b")
    assert manager.rebalance(anywhere(1)) == ["a"]
    assert manager.rebalance(anywhere(2)) == ["b"]
    assert manager.notified(None) == ["a", "b"]


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


def test_a_stale_hint_costs_nobody_its_turn() -> None:
    manager = waiting("a", "b", "c")
    manager.rebalance(anywhere(2))
    manager.rebalance(anywhere(0))
    assert list(manager.iter_interested()) == ["a", "b", "c"]


def test_who_comes_back_after_losing_credit_waits_behind_those_who_stayed() -> None:
    manager = waiting("a", "b")
    manager.set_interest("a", False)
    manager.set_interest("a", True)
    assert manager.rebalance(anywhere(1)) == ["b"]


def test_wanting_twice_keeps_the_turn_and_the_reservation() -> None:
    manager = waiting("a", "b")
    manager.set_interest("a", True)
    assert manager.rebalance(anywhere(1)) == ["a"]
    manager.set_interest("a", True)
    assert manager.next_notified() == "a"


def test_a_consumer_that_was_served_without_being_told_waits_behind_the_others() -> None:
    manager = waiting("a", "b")
    manager.served("a")
    assert list(manager.iter_interested()) == ["b", "a"]


# The told one does not come --------------------------------------------------------------------------------------


def closes(manager: ConsumerManager[str], name: str) -> None:
    """The connection is gone."""
    manager.remove(name)


def loses_credit(manager: ConsumerManager[str], name: str) -> None:
    """No credit left, or its socket takes nothing more: it wants nothing now."""
    manager.set_interest(name, False)


@pytest.mark.parametrize("leaves", [closes, loses_credit])
@pytest.mark.parametrize("priority", [0, -7], ids=["equal", "lower"])
def test_when_the_told_one_closes_or_blocks_the_other_is_told_in_the_same_call(
    leaves: Callable[[ConsumerManager[str], str], None], priority: int
) -> None:
    manager = waiting("a")
    join(manager, "b", priority=priority)
    assert manager.rebalance(anywhere(1)) == ["a"]
    leaves(manager, "a")
    assert manager.rebalance(anywhere(1)) == ["b"]
    assert manager.notified(None) == ["b"]
    manager.check()


def test_what_a_closed_consumer_says_later_changes_nothing() -> None:
    manager = waiting("a", "b")
    manager.remove("a")
    manager.set_interest("a", True)
    manager.served("a")
    manager.remove("a")
    assert manager.state_of("a") is State.REMOVED
    assert "a" not in manager
    assert list(manager.iter_all()) == ["b"]
    manager.check()


def test_served_does_not_wake_one_that_wants_nothing() -> None:
    manager = waiting("a")
    manager.set_interest("a", False)
    manager.served("a")
    assert manager.state_of("a") is State.NOT_INTERESTED


# Priorities ------------------------------------------------------------------------------------------------------


def test_a_low_one_is_told_only_of_what_the_high_ones_leave() -> None:
    manager = waiting("low")
    join(manager, "high", priority=5)
    join(manager, "higher", priority=9)
    assert manager.rebalance(anywhere(2)) == ["higher", "high"]
    assert manager.rebalance(anywhere(3)) == ["low"]


def test_when_a_high_one_gains_credit_the_low_one_is_back_at_the_head_and_its_late_pull_gets_nothing() -> None:
    manager = waiting("low", "low too")
    assert manager.rebalance(anywhere(1)) == ["low"]
    join(manager, "high", priority=1)
    assert manager.rebalance(anywhere(1)) == ["high"]
    assert manager.state_of("low") is State.INTERESTED
    assert manager.notified(None) == ["high"]
    assert manager.waits(None, 1)
    manager.served("high")
    manager.set_interest("high", False)
    assert manager.rebalance(anywhere(1)) == ["low"]


def test_those_told_are_listed_by_priority() -> None:
    manager = waiting("a", "b")
    join(manager, "high", priority=3)
    manager.rebalance(anywhere(3))
    assert manager.notified(None) == ["high", "a", "b"]
    assert list(manager.iter_notified()) == ["high", "a", "b"]


def test_waits_asks_for_this_priority_or_a_higher_one() -> None:
    manager = waiting("a")
    assert manager.waits(None, 0)
    assert manager.waits(None, -1)
    assert not manager.waits(None, 1)
    manager.set_interest("a", False)
    assert not manager.waits(None, 0)


# Filters ---------------------------------------------------------------------------------------------------------


def test_a_consumer_that_named_a_partition_is_told_of_nothing_else() -> None:
    manager = waiting()
    join(manager, "p", partition="p", priority=9)
    join(manager, "any")
    assert manager.rebalance(at(q=1)) == ["any"]
    assert manager.rebalance(at(q=0, p=1)) == ["p"]
    assert manager.notified("p") == ["p"]
    assert manager.notified(None) == []


def test_who_named_the_partition_is_told_before_an_equal_that_named_none() -> None:
    manager = waiting("any")
    join(manager, "p", partition="p")
    assert manager.rebalance(at(p=1)) == ["p"]
    assert manager.rebalance(at(p=2)) == ["any"]


def test_a_higher_one_without_a_filter_comes_before_one_that_named_the_partition() -> None:
    manager = waiting()
    join(manager, "p", partition="p")
    join(manager, "any", priority=1)
    assert manager.rebalance(at(p=1)) == ["any"]


def test_work_that_left_a_partition_takes_the_news_back_from_those_who_named_it() -> None:
    manager = waiting()
    join(manager, "p", partition="p")
    join(manager, "q", partition="q")
    assert manager.rebalance(at(p=1, q=1)) == ["p", "q"]
    assert manager.rebalance(at(q=1)) == []
    assert manager.next_notified("p") is None
    assert manager.next_notified("q") == "q"


def test_named_lists_the_partitions_that_somebody_waits_for() -> None:
    manager = waiting("any")
    join(manager, "p", partition="p")
    join(manager, "p too", partition="p", priority=4)
    manager.add("q", partition="q")
    assert manager.named == {"p"}
    manager.remove("p")
    assert manager.named == {"p"}
    manager.set_interest("p too", False)
    assert not manager.named


def test_waits_for_a_partition_counts_those_who_named_it_and_those_who_named_none() -> None:
    manager = waiting()
    join(manager, "p", partition="p", priority=2)
    assert manager.waits("p", 2)
    assert not manager.waits("p", 3)
    assert not manager.waits("q", 0)
    assert not manager.waits(None, 0)
    join(manager, "any", priority=1)
    assert manager.waits("q", 1)
    assert manager.waits(None, 1)


# Cap -------------------------------------------------------------------------------------------------------------


def test_no_more_than_the_cap_of_one_class_are_told_at_once() -> None:
    manager = waiting("a", "b", "c", cap=2)
    assert manager.rebalance(anywhere(9)) == ["a", "b"]
    manager.served("a")
    assert manager.rebalance(anywhere(8)) == ["c"]


def test_the_cap_does_not_let_a_lower_priority_pass() -> None:
    """What the cap keeps the high ones from being told of is still theirs."""
    manager = waiting("low", cap=2)
    for name in ("h1", "h2", "h3"):
        join(manager, name, priority=1)
    assert manager.rebalance(anywhere(3)) == ["h1", "h2"]
    assert manager.rebalance(anywhere(4)) == ["low"]


def test_a_cap_that_would_tell_nobody_is_refused() -> None:
    with pytest.raises(ValueError, match="cap"):
        ConsumerManager[str](0)


# Browsers --------------------------------------------------------------------------------------------------------


def test_a_browser_is_never_told_and_takes_nobodys_turn() -> None:
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


# Looking ---------------------------------------------------------------------------------------------------------


def test_counts_are_by_state() -> None:
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


def test_a_consumer_can_be_added_once() -> None:
    manager = waiting("a")
    with pytest.raises(ValueError, match="already"):
        manager.add("a")


def test_the_lists_may_change_while_somebody_walks_over_them() -> None:
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


def test_an_empty_manager_tells_nobody() -> None:
    manager = waiting()
    assert manager.rebalance(Work(3, {"p": 1})) == []
    assert manager.next_notified() is None
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

    class CountedDict(OrderedDict[int, None]):
        def __iter__(self) -> Iterator[int]:
            for key in super().__iter__():
                counter.taken += 1
                yield key

        def __reversed__(self) -> Iterator[int]:
            for key in super().__reversed__():
                counter.taken += 1
                yield key

    monkeypatch.setattr(consumers, "OrderedDict", CountedDict)
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


def test_a_message_takes_the_same_steps_with_ten_thousand_waiters_as_with_ten(steps: Steps) -> None:
    def one_message(manager: ConsumerManager[int]) -> int:
        return steps.of(lambda: a_message(manager, Work(1, {}), None))

    few, many = crowd(10, lambda _: None), crowd(10_000, lambda _: None)
    counted = {one_message(manager) for manager in (few, many) for _ in range(5)}
    assert len(counted) == 1, counted
    assert counted.pop() > 50, "the counter counts nothing"


def test_a_message_takes_the_same_steps_with_ten_thousand_named_partitions_as_with_ten(steps: Steps) -> None:
    def one_message(manager: ConsumerManager[int]) -> int:
        return steps.of(lambda: a_message(manager, Work(1, {"p7": 1}), "p7"))

    few, many = crowd(10, lambda name: f"p{name}"), crowd(10_000, lambda name: f"p{name}")
    counted = {one_message(manager) for manager in (few, many) for _ in range(5)}
    assert len(counted) == 1, counted


def test_a_walk_over_all_waiters_would_be_counted(steps: Steps) -> None:
    few, many = crowd(10, lambda _: None), crowd(1_000, lambda _: None)

    def walk(manager: ConsumerManager[int]) -> None:
        assert len(list(manager.iter_interested())) == len(manager)

    assert steps.of(lambda: walk(many)) > 50 * steps.of(lambda: walk(few))
