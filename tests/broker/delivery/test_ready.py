"""What a subscription believes: pieces of work, and how many messages of shared groups are ready for how many."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hark.broker.delivery.consumers import MOST_PARTITIONS, ReadyWork, Work

P, OTHER = ("q", "p"), ("q", "other")


@pytest.fixture
def ready_work() -> ReadyWork:
    return ReadyWork(100)


@pytest.mark.parametrize("counts", [False, True])
def test_what_is_expected_is_bounded_and_then_everyone_has_to_look(ready_work: ReadyWork, counts: bool) -> None:
    def add(key: tuple[str, str]) -> bool:
        return ready_work.add([key], "message", [1] if counts else ())

    number = 0
    while add(("q", str(number))):
        number += 1
        assert number <= MOST_PARTITIONS + 1
    assert not ready_work


@pytest.mark.parametrize("kind", ["message", "free"])
@pytest.mark.parametrize("leased", [True, False])
def test_what_is_received_during_a_look_is_expected_but_for_what_arrived_where_it_leased(
    ready_work: ReadyWork, kind: Literal["message", "free"], leased: bool
) -> None:
    """The work becomes ready when the lease ends, which has a notification of its own."""
    ready_work.add([P], "message")
    mark = ready_work.begin_look()
    ready_work.add([P], kind)
    assert ready_work.took(P, 1, mark, leased=leased)
    assert bool(ready_work) == (kind == "free" or not leased)


def test_an_empty_look_disproves_what_was_received_before_it_and_not_what_came_meanwhile(ready_work: ReadyWork) -> None:
    ready_work.add([("q", "old")], "message")
    mark = ready_work.begin_look()
    ready_work.add([("q", "new")], "message")
    ready_work.disprove(None, "q", mark)
    assert ready_work.work("q", ["old", "new"]) == (1, {"new": 1})
    ready_work.disprove(None, "q", ready_work.begin_look())
    assert not ready_work


# Shared groups -----------------------------------------------------------------------------------------------


def work(ready_work: ReadyWork, *named: str) -> Work:
    """What there is to do."""
    return ready_work.work("q", named)


def test_messages_add_up_and_are_taken_one_by_one(ready_work: ReadyWork) -> None:
    ready_work.add([P, OTHER], "message", [3, 1])
    ready_work.add([P], "message", [2])
    assert work(ready_work, "p") == Work(6, {"p": 5})
    mark = ready_work.begin_look()
    assert ready_work.took(P, 4, mark, leased=True)
    assert work(ready_work, "p", "other") == Work(2, {"p": 1, "other": 1})
    assert ready_work.took(P, 1, mark, leased=True)
    assert not ready_work.took(P, 1, mark, leased=True)
    assert work(ready_work, "p") == Work(1, {})


def test_as_many_are_notified_as_it_takes_and_the_most_modest_decides(ready_work: ReadyWork) -> None:
    ready_work.set_batch(10)
    ready_work.add([P, OTHER], "message", [30, 31])
    assert work(ready_work).total == 3 + 4
    ready_work.set_batch(1)
    assert work(ready_work).total == 61
    ready_work.set_batch(10)  # Takes effect when no work is expected.
    assert work(ready_work).total == 61
    ready_work.disprove(None, None, ready_work.begin_look())
    assert not ready_work
    ready_work.add([P], "message", [30])
    assert work(ready_work).total == 3


def test_what_was_received_during_a_look_is_not_taken_or_disproved_by_it(ready_work: ReadyWork) -> None:
    """The pop may have received other messages, and a needless notification costs only an empty pop."""
    ready_work.add([P], "message", [1])
    mark = ready_work.begin_look()
    ready_work.add([P], "message", [5])
    ready_work.took(P, 3, mark, leased=True)
    assert work(ready_work).total == 5
    ready_work.disprove(None, None, mark)
    assert work(ready_work).total == 5
    ready_work.disprove("p", "q", ready_work.begin_look())
    assert not ready_work


def test_a_look_at_one_partition_says_nothing_of_another_and_a_request_to_look_is_no_more_work(
    ready_work: ReadyWork,
) -> None:
    ready_work.add([P, OTHER], "message", [2, 1])
    ready_work.look("p")
    assert work(ready_work, "p", "other") == Work(3, {"p": 2, "other": 1})
    ready_work.disprove("p", "q", ready_work.begin_look())
    assert work(ready_work, "p", "other") == Work(1, {"other": 1})


@given(st.lists(st.tuples(st.sampled_from(["hear", "look", "took", "empty"]), st.integers(1, 9)), max_size=60))
def test_never_fewer_are_expected_than_were_received_and_neither_taken_nor_disproved(
    script: list[tuple[str, int]],
) -> None:
    """Whatever looks overlap; and nothing is left when the last one found nothing."""
    ready, mark, looks = ReadyWork(100), 0, []
    noted: list[list[int]] = []
    for step, number in script:
        if step == "hear":
            ready.add([P], "message", [number])
            noted.append([mark, number])
        elif step == "look":
            looks.append(ready.begin_look())
            mark += 1
        elif looks:
            began = looks.pop(number % len(looks))
            if step == "took":
                ready.took(P, number, began, leased=True)
            else:
                ready.disprove(None, "q", began)
            left = number
            for entry in noted:
                if entry[0] <= began:
                    taken = entry[1] if step == "empty" else min(left, entry[1])
                    entry[1] -= taken
                    left -= taken
        total, at = work(ready, "p")
        assert total == at.get("p", 0) >= sum(entry[1] for entry in noted)
    ready.disprove(None, "q", ready.begin_look())
    assert not ready
    assert work(ready).total == 0
