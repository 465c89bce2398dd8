"""Settings: three sources, one precedence, and errors that name what is wrong."""

from __future__ import annotations

import re
from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path

import pytest

from hark.errors import InvalidSetting
from hark.settings import SETTINGS, Auth, Loaded, Settings, load, shown
from hark.settings.sections import check_security, security_notes

DOCS = Path(__file__).parents[2] / "docs" / "settings.md"
KEY = "0123456789abcdef" * 4
OTHER_KEY = "f" * 64
SECRET = "0123456789abcdef0123456789abcdef"


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
    mib, day = 1024 * 1024, 86_400
    promised: dict[str, Mapping[str, object]] = {
        "": {"host": "127.0.0.1", "port": 6632, "engine": "", "data": "./hark-data", "workers": 1, "peers": ()}
        | {"log_level": "info", "max_body_bytes": 10 * mib, "insecure_bind": False},
        "batching": {"max_items": 1000, "max_wait_ms": 5},
        "limits": {"max_batch": 10_000, "max_pending": 20_000, "max_waiting": 20_000},
        "pop": {"default_batch": 1, "default_timeout_ms": 30_000, "max_timeout_ms": 600_000}
        | {"default_subscription": "all"},
        "retention": {"completed_seconds": 7 * day, "idle_group_days": 30, "interval_ms": 300_000},
        "encryption": {"key": "", "old_keys": ()},
        "postgres": {"pool_size": 8, "prepared": True, "statement_timeout_ms": 30_000, "wait_ms": 10_000},
        "s3": {
            "endpoint_url": "",
            "region": "",
            "request_timeout_ms": 10_000,
            "retry_timeout_ms": 20_000,
            "linger_ms": 50,
        }
        | {"snapshot_records": 1000, "snapshot_bytes": 64 * mib, "grace_seconds": 3600, "skew_margin_ms": 1000}
        | {"cache_bytes": 256 * mib, "max_record_bytes": 32 * mib, "put_dollars": 5, "get_dollars": 0.4},
        "fallback": {"initial_ms": 100, "max_ms": 5000, "threshold": 3, "multiplier": 3, "jitter": 0.1, "tick_ms": 50}
        | {"concurrency": 32, "cleanup_seconds": 3600},
        "peer": {"port": 0, "host": "", "secret": "", "linger_ms": 2},
        "worker": {"concurrency": 10, "grace_seconds": 30, "lease_seconds": 30, "health_port": 0},
        "worker.polling": {"strategy": "adaptive", "min_interval_ms": 100, "max_interval_ms": 5000}
        | {"backoff_multiplier": 2, "interval_ms": 500},
        "auth": {"jwt_enabled": False, "jwt_leeway_seconds": 30},
    }
    for table, values in promised.items():
        names = {name: f"{table}.{name}".removeprefix(".") for name in values}
        assert {name: SETTINGS[names[name]].default for name in values} == values
        assert {name: attrgetter(names[name])(Settings()) for name in values} == values


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


@pytest.mark.parametrize(
    ("env", "name", "value"),
    [
        ({"HARK_LOG_LEVEL": "WARNING"}, "log_level", "warning"),
        ({"HARK_ENCRYPTION_OLD_KEYS": f"{KEY}, {OTHER_KEY},"}, "encryption.old_keys", (KEY, OTHER_KEY)),
        ({"QUEEN_ENCRYPTION_KEY": KEY}, "encryption.key", KEY),
        ({"HOST": "x86_64-linux-gnu"}, "host", "127.0.0.1"),
    ],
    ids=["capitals", "old keys", "alias of the key", "no alias"],
)
def test_a_variable_gives_a_value(env: dict[str, str], name: str, value: object) -> None:
    assert attrgetter(name)(load({}, env).settings) == value


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
    env = {alias: str(200 + index) for index, alias in enumerate(aliases)}
    for index, alias in enumerate(aliases):
        loaded = load({}, env)
        assert shown(loaded.settings, name) == 200 + index
        assert loaded.sources[name] == f"{alias} (alias)"
        del env[alias]


def test_the_hark_name_beats_an_alias_even_a_wrong_one() -> None:
    loaded = load({}, {"HARK_PORT": "1", "PORT": "tcp://elsewhere"})
    assert (loaded.settings.port, loaded.sources["port"]) == (1, "HARK_PORT")


def test_an_unknown_name_under_a_prefix_of_the_seeds_is_reported() -> None:
    [note] = load({}, {"SIDECAR_MAX_ITEMS": "1"}).notes
    assert "has no effect" in note
    assert "SIDECAR_MAX_ITEMS_PER_TX" in note


@pytest.mark.parametrize("wrong", ["POLL_WORKER_CUONT", "POLL_WORKER_COUNTS"])
def test_a_misspelt_variable_of_the_seeds_is_reported(wrong: str) -> None:
    [note] = load({}, {wrong: "1", "PORTS": "1", "HOSTNAME": "x", "LANG": "C"}).notes
    assert note == f"{wrong} is not a setting and has no effect; did you mean POLL_WORKER_COUNT?"


def test_the_file_of_an_earlier_system_is_read_where_there_is_no_other() -> None:
    Path("qo.toml").write_text('[worker.polling]\nstrategy = "adaptive"\nmin_interval_ms = 123\n')
    loaded = load({}, {})
    assert loaded.settings.worker.polling.min_interval_ms == 123
    assert loaded.sources["worker.polling.min_interval_ms"] == "qo.toml"
    Path("hark.toml").write_text("port = 1\n")
    loaded = load({}, {})
    assert (loaded.settings.port, loaded.sources["worker.polling.min_interval_ms"]) == (1, "default")


def test_a_manifest_is_reported_with_the_lines_that_say_the_same() -> None:
    Path("manifest.yaml").write_text("queue:\n  lockDuration: 45000  # 45 seconds\n")
    [note] = load({}, {}).notes
    assert note == "manifest.yaml is not read and has no effect; in hark.toml write: [queue] lock_duration = 45000"
    Path("hark.toml").write_text("[queue]\nlock_duration = 45000\n")
    assert load({}, {}).settings.queue.lock_duration == 45000
    Path("manifest.yaml").write_text("name: x\n")
    assert "write settings into hark.toml" in load({}, {}).notes[0]


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


@pytest.mark.parametrize("text", ["abc", "65536", "-1", "1.5", "true"])
def test_a_wrong_value_names_setting_source_value_and_what_was_expected(text: str) -> None:
    expected = f"setting port: invalid value {text!r} from HARK_PORT, expected a whole number from 0 to 65535"
    assert complaint({"HARK_PORT": text}) == expected
    assert complaint({"HARK_PORT": text}, {"port": 1}) == expected, "even if a flag would win"


@pytest.mark.parametrize("value", ["true", '"6632"', "6632.0", "2026-01-01", "[1]", "{a = 1}", "99999"])
def test_a_wrong_type_in_the_file_is_refused(value: str) -> None:
    text = complaint(file=toml(f"port = {value}"))
    assert text.startswith("setting port: invalid value ")
    assert text.endswith(" from hark.toml, expected a whole number from 0 to 65535")


KUBERNETES = "enableServiceLinks: false"


@pytest.mark.parametrize(
    ("env", "words"),
    [
        *(({"HARK_BATCHING_MAX_WAIT_MS": text}, ["batching.max_wait_ms"]) for text in ("nan", "inf", "-0.1", "10001")),
        ({"HARK_BATCHING_MAX_WAIT_MS": "5ms"}, ["batching.max_wait_ms"]),
        (
            {"HARK_POSTGRES_PREPARED": "perhaps"},
            ["setting postgres.prepared: invalid value 'perhaps' from HARK_POSTGRES_PREPARED, expected true or false"],
        ),
        ({"PORT": "web"}, ["PORT (alias)", "'web'"]),
        ({"HARK_PROT": "1"}, ["HARK_PROT", "did you mean HARK_PORT?"]),
        ({"HARK_ZZZZ": "1"}, ["docs/settings.md"]),
        ({"HARK_CONFIG": "nowhere.toml"}, ["nowhere.toml"]),
        ({"HARK_PORT": "tcp://10.0.0.1:6632"}, [KUBERNETES]),
        ({"HARK_SERVICE_HOST": "10.0.0.1"}, [KUBERNETES]),
        ({"HARK_PORT_6632_TCP_ADDR": "10.0.0.1"}, [KUBERNETES]),
        (
            {"HARK_POP_DEFAULT_TIMEOUT_MS": "9", "HARK_POP_MAX_TIMEOUT_MS": "8"},
            ["expected at most 8, the value of pop.max_timeout_ms "],
        ),
        (
            {"HARK_POP_DEFAULT_BATCH": "9", "HARK_LIMITS_MAX_BATCH": "8"},
            ["expected at most 8, the value of limits.max_batch "],
        ),
        (
            {"HARK_FALLBACK_INITIAL_MS": "9", "HARK_FALLBACK_MAX_MS": "8"},
            ["expected at most 8, the value of fallback.max_ms "],
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_wrong_variable_is_refused_with_what_is_wrong_and_what_may_be_meant(
    env: dict[str, str], words: list[str]
) -> None:
    text = complaint(env)
    assert [word for word in words if word not in text] == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("prot = 1", ["'prot'", "hark.toml", "did you mean port?"]),
        ("[batching]\nmax_item = 1", ["'batching.max_item'", "hark.toml", "did you mean batching.max_items?"]),
        ("[batchng]", ["'batchng'"]),
        ("batching = 5", ["expected a table: [batching]"]),
        ("[queue]\nlockDuration = 0", ["setting queue.lock_duration: invalid value 0 from hark.toml"]),
        ('[queue]\ncleanupInterval = "1m"', ["setting queue.cleanup_interval"]),
        (
            "[queue]\nlockDuration = 5000\nlock_duration = 6000",
            ["setting queue.lock_duration: hark.toml sets it twice, as queue.lockDuration and as queue.lock_duration"],
        ),
        ("port = = 1", ["hark.toml is not valid TOML"]),
        (b'host = "\xff"', ["hark.toml is not valid TOML"]),
    ],
)
def test_a_wrong_file_is_refused_with_what_is_wrong_and_what_may_be_meant(
    content: str | bytes, words: list[str]
) -> None:
    Path("hark.toml").write_bytes(content if isinstance(content, bytes) else content.encode())
    text = complaint()
    assert [word for word in words if word not in text] == []


def test_a_wrong_flag_is_named_as_it_was_typed() -> None:
    text = complaint(flags={"log_level": "loud"})
    assert "--log-level" in text
    assert all(level in text for level in ("debug", "info", "warning", "error"))


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


def test_the_names_of_the_key_value_api_work_in_the_file() -> None:
    settings = load({}, {}, toml("[queue]\nlockDuration = 5000\ncleanupInterval = 0")).settings
    assert (settings.queue.lock_duration, settings.queue.cleanup_interval) == (5000, 0)
    settings = load({}, {"HARK_QUEUE_LOCK_DURATION": "7000"}, toml("[queue]\nlockDuration = 5000")).settings
    assert settings.queue.lock_duration == 7000


def test_variables_of_clients_the_command_line_the_tests_and_the_benchmark_are_not_settings() -> None:
    env = {"HARK_URL": "http://x", "HARK_TEST_ANYTHING": "1", "HARK_BENCH_SECONDS": "1"}
    env |= {"HARK_TOKEN": "hark_x", "HARK_CA_FILE": "ca.pem"}
    assert load({}, env).settings == Settings()


def test_a_config_file_that_is_no_file_is_refused() -> None:
    assert "nowhere.toml" in complaint(file=Path("nowhere.toml"))
    Path("hark.toml").mkdir()
    assert "cannot read the settings file hark.toml" in complaint()


# What is shown ---------------------------------------------------------------------------------------------


def test_secrets_are_hidden_where_settings_are_shown_or_printed() -> None:
    settings = load({}, {"HARK_ENCRYPTION_KEY": KEY, "HARK_ENCRYPTION_OLD_KEYS": OTHER_KEY}).settings
    assert shown(settings, "encryption.key") == shown(settings, "encryption.old_keys") == "******"
    assert KEY not in repr(settings)
    assert OTHER_KEY not in repr(settings)
    assert shown(Settings(), "encryption.key") == "", "it is not set"
    settings = Settings(auth=Auth(jwt_secret=SECRET))
    assert SECRET not in repr(settings)
    assert shown(settings, "auth.jwt_secret") == "******"


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        pytest.param("postgresql://u:s3:cr3t@db:1/q", "postgresql://u:******@db:1/q", id="usual"),
        pytest.param("postgresql://u:s3/cr@et@db/q", "postgresql://u:******@db/q", id="with-signs-of-urls"),
        pytest.param("postgresql://u@db/q?password=s3&x=1", "postgresql://u@db/q?password=******&x=1", id="in-query"),
        pytest.param("postgresql:///q?a=1&SSLPassword=s3cret", "postgresql:///q?a=1&SSLPassword=******", id="any-case"),
        pytest.param("s3://bucket/a:b", "s3://bucket/a:b", id="no-password"),
    ],
)
def test_passwords_of_urls_are_hidden_wherever_they_are(engine: str, expected: str) -> None:
    assert shown(load({}, {"HARK_ENGINE": engine}).settings, "engine") == expected


def test_the_table_in_the_docs_is_the_table_in_the_code() -> None:
    def names(*found: str) -> str:
        return ", ".join(f"`{name}`" for name in found)

    def default(value: object) -> str:
        if isinstance(value, bool):
            return f"`{str(value).lower()}`"
        return "empty" if value in ("", ()) else f"`{value}`"

    expected = [
        f"| `{s.name}` | {names(s.env, *s.aliases)} | {default(s.default)} | {s.meaning} |" for s in SETTINGS.values()
    ]
    rows = [line for line in DOCS.read_text().splitlines() if line.startswith("| ")]
    assert rows == ["| setting | variables | default | meaning |", *expected]


# Security --------------------------------------------------------------------------------------------------


def check_whole(loaded: Loaded) -> None:
    """As a server does when it starts."""
    check_security(loaded.settings.auth, loaded.settings.tls, loaded.sources)


def refusal(env: Mapping[str, str], flags: Mapping[str, object] | None = None) -> str:
    """Why a server with these variables and flags does not start: they are only half of something."""
    loaded = load(flags or {}, env)
    with pytest.raises(InvalidSetting) as refused:
        check_whole(loaded)
    return refused.value.text


def notes(env: Mapping[str, str]) -> list[str]:
    """What a server with these variables warns about."""
    loaded = load({}, env)
    return list(security_notes(loaded.settings.auth, loaded.sources, env))


def test_jwt_without_a_key_are_refused() -> None:
    check_whole(load({}, {}))
    text = refusal({"HARK_AUTH_JWT_ENABLED": "true"})
    assert "auth.jwt_enabled: HARK_AUTH_JWT_ENABLED is true" in text
    assert "auth.jwt_public_keys" in text


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("HARK_AUTH_JWT_SECRET", SECRET),
        ("HARK_AUTH_JWT_SECRET_FILE", "file"),
        ("HARK_AUTH_JWT_PUBLIC_KEYS", "a.pem,b.json"),
    ],
    ids=["secret", "file", "public"],
)
def test_a_key_without_a_word_about_jwt_is_refused_and_with_one_it_is_not(variable: str, value: str) -> None:
    text = refusal({variable: value})
    assert f"{variable} sets it" in text
    assert "auth.jwt_enabled" in text
    assert SECRET not in text
    for flag in ("true", "false"):
        check_whole(load({}, {variable: value, "HARK_AUTH_JWT_ENABLED": flag}))


def test_two_secrets_are_one_too_many() -> None:
    env = {"JWT_ENABLED": "true", "JWT_SECRET": SECRET, "HARK_AUTH_JWT_SECRET_FILE": "file"}
    assert "remove one of them" in refusal(env)


@pytest.mark.parametrize(("flag", "other"), [("tls.certificate", "tls.key"), ("tls.key", "tls.certificate")])
def test_a_certificate_and_its_key_belong_together(flag: str, other: str) -> None:
    text = refusal({}, {flag: "file.pem"})
    assert f"--{flag.replace('.', '-')} sets it, but {other} is not set" in text
    check_whole(load({flag: "file.pem", other: "other.pem"}, {}))


def test_the_variables_of_the_official_server_mean_what_they_mean_there() -> None:
    env = {
        "JWT_ENABLED": "true",
        "JWT_SECRET": SECRET,
        "JWT_ISSUER": "https://issuer",
        "JWT_AUDIENCE": "hark",
        "JWT_CLOCK_SKEW": "5",
    }
    loaded = load({}, env)
    check_whole(loaded)
    assert loaded.settings.auth == Auth(
        jwt_enabled=True, jwt_secret=SECRET, jwt_issuer="https://issuer", jwt_audience="hark", jwt_leeway_seconds=5
    )
    assert notes(env) == []


def test_a_secret_of_another_program_has_no_effect_and_is_noted() -> None:
    env = {"JWT_SECRET": "short"}
    check_whole(load({}, env))
    assert notes(env) == [
        "JWT_SECRET has no effect: set JWT_ENABLED=true to accept JWTs, or JWT_ENABLED=false to hide this warning"
    ]
    assert notes(env | {"JWT_ENABLED": "false"}) == []


def test_variables_of_the_official_server_that_we_do_not_have_are_noted() -> None:
    env = {"JWT_ENABLED": "true", "JWT_SECRET": SECRET, "JWT_JWKS_URL": "https://issuer/keys"}
    [note] = notes(env | {"JWT_ISSUER": "https://issuer", "JWT_AUDIENCE": "hark"})
    assert note.startswith("JWT_JWKS_URL is not a setting and has no effect")


def test_jwts_without_an_issuer_or_an_audience_are_warned_about() -> None:
    env = {"HARK_AUTH_JWT_ENABLED": "true", "HARK_AUTH_JWT_SECRET": "s" * 32}
    [note] = notes(env)
    assert note.startswith("auth.jwt_issuer and auth.jwt_audience not set: ")
    [note] = notes(env | {"HARK_AUTH_JWT_ISSUER": "https://id.example"})
    assert note.startswith("auth.jwt_audience not set: ")
    assert notes(env | {"HARK_AUTH_JWT_ISSUER": "https://id.example", "HARK_AUTH_JWT_AUDIENCE": "hark"}) == []


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("[encryption]\nkey = '" + KEY + "'\n", True),
        ("engine = 'postgresql://me:secret@db/hark'\n", True),
        ("engine = 'postgresql://me@db/hark'\n", False),
        ("port = 7000\n", False),
    ],
)
def test_a_settings_file_with_secrets_that_others_can_read_is_notified_of(text: str, reported: bool) -> None:
    file = toml(text)
    file.chmod(0o644)
    notes = load({}, {}).notes
    assert [("hark.toml" in note, "chmod 600" in note) for note in notes] == ([(True, True)] if reported else [])
    file.chmod(0o600)
    assert load({}, {}).notes == ()


def test_a_private_key_that_others_can_read_is_notified_of(tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    key.touch()
    key.chmod(0o640)
    [note] = load({"tls.certificate": "c.pem", "tls.key": str(key)}, {}).notes
    assert str(key) in note and "chmod 600" in note
