"""What a call has to tell, put together: each queue, group and kind of news once."""

from __future__ import annotations

from hark.engine.hints import MANY, HintBook
from hark.model import Hint


def test_counts_of_one_partition_are_summed_up() -> None:
    book = HintBook()
    book.add("q", "g", ("a", "b"), "message", {"a": 2, "b": 1})
    book.add("q", "g", ("b",), "message", {"b": 3})
    assert book.hints() == [Hint("q", "g", ("a", "b"), "message", counts=(2, 4))]


def test_a_partition_without_a_count_is_one_look() -> None:
    book = HintBook()
    book.add("q", "g", ("a", "b"))
    book.add("q", "g", ("b", "c"), counts={"b": 2, "c": 1})
    book.add("q", "g", ("c",))
    assert book.hints() == [Hint("q", "g", ("a", "b", "c"), counts=(1, 2, 1))]


def test_without_any_count_there_are_none() -> None:
    book = HintBook()
    book.add("q", "g", ("a",))
    assert book.hints() == [Hint("q", "g", ("a",))]


def test_anywhere_has_no_counts() -> None:
    book = HintBook()
    book.add("q", "g", ("a",), counts={"a": 2})
    book.add("q", "g", None)
    book.add("q", "g", ("a",), counts={"a": 2})
    book.add("q", "many", map(str, range(MANY + 1)), counts={})
    assert book.hints() == [Hint("q", "g", None), Hint("q", "many", None)]


def test_an_arrival_has_the_counts_of_what_came() -> None:
    book = HintBook()
    book.arrived("q", ("a", "b"), ("g",), {"a": 1, "b": 7})
    book.arrived("alone", ("a", "b"), ("g",), {"a": 1, "b": 1})
    assert book.hints() == [
        Hint("q", None, ("a", "b"), "message", ("g",), counts=(1, 7)),
        Hint("alone", None, ("a", "b"), "message", ("g",)),
    ]
