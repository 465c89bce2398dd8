"""Who can reach a server: loopback unless there is authentication, and TLS as the files say."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from hark.clock import FakeClock
from hark.errors import InvalidSetting
from hark.serving import listening, server
from hark.serving.securing import make_authenticator, remembering, tls_context
from hark.settings import Auth, Settings, Tls
from tests.certificates import make_certificates, private_pem

SECRET = "0123456789abcdef0123456789abcdef"


@contextmanager
def bound(host: str) -> Iterator[socket.socket]:
    """A socket that nobody can connect to yet."""
    with listening.bound(host, 0) as listener:
        yield listener


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.2", "::1"])
def test_on_loopback_no_authentication_is_needed(host: str, tmp_path: Path) -> None:
    with bound(host) as listener:
        assert not make_authenticator(Settings(data=str(tmp_path)), FakeClock(), listener).enabled


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_elsewhere_a_server_without_authentication_is_refused(host: str, tmp_path: Path) -> None:
    with bound(host) as listener, pytest.raises(InvalidSetting) as refused:
        make_authenticator(Settings(data=str(tmp_path)), FakeClock(), listener)
    for way in (f"hark token create NAME --role admin --data {tmp_path}", "--insecure-bind", "insecure_bind"):
        assert way in refused.value.text


@pytest.mark.parametrize(
    "auth", [Auth(required=True), Auth(jwt_enabled=True, jwt_secret=SECRET)], ids=["required", "jwt"]
)
def test_with_authentication_a_server_may_listen_anywhere(auth: Auth, tmp_path: Path) -> None:
    with bound("0.0.0.0") as listener:
        assert make_authenticator(Settings(data=str(tmp_path), auth=auth), FakeClock(), listener).enabled


def test_whoever_wants_it_open_gets_it_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with bound("0.0.0.0") as listener, caplog.at_level(logging.WARNING):
        settings = Settings(data=str(tmp_path), insecure_bind=True)
        assert not make_authenticator(settings, FakeClock(), listener).enabled
    assert "everybody who can connect to 0.0.0.0 may do everything" in caplog.text


def test_processes_that_are_started_later_remember_that_authentication_is_on(tmp_path: Path) -> None:
    (tmp_path / "tokens.json").write_text('{"version": 1, "tokens": []}')
    (tmp_path / "tokens.json").chmod(0o600)
    settings = Settings(data=str(tmp_path))
    with bound("127.0.0.1") as listener:
        remembered = remembering(settings, listener)
        (tmp_path / "tokens.json").unlink()
        assert make_authenticator(remembered, FakeClock(), listener).enabled
        assert remembering(settings, listener) == settings


def test_without_a_certificate_there_is_no_tls() -> None:
    assert tls_context(Tls()) is None


def test_tls_is_at_least_1_2(tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    context = tls_context(Tls(certificate=str(made.certificate), key=str(made.key)))
    assert context is not None
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_a_client_that_does_not_begin_with_tls_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HANDSHAKE_SECONDS", 0.05)
    made = make_certificates(tmp_path)
    context = tls_context(Tls(certificate=str(made.certificate), key=str(made.key)))

    async def heard() -> bytes:
        serving = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0, ssl=context)
        async with serving:
            reader, writer = await asyncio.open_connection(*serving.sockets[0].getsockname())
            try:
                return await asyncio.wait_for(reader.read(), 30)
            finally:
                writer.close()

    with asyncio.Runner(loop_factory=server.ServerLoop) as runner:
        assert runner.run(heard()) == b""


@pytest.mark.parametrize("missing", ["certificate", "key"])
def test_a_file_that_is_not_there_is_named(missing: str, tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    getattr(made, missing).unlink()
    with pytest.raises(InvalidSetting, match=rf"tls\.{missing}: .*can't be read: No such file"):
        tls_context(Tls(certificate=str(made.certificate), key=str(made.key)))


@pytest.mark.parametrize("wrong", ["other", "password", "text"])
def test_a_key_that_does_not_fit_is_refused_and_nobody_is_asked_for_a_password(wrong: str, tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    content = {
        "other": private_pem(ec.generate_private_key(ec.SECP256R1())),
        "password": private_pem(ec.generate_private_key(ec.SECP256R1()), b"password"),
        "text": b"no key",
    }[wrong]
    made.key.write_bytes(content)
    with pytest.raises(InvalidSetting, match="are not a certificate and its private key"):
        tls_context(Tls(certificate=str(made.certificate), key=str(made.key)))
