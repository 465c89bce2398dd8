"""The memory for what was heard: nothing twice, little forgotten, never more than a bounded size."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hark.broker.peers.senders import MAX_SENDERS, WINDOW, Senders


@given(st.lists(st.integers(0, 3 * WINDOW) | st.integers(0, 2**64 - 1), max_size=200))
def test_a_sequence_is_new_at_most_once_and_surely_if_it_is_within_the_window(sequences: list[int]) -> None:
    senders = Senders()
    accepted: set[int] = set()
    for sequence in sequences:
        within = sequence > max(accepted, default=sequence) - WINDOW
        assert senders.is_new(b"a", sequence) == (within and sequence not in accepted)
        if within:
            accepted.add(sequence)


def test_what_comes_after_the_whole_window_has_passed_is_refused() -> None:
    senders = Senders()
    assert senders.is_new(b"a", WINDOW)
    assert senders.is_new(b"a", 1)
    assert not senders.is_new(b"a", 0)


def test_senders_do_not_disturb_each_other() -> None:
    senders = Senders()
    assert senders.is_new(b"a", 5)
    assert senders.is_new(b"b", 5)
    assert not senders.is_new(b"a", 5)


def test_the_sender_heard_of_longest_ago_is_forgotten() -> None:
    senders = Senders()
    for number in range(MAX_SENDERS):
        senders.is_new(b"%d" % number, 1)
    senders.is_new(b"0", 2)
    senders.is_new(b"one too many", 1)
    assert not senders.is_new(b"0", 1)
    assert senders.is_new(b"1", 1)
