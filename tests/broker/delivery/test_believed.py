"""What a subscription believes, where it is more than its consumers need."""

from __future__ import annotations

from hark.broker.delivery.believed import MOST_PIECES, Believed


def test_what_is_believed_is_bounded_and_then_everybody_has_to_look() -> None:
    believed = Believed(100)
    number = 0
    while believed.hear([("q", str(number))], "message"):
        number += 1
        assert number <= MOST_PIECES + 1
    assert not believed


def test_what_arrived_where_a_look_then_leased_is_not_believed_any_more() -> None:
    """It can be taken when that lease ends, and that is told."""
    believed = Believed(100)
    believed.hear([("q", "p")], "message")
    mark = believed.begin_look()
    believed.hear([("q", "p")], "message")
    assert believed.took(("q", "p"), 1, mark, leased=True)
    assert not believed


def test_what_was_freed_during_a_look_or_settled_by_it_at_once_is_still_believed() -> None:
    for news, leased in (("free", True), ("message", False), ("free", False)):
        believed = Believed(100)
        believed.hear([("q", "p")], "message")
        mark = believed.begin_look()
        believed.hear([("q", "p")], news)  # type: ignore[arg-type]  # Literals lose their type in a loop.
        believed.took(("q", "p"), 1, mark, leased=leased)
        assert believed
