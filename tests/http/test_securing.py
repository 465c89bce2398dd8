"""Who can reach a server: loopback unless there is authentication, TLS as the files say, and who is let in over it."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import ssl
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypedDict
from unittest.mock import Mock
from urllib.parse import urlsplit

import httpx
import msgspec
import pytest
import uvloop
from cryptography.hazmat.primitives.asymmetric import ec

import hark
import hark.sync
from hark.access.tokens import TokenFile, make_token
from hark.api.operations import Role
from hark.client.calling import CallPolicy
from hark.client.delivery.socket import HEARTBEAT_SECONDS
from hark.client.transport.api import ConnectionFailed
from hark.clock import FakeClock, SystemClock
from hark.errors import InvalidInput, InvalidSetting, Unauthorized
from hark.http.wire import server as wire
from hark.serving import listening
from hark.serving.listening import make_authenticator, remembering, tls_context
from hark.settings import Auth, Cors, Settings, Tls
from hark.worker import WorkerRunOptions
from tests.certificates import Certificates, make_certificates, private_pem
from tests.cli.conftest import runner
from tests.servers import server_process

SECRET = "0123456789abcdef0123456789abcdef"

# Starting, in this process -----------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.2", "::1"])
def test_on_loopback_no_authentication_is_needed(host: str, tmp_path: Path) -> None:
    with listening.bound(host, 0) as listener:
        assert not make_authenticator(Settings(data=str(tmp_path)), FakeClock(), listener).enabled


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_elsewhere_a_server_without_authentication_is_refused(host: str, tmp_path: Path) -> None:
    with listening.bound(host, 0) as listener, pytest.raises(InvalidSetting) as refused:
        make_authenticator(Settings(data=str(tmp_path)), FakeClock(), listener)
    for way in (f"hark token create NAME --role admin --data {tmp_path}", "--insecure-bind", "insecure_bind"):
        assert way in refused.value.text


@pytest.mark.parametrize(
    "auth", [Auth(required=True), Auth(jwt_enabled=True, jwt_secret=SECRET)], ids=["required", "jwt"]
)
def test_with_authentication_a_server_may_listen_anywhere(auth: Auth, tmp_path: Path) -> None:
    with listening.bound("0.0.0.0", 0) as listener:
        assert make_authenticator(Settings(data=str(tmp_path), auth=auth), FakeClock(), listener).enabled


def test_the_one_that_wants_it_open_gets_it_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with listening.bound("0.0.0.0", 0) as listener, caplog.at_level(logging.WARNING):
        settings = Settings(data=str(tmp_path), insecure_bind=True)
        assert not make_authenticator(settings, FakeClock(), listener).enabled
    assert "every client that can connect to 0.0.0.0 has full access" in caplog.text


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_pages_of_every_site_are_let_in_only_with_authentication(host: str, tmp_path: Path) -> None:
    settings = Settings(data=str(tmp_path), insecure_bind=True, cors=Cors(origins=("https://tools.example", "*")))
    named = msgspec.structs.replace(settings, cors=Cors(origins=("https://tools.example",)))
    with listening.bound(host, 0) as listener:
        for start in (
            lambda: make_authenticator(settings, FakeClock(), listener),
            lambda: remembering(settings, listener),
        ):
            with pytest.raises(InvalidSetting) as refused:
                start()
            assert "setting cors.origins: " in refused.value.text
            for way in (
                "name the origins",
                f"hark token create NAME --role admin --data {tmp_path}",
                "auth.jwt_enabled",
            ):
                assert way in refused.value.text
        assert not make_authenticator(named, FakeClock(), listener).enabled
        add_token_file(tmp_path)
        assert make_authenticator(settings, FakeClock(), listener).enabled


def add_token_file(data: Path) -> None:
    """An empty file of tokens, which turns authentication on."""
    (data / "tokens.json").write_text('{"version": 1, "tokens": []}')
    (data / "tokens.json").chmod(0o600)


def test_processes_that_are_started_later_remember_that_authentication_is_on(tmp_path: Path) -> None:
    add_token_file(tmp_path)
    settings = Settings(data=str(tmp_path))
    with listening.bound("127.0.0.1", 0) as listener:
        remembered = remembering(settings, listener)
        (tmp_path / "tokens.json").unlink()
        assert make_authenticator(remembered, FakeClock(), listener).enabled
        assert remembering(settings, listener) == settings


def files(made: Certificates) -> Tls:
    """The settings that name them."""
    return Tls(certificate=str(made.certificate), key=str(made.key))


def test_without_a_certificate_there_is_no_tls_and_with_one_it_is_at_least_1_2(tmp_path: Path) -> None:
    assert tls_context(Tls()) is None
    context = tls_context(files(make_certificates(tmp_path)))
    assert context is not None
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_a_client_that_does_not_begin_with_tls_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "HANDSHAKE_SECONDS", 0.05)
    context = tls_context(files(make_certificates(tmp_path)))

    async def read_all() -> bytes:
        server = wire.Server(Mock())
        with listening.bound("127.0.0.1", 0) as listener:
            await server.start(listener, context)
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            try:
                return await asyncio.wait_for(reader.read(), 30)
            finally:
                writer.close()
                await server.stop(0)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(read_all()) == b""


def test_files_that_are_not_there_or_do_not_fit_are_refused_and_no_password_is_requested(tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    private = ec.generate_private_key(ec.SECP256R1())
    for content in (private_pem(private), private_pem(private, b"password"), b"no key"):
        made.key.write_bytes(content)
        with pytest.raises(InvalidSetting, match="are not a matching certificate and private key"):
            tls_context(files(made))
    for missing in ("key", "certificate"):
        getattr(made, missing).unlink()
        with pytest.raises(InvalidSetting, match=rf"tls\.{missing}: cannot read .*: No such file"):
            tls_context(files(made))


class Access(TypedDict):
    """What `connect` takes."""

    token: str
    ca_file: str


class Secured(NamedTuple):
    """Where the server is, and what it takes to use it."""

    url: str
    token: str
    certificates: Certificates
    directory: Path

    @property
    def ca_file(self) -> str:
        """Whom to trust."""
        return str(self.certificates.authority)

    @property
    def access(self) -> Access:
        """What `connect` takes."""
        return {"token": self.token, "ca_file": self.ca_file}


def add_token(directory: Path, name: str = "tester", role: Role = Role.ADMIN) -> str:
    """A token in the data of a server."""
    token, text = make_token(name, role, ("*",), now=SystemClock().now())
    TokenFile(directory / "hark-data" / "tokens.json").add(lambda _tokens: token)
    return text


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A server on the memory engine with a certificate of its own, which asks for a token."""
    directory = tmp_path_factory.mktemp("secured")
    certificates = make_certificates(directory / "tls")
    token = add_token(directory)
    settings = {"HARK_LIMITS_STALLED_SECONDS": "1"}
    with server_process(
        directory, arguments=certificates.flags, authority=certificates.authority, settings=settings
    ) as url:
        yield Secured(url, token, certificates, directory)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables of whoever runs the tests must not matter."""
    for variable in ("HARK_URL", "HARK_TOKEN", "HARK_CA_FILE"):
        monkeypatch.delenv(variable, raising=False)


def browser(server: Secured, token: str | None = None) -> httpx.Client:
    """Somebody who speaks HTTP."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    trust = ssl.create_default_context(cafile=server.ca_file)
    return httpx.Client(base_url=server.url, headers=headers, verify=trust, timeout=20)


# The wire ----------------------------------------------------------------------------------------------------


def test_who_has_the_token_is_let_in_and_no_one_else(server: Secured) -> None:
    assert server.url.startswith("https://127.0.0.1:")
    with browser(server, server.token) as client:
        assert client.get("/api/v1/resources/queues").status_code == 200
        assert client.get("/api/v1/resources/queues", headers={"Authorization": server.token}).status_code == 200
    for credential in (None, "nobody", server.token[:-1] + "!"):
        with browser(server, credential) as client:
            answer = client.get("/api/v1/resources/queues")
        assert answer.status_code == 401
        assert answer.json()["code"] == "unauthorized"
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")


def test_what_is_not_encrypted_is_not_answered(server: Secured) -> None:
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port or 0), timeout=20) as plain:
        plain.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = b""
        while part := plain.recv(4096):
            answer += part
    assert b"HTTP/1.1" not in answer


# The client --------------------------------------------------------------------------------------------------


async def test_clients_and_workers_with_token_and_authority_push_and_take(server: Secured, queue: str) -> None:
    async with hark.connect(server.url, **server.access) as client:
        await client.queue(queue).push({"id": 1})
        [message] = await client.queue(queue).pop()
        assert message.data == {"id": 1}
        await message.ack()
    done: list[int] = []
    worker = hark.Worker(server.url, queue=f"{queue}-work", **server.access)

    @worker.task("count")
    async def count(number: int) -> None:
        done.append(number)

    async with worker:
        await count.push(number=1)
        await worker.run(WorkerRunOptions(burst=True, handle_signals=False))
    assert done == [1]


async def test_the_environment_says_token_and_authority_too(
    server: Secured, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARK_URL", server.url)
    monkeypatch.setenv("HARK_TOKEN", f" {server.token}\n")
    monkeypatch.setenv("HARK_CA_FILE", server.ca_file)
    async with hark.connect() as client:
        await client.queue(queue).push({"id": 1})
    async with hark.connect(token="hark_abcdefgh_" + "a" * 43) as client:
        with pytest.raises(Unauthorized, match="unknown"):
            await client.queue(queue).push({"id": 1})
    async with hark.connect(headers={"authorization": "Bearer nobody"}) as client:
        with pytest.raises(Unauthorized):
            await client.queue(queue).push({"id": 1})


@pytest.mark.parametrize("leaves", [True, False])
def test_a_large_message_that_a_client_does_not_read_is_given_back(server: Secured, queue: str, leaves: bool) -> None:
    with browser(server, server.token) as other:
        item = {"queue": queue, "payload": "x" * 9_000_000}
        assert other.post("/api/v1/push", json={"items": [item]}).status_code == 201
        where = urlsplit(server.url)
        context = ssl.create_default_context(cafile=server.ca_file)
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # What is not read should stay with the server.
            deaf.settimeout(20)
            deaf.connect((where.hostname, where.port))
            with context.wrap_socket(deaf, server_hostname=where.hostname) as client:
                head = (
                    f"GET /api/v1/pop/queue/{queue} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {server.token}"
                )
                client.sendall(f"{head}\r\n\r\n".encode())
                assert client.recv(12).startswith(b"HTTP/1.1 200")
                if leaves:
                    client.close()
                until = time.monotonic() + 20
                while (answer := other.get(f"/api/v1/pop/queue/{queue}")).status_code == 204:
                    assert time.monotonic() < until
                [message] = answer.json()["messages"]
                assert (len(message["data"]), message["deliveryAttempt"]) == (9_000_000, 1)


async def test_messages_come_over_a_websocket_with_the_same_token_and_not_without(server: Secured, queue: str) -> None:
    # Sooner than the heartbeat, which would set free what got stuck.
    async with (
        asyncio.timeout(HEARTBEAT_SECONDS - 5),
        hark.connect(server.url.replace("https://", "wss://"), **server.access) as client,
    ):
        await client.queue(queue).push({"id": 1})
        async for message in client.queue(queue).messages():
            assert message.data == {"id": 1}
            await message.ack()
            break
    async with hark.connect(server.url.replace("https://", "wss://"), ca_file=server.ca_file) as client:
        with pytest.raises(Unauthorized):
            async for _ in client.queue(queue).messages():
                pass


def test_a_request_that_is_cancelled_over_tls_leaves_no_connection(server: Secured, queue: str) -> None:
    async def cancel_a_pop() -> None:
        async with hark.connect(server.url, **server.access) as client:
            await client.queue(queue).push({"id": 1})
            [message] = await client.queue(queue).pop()
            await message.ack()
            waiting = asyncio.create_task(client.queue(queue).wait().pop())
            with browser(server, server.token) as other:
                waits = {"queue": queue}
                while not other.get("/api/v1/consumers", params=waits).json()["total"]:  # noqa: ASYNC110  # no event
                    await asyncio.sleep(0.01)
            waiting.cancel()
            await asyncio.wait([waiting])

    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always", ResourceWarning)
        for _ in range(10):
            asyncio.run(cancel_a_pop())
            gc.collect()
    assert [str(warning.message) for warning in raised] == []


async def test_servers_that_stand_in_for_each_other_get_the_same_token(server: Secured, queue: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        dead = f"https://127.0.0.1:{unused.getsockname()[1]}"
        async with hark.connect([dead, server.url], **server.access) as client:
            await client.queue(queue).push({"id": 1})


async def test_a_certificate_that_is_not_trusted_is_an_error_that_says_what_to_do(server: Secured, queue: str) -> None:
    # One that is tried again would wait for an hour first.
    patient = CallPolicy(first_delay=3600, max_delay=3600, give_up_after=1e9)
    async with hark.connect(server.url, token=server.token, retry=patient) as client:
        with pytest.raises(ConnectionFailed, match=r"is not trusted: .*; give the certificate file .* HARK_CA_FILE"):
            await client.queue(queue).push({"id": 1})


async def test_https_to_a_server_without_tls_is_an_error_that_says_so(server_url: str, queue: str) -> None:
    async with hark.connect(server_url.replace("http://", "https://")) as client:
        with pytest.raises(ConnectionFailed, match=r"TLS connection to .* failed.*use http://"):
            await client.queue(queue).push({"id": 1})


def test_the_sync_client_takes_the_same(server: Secured, queue: str) -> None:
    with hark.sync.connect(server.url, **server.access) as client:
        client.queue(queue).push({"id": 1})
    with hark.sync.connect(server.url, ca_file=server.ca_file) as client, pytest.raises(Unauthorized):
        client.queue(queue).push({"id": 1})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"token": "two words"}, "token: expected one word"),
        ({"token": "a\r\nX: y"}, "token: expected one word"),
        ({"token": ""}, "token: expected one word"),
        ({"token": "t", "headers": {"authorization": "x"}}, "either a token or an Authorization header"),
        ({"ca_file": "nothing.pem"}, r"ca_file: nothing\.pem cannot be read"),
        ({"ca_file": __file__}, "contains no PEM certificates"),
    ],
    ids=["words", "lines", "empty", "both", "no-file", "no-pem"],
)
def test_tokens_and_files_that_make_no_sense_are_refused(options: Mapping[str, Any], text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        hark.connect("https://127.0.0.1:1", **options)


def test_what_has_no_effect_is_refused() -> None:
    with pytest.raises(InvalidInput, match="ca_file: only valid with an https"):
        hark.connect("http://127.0.0.1:1", ca_file="ca.pem")

    async def application(*_event: object) -> None: ...

    given: list[dict[str, Any]] = [{"token": "x"}, {"ca_file": "x"}]
    for option in given:
        [name] = option
        with pytest.raises(InvalidInput, match=f"{name}: only valid if the target is the URL"):
            hark.connect(application, **option)
        with pytest.raises(InvalidInput, match=f"{name}: expected either"):
            hark.Worker(queue="q", client=hark.connect("http://127.0.0.1:1"), **option)


# The command line --------------------------------------------------------------------------------------------


def command(*args: str) -> subprocess.CompletedProcess[str]:
    """Run `hark` in a process of its own."""
    program = [sys.executable, "-c", "from hark.cli import main; main()", *args]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HARK_")}
    return subprocess.run(program, capture_output=True, text=True, timeout=60, check=False, env=clean)


def test_commands_take_token_and_authority_as_options_and_from_the_environment(
    server: Secured, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hark_command = runner()
    connection = ("--url", server.url, "--token", server.token, "--ca-file", server.ca_file)
    assert hark_command("push", queue, '"over TLS"', *connection).exit_code == 0
    popped = hark_command("pop", queue, *connection)
    assert (popped.exit_code, "over TLS" in popped.stdout) == (0, True)
    monkeypatch.setenv("HARK_URL", server.url)
    monkeypatch.setenv("HARK_TOKEN", server.token)
    monkeypatch.setenv("HARK_CA_FILE", server.ca_file)
    assert runner()("push", queue, "1").exit_code == 0


def test_commands_say_what_is_missing(server: Secured) -> None:
    hark_command = runner()
    refused = hark_command("queue", "list", "--url", server.url, "--ca-file", server.ca_file)
    assert refused.exit_code == 1
    assert "pass an API token with --token or HARK_TOKEN" in refused.stderr
    untrusted = hark_command("queue", "list", "--url", server.url, "--token", server.token)
    assert untrusted.exit_code == 1
    assert "is not trusted" in untrusted.stderr
    assert server.token not in refused.stderr + untrusted.stderr
    wrong = hark_command("queue", "list", "--url", server.url, "--token", "two words")
    assert wrong.exit_code == 2
    assert "--token, HARK_TOKEN: expected one word" in wrong.stderr


def test_the_load_generator_has_the_token_too(server: Secured) -> None:
    flags = ("--seconds", "0.1", "--connections", "1", "--partitions", "1", "--token", server.token)
    ran = command("bench", "--url", server.url, "--ca-file", server.ca_file, *flags)
    assert ran.returncode == 0, ran.stderr


# While it runs -----------------------------------------------------------------------------------------------


def until(client: httpx.Client, status: int) -> None:
    """Ask until that is the answer, for half a minute at most."""
    for _ in range(1500):
        if client.get("/api/v1/resources/queues").status_code == status:
            return
        time.sleep(0.02)
    pytest.fail(f"the answer was never {status}")


def test_tokens_that_are_made_and_revoked_count_while_the_server_runs(server: Secured) -> None:
    text = add_token(server.directory, "late")
    with browser(server, text) as client:
        until(client, 200)
        TokenFile(server.directory / "hark-data" / "tokens.json").remove(text[5:13])
        until(client, 401)
    with browser(server, server.token) as client:
        assert client.get("/api/v1/resources/queues").status_code == 200


# Starting ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--host", "0.0.0.0"), "--insecure-bind"),
        (("--tls-certificate", "cert.pem", "--tls-key", "key.pem"), "cannot read cert.pem"),
    ],
    ids=["open", "no-file"],
)
def test_a_server_that_would_not_be_safe_does_not_start(
    arguments: tuple[str, ...], named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = command("serve", "--port", "0", "--engine", "memory", *arguments)
    assert refused.returncode == 2
    assert named in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_server_for_pages_of_every_site_does_not_start_without_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hark.toml").write_text('[cors]\norigins = ["*"]\n')
    for workers in ((), ("--workers", "2", "--engine", "postgresql://127.0.0.1:1/none")):
        refused = command("serve", "--port", "0", "--engine", "memory", *workers)
        assert refused.returncode == 2
        assert "setting cors.origins: " in refused.stderr
        assert "Traceback" not in refused.stderr
    add_token(tmp_path)
    with server_process(tmp_path) as url:
        assert httpx.get(f"{url}/api/v1/resources/queues").status_code == 401
