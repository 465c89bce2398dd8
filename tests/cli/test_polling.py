"""`hark polling`: the strategy in effect, its sources, and what it costs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Run


def test_the_default_strategy_and_its_costs(hark: Run) -> None:
    told = json.loads(hark("polling", "--json").stdout)
    assert told["polling"] == {
        "strategy": {"value": "adaptive", "source": "default"},
        "min_interval_ms": {"value": 100, "source": "default"},
        "max_interval_ms": {"value": 5000, "source": "default"},
        "backoff_multiplier": {"value": 2, "source": "default"},
        "interval_ms": {"value": 500, "source": "default"},
    }
    assert told["perMonth"] == [
        {"case": "idle", "polls": 518_400, "dollars": 0.2074},
        {"case": "half busy", "polls": 13_219_200, "dollars": 5.2877},
        {"case": "always busy", "polls": 25_920_000, "dollars": 10.368},
        {"case": "idle at a server", "polls": 86_400, "dollars": 0},
    ]


def test_people_get_the_fields_that_have_an_effect_and_where_they_come_from(
    hark: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("hark.toml").write_text('[worker.polling]\nstrategy = "fixed"\n')
    monkeypatch.setenv("QO_POLLING_INTERVAL_MS", "250")
    lines = [line.split() for line in hark("polling").stdout.splitlines() if line.strip()]
    assert ["worker.polling.strategy", "fixed", "hark.toml"] in lines
    assert ["worker.polling.interval_ms", "250.0", "QO_POLLING_INTERVAL_MS", "(alias)"] in lines
    assert not [line for line in lines if line[0] == "worker.polling.max_interval_ms"]
    assert ["idle", "10,368,000", "4.15"] in lines


def test_how_long_a_batch_takes_says_how_much_a_busy_worker_polls(hark: Run) -> None:
    result = hark("polling", "--batch-ms", "1000")
    assert ["always", "busy", "2,592,000", "1.04"] in [line.split() for line in result.stdout.splitlines()]
    assert "counted as one every 1000 ms" in result.stdout


def test_the_strategies_of_the_seed_can_be_compared(hark: Run) -> None:
    told = json.loads(hark("polling", "--compare", "--json").stdout)["perMonth"]
    assert [row["case"] for row in told] == [
        "Fixed 500ms",
        "Fixed 100ms",
        "Adaptive (mostly idle)",
        "Adaptive (50% busy)",
        "Adaptive (always busy)",
    ]
    assert "Adaptive (mostly idle)" in hark("polling", "--compare").stdout


def test_wrong_settings_and_wrong_usage_exit_with_2(hark: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    result = hark("polling", "--batch-ms", "0")
    assert result.exit_code == 2
    assert "--batch-ms: expected a number of milliseconds above 0" in result.stderr
    monkeypatch.setenv("HARK_POLLING_STRATEGY", "adaptve")
    result = hark("polling")
    assert result.exit_code == 2
    assert "expected one of: adaptive, fixed (invalid_setting)" in result.stderr
