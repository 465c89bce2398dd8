"""Polling strategies: their intervals, what is no strategy, and what polling costs (the table of seed 002)."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hark.errors import InvalidInput
from hark.polling import AT_A_SERVER, AWS_S3, SEED_CASES, Estimate, PollingStrategy, estimate


def test_the_default_is_adaptive_from_100_ms_to_5_s_and_fixed_polling_has_one_interval_of_half_a_second() -> None:
    adaptive, fixed = PollingStrategy.adaptive(), PollingStrategy.fixed()
    assert PollingStrategy() == adaptive
    assert adaptive == PollingStrategy.adaptive(min_interval_ms=100, max_interval_ms=5000, backoff_multiplier=2.0)
    assert (adaptive.initial_interval(), adaptive.longest_interval()) == (0.1, 5.0)
    assert fixed == PollingStrategy.fixed(interval_ms=500)
    assert fixed.initial_interval() == fixed.longest_interval() == 0.5


def test_intervals_below_a_millisecond_grow_too() -> None:
    strategy = PollingStrategy.adaptive(min_interval_ms=1, max_interval_ms=5, backoff_multiplier=1.5)
    first = strategy.next_interval(strategy.initial_interval(), False)
    assert first == pytest.approx(0.0015)
    assert strategy.next_interval(first, False) == pytest.approx(0.00225)
    assert PollingStrategy.fixed(interval_ms=0.25).initial_interval() == pytest.approx(0.00025)


@given(
    shortest=st.floats(0.01, 10_000),
    factor=st.floats(1, 1000),
    multiplier=st.floats(1.01, 100),
    looks=st.integers(1, 50),
)
def test_the_kth_idle_interval_is_min_times_mult_to_the_k(
    shortest: float, factor: float, multiplier: float, looks: int
) -> None:
    longest = shortest * factor
    strategy = PollingStrategy.adaptive(
        min_interval_ms=shortest, max_interval_ms=longest, backoff_multiplier=multiplier
    )
    interval = strategy.initial_interval()
    for _ in range(looks):
        interval = strategy.next_interval(interval, False)
    assert interval == pytest.approx(min(shortest * multiplier**looks, longest) / 1000)
    assert strategy.next_interval(interval, True) == strategy.initial_interval()


MILLISECONDS = "a number of milliseconds above 0"


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        *(("min_interval_ms", value, MILLISECONDS) for value in (0, -1, math.nan, "100", True)),
        ("max_interval_ms", math.inf, MILLISECONDS),
        *(("backoff_multiplier", value, "a number above 1") for value in (1, 0.5, math.inf, math.nan, None)),
        *(("interval_ms", value, MILLISECONDS) for value in (0, -0.1, math.nan, math.inf, "500", None)),
    ],
)
def test_a_strategy_that_makes_no_sense_is_refused_by_field(field: str, value: Any, expected: str) -> None:
    make = PollingStrategy.fixed if field == "interval_ms" else PollingStrategy.adaptive
    with pytest.raises(InvalidInput) as caught:
        make(**{field: value})
    assert caught.value.text == f"{field}: expected {expected}, got {value!r}"


def test_an_unknown_strategy_is_refused_and_the_shortest_may_be_as_long_as_the_longest_but_no_longer() -> None:
    name: Any = "adaptve"
    with pytest.raises(InvalidInput, match=r"^strategy: expected adaptive or fixed, got 'adaptve'$"):
        PollingStrategy(strategy=name)
    with pytest.raises(InvalidInput) as caught:
        PollingStrategy.adaptive(max_interval_ms=50)
    assert caught.value.text == "min_interval_ms: expected at most max_interval_ms, which is 50, got 100"
    assert PollingStrategy.adaptive(min_interval_ms=300, max_interval_ms=300).next_interval(0.3, False) == 0.3


def test_it_is_shown_as_it_is_made() -> None:
    assert repr(PollingStrategy.fixed(interval_ms=500)) == "PollingStrategy.fixed(interval_ms=500)"
    adaptive = PollingStrategy.adaptive(max_interval_ms=30_000)
    assert eval(repr(adaptive)) == adaptive


# What polling costs: the table of seed 002, as far as its own intervals bear it out ------------------------


@pytest.mark.parametrize(
    ("name", "polls", "dollars", "polls_of_the_seed"),
    [
        ("Fixed 500ms", 5_184_000, 2.0736, 5_200_000),
        ("Fixed 100ms", 25_920_000, 10.368, 26_000_000),
        ("Adaptive (always busy)", 25_920_000, 10.368, 26_000_000),
        # A poll every 5 s is not 300,000 a month, and half of 26 million is not 2.6 million.
        ("Adaptive (mostly idle)", 518_400, 0.2074, None),
        ("Adaptive (50% busy)", 13_219_200, 5.2877, None),
    ],
)
def test_lines_of_the_seed_as_far_as_its_intervals_bear_them_out(
    name: str, polls: int, dollars: float, polls_of_the_seed: int | None
) -> None:
    [case] = [case for case in SEED_CASES if case.name == name]
    assert estimate(case.strategy, case.busy_share) == Estimate(polls_per_month=polls, dollars_per_month=dollars)
    assert polls_of_the_seed is None or polls == pytest.approx(polls_of_the_seed, rel=0.01)


def test_what_polling_costs() -> None:
    """Less if idle rests are longer; a busy worker polls once for each batch; and polls that a server holds are few."""
    assert (AWS_S3.get_per_thousand, AWS_S3.put_per_thousand) == (0.0004, 0.005), "the prices of the contract"
    assert estimate(PollingStrategy.adaptive(max_interval_ms=30_000)).polls_per_month == 86_400
    busy = estimate(PollingStrategy.adaptive(), 1, batch_seconds=2)
    assert busy.polls_per_month == 30 * 86_400 // 2
    assert estimate(PollingStrategy.fixed(interval_ms=100), 1, batch_seconds=2) == busy
    idle = estimate(PollingStrategy.adaptive(), wait_seconds=30, price=AT_A_SERVER)
    assert idle == Estimate(polls_per_month=86_400, dollars_per_month=0)


@pytest.mark.parametrize(
    "wrong",
    [{"busy_share": 1.1}, {"busy_share": -0.1}, {"batch_seconds": 0}, {"batch_seconds": -1}, {"wait_seconds": -1}],
    ids=str,
)
def test_what_is_no_share_and_no_time_is_refused_by_field(wrong: dict[str, Any]) -> None:
    [field] = wrong
    with pytest.raises(InvalidInput, match=f"^{field}: expected a number"):
        estimate(PollingStrategy(), **wrong)
