"""Which strategy is in effect: run options over environment over hark.toml over the default, field by field."""

from __future__ import annotations

from pathlib import Path

import pytest

from hark.errors import InvalidSetting
from hark.polling import PollingStrategy, strategy_from
from hark.settings import load

adaptive, fixed = PollingStrategy.adaptive, PollingStrategy.fixed


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hark.toml of whoever runs the tests must not matter."""
    monkeypatch.chdir(tmp_path)


def chosen(file: str, env: dict[str, str], given: PollingStrategy | None = None) -> PollingStrategy:
    """The strategy of a worker with this file, this environment and these run options."""
    Path("hark.toml").write_text(file)
    return strategy_from(load({}, env).settings, given)


FILE_FIXED = '[worker.polling]\nstrategy = "fixed"\ninterval_ms = 250\n'
FILE_ADAPTIVE = '[worker.polling]\nstrategy = "adaptive"\nmin_interval_ms = 50\nmax_interval_ms = 30000\n'
FILE_LEGACY = "[worker]\npoll_interval = 300\n"
SERVER = "port = 7000\nworkers = 4\n[retention]\ncompleted_seconds = 5\n"

PRECEDENCE = [
    ("default", "", {}, adaptive()),
    ("file", FILE_ADAPTIVE, {}, adaptive(min_interval_ms=50, max_interval_ms=30_000)),
    ("file-fixed", FILE_FIXED, {}, fixed(interval_ms=250)),
    ("file-with-settings-of-a-server", SERVER + FILE_FIXED, {}, fixed(interval_ms=250)),
    ("file-partly", "[worker.polling]\nmax_interval_ms = 1000\n", {}, adaptive(max_interval_ms=1000)),
    ("file-fractions", "[worker.polling]\nmin_interval_ms = 0.5\n", {}, adaptive(min_interval_ms=0.5)),
    ("file-legacy", FILE_LEGACY, {}, fixed(interval_ms=300)),
    ("env", "", {"HARK_POLLING_BACKOFF_MULTIPLIER": "1.5"}, adaptive(backoff_multiplier=1.5)),
    ("env-strategy-only", "", {"HARK_POLLING_STRATEGY": "FIXED"}, fixed(interval_ms=500)),
    ("env-empty-is-not-set", FILE_FIXED, {"HARK_POLLING_STRATEGY": ""}, fixed(interval_ms=250)),
    ("env-alias", "", {"QO_POLLING_MAX_INTERVAL_MS": "30000"}, adaptive(max_interval_ms=30_000)),
    (
        "env-over-its-alias",
        "",
        {"QO_POLLING_MAX_INTERVAL_MS": "30000", "HARK_POLLING_MAX_INTERVAL_MS": "2000"},
        adaptive(max_interval_ms=2000),
    ),
    (
        "env-over-file-field-by-field",
        FILE_ADAPTIVE,
        {"HARK_POLLING_MAX_INTERVAL_MS": "1000"},
        adaptive(min_interval_ms=50, max_interval_ms=1000),
    ),
    (
        "alias-over-file",
        FILE_ADAPTIVE,
        {"QO_POLLING_MIN_INTERVAL_MS": "70"},
        adaptive(min_interval_ms=70, max_interval_ms=30_000),
    ),
    ("env-strategy-over-file", FILE_FIXED, {"HARK_POLLING_STRATEGY": "adaptive"}, adaptive()),
    ("env-interval-over-file-legacy", FILE_LEGACY, {"HARK_POLLING_INTERVAL_MS": "20"}, fixed(interval_ms=20)),
    ("env-strategy-over-file-legacy", FILE_LEGACY, {"HARK_POLLING_STRATEGY": "adaptive"}, adaptive()),
    ("env-legacy-over-file", FILE_ADAPTIVE, {"HARK_POLL_INTERVAL": "40"}, fixed(interval_ms=40)),
    ("env-legacy-alias", "", {"QO_POLL_INTERVAL": "40"}, fixed(interval_ms=40)),
    (
        "env-legacy-beside-fixed",
        "",
        {"QO_POLL_INTERVAL": "40", "HARK_POLLING_STRATEGY": "fixed"},
        fixed(interval_ms=40),
    ),
    (
        "env-legacy-and-the-new-name",
        "",
        {"HARK_POLL_INTERVAL": "40", "HARK_POLLING_INTERVAL_MS": "30"},
        fixed(interval_ms=30),
    ),
    (
        "what-belongs-to-the-other-strategy-plays-no-part",
        FILE_FIXED + "min_interval_ms = 9000\nmax_interval_ms = 10\n",
        {},
        fixed(interval_ms=250),
    ),
]


@pytest.mark.parametrize(("file", "env", "wanted"), [pytest.param(*rest, id=name) for name, *rest in PRECEDENCE])
def test_run_options_then_environment_then_file_then_default(
    file: str, env: dict[str, str], wanted: PollingStrategy
) -> None:
    assert chosen(file, env) == wanted
    for given in (adaptive(max_interval_ms=2000), fixed()):
        assert chosen(file, env, given) == given, "run options count as a whole"


REFUSED = {
    "setting worker.polling.strategy: hark.toml sets 'adaptive', but hark.toml (poll_interval) implies 'fixed'; "
    "remove one of them": (FILE_LEGACY + '[worker.polling]\nstrategy = "adaptive"\n', {}),
    "setting worker.polling.strategy: HARK_POLLING_STRATEGY sets 'adaptive', but QO_POLL_INTERVAL (alias) implies "
    "'fixed'; remove one of them": ("", {"QO_POLL_INTERVAL": "5", "HARK_POLLING_STRATEGY": "adaptive"}),
    "setting worker.polling.interval_ms: hark.toml sets it twice, as worker.poll_interval and as "
    "worker.polling.interval_ms; remove one of them": (FILE_LEGACY + "[worker.polling]\ninterval_ms = 200\n", {}),
    "setting worker.polling.min_interval_ms: invalid value 300.0 from QO_POLLING_MIN_INTERVAL_MS (alias), expected at "
    "most 200.0, the value of worker.polling.max_interval_ms (hark.toml)": (
        "[worker.polling]\nmax_interval_ms = 200\n",
        {"QO_POLLING_MIN_INTERVAL_MS": "300"},
    ),
    "setting worker.polling.min_interval_ms: invalid value 9000.0 from hark.toml, expected at most 5000, the value of "
    "worker.polling.max_interval_ms (default)": ("[worker.polling]\nmin_interval_ms = 9000\n", {}),
    "setting worker.polling.strategy: invalid value 'adaptve' from HARK_POLLING_STRATEGY, expected one of: "
    "adaptive, fixed": (
        "",
        {"HARK_POLLING_STRATEGY": "adaptve"},
    ),
    "setting worker.polling.min_interval_ms: invalid value 0 from hark.toml, expected a number of milliseconds above "
    "0, at most 86400000": ("[worker.polling]\nmin_interval_ms = 0\n", {}),
    "setting worker.polling.interval_ms: invalid value 0 from hark.toml (poll_interval), expected a number of "
    "milliseconds above 0, at most 86400000": ("[worker]\npoll_interval = 0\n", {}),
    "setting worker.polling.backoff_multiplier: invalid value inf from hark.toml, expected a number above 1, "
    "at most 1000": (
        "[worker.polling]\nbackoff_multiplier = inf\n",
        {},
    ),
    "unknown setting 'worker.polling.max_interval' in hark.toml; did you mean worker.polling.max_interval_ms?": (
        "[worker.polling]\nmax_interval = 5\n",
        {},
    ),
    # By its place in the tree.
    "unknown setting HARK_WORKER_POLLING_STRATEGY in the environment; did you mean HARK_POLLING_STRATEGY?": (
        "",
        {"HARK_WORKER_POLLING_STRATEGY": "fixed"},
    ),
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_contradicts_itself_or_makes_no_sense_is_refused_with_its_sources(text: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        chosen(*REFUSED[text])
    assert caught.value.text == text


@pytest.mark.parametrize(
    ("file", "env", "sources"),
    [
        ("", {"HARK_POLL_INTERVAL": "5"}, ("HARK_POLL_INTERVAL (alias)", "HARK_POLL_INTERVAL (alias)")),
        (FILE_LEGACY, {}, ("hark.toml (poll_interval)", "hark.toml (poll_interval)")),
        (FILE_FIXED, {"QO_POLLING_INTERVAL_MS": "5"}, ("hark.toml", "QO_POLLING_INTERVAL_MS (alias)")),
    ],
    ids=["environment", "file", "both"],
)
def test_the_sources_of_strategy_and_interval_are_notified(
    file: str, env: dict[str, str], sources: tuple[str, str]
) -> None:
    Path("hark.toml").write_text(file)
    sources_of = load({}, env).sources
    assert (sources_of["worker.polling.strategy"], sources_of["worker.polling.interval_ms"]) == sources
