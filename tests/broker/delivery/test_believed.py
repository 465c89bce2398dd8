"""What a subscription believes: pieces of work, and how many messages of shared groups are ready for how many."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hark.broker.delivery.consumers import MOST_PIECES, ReadyWork, Work

P, OTHER = ("q", "p"), ("q", "other")


@pytest.fixture
def believed() -> ReadyWork:
    return ReadyWork(100)


@pytest.mark.parametrize("counted", [False, True])
def test_what_is_believed_is_bounded_and_then_everybody_has_to_look(believed: ReadyWork, counted: bool) -> None:
    def hear(piece: tuple[str, str]) -> bool:
        return believed.hear([piece], "message", [1] if counted else ())

    number = 0
    while hear(("q", str(number))):
        number += 1
        assert number <= MOST_PIECES + 1
    assert not believed


@pytest.mark.parametrize("news", ["message", "free"])
@pytest.mark.parametrize("leased", [True, False])
def test_what_is_heard_during_a_look_is_believed_but_for_what_arrived_where_it_leased(
    believed: ReadyWork, news: Literal["message", "free"], leased: bool
) -> None:
    """That can be taken when the lease ends, and that is told."""
    believed.hear([P], "message")
    mark = believed.begin_look()
    believed.hear([P], news)
    assert believed.took(P, 1, mark, leased=leased)
    assert bool(believed) == (news == "free" or not leased)


def test_an_empty_look_disproves_what_was_heard_before_it_and_not_what_came_meanwhile(believed: ReadyWork) -> None:
    believed.hear([("q", "old")], "message")
    mark = believed.begin_look()
    believed.hear([("q", "new")], "message")
    believed.disprove(None, "q", mark)
    assert believed.work("q", ["old", "new"]) == (1, {"new": 1})
    believed.disprove(None, "q", believed.begin_look())
    assert not believed


# Shared groups -----------------------------------------------------------------------------------------------


def work(believed: ReadyWork, *named: str) -> Work:
    """What there is to do."""
    return believed.work("q", named)


def test_messages_add_up_and_are_taken_one_by_one(believed: ReadyWork) -> None:
    believed.hear([P, OTHER], "message", [3, 1])
    believed.hear([P], "message", [2])
    assert work(believed, "p") == Work(6, {"p": 5})
    mark = believed.begin_look()
    assert believed.took(P, 4, mark, leased=True)
    assert work(believed, "p", "other") == Work(2, {"p": 1, "other": 1})
    assert believed.took(P, 1, mark, leased=True)
    assert not believed.took(P, 1, mark, leased=True)
    assert work(believed, "p") == Work(1, {})


def test_as_many_are_told_as_it_takes_and_the_most_modest_decides(believed: ReadyWork) -> None:
    believed.set_batch(10)
    believed.hear([P, OTHER], "message", [30, 31])
    assert work(believed).total == 3 + 4
    believed.set_batch(1)
    assert work(believed).total == 61
    believed.set_batch(10)  # Counts from when nothing is believed.
    assert work(believed).total == 61
    believed.disprove(None, None, believed.begin_look())
    assert not believed
    believed.hear([P], "message", [30])
    assert work(believed).total == 3


def test_what_was_heard_during_a_look_is_not_taken_or_disproved_by_it(believed: ReadyWork) -> None:
    """It may have taken others, and whoever is told of too much only looks in vain."""
    believed.hear([P], "message", [1])
    mark = believed.begin_look()
    believed.hear([P], "message", [5])
    believed.took(P, 3, mark, leased=True)
    assert work(believed).total == 5
    believed.disprove(None, None, mark)
    assert work(believed).total == 5
    believed.disprove("p", "q", believed.begin_look())
    assert not believed


def test_a_look_at_one_partition_says_nothing_of_another_and_a_wish_to_look_is_no_more_work(
    believed: ReadyWork,
) -> None:
    believed.hear([P, OTHER], "message", [2, 1])
    believed.look("p")
    assert work(believed, "p", "other") == Work(3, {"p": 2, "other": 1})
    believed.disprove("p", "q", believed.begin_look())
    assert work(believed, "p", "other") == Work(1, {"other": 1})


@given(st.lists(st.tuples(st.sampled_from(["hear", "look", "took", "empty"]), st.integers(1, 9)), max_size=60))
def test_never_fewer_are_believed_than_were_heard_of_and_neither_taken_nor_disproved(
    script: list[tuple[str, int]],
) -> None:
    """Whatever looks overlap; and nothing is left when the last one found nothing."""
    ready, mark, looks = ReadyWork(100), 0, []
    heard: list[list[int]] = []
    for step, number in script:
        if step == "hear":
            ready.hear([P], "message", [number])
            heard.append([mark, number])
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
            for entry in heard:
                if entry[0] <= began:
                    taken = entry[1] if step == "empty" else min(left, entry[1])
                    entry[1] -= taken
                    left -= taken
        total, at = work(ready, "p")
        assert total == at.get("p", 0) >= sum(entry[1] for entry in heard)
    ready.disprove(None, "q", ready.begin_look())
    assert not ready
    assert work(ready).total == 0
