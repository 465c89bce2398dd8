"""What a run does: options of the program, the environment, hark.toml, the default, in this order; retry policies."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from hark.errors import InvalidInput
from hark.polling import PollingStrategy
from hark.worker import Retry, RetryPolicy, Worker, WorkerRunOptions
from hark.worker.retrying import MAX_TEXT, TimedOut, text_of
from hark.worker.worker import plan_for

FILE = """
[worker]
concurrency = 3
grace_seconds = 5
lease_seconds = 7
health_port = 8123
[worker.polling]
max_interval_ms = 9000
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment that names a file of settings."""
    file = tmp_path / "hark.toml"
    file.write_text(FILE)
    return {"HARK_CONFIG": str(file)}


def test_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plan = plan_for(WorkerRunOptions(), environment={})
    assert (plan.concurrency, plan.lease_seconds, plan.grace_seconds, plan.health) == (10, 30, 30, None)
    assert plan.polling == PollingStrategy.adaptive()
    assert (plan.wait, plan.burst, plan.handle_signals, plan.timeout_ms) == (True, False, True, 30_000)
    assert not plan_for(WorkerRunOptions(burst=True), environment={}).wait


def test_the_file_counts_over_the_default(environment: dict[str, str]) -> None:
    plan = plan_for(WorkerRunOptions(), environment=environment)
    assert (plan.concurrency, plan.lease_seconds, plan.grace_seconds) == (3, 7, 5)
    assert plan.health == ("127.0.0.1", 8123)
    assert plan.polling == PollingStrategy.adaptive(max_interval_ms=9000)


def test_the_environment_counts_over_the_file(environment: dict[str, str]) -> None:
    variables = environment | {
        "HARK_WORKER_CONCURRENCY": "4",
        "HARK_WORKER_GRACE_SECONDS": "6",
        "HARK_POLLING_MIN_INTERVAL_MS": "200",
    }
    plan = plan_for(WorkerRunOptions(), environment=variables)
    assert (plan.concurrency, plan.grace_seconds, plan.lease_seconds) == (4, 6, 7)
    assert plan.polling == PollingStrategy.adaptive(min_interval_ms=200, max_interval_ms=9000)


def test_what_the_program_says_counts_over_all(environment: dict[str, str]) -> None:
    variables = environment | {"HARK_WORKER_CONCURRENCY": "4", "HARK_POLLING_STRATEGY": "adaptive"}
    fixed = PollingStrategy.fixed(interval_ms=50)
    plan = plan_for(WorkerRunOptions(polling=fixed, grace_seconds=0), concurrency=5, lease=9, environment=variables)
    assert (plan.concurrency, plan.lease_seconds, plan.grace_seconds, plan.polling) == (5, 9, 0, fixed)
    plan = plan_for(WorkerRunOptions(concurrency=6, health=("", 1)), concurrency=5, environment=variables)
    assert (plan.concurrency, plan.health) == (6, ("", 1))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"concurrency": 0}, "concurrency: expected an integer from 1"),
        ({"grace_seconds": -1}, "grace_seconds: expected 0"),
        ({"timeout_ms": 600_001}, "timeout_ms: expected 0"),
        ({"polling": "adaptive"}, r"polling: expected a hark.PollingStrategy, got 'adaptive'"),
        ({"health": 9000}, "health: expected an address and a port such as .*, got 9000"),
        ({"health": ("127.0.0.1", 65_536)}, "health: expected an address and a port"),
    ],
    ids=["concurrency", "grace", "timeout", "polling", "health", "port"],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        WorkerRunOptions(**options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"queue": ""}, "queue: must not be empty"),
        ({"queue": "q", "concurrency": 0}, "concurrency"),
        ({"queue": "q", "lease": 0}, "lease: expected an integer of at least 1"),
        ({"queue": "q", "lease": 1.5}, "lease: expected an integer of at least 1"),
    ],
    ids=["queue", "concurrency", "lease", "fraction"],
)
def test_workers_that_make_no_sense_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        Worker(**options)


# Retry policies, and the text that a failure leaves ------------------------------------------------------------


def test_delays_grow_up_to_the_longest_or_are_those_of_the_schedule() -> None:
    policy = RetryPolicy.exponential(max_retries=5, first=1, factor=3, max_delay=20, jitter=0)
    assert policy.delays == (1, 3, 9, 20, 20)
    assert [policy.delay(attempt) for attempt in (1, 2, 5, 9)] == [1, 3, 20, 20]
    policy = RetryPolicy.exponential(first=10, jitter=0.2)
    assert policy.delay(1, random=lambda: 0.0) == pytest.approx(8)
    assert policy.delay(1, random=lambda: 1.0) == pytest.approx(12)
    assert policy.jittered(random=lambda: 0.5) == policy.delays
    policy = RetryPolicy.schedule([1, timedelta(minutes=1)])
    assert (policy.delays, policy.delay(2)) == ((1.0, 60.0), 60)
    assert (RetryPolicy.never().delays, RetryPolicy.never().delay(1)) == ((), None)


def test_a_number_of_retries_is_a_policy() -> None:
    worker = Worker("http://127.0.0.1:1", queue="q")
    task = worker.task("t", retry=3)(lambda: None)
    assert task.retry == RetryPolicy.exponential(max_retries=3)
    assert task.options(retry=0)._options["retry"] == RetryPolicy.exponential(max_retries=0)
    for wrong, text in (("3", "RetryPolicy or a number of retries, got '3'"), (True, "got True"), (101, "0 to 100")):
        with pytest.raises(InvalidInput, match=text):
            worker.task("u", retry=wrong)(lambda: None)  # type: ignore[arg-type]  # Wrong on purpose.
        with pytest.raises(InvalidInput, match=text):
            task.options(retry=wrong)  # type: ignore[arg-type]  # Wrong on purpose.


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


def raised(error: Exception) -> Exception:
    """The error, with the place where it was raised."""
    try:
        raise error
    except Exception as caught:
        return caught


def test_the_text_of_a_failure_has_its_type_its_message_and_where_it_was() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    text = text_of(raised(ValueError("the last word")))
    assert text.startswith("ValueError: the last word\nTraceback")
    assert "in raised" in text
    text = text_of(raised(ValueError("x" * 50_000)))
    assert len(text) <= MAX_TEXT
    assert text.startswith("ValueError: xxx")
    assert text.endswith("xxx"), "of a long one the end is kept"
    assert "\n...\n" in text
    assert text_of(Mute()).startswith("Mute: (its text is not available")
    assert text_of(TimedOut(5)) == "timed out after 5 s"
