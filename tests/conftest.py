"""What all tests share: a server, a PostgreSQL, and names that no other test uses."""

from __future__ import annotations

import gc
import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

from tests.postgres_server import OwnPostgresServer, PostgresServer, any_server, own_server
from tests.servers import SERVER_ENGINE, server_on

hypothesis.settings.register_profile("hark", deadline=None)  # A busy machine is no reason to fail.
hypothesis.settings.load_profile("hark")


def pytest_configure() -> None:
    """Let children be interrupted: in the background of a script SIGINT is ignored, and programs inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda *_: None)


def pytest_collection_finish() -> None:
    """Look for garbage only in what tests make: thousands of collected tests stay until the end."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say how to repeat the order of this run."""
    terminalreporter.write_line(f"order of the tests: --randomly-seed={config.getoption('randomly_seed')}")


@pytest.fixture(scope="session", autouse=True)
def _examples_depend_on_the_test_alone() -> Iterator[None]:
    """Hypothesis also draws constants of all local modules that happen to be loaded: fixed examples must not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(providers, "_get_local_constants", Constants, raising=False)
        yield


@pytest.fixture(scope="session")
def server_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server on the memory engine that all tests of this process share: name your queues by the fixture `queue`.

    It is a process, so that a test that replaces a part of Hark does not replace it there.
    """
    with server_on(SERVER_ENGINE, tmp_path_factory.mktemp("server"), process=True) as url:
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
def postgres_url(request: pytest.FixtureRequest, postgres_server: PostgresServer) -> Iterator[str]:
    """An empty database in which Hark's schema is installed; no session and no object may be left behind in it.

    Tests with the mark `fresh_database` (they migrate, rotate or look at statistics) get one that no test used before.
    """
    fresh = request.node.get_closest_marker("fresh_database") is not None
    with postgres_server.fresh_database() if fresh else postgres_server.database() as url:
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
