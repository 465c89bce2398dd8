"""What a message costs the consumer manager: the same however many wait. Steps are counted, not timed."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING

import pytest

from hark.broker.delivery import consumers
from hark.broker.delivery.consumers import ConsumerManager, Work

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
