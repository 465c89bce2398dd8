"""Gathering: what is about the same thing is told once."""

from __future__ import annotations

from hark.broker.peers.gathering import MAX_PARTITIONS, Gathering
from hark.model import Hint


def gathered(*hints: Hint) -> list[Hint]:
    """What remains of hints."""
    gathering = Gathering()
    for hint in hints:
        gathering.add([hint])
    found = gathering.take()
    assert not gathering
    assert gathering.take() == []
    return found


def test_partitions_and_leases_of_the_same_queue_and_group_are_joined() -> None:
    assert gathered(
        Hint("q", "g", ("a", "b"), ended=("1",)),
        Hint("q", "g", ("b", "c"), ended=("2", "1")),
        Hint("q", "other", ("a",)),
        Hint("other", "g", ("a",)),
        Hint("q", None, ("a",)),
    ) == [
        Hint("q", "g", ("a", "b", "c"), ended=("1", "2")),
        Hint("q", "other", ("a",)),
        Hint("other", "g", ("a",)),
        Hint("q", None, ("a",)),
    ]


def test_counts_of_the_same_partition_are_summed_up() -> None:
    assert gathered(
        Hint("q", "g", ("a", "b"), counts=(2, 1)),
        Hint("q", "g", ("b", "c"), counts=(5, 1)),
        Hint("q", "g", ("a", "d")),
    ) == [Hint("q", "g", ("a", "b", "c", "d"), counts=(2, 6, 1, 1))]


def test_anywhere_has_no_counts() -> None:
    assert gathered(Hint("q", "g", ("a",), counts=(2,)), Hint("q", "g", None)) == [Hint("q", "g", None)]


def test_arrivals_and_other_news_are_kept_apart() -> None:
    hints = [Hint("q", None, ("a",), "message"), Hint("q", None, ("b",), "free")]
    assert gathered(*hints) == hints


def test_anywhere_covers_every_place() -> None:
    assert gathered(Hint("q", "g", ("a",)), Hint("q", "g", None, ended=("1",)), Hint("q", "g", ("b",))) == [
        Hint("q", "g", None, ended=("1",))
    ]


def test_too_many_places_are_anywhere() -> None:
    names = [f"p{number}" for number in range(MAX_PARTITIONS + 1)]
    assert gathered(*(Hint("q", "g", (name,)) for name in names[:-1])) == [Hint("q", "g", tuple(names[:-1]))]
    assert gathered(*(Hint("q", "g", (name,)) for name in names)) == [Hint("q", "g", None)]


def test_arrivals_for_one_group_stay_here_because_the_general_hint_tells_of_them() -> None:
    general = Hint("q", None, ("a",), "message", told=("g",))
    assert gathered(general, Hint("q", "g", ("a",), "message")) == [Hint("q", None, ("a",), "message")]
