"""Settings about security that are only half of something are refused, by name and source."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from hark.errors import InvalidSetting
from hark.settings import Auth, Loaded, Settings, load, shown
from hark.settings.security import check_security, security_notes

SECRET = "0123456789abcdef0123456789abcdef"


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hark.toml of whoever runs the tests must not matter."""
    monkeypatch.chdir(tmp_path)


def check(loaded: Loaded) -> None:
    """As a server does when it starts."""
    check_security(loaded.settings.auth, loaded.settings.tls, loaded.sources)


def complaint(env: Mapping[str, str], flags: Mapping[str, object] | None = None) -> str:
    """Why a server with these variables and flags does not start."""
    loaded = load(flags or {}, env)
    with pytest.raises(InvalidSetting) as refused:
        check(loaded)
    return refused.value.text


def notes(env: Mapping[str, str]) -> list[str]:
    """What a server with these variables warns about."""
    loaded = load({}, env)
    return list(security_notes(loaded.settings.auth, loaded.sources, env))


def test_the_defaults_are_whole_and_closed() -> None:
    settings = Settings()
    check(load({}, {}))
    assert not settings.insecure_bind
    assert not settings.auth.jwt_enabled
    assert settings.auth.jwt_leeway_seconds == 30


def test_jwt_without_a_key_are_refused() -> None:
    text = complaint({"HARK_AUTH_JWT_ENABLED": "true"})
    assert "auth.jwt_enabled: HARK_AUTH_JWT_ENABLED says true" in text
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
    text = complaint({variable: value})
    assert f"{variable} gives it" in text
    assert "auth.jwt_enabled" in text
    assert SECRET not in text
    for said in ("true", "false"):
        check(load({}, {variable: value, "HARK_AUTH_JWT_ENABLED": said}))


def test_two_secrets_are_one_too_many() -> None:
    env = {"JWT_ENABLED": "true", "JWT_SECRET": SECRET, "HARK_AUTH_JWT_SECRET_FILE": "file"}
    assert "leave one of them out" in complaint(env)


@pytest.mark.parametrize(("flag", "other"), [("tls.certificate", "tls.key"), ("tls.key", "tls.certificate")])
def test_a_certificate_and_its_key_belong_together(flag: str, other: str) -> None:
    text = complaint({}, {flag: "file.pem"})
    assert f"--{flag.replace('.', '-')} gives it, but there is no {other}" in text
    check(load({flag: "file.pem", other: "other.pem"}, {}))


def test_the_variables_of_the_official_server_mean_what_they_mean_there() -> None:
    env = {
        "JWT_ENABLED": "true",
        "JWT_SECRET": SECRET,
        "JWT_ISSUER": "https://issuer",
        "JWT_AUDIENCE": "hark",
        "JWT_CLOCK_SKEW": "5",
    }
    loaded = load({}, env)
    check(loaded)
    assert loaded.settings.auth == Auth(
        jwt_enabled=True, jwt_secret=SECRET, jwt_issuer="https://issuer", jwt_audience="hark", jwt_leeway_seconds=5
    )
    assert notes(env) == []


def test_a_secret_of_another_program_has_no_effect_and_is_noted() -> None:
    env = {"JWT_SECRET": "short"}
    check(load({}, env))
    assert notes(env) == ["JWT_SECRET has no effect: JWT are not accepted unless JWT_ENABLED is true"]
    assert notes(env | {"JWT_ENABLED": "false"}) == []


def test_variables_of_the_official_server_that_we_do_not_have_are_noted() -> None:
    env = {"JWT_ENABLED": "true", "JWT_SECRET": SECRET, "JWT_JWKS_URL": "https://issuer/keys"}
    [note] = notes(env)
    assert note.startswith("JWT_JWKS_URL is not a setting and has no effect")


def test_the_secret_is_shown_nowhere() -> None:
    settings = Settings(auth=Auth(jwt_secret=SECRET))
    assert SECRET not in repr(settings)
    assert shown(settings, "auth.jwt_secret") == "******"


def test_the_token_of_a_client_is_no_setting() -> None:
    load({}, {"HARK_TOKEN": "hark_x", "HARK_CA_FILE": "ca.pem"})
