"""`hark serve`: which settings reach the server, and how it fails to start."""

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


def test_serve_without_flags_starts_with_the_defaults(hark: Run, served: list[Loaded]) -> None:
    assert hark("serve").exit_code == 0
    assert set(served[0].sources.values()) == {"default"}


def test_every_flag_reaches_the_server(hark: Run, served: list[Loaded], tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text("[limits]\nmax_batch = 7")
    flags = "--host 0.0.0.0 --port 1 --engine memory --data d --workers 2 --log-level debug --config my.toml"
    assert hark("serve", *flags.split()).exit_code == 0
    settings = served[0].settings
    assert (settings.host, settings.port, settings.engine, settings.data) == ("0.0.0.0", 1, "memory", "d")
    assert (settings.workers, settings.log_level, settings.limits.max_batch) == (2, "debug", 7)
    assert served[0].sources["log_level"] == "--log-level"


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (("--port", "70000"), "--port"),
        (("--port", "web"), "--port"),
        (("--config", "nowhere.toml"), "nowhere.toml"),
        (("--json",), "--show-settings"),
    ],
)
def test_a_wrong_flag_exits_with_2_and_is_named(
    hark: Run, served: list[Loaded], args: tuple[str, ...], named: str
) -> None:
    result = hark("serve", *args)
    assert result.exit_code == 2
    assert named in result.stderr
    assert served == []


@pytest.mark.parametrize(("variable", "value"), [("HARK_WORKERS", "0"), ("HARK_WORKER", "1")])
def test_a_wrong_variable_exits_with_2_and_is_named(
    hark: Run, served: list[Loaded], monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    result = hark("serve")
    assert result.exit_code == 2
    assert variable in result.stderr
    assert served == []


def test_a_store_that_cannot_be_opened_exits_with_1_and_a_line(hark: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Loaded) -> None:
        raise StoreUnusable("hark.db is locked by another process")

    _replace_server(monkeypatch, fail)
    result = hark("serve")
    assert result.exit_code == 1
    assert result.stderr == "hark: hark.db is locked by another process (store_unusable)\n"


def test_any_other_error_of_hark_exits_with_1(hark: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Loaded) -> None:
        raise HarkError("something", code="broken")

    _replace_server(monkeypatch, fail)
    assert hark("serve").exit_code == 1


def test_names_like_those_of_the_seeds_without_an_effect_are_warned_about(
    hark: Run, served: list[Loaded], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QO_POLLING_STRATEGIE", "adaptive")
    result = hark("serve")
    assert "hark: warning: QO_POLLING_STRATEGIE is not a setting and has no effect" in result.stderr
    assert len(served) == 1


def test_settings_of_workers_are_nothing_to_tell_of(
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
