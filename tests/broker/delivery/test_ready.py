"""What a subscription believes: pieces of work, and how many messages of shared groups are ready for how many."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hark.broker.delivery.consumers import Work
from hark.broker.delivery.ready import MOST_PARTITIONS, ReadyCounts, ReadyWork

P, OTHER = ("q", "p"), ("q", "other")


@pytest.fixture
def ready_work() -> ReadyWork:
    return ReadyWork(100)


@pytest.mark.parametrize("counts", [False, True])
def test_what_is_expected_is_bounded_and_then_everyone_has_to_look(ready_work: ReadyWork, counts: bool) -> None:
    def add(key: tuple[str, str]) -> bool:
        return ready_work.add_counts([(key, 1)]) if counts else ready_work.add([key], "message")

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
    """That can be taken when the lease ends, and that is told."""
    ready_work.add([P], "message")
    mark = ready_work.begin_look()
    ready_work.add([P], kind)
    assert ready_work.took(P, 1, mark, leased=leased)
    assert bool(ready_work) == (kind == "free" or not leased)


# Shared groups -----------------------------------------------------------------------------------------------


def work(ready_work: ReadyWork, *named: str) -> Work:
    """What there is to do."""
    return ready_work.work("q", named)


def test_messages_add_up_and_are_taken_one_by_one(ready_work: ReadyWork) -> None:
    ready_work.add_counts([(P, 3), (OTHER, 1)])
    ready_work.add_counts([(P, 2)])
    assert work(ready_work, "p") == Work(6, {"p": 5})
    mark = ready_work.begin_look()
    assert ready_work.took(P, 4, mark, leased=True)
    assert work(ready_work, "p", "other") == Work(2, {"p": 1, "other": 1})
    assert ready_work.took(P, 1, mark, leased=True)
    assert not ready_work.took(P, 1, mark, leased=True)
    assert work(ready_work, "p") == Work(1, {})


def test_as_many_are_notified_as_it_takes_and_the_most_modest_decides(ready_work: ReadyWork) -> None:
    ready_work.set_batch(10)
    ready_work.add_counts([(P, 30), (OTHER, 31)])
    assert work(ready_work).total == 3 + 4
    ready_work.set_batch(1)
    assert work(ready_work).total == 61
    ready_work.set_batch(10)  # Counts from when nothing is believed.
    assert work(ready_work).total == 61
    ready_work.disprove(None, None, ready_work.begin_look())
    assert not ready_work
    ready_work.add_counts([(P, 30)])
    assert work(ready_work).total == 3


def test_what_was_received_during_a_look_is_not_taken_or_disproved_by_it(ready_work: ReadyWork) -> None:
    """It may have taken others, and whoever is told of too much only looks in vain."""
    ready_work.add_counts([(P, 1)])
    mark = ready_work.begin_look()
    ready_work.add_counts([(P, 5)])
    ready_work.took(P, 3, mark, leased=True)
    assert work(ready_work).total == 5
    ready_work.disprove(None, None, mark)
    assert work(ready_work).total == 5
    ready_work.disprove("p", "q", ready_work.begin_look())
    assert not ready_work


def test_a_look_at_one_partition_says_nothing_of_another_and_a_request_to_look_is_no_more_work(
    ready_work: ReadyWork,
) -> None:
    ready_work.add_counts([(P, 2), (OTHER, 1)])
    ready_work.look("p")
    assert work(ready_work, "p", "other") == Work(3, {"p": 2, "other": 1})
    ready_work.disprove("p", "q", ready_work.begin_look())
    assert work(ready_work, "p", "other") == Work(1, {"other": 1})


@given(st.lists(st.tuples(st.sampled_from(["hear", "look", "took", "empty"]), st.integers(1, 9)), max_size=60))
def test_never_fewer_are_expected_than_were_received_and_neither_taken_nor_disproved(
    script: list[tuple[str, int]],
) -> None:
    """Whatever looks overlap; and nothing is left when the last one found nothing."""
    counts, mark, looks = ReadyCounts(), 0, []
    noted: list[list[int]] = []
    for step, number in script:
        if step == "hear":
            counts.add(P, number, mark)
            noted.append([mark, number])
        elif step == "look":
            looks.append(mark)
            mark += 1
        elif looks:
            began = looks.pop(number % len(looks))
            if step == "took":
                counts.took(P, number, began)
            else:
                counts.disprove(began)
            left = number
            for entry in noted:
                if entry[0] <= began:
                    taken = entry[1] if step == "empty" else min(left, entry[1])
                    entry[1] -= taken
                    left -= taken
        assert counts.looks == counts.looks_at(P) >= sum(entry[1] for entry in noted)
    counts.disprove(mark)
    assert (len(counts), counts.looks) == (0, 0)
