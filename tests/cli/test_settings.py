"""Settings: which ones reach the server of `hark serve`, how it fails to start, and what `hark polling` says."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from hark.errors import HarkError, StoreUnusable
from hark.settings import SETTINGS, Loaded

from .conftest import Run

KEY = "0123456789abcdef" * 4


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Loaded]:
    """What the server was started with, in place of a server."""
    started: list[Loaded] = []
    _replace_server(monkeypatch, started.append)
    return started


def _replace_server(monkeypatch: pytest.MonkeyPatch, serve: Callable[[Loaded], None]) -> None:
    """Put another function where the server is."""
    module = ModuleType("hark.serving.server")
    module.serve = serve  # type: ignore[attr-defined]  # a module made by hand has no declared names
    monkeypatch.setitem(sys.modules, "hark.serving.server", module)


def test_every_flag_reaches_the_server(hark: Run, served: list[Loaded], tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text("[limits]\nmax_batch = 7")
    flags = "--host 0.0.0.0 --port 1 --engine memory --data d --workers 2 --log-level debug --config my.toml"
    assert hark("serve", *flags.split()).exit_code == 0
    settings = served[0].settings
    assert (settings.host, settings.port, settings.engine, settings.data) == ("0.0.0.0", 1, "memory", "d")
    assert (settings.workers, settings.log_level, settings.limits.max_batch) == (2, "debug", 7)
    assert served[0].sources["log_level"] == "--log-level"
    assert hark("serve").exit_code == 0
    assert set(served[1].sources.values()) == {"default"}


@pytest.mark.parametrize(
    ("flags", "variables", "named"),
    [
        ("--port 70000", {}, "--port"),
        ("--port web", {}, "--port"),
        ("--config nowhere.toml", {}, "nowhere.toml"),
        ("--json", {}, "--show-settings"),
        ("", {"HARK_WORKERS": "0"}, "HARK_WORKERS"),
        ("", {"HARK_WORKER": "1"}, "HARK_WORKER"),
    ],
)
def test_a_wrong_flag_or_variable_exits_with_2_and_is_named(
    hark: Run, served: list[Loaded], monkeypatch: pytest.MonkeyPatch, flags: str, variables: dict[str, str], named: str
) -> None:
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    result = hark("serve", *flags.split())
    assert result.exit_code == 2
    assert named in result.stderr
    assert served == []


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            StoreUnusable("hark.db is locked by another process"),
            "hark.db is locked by another process (store_unusable)",
        ),
        (HarkError("something", code="broken"), "something (broken)"),
    ],
)
def test_a_server_that_can_not_start_exits_with_1_and_a_line(
    hark: Run, monkeypatch: pytest.MonkeyPatch, error: HarkError, line: str
) -> None:
    def fail(_: Loaded) -> None:
        raise error

    _replace_server(monkeypatch, fail)
    result = hark("serve")
    assert (result.exit_code, result.stderr) == (1, f"hark: {line}\n")


def test_names_like_those_of_the_seeds_without_an_effect_are_warned_about(
    hark: Run, served: list[Loaded], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QO_POLLING_STRATEGIE", "adaptive")
    result = hark("serve")
    assert "hark: warning: QO_POLLING_STRATEGIE is not a setting and has no effect" in result.stderr
    assert len(served) == 1


def test_settings_of_workers_are_nothing_to_report(
    hark: Run, served: list[Loaded], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("hark.toml").write_text('[worker]\nconcurrency = 20\n[worker.polling]\nstrategy = "fixed"\n')
    monkeypatch.setenv("QO_POLLING_MIN_INTERVAL_MS", "50")
    result = hark("serve")
    assert (result.exit_code, result.stderr, len(served)) == (0, "", 1)


def test_show_settings_prints_every_value_and_source_and_starts_nothing(
    hark: Run, served: list[Loaded], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PORT", "7000")
    monkeypatch.setenv("HARK_ENCRYPTION_KEY", KEY)
    result = hark("serve", "--workers", "3", "--show-settings")
    rows = {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines() if line.strip()}
    assert set(SETTINGS) <= set(rows)
    assert rows["port"] == ["7000", "PORT", "(alias)"]
    assert rows["workers"] == ["3", "--workers"]
    assert rows["encryption.key"] == ["******", "HARK_ENCRYPTION_KEY"]
    assert rows["engine"] == ["-", "default"]
    assert KEY not in result.output
    assert (result.exit_code, served) == (0, [])


def test_show_settings_as_json(hark: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARK_ENCRYPTION_OLD_KEYS", KEY)
    shown = json.loads(hark("serve", "--port", "0", "--show-settings", "--json").stdout)
    assert list(shown) == list(SETTINGS)
    assert shown["port"] == {"value": 0, "source": "--port"}
    assert shown["encryption.old_keys"] == {"value": "******", "source": "HARK_ENCRYPTION_OLD_KEYS"}


# Polling: the strategy in effect, its sources, and what it costs --------------------------------------------


def test_the_default_strategy_and_its_costs(hark: Run) -> None:
    shown = json.loads(hark("polling", "--json").stdout)
    assert shown["polling"] == {
        "strategy": {"value": "adaptive", "source": "default"},
        "min_interval_ms": {"value": 100, "source": "default"},
        "max_interval_ms": {"value": 5000, "source": "default"},
        "backoff_multiplier": {"value": 2, "source": "default"},
        "interval_ms": {"value": 500, "source": "default"},
    }
    assert shown["perMonth"] == [
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
    assert "which takes 1000 ms" in result.stdout


def test_the_strategies_of_the_seed_can_be_compared(hark: Run) -> None:
    shown = json.loads(hark("polling", "--compare", "--json").stdout)["perMonth"]
    assert [row["case"] for row in shown] == [
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
    assert "--batch-ms 0: use a number of milliseconds above 0" in result.stderr
    monkeypatch.setenv("HARK_POLLING_STRATEGY", "adaptve")
    result = hark("polling")
    assert result.exit_code == 2
    assert "expected one of: adaptive, fixed (invalid_setting)" in result.stderr
