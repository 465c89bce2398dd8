"""The backoff: when to look next, by a clock that the test moves."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from hark.broker.backoff import Backoff
from hark.clock import MILLISECOND, FakeClock
from hark.settings import Fallback


def middle() -> float:
    """The random number at which the jitter is nothing."""
    return 0.5


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
    backoff = Backoff(Fallback(jitter=0), clock, middle)
    assert waits(backoff, clock, 8) == [100, 100, 100, 300, 900, 2700, 5000, 5000]


def test_whatever_comes_makes_looks_quick_again() -> None:
    clock = FakeClock()
    backoff = Backoff(Fallback(initial_ms=100, threshold=1, multiplier=2, max_ms=5000), clock, middle)
    assert waits(backoff, clock, 3) == [100, 200, 400]
    backoff.reset()
    assert waits(backoff, clock, 3) == [100, 200, 400]


def test_the_next_look_counts_from_the_last_one_and_not_from_when_it_was_due() -> None:
    clock = FakeClock()
    backoff = Backoff(Fallback(initial_ms=100), clock, middle)
    clock.advance(60)
    backoff.missed()
    assert backoff.due - clock.now() == 100 * MILLISECOND


@pytest.mark.parametrize(("threshold", "expected"), [(0, [300, 900]), (1, [100, 300]), (2, [100, 100, 300])])
def test_the_threshold_is_how_many_looks_come_quickly(threshold: int, expected: list[float]) -> None:
    clock = FakeClock()
    backoff = Backoff(Fallback(initial_ms=100, threshold=threshold, multiplier=3), clock, middle)
    assert waits(backoff, clock, len(expected)) == expected


def test_it_says_how_far_it_has_slowed_down() -> None:
    backoff = Backoff(Fallback(threshold=2), FakeClock(), middle)
    seen = []
    for _ in range(4):
        seen.append((backoff.at_start, backoff.slowed, backoff.interval_ms))
        backoff.missed()
    assert seen == [(True, False, 100), (False, False, 100), (False, True, 300), (False, True, 900)]


@pytest.mark.parametrize(
    ("random", "expected"),
    [(lambda: 0.0, [90, 90, 90, 270, 810]), (lambda: 1.0, [110, 110, 110, 330, 990])],
)
def test_the_jitter_is_a_tenth_of_the_interval(random: Callable[[], float], expected: list[float]) -> None:
    clock = FakeClock()
    assert waits(Backoff(Fallback(), clock, random), clock, 5) == expected


def test_those_who_look_seldom_meet_at_quarters_of_a_second_within_the_jitter_after_the_cap() -> None:
    clock = FakeClock()
    backoff = Backoff(Fallback(), clock, Random(1).random)
    waits(backoff, clock, 10)
    assert backoff.interval_ms == 5000
    slow = []
    for _ in range(200):
        slow += waits(backoff, clock, 1)
        assert clock.now() % (250 * MILLISECOND) == 0
    assert min(slow) == 4500
    assert max(slow) == 5500
    assert len(set(slow)) >= 5, "they stray: those who began together do not go on all together"


def test_the_share_of_the_jitter_is_a_setting() -> None:
    clock = FakeClock()
    assert waits(Backoff(Fallback(jitter=0), clock, lambda: 0.0), clock, 1) == [100]
    assert waits(Backoff(Fallback(jitter=0.5), clock, lambda: 0.0), clock, 1) == [50]


@pytest.mark.parametrize("multiplier", [1, 1000])
def test_a_very_long_wait_changes_nothing(multiplier: float) -> None:
    clock = FakeClock()
    backoff = Backoff(Fallback(multiplier=multiplier), clock, middle)
    for _ in range(10_000):
        backoff.missed()
    assert backoff.interval_ms == (100 if multiplier == 1 else 5000)
