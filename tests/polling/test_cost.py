"""What polling costs: the table of seed 002, as far as its own intervals bear it out."""

from __future__ import annotations

from typing import Any

import pytest

from hark.errors import InvalidInput
from hark.polling import PollingStrategy
from hark.polling.cost import AT_A_SERVER, AWS_S3, SEED_CASES, Estimate, estimate


def test_the_prices_are_those_of_the_contract() -> None:
    assert (AWS_S3.get_per_thousand, AWS_S3.put_per_thousand) == (0.0004, 0.005)


@pytest.mark.parametrize(
    ("name", "polls", "dollars", "polls_of_the_seed"),
    [
        ("Fixed 500ms", 5_184_000, 2.0736, 5_200_000),
        ("Fixed 100ms", 25_920_000, 10.368, 26_000_000),
        ("Adaptive (always busy)", 25_920_000, 10.368, 26_000_000),
    ],
)
def test_lines_of_the_seed_that_its_intervals_bear_out(
    name: str, polls: int, dollars: float, polls_of_the_seed: int
) -> None:
    [case] = [case for case in SEED_CASES if case.name == name]
    assert estimate(case.strategy, case.busy_share) == Estimate(polls_per_month=polls, dollars_per_month=dollars)
    assert polls == pytest.approx(polls_of_the_seed, rel=0.01)


@pytest.mark.parametrize(
    ("name", "polls", "dollars"),
    [("Adaptive (mostly idle)", 518_400, 0.2074), ("Adaptive (50% busy)", 13_219_200, 5.2877)],
)
def test_lines_of_the_seed_that_are_counted_anew(name: str, polls: int, dollars: float) -> None:
    """A poll every 5 s is not 300,000 a month, and half of 26 million is not 2.6 million."""
    [case] = [case for case in SEED_CASES if case.name == name]
    assert estimate(case.strategy, case.busy_share) == Estimate(polls_per_month=polls, dollars_per_month=dollars)


def test_a_longer_rest_costs_less_when_idle() -> None:
    assert estimate(PollingStrategy.adaptive(max_interval_ms=30_000)).polls_per_month == 86_400


def test_a_busy_worker_polls_once_for_each_batch() -> None:
    busy = estimate(PollingStrategy.adaptive(), 1, batch_seconds=2)
    assert busy.polls_per_month == 30 * 86_400 // 2
    assert estimate(PollingStrategy.fixed(interval_ms=100), 1, batch_seconds=2) == busy


def test_a_server_that_holds_polls_makes_them_few_and_free() -> None:
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
