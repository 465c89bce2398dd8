"""Retry policies, and the text that a failure leaves."""

from __future__ import annotations

from datetime import timedelta

import pytest

from hark.errors import InvalidInput
from hark.worker import Retry, RetryPolicy
from hark.worker.outcome import MAX_TEXT, TimedOut, text_of


def test_exponential_delays_grow_up_to_the_longest() -> None:
    policy = RetryPolicy.exponential(max_retries=5, first=1, factor=3, max_delay=20, jitter=0)
    assert policy.delays == (1, 3, 9, 20, 20)
    assert [policy.delay(attempt) for attempt in (1, 2, 5, 9)] == [1, 3, 20, 20]


def test_jitter_stays_within_its_share() -> None:
    policy = RetryPolicy.exponential(first=10, jitter=0.2)
    assert policy.delay(1, random=lambda: 0.0) == pytest.approx(8)
    assert policy.delay(1, random=lambda: 1.0) == pytest.approx(12)
    assert policy.jittered(random=lambda: 0.5) == policy.delays


def test_a_schedule_is_taken_as_it_is() -> None:
    policy = RetryPolicy.schedule([1, timedelta(minutes=1)])
    assert policy.delays == (1.0, 60.0)
    assert policy.delay(2) == 60


def test_never_has_no_retry() -> None:
    assert RetryPolicy.never().delays == ()
    assert RetryPolicy.never().delay(1) is None


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: RetryPolicy.exponential(max_retries=101), "max_retries"),
        (lambda: RetryPolicy.exponential(first=-1), "first"),
        (lambda: RetryPolicy.exponential(factor=0.5), "factor"),
        (lambda: RetryPolicy.exponential(factor=float("nan")), "factor"),
        (lambda: RetryPolicy.exponential(jitter=2), "jitter"),
        (lambda: RetryPolicy.schedule([1, -1]), r"delays\[1\]"),
        (lambda: RetryPolicy.schedule([0] * 101), "101"),
        (lambda: RetryPolicy((1.0, -1.0)), r"delays\[1\]"),
        (lambda: RetryPolicy((), jitter=-1), "jitter"),
        (lambda: Retry(after=-1), r"Retry\(after\)"),
    ],
    ids=["retries", "first", "factor", "nan", "jitter", "delay", "many", "bare-delay", "bare-jitter", "after"],
)
def test_what_makes_no_sense_is_refused_by_name(make: object, text: str) -> None:
    assert callable(make)
    with pytest.raises(InvalidInput, match=text):
        make()


def fail(depth: int) -> None:
    """Fails deep inside."""
    if depth:
        fail(depth - 1)
    raise ValueError("the last word")


def test_the_text_of_a_failure_has_its_type_its_message_and_where_it_was() -> None:
    with pytest.raises(ValueError, match="the last word") as caught:
        fail(0)
    text = text_of(caught.value)
    assert text.startswith("ValueError: the last word\nTraceback")
    assert "in fail" in text


def test_of_a_long_traceback_the_end_is_kept() -> None:
    error = ValueError("x" * 50_000)
    try:
        raise error
    except ValueError:
        text = text_of(error)
    assert len(text) <= MAX_TEXT
    assert text.startswith("ValueError: xxx")
    assert text.endswith("xxx")
    assert "\n...\n" in text


def test_an_error_without_a_text_still_has_its_type() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert text_of(Mute()).startswith("Mute: (its text can't be had")


def test_a_time_limit_says_how_long_it_was() -> None:
    assert text_of(TimedOut(5)) == "timed out after 5 s"
