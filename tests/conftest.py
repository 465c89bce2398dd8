"""Servers for tests: real processes, each on a free port with a store of its own."""

from __future__ import annotations

import os
import re
import ssl
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue

import httpx
import pytest
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

from hark.clock import SystemClock
from tests.postgres_server import OwnPostgresServer, PostgresServer, any_server, own_server
from tests.s3.credentials import AWS_ENVIRONMENT
from tests.s3.stub.server import StubServer, serving_in_thread
from tests.s3.stub.store import StubStore

START_SECONDS = 20.0
STOP_SECONDS = 20.0
_LISTENING = re.compile(r"https?://127\.0\.0\.1:(\d+)")


@pytest.fixture(scope="session", autouse=True)
def _examples_depend_on_the_test_alone() -> Iterator[None]:
    """Hypothesis also draws constants of all local modules that happen to be loaded: fixed examples must not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(providers, "_get_local_constants", Constants, raising=False)
        yield


@contextmanager
def running_server(
    directory: Path,
    *,
    engine: str = "memory",
    arguments: Sequence[str] = (),
    settings: Mapping[str, str] | None = None,
    authority: Path | None = None,
) -> Iterator[str]:
    """Serve from `directory` (its only store and configuration) and yield the URL; stopped at the end.

    `authority` is whom to trust when the arguments give the server a certificate.
    """
    # Settings of the developer's shell must not reach the server under test.
    keep = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "SYSTEMROOT", "PYTHONPATH", "VIRTUAL_ENV")
    environment = {name: os.environ[name] for name in keep if name in os.environ}
    command = [sys.executable, "-c", "from hark.cli import main; main()", "serve", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--engine", engine, *arguments],
        cwd=directory,
        env=environment | dict(settings or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    said: list[str] = []
    try:
        url = _wait_until_ready(process, said, authority)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            pytest.fail(f"the server did not stop within {STOP_SECONDS} s; it said:\n{''.join(said)}")


def _wait_until_ready(process: subprocess.Popen[str], said: list[str], authority: Path | None) -> str:
    """Read what the server says until it names its address, then ask for its health."""
    lines: SimpleQueue[str | None] = SimpleQueue()

    def read() -> None:
        assert process.stdout is not None
        with process.stdout as output:
            for line in output:
                said.append(line)
                lines.put(line)
        lines.put(None)

    # Reads on after the start too: a full pipe would stop the server.
    threading.Thread(target=read, daemon=True).start()
    try:
        while (line := lines.get(timeout=START_SECONDS)) is not None:
            if match := _LISTENING.search(line):
                url = match[0]
                tls = ssl.create_default_context(cafile=authority)
                with httpx.Client(transport=httpx.HTTPTransport(retries=3, verify=tls)) as client:
                    client.get(f"{url}/health", timeout=START_SECONDS).raise_for_status()
                return url
    except Empty:
        pytest.fail(f"the server did not start within {START_SECONDS} s; it said:\n{''.join(said)}")
    pytest.fail(f"the server stopped with code {process.wait()}; it said:\n{''.join(said)}")


@contextmanager
def server_on(engine: str, directory: Path) -> Iterator[str]:
    """A server on the memory engine, or on "s3": then it has a bucket of its own."""
    if engine != "s3":
        with running_server(directory, engine=engine) as url:
            yield url
        return
    with (
        serving_in_thread(StubServer(StubStore(SystemClock()))) as stub,
        running_server(directory, engine=stub.bucket_url("server"), settings=AWS_ENVIRONMENT) as url,
    ):
        yield url


SERVER_ENGINE = os.environ.get("HARK_TEST_SERVER_ENGINE", "memory")
"""`s3`: whatever is tested over HTTP is tested on a bucket."""


@pytest.fixture(scope="module")
def server_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server on the memory engine that the tests of a module share: use queue names of your own."""
    with server_on(SERVER_ENGINE, tmp_path_factory.mktemp("server")) as url:
        yield url


@pytest.fixture
def fresh_server_url(tmp_path: Path) -> Iterator[str]:
    """A server on the memory engine for one test alone."""
    with server_on(SERVER_ENGINE, tmp_path) as url:
        yield url


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL on which tests have databases of their own."""
    with any_server(os.environ.get("HARK_TEST_POSTGRES")) as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """An empty database in which Hark's schema is installed."""
    with postgres_server.fresh_database() as url:
        yield url


@pytest.fixture
def own_postgres_server() -> Iterator[OwnPostgresServer]:
    """A PostgreSQL that the test may stop and start; always one that was started for it."""
    with own_server() as server:
        yield server


@pytest.fixture
def queue() -> str:
    """The name of a queue that no other test uses."""
    return f"queue-{uuid.uuid4().hex[:12]}"
