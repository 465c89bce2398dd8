"""Settings: three sources, one precedence, and errors that name what is wrong."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from hark.errors import InvalidSetting
from hark.settings import SETTINGS, Settings, load, shown

DOCS = Path(__file__).parents[2] / "docs" / "settings.md"
KEY = "0123456789abcdef" * 4
OTHER_KEY = "f" * 64


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hark.toml of whoever runs the tests must not matter."""
    monkeypatch.chdir(tmp_path)


def toml(text: str, path: str = "hark.toml") -> Path:
    """Write a settings file in the current directory."""
    file = Path(path)
    file.write_text(text)
    return file


def complaint(
    env: Mapping[str, str] | None = None, flags: Mapping[str, object] | None = None, file: Path | None = None
) -> str:
    """Load settings that are wrong, and give the text of the error."""
    with pytest.raises(InvalidSetting) as caught:
        load(flags or {}, env or {}, file)
    return caught.value.text


# Precedence ------------------------------------------------------------------------------------------------


def test_without_any_source_every_setting_has_its_default() -> None:
    loaded = load({}, {})
    assert loaded.settings == Settings()
    assert set(loaded.sources) == set(SETTINGS)
    assert set(loaded.sources.values()) == {"default"}
    assert loaded.notes == ()


def test_the_defaults_are_those_that_are_promised() -> None:
    settings = Settings()
    assert (settings.host, settings.port, settings.engine, settings.data) == (
        "127.0.0.1",
        6632,
        "",
        "./hark-data",
    )
    assert (settings.workers, settings.log_level, settings.max_body_bytes) == (1, "info", 10 * 1024 * 1024)
    assert (settings.batching.max_items, settings.batching.max_wait_ms) == (1000, 5)
    assert (settings.limits.max_batch, settings.limits.max_pending, settings.limits.max_waiting) == (
        10_000,
        20_000,
        20_000,
    )
    assert (settings.pop.default_batch, settings.pop.default_timeout_ms) == (1, 30_000)
    assert (settings.pop.max_timeout_ms, settings.pop.default_subscription) == (600_000, "all")
    assert settings.retention.completed_seconds == 7 * 86_400
    assert (settings.retention.idle_group_days, settings.retention.interval_ms) == (30, 300_000)
    assert (settings.encryption.key, settings.encryption.old_keys) == ("", ())
    assert (settings.postgres.pool_size, settings.postgres.prepared) == (8, True)
    assert (settings.postgres.statement_timeout_ms, settings.postgres.wait_ms) == (30_000, 10_000)
    assert (settings.s3.endpoint_url, settings.s3.region) == ("", "")
    assert (settings.s3.request_timeout_ms, settings.s3.patience_ms, settings.s3.linger_ms) == (10_000, 20_000, 50)
    assert (settings.s3.snapshot_records, settings.s3.snapshot_bytes) == (1000, 64 * 1024 * 1024)
    assert (settings.s3.grace_seconds, settings.s3.skew_margin_ms) == (3600, 1000)
    assert (settings.s3.cache_bytes, settings.s3.max_record_bytes) == (256 * 1024 * 1024, 32 * 1024 * 1024)
    assert (settings.s3.put_dollars, settings.s3.get_dollars) == (5, 0.4)
    assert (settings.fallback.initial_ms, settings.fallback.max_ms) == (100, 5000)
    assert (settings.fallback.threshold, settings.fallback.multiplier) == (3, 3)
    assert (settings.fallback.jitter, settings.fallback.tick_ms) == (0.1, 50)
    assert (settings.fallback.concurrency, settings.fallback.cleanup_seconds) == (32, 3600)
    assert (settings.peers, settings.peer.port, settings.peer.host) == ((), 0, "")
    assert (settings.peer.secret, settings.peer.linger_ms) == ("", 2)
    assert (settings.worker.concurrency, settings.worker.grace_seconds) == (10, 30)
    assert (settings.worker.lease_seconds, settings.worker.health_port) == (30, 0)
    polling = settings.worker.polling
    assert (polling.strategy, polling.min_interval_ms, polling.max_interval_ms) == ("adaptive", 100, 5000)
    assert (polling.backoff_multiplier, polling.interval_ms) == (2, 500)


def test_environment_beats_file_and_flags_beat_both_field_by_field() -> None:
    toml('port = 1\nhost = "file"\ndata = "file"\nworkers = 4')
    loaded = load({"port": 3, "engine": None}, {"HARK_PORT": "2", "HARK_HOST": "env"})
    assert (loaded.settings.port, loaded.settings.host, loaded.settings.data) == (3, "env", "file")
    assert loaded.sources["port"] == "--port"
    assert loaded.sources["host"] == "HARK_HOST"
    assert loaded.sources["data"] == "hark.toml"
    assert loaded.sources["engine"] == "default"


def test_one_field_of_a_table_leaves_its_neighbours_alone() -> None:
    toml("[batching]\nmax_items = 7")
    loaded = load({}, {"HARK_BATCHING_MAX_WAIT_MS": "2.5"})
    assert (loaded.settings.batching.max_items, loaded.settings.batching.max_wait_ms) == (7, 2.5)


def test_the_config_variable_and_an_explicit_path_replace_the_default_file() -> None:
    toml("port = 1")
    other = toml("port = 2", "other.toml")
    third = toml("port = 3", "third.toml")
    assert load({}, {"HARK_CONFIG": str(other)}).settings.port == 2
    loaded = load({}, {"HARK_CONFIG": str(other)}, third)
    assert (loaded.settings.port, loaded.sources["port"]) == (3, "third.toml")


def test_an_empty_variable_counts_as_not_set() -> None:
    loaded = load({}, {"HARK_PORT": "", "PORT": "7000", "HARK_DATA": "  "})
    assert (loaded.settings.port, loaded.sources["port"]) == (7000, "PORT (alias)")
    assert loaded.sources["data"] == "default"


def test_every_setting_can_be_set_in_the_environment_and_in_the_file() -> None:
    texts = {"host": "h", "engine": "memory", "data": "d", "log_level": "debug", "log_format": "text"}
    texts |= {"pop.default_subscription": "new", "encryption.key": KEY, "encryption.old_keys": OTHER_KEY}
    texts |= {"s3.endpoint_url": "http://h:1", "s3.region": "r"}
    texts |= {"s3.max_record_bytes": "70000", "cors.origins": "https://h"}
    texts |= {"worker.polling.strategy": "fixed", "worker.polling.min_interval_ms": "12"}
    texts |= {"fallback.jitter": "0.5", "peers": "h:1", "peer.host": "h", "peer.secret": KEY}
    texts |= {name: str(not s.default).lower() for name, s in SETTINGS.items() if isinstance(s.default, bool)}
    values = {name: texts.get(name, "123") for name in SETTINGS}
    from_env = load({}, {SETTINGS[name].env: value for name, value in values.items()})
    assert from_env.sources == {name: setting.env for name, setting in SETTINGS.items()}
    lines = [f"{name} = {_toml_value(name, value)}" for name, value in values.items()]
    from_file = load({}, {}, toml("\n".join(lines)))
    assert set(from_file.sources.values()) == {"hark.toml"}
    assert from_file.settings == from_env.settings
    changed = [name for name in SETTINGS if shown(from_file.settings, name) != shown(Settings(), name)]
    assert changed == list(SETTINGS)


def _toml_value(name: str, value: str) -> str:
    """Write a text as the TOML value of a setting."""
    if SETTINGS[name].many:
        return f'["{value}"]'
    return f'"{value}"' if isinstance(SETTINGS[name].default, str) else value


def test_names_of_levels_may_be_written_in_capitals() -> None:
    assert load({}, {"HARK_LOG_LEVEL": "WARNING"}).settings.log_level == "warning"


def test_old_keys_are_separated_by_commas_in_the_environment() -> None:
    loaded = load({}, {"HARK_ENCRYPTION_OLD_KEYS": f"{KEY}, {OTHER_KEY},"})
    assert loaded.settings.encryption.old_keys == (KEY, OTHER_KEY)


# Aliases ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("alias", "text", "name", "value"),
    [
        ("PORT", "7", "port", 7),
        ("NUM_WORKERS", "2", "workers", 2),
        ("SIDECAR_MICRO_BATCH_WAIT_MS", "7", "batching.max_wait_ms", 7.0),
        ("SIDECAR_MAX_ITEMS_PER_TX", "7", "batching.max_items", 7),
        ("DEFAULT_BATCH_SIZE", "7", "pop.default_batch", 7),
        ("DEFAULT_TIMEOUT", "7", "pop.default_timeout_ms", 7),
        ("DEFAULT_SUBSCRIPTION_MODE", "new", "pop.default_subscription", "new"),
        ("RETENTION_INTERVAL", "700", "retention.interval_ms", 700),
        ("SIDECAR_POOL_SIZE", "50", "postgres.pool_size", 50),
        ("SIDECAR_POP_WAIT_INITIAL_MS", "7", "fallback.initial_ms", 7),
        ("SIDECAR_POP_WAIT_BACKOFF_THRESHOLD", "7", "fallback.threshold", 7),
        ("SIDECAR_POP_WAIT_BACKOFF_MULTIPLIER", "7", "fallback.multiplier", 7.0),
        ("SIDECAR_POP_WAIT_MAX_MS", "7000", "fallback.max_ms", 7000),
        ("POLL_DB_INTERVAL", "7", "fallback.initial_ms", 7),
        ("POLL_BACKOFF_THRESHOLD", "7", "fallback.threshold", 7),
        ("POLL_MAX_INTERVAL", "7000", "fallback.max_ms", 7000),
        ("QUEUE_BACKOFF_THRESHOLD", "7", "fallback.threshold", 7),
        ("QUEUE_BACKOFF_MULTIPLIER", "7", "fallback.multiplier", 7.0),
        ("QUEUE_MAX_POLL_INTERVAL", "7000", "fallback.max_ms", 7000),
        ("QUEUE_BACKOFF_CLEANUP_THRESHOLD", "7", "fallback.cleanup_seconds", 7),
        ("POLL_WORKER_COUNT", "7", "fallback.concurrency", 7),
        ("POLL_WORKER_INTERVAL", "7", "fallback.tick_ms", 7),
        ("QUEEN_UDP_PEERS", "queen-b:6633,queen-c:6633", "peers", ("queen-b:6633", "queen-c:6633")),
        ("QUEEN_UDP_NOTIFY_PORT", "6633", "peer.port", 6633),
        ("QO_POLLING_STRATEGY", "fixed", "worker.polling.strategy", "fixed"),
        ("QO_POLLING_MIN_INTERVAL_MS", "7", "worker.polling.min_interval_ms", 7.0),
        ("QO_POLLING_MAX_INTERVAL_MS", "30000", "worker.polling.max_interval_ms", 30_000.0),
        ("QO_POLLING_BACKOFF_MULTIPLIER", "1.5", "worker.polling.backoff_multiplier", 1.5),
        ("QO_POLLING_INTERVAL_MS", "7", "worker.polling.interval_ms", 7.0),
        ("QO_POLL_INTERVAL", "7", "worker.polling.interval_ms", 7.0),
        ("HARK_POLL_INTERVAL", "7", "worker.polling.interval_ms", 7.0),
    ],
)
def test_an_alias_of_the_seeds_sets_its_setting(alias: str, text: str, name: str, value: object) -> None:
    loaded = load({}, {alias: text})
    assert shown(loaded.settings, name) == value
    assert loaded.sources[name] == f"{alias} (alias)"


@pytest.mark.parametrize(
    ("name", "aliases"),
    [
        ("fallback.initial_ms", ["SIDECAR_POP_WAIT_INITIAL_MS", "POLL_DB_INTERVAL"]),
        (
            "fallback.threshold",
            ["SIDECAR_POP_WAIT_BACKOFF_THRESHOLD", "QUEUE_BACKOFF_THRESHOLD", "POLL_BACKOFF_THRESHOLD"],
        ),
        ("fallback.multiplier", ["SIDECAR_POP_WAIT_BACKOFF_MULTIPLIER", "QUEUE_BACKOFF_MULTIPLIER"]),
        ("fallback.max_ms", ["SIDECAR_POP_WAIT_MAX_MS", "QUEUE_MAX_POLL_INTERVAL", "POLL_MAX_INTERVAL"]),
    ],
)
def test_of_several_aliases_those_of_the_sidecar_win_then_those_of_queues(name: str, aliases: list[str]) -> None:
    env = {alias: str(200 + place) for place, alias in enumerate(aliases)}
    for place, alias in enumerate(aliases):
        loaded = load({}, env)
        assert shown(loaded.settings, name) == 200 + place
        assert loaded.sources[name] == f"{alias} (alias)"
        del env[alias]


def test_the_encryption_key_has_an_alias() -> None:
    assert load({}, {"QUEEN_ENCRYPTION_KEY": KEY}).settings.encryption.key == KEY


def test_the_hark_name_beats_an_alias_even_a_wrong_one() -> None:
    loaded = load({}, {"HARK_PORT": "1", "PORT": "tcp://elsewhere"})
    assert (loaded.settings.port, loaded.sources["port"]) == (1, "HARK_PORT")


def test_an_alias_with_a_wrong_value_is_an_error_that_names_it() -> None:
    text = complaint({"PORT": "web"})
    assert "PORT (alias)" in text
    assert "'web'" in text


def test_host_of_the_shell_is_not_an_alias() -> None:
    assert load({}, {"HOST": "x86_64-linux-gnu"}).settings.host == "127.0.0.1"


def test_an_unknown_name_under_a_prefix_of_the_seeds_is_reported() -> None:
    [note] = load({}, {"SIDECAR_MAX_ITEMS": "1"}).notes
    assert "has no effect" in note
    assert "SIDECAR_MAX_ITEMS_PER_TX" in note


def test_every_name_that_the_seeds_use_is_an_alias() -> None:
    seeds = sorted((Path(__file__).parents[3] / "shared" / "seeds").glob("*.txt"))
    if not seeds:
        pytest.skip("the seeds are not part of a checkout")
    pattern = re.compile(r"^(?:export )?((?:PORT|NUM_|SIDECAR_|POLL_|QUEUE_|QUEEN_|QO_)[A-Z_]*)=", re.MULTILINE)
    names = {name for seed in seeds for name in pattern.findall(seed.read_text(errors="replace"))}
    aliases = {alias for setting in SETTINGS.values() for alias in setting.aliases}
    assert names
    assert names <= aliases


# Errors ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("abc", "a whole number from 0 to 65535"),
        ("65536", "a whole number from 0 to 65535"),
        ("-1", "a whole number from 0 to 65535"),
        ("1.5", "a whole number from 0 to 65535"),
        ("true", "a whole number from 0 to 65535"),
    ],
)
def test_a_wrong_value_names_setting_source_value_and_what_was_expected(text: str, expected: str) -> None:
    assert complaint({"HARK_PORT": text}) == f"setting port: HARK_PORT says {text!r}, expected {expected}"


@pytest.mark.parametrize("value", ["nan", "inf", "-0.1", "10001", "5ms"])
def test_a_number_that_is_no_duration_is_refused(value: str) -> None:
    assert "batching.max_wait_ms" in complaint({"HARK_BATCHING_MAX_WAIT_MS": value})


def test_what_is_neither_true_nor_false_is_refused() -> None:
    text = complaint({"HARK_POSTGRES_PREPARED": "perhaps"})
    assert text == "setting postgres.prepared: HARK_POSTGRES_PREPARED says 'perhaps', expected true or false"


@pytest.mark.parametrize("value", ["true", '"6632"', "6632.0", "2026-01-01", "[1]", "{a = 1}", "99999"])
def test_a_wrong_type_in_the_file_is_refused(value: str) -> None:
    text = complaint(file=toml(f"port = {value}"))
    assert text.startswith("setting port: hark.toml says ")
    assert text.endswith("expected a whole number from 0 to 65535")


def test_a_wrong_flag_is_named_as_it_was_typed() -> None:
    text = complaint(flags={"log_level": "loud"})
    assert "--log-level" in text
    assert all(level in text for level in ("debug", "info", "warning", "error"))


def test_a_wrong_value_is_refused_even_if_a_flag_would_win() -> None:
    assert "HARK_PORT" in complaint({"HARK_PORT": "x"}, {"port": 1})


@pytest.mark.parametrize("variable", ["HARK_ENCRYPTION_KEY", "QUEEN_ENCRYPTION_KEY", "HARK_ENCRYPTION_OLD_KEYS"])
def test_a_wrong_secret_is_never_shown(variable: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        load({}, {variable: KEY[:-1] + "x"})
    assert KEY[:8] not in caught.value.text
    assert variable in caught.value.text
    assert "64 hexadecimal digits" in caught.value.text
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_a_wrong_secret_in_the_file_is_never_shown() -> None:
    assert "hunter2" not in complaint(file=toml('[encryption]\nkey = "hunter2"'))
    assert "hunter2" not in complaint(file=toml('[encryption]\nkye = "hunter2"'))


def test_an_unknown_variable_is_refused_with_the_nearest_name() -> None:
    text = complaint({"HARK_PROT": "1"})
    assert "HARK_PROT" in text
    assert "did you mean HARK_PORT?" in text


def test_an_unknown_variable_like_none_points_to_the_list() -> None:
    assert "docs/settings.md" in complaint({"HARK_ZZZZ": "1"})


@pytest.mark.parametrize(
    ("text", "name", "hint"),
    [
        ("prot = 1", "'prot'", "port"),
        ("[batching]\nmax_item = 1", "'batching.max_item'", "batching.max_items"),
    ],
)
def test_an_unknown_key_in_the_file_is_refused_with_the_nearest_name(text: str, name: str, hint: str) -> None:
    found = complaint(file=toml(text))
    assert name in found
    assert "hark.toml" in found
    assert f"did you mean {hint}?" in found


def test_the_names_of_the_key_value_api_work_in_the_file() -> None:
    settings = load({}, {}, toml("[queue]\nlockDuration = 5000\ncleanupInterval = 0")).settings
    assert (settings.queue.lock_duration, settings.queue.cleanup_interval) == (5000, 0)
    settings = load({}, {"HARK_QUEUE_LOCK_DURATION": "7000"}, toml("[queue]\nlockDuration = 5000")).settings
    assert settings.queue.lock_duration == 7000


def test_a_setting_with_two_names_is_given_once() -> None:
    found = complaint(file=toml("[queue]\nlockDuration = 5000\nlock_duration = 6000"))
    assert found == (
        "setting queue.lock_duration: hark.toml has it twice, as queue.lockDuration and as queue.lock_duration"
    )


def test_a_wrong_value_under_another_name_is_refused() -> None:
    assert "setting queue.lock_duration: hark.toml says 0" in complaint(file=toml("[queue]\nlockDuration = 0"))
    assert "setting queue.cleanup_interval" in complaint(file=toml('[queue]\ncleanupInterval = "1m"'))


def test_an_unknown_table_is_refused_even_if_it_is_empty() -> None:
    assert "'batchng'" in complaint(file=toml("[batchng]"))


def test_a_value_where_a_table_belongs_is_refused() -> None:
    assert "expected a table: [batching]" in complaint(file=toml("batching = 5"))


def test_variables_of_the_command_line_the_tests_and_the_benchmark_are_not_settings() -> None:
    env = {"HARK_URL": "http://x", "HARK_TEST_ANYTHING": "1", "HARK_BENCH_SECONDS": "1"}
    assert load({}, env).settings == Settings()


def test_a_config_file_that_was_asked_for_must_exist() -> None:
    assert "nowhere.toml" in complaint({"HARK_CONFIG": "nowhere.toml"})
    assert "nowhere.toml" in complaint(file=Path("nowhere.toml"))


def test_a_config_file_that_is_a_directory_is_refused() -> None:
    Path("hark.toml").mkdir()
    assert "hark.toml can't be read" in complaint()


@pytest.mark.parametrize("content", [b"port = = 1", b'host = "\xff"'])
def test_a_file_that_is_not_toml_is_refused(content: bytes) -> None:
    Path("hark.toml").write_bytes(content)
    assert "hark.toml is not TOML" in complaint()


@pytest.mark.parametrize(
    "env",
    [
        {"HARK_PORT": "tcp://10.0.0.1:6632"},
        {"HARK_SERVICE_HOST": "10.0.0.1"},
        {"HARK_PORT_6632_TCP_ADDR": "10.0.0.1"},
    ],
)
def test_variables_that_kubernetes_invents_are_explained(env: dict[str, str]) -> None:
    assert "enableServiceLinks: false" in complaint(env)


@pytest.mark.parametrize(
    ("env", "name"),
    [
        ({"HARK_POP_DEFAULT_TIMEOUT_MS": "9", "HARK_POP_MAX_TIMEOUT_MS": "8"}, "pop.max_timeout_ms"),
        ({"HARK_POP_DEFAULT_BATCH": "9", "HARK_LIMITS_MAX_BATCH": "8"}, "limits.max_batch"),
        ({"HARK_FALLBACK_INITIAL_MS": "9", "HARK_FALLBACK_MAX_MS": "8"}, "fallback.max_ms"),
    ],
)
def test_a_default_above_its_own_limit_is_refused(env: dict[str, str], name: str) -> None:
    assert f"expected at most 8, which is {name} " in complaint(env)


# What is shown ---------------------------------------------------------------------------------------------


def test_secrets_are_hidden_where_settings_are_shown_or_printed() -> None:
    settings = load({}, {"HARK_ENCRYPTION_KEY": KEY, "HARK_ENCRYPTION_OLD_KEYS": OTHER_KEY}).settings
    assert shown(settings, "encryption.key") == shown(settings, "encryption.old_keys") == "******"
    assert KEY not in repr(settings)
    assert OTHER_KEY not in repr(settings)


def test_a_secret_that_is_not_set_is_shown_as_such() -> None:
    assert shown(Settings(), "encryption.key") == ""


def test_a_password_in_the_engine_url_is_hidden() -> None:
    settings = load({"engine": "postgresql://hark:s3:cr3t@db:5432/queue"}, {}).settings
    assert shown(settings, "engine") == "postgresql://hark:******@db:5432/queue"


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        pytest.param("postgresql://u:s3/cr@et@db/q", "postgresql://u:******@db/q", id="with-signs-of-urls"),
        pytest.param("postgresql://u@db/q?password=s3&x=1", "postgresql://u@db/q?password=******&x=1", id="in-query"),
        pytest.param("postgresql:///q?a=1&SSLPassword=s3cret", "postgresql:///q?a=1&SSLPassword=******", id="any-case"),
        pytest.param("s3://bucket/a:b", "s3://bucket/a:b", id="no-password"),
    ],
)
def test_passwords_of_urls_are_hidden_wherever_they_are(engine: str, expected: str) -> None:
    assert shown(load({"engine": engine}, {}).settings, "engine") == expected


def test_the_table_in_the_docs_is_the_table_in_the_code() -> None:
    def names(found: tuple[str, ...]) -> str:
        return ", ".join(f"`{name}`" for name in found) or "-"

    def default(value: object) -> str:
        if isinstance(value, bool):
            return f"`{str(value).lower()}`"
        return "empty" if value in ("", ()) else f"`{value}`"

    expected = [
        f"| `{s.name}` | `{s.env}` | {names(s.aliases)} | {default(s.default)} | {s.meaning} |"
        for s in SETTINGS.values()
    ]
    rows = [line for line in DOCS.read_text().splitlines() if line.startswith("| ")]
    assert rows == ["| setting | variable | alias | default | meaning |", *expected]


def test_importing_the_settings_does_not_import_the_command_line() -> None:
    code = "import sys, hark.settings; print({'typer', 'rich', 'httpx', 'uvicorn'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
