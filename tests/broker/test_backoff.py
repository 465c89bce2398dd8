"""The backoff: when to look next, by a clock that the test moves."""

from __future__ import annotations

import pytest

from hark.broker.backoff import Backoff
from hark.clock import MILLISECOND, FakeClock
from hark.settings import Fallback


def waits(backoff: Backoff, clock: FakeClock, number: int) -> list[float]:
    """The milliseconds before each of the next looks, if none of them finds anything."""
    found = []
    for _ in range(number):
        wait = (backoff.due - clock.now()) / MILLISECOND
        found.append(wait)
        clock.advance(wait / 1000)
        backoff.missed()
    return found


def test_the_first_looks_come_quickly_then_fewer_and_fewer_down_to_the_longest_wait() -> None:
    clock = FakeClock()
    backoff = Backoff(Fallback(initial_ms=100, threshold=3, multiplier=3, max_ms=2000), clock)
    assert waits(backoff, clock, 8) == [100, 100, 100, 1200, 1500, 1800, 2000, 2000]


def test_whatever_comes_makes_looks_quick_again() -> None:
    clock = FakeClock()
    backoff = Backoff(Fallback(initial_ms=100, threshold=1, multiplier=2, max_ms=5000), clock)
    assert waits(backoff, clock, 3) == [100, 400, 600]
    backoff.reset()
    assert waits(backoff, clock, 3) == [100, 400, 600]


def test_the_next_look_counts_from_the_last_one_and_not_from_when_it_was_due() -> None:
    clock = FakeClock()
    backoff = Backoff(Fallback(initial_ms=100), clock)
    clock.advance(60)
    backoff.missed()
    assert backoff.due - clock.now() == 100 * MILLISECOND


@pytest.mark.parametrize(("threshold", "expected"), [(0, [300, 600]), (2, [100, 100, 900])])
def test_the_threshold_is_how_many_looks_come_quickly(threshold: int, expected: list[float]) -> None:
    clock = FakeClock()
    backoff = Backoff(Fallback(initial_ms=100, threshold=threshold, multiplier=3), clock)
    assert waits(backoff, clock, len(expected)) == expected
