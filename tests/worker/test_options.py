"""What a run does: options of the program, the environment, hark.toml, the default, in this order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hark.errors import InvalidInput
from hark.polling import PollingStrategy
from hark.worker import Worker, WorkerRunOptions
from hark.worker.options import plan_for

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


def test_the_file_counts_over_the_default(environment: dict[str, str]) -> None:
    plan = plan_for(WorkerRunOptions(), environment=environment)
    assert (plan.concurrency, plan.lease_seconds, plan.grace_seconds) == (3, 7, 5)
    assert plan.health == ("127.0.0.1", 8123)
    assert plan.polling == PollingStrategy.adaptive(max_interval_ms=9000)


def test_the_environment_counts_over_the_file(environment: dict[str, str]) -> None:
    told = environment | {
        "HARK_WORKER_CONCURRENCY": "4",
        "HARK_WORKER_GRACE_SECONDS": "6",
        "HARK_POLLING_MIN_INTERVAL_MS": "200",
    }
    plan = plan_for(WorkerRunOptions(), environment=told)
    assert (plan.concurrency, plan.grace_seconds, plan.lease_seconds) == (4, 6, 7)
    assert plan.polling == PollingStrategy.adaptive(min_interval_ms=200, max_interval_ms=9000)


def test_what_the_program_says_counts_over_all(environment: dict[str, str]) -> None:
    told = environment | {"HARK_WORKER_CONCURRENCY": "4", "HARK_POLLING_STRATEGY": "adaptive"}
    fixed = PollingStrategy.fixed(interval_ms=50)
    plan = plan_for(WorkerRunOptions(polling=fixed, grace_seconds=0), concurrency=5, lease=9, environment=told)
    assert (plan.concurrency, plan.lease_seconds, plan.grace_seconds, plan.polling) == (5, 9, 0, fixed)
    plan = plan_for(WorkerRunOptions(concurrency=6, health=("", 1)), concurrency=5, environment=told)
    assert (plan.concurrency, plan.health) == (6, ("", 1))


def test_a_burst_does_not_wait_on_the_server(environment: dict[str, str]) -> None:
    assert not plan_for(WorkerRunOptions(burst=True), environment=environment).wait


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"concurrency": 0}, "concurrency: expected an integer from 1"),
        ({"grace_seconds": -1}, "grace_seconds: expected 0"),
        ({"timeout_ms": 600_001}, "timeout_ms: expected 0"),
        ({"polling": "adaptive"}, r"polling: expected something like PollingStrategy.adaptive\(\), got 'adaptive'"),
        ({"health": 9000}, "health: expected an address and a port, got 9000"),
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
        ({"queue": "q", "lease": 0}, "lease: expected whole seconds"),
        ({"queue": "q", "lease": 1.5}, "lease: expected whole seconds"),
    ],
    ids=["queue", "concurrency", "lease", "fraction"],
)
def test_workers_that_make_no_sense_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        Worker(**options)
