"""How many messages of shared groups are believed ready, and how many consumers that is work for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hark.broker.delivery.believed import MOST_PIECES, Believed
from hark.broker.delivery.consumers import Work
from hark.broker.delivery.counted import Counted

P, OTHER = ("q", "p"), ("q", "other")


def work(believed: Believed, *named: str) -> Work:
    """What there is to do."""
    return believed.work("q", named)


def test_messages_add_up_and_are_taken_one_by_one() -> None:
    believed = Believed(100)
    believed.hear_counted([(P, 3), (OTHER, 1)])
    believed.hear_counted([(P, 2)])
    assert work(believed, "p") == Work(6, {"p": 5})
    mark = believed.begin_look()
    assert believed.took(P, 4, mark, leased=True)
    assert work(believed, "p", "other") == Work(2, {"p": 1, "other": 1})
    assert believed.took(P, 1, mark, leased=True)
    assert not believed.took(P, 1, mark, leased=True)
    assert work(believed, "p") == Work(1, {})


def test_as_many_are_told_as_it_takes_and_the_most_modest_decides() -> None:
    believed = Believed(100)
    believed.set_batch(10)
    believed.hear_counted([(P, 30), (OTHER, 31)])
    assert work(believed).total == 3 + 4
    believed.set_batch(1)
    assert work(believed).total == 61
    believed.set_batch(10)  # Counts from when nothing is believed.
    assert work(believed).total == 61
    believed.disprove(None, None, believed.begin_look())
    assert not believed
    believed.hear_counted([(P, 30)])
    assert work(believed).total == 3


def test_what_was_heard_during_a_look_is_not_taken_or_disproved_by_it() -> None:
    """It may have taken others, and whoever is told of too much only looks in vain."""
    believed = Believed(100)
    believed.hear_counted([(P, 1)])
    mark = believed.begin_look()
    believed.hear_counted([(P, 5)])
    believed.took(P, 3, mark, leased=True)
    assert work(believed).total == 5
    believed.disprove(None, None, mark)
    assert work(believed).total == 5
    believed.disprove("p", "q", believed.begin_look())
    assert not believed


def test_a_look_at_one_partition_says_nothing_of_another() -> None:
    believed = Believed(100)
    believed.hear_counted([(P, 1), (OTHER, 1)])
    believed.disprove("p", "q", believed.begin_look())
    assert work(believed, "p", "other") == Work(1, {"other": 1})


def test_a_wish_to_look_at_a_partition_with_messages_is_no_more_work() -> None:
    believed = Believed(100)
    believed.hear_counted([(P, 2)])
    believed.look("p")
    assert work(believed, "p") == Work(2, {"p": 2})


def test_what_is_counted_is_bounded_and_then_everybody_has_to_look() -> None:
    believed = Believed(100)
    number = 0
    while believed.hear_counted([(("q", str(number)), 1)]):
        number += 1
        assert number <= MOST_PIECES + 1
    assert not believed


@given(st.lists(st.tuples(st.sampled_from(["hear", "look", "took", "empty"]), st.integers(1, 9)), max_size=60))
def test_never_fewer_are_believed_than_were_heard_of_and_neither_taken_nor_disproved(
    script: list[tuple[str, int]],
) -> None:
    """Whatever looks overlap; and nothing is left when the last one found nothing."""
    counted, mark, looks = Counted(), 0, []
    heard: list[list[int]] = []
    for step, number in script:
        if step == "hear":
            counted.hear(P, number, mark)
            heard.append([mark, number])
        elif step == "look":
            looks.append(mark)
            mark += 1
        elif looks:
            began = looks.pop(number % len(looks))
            if step == "took":
                counted.took(P, number, began)
            else:
                counted.disprove(began)
            left = number
            for entry in heard:
                if entry[0] <= began:
                    taken = entry[1] if step == "empty" else min(left, entry[1])
                    entry[1] -= taken
                    left -= taken
        assert counted.looks == counted.looks_at(P) >= sum(entry[1] for entry in heard)
    counted.disprove(mark)
    assert (len(counted), counted.looks) == (0, 0)
