"""Buckets for the tests of the S3 engine: the stub in process, the stub over HTTP, and MiniStack.

`stub_store`     the objects, with the time of `clock`; `StubBucket(stub_store, clock)` is a process that uses them
`process`        an engine on `stub_store` that looks at the log only when a test says so; `other`: another one
`stub_server`    the stub over HTTP in a thread, with the time of this machine; `.store` and `.faults` are at hand
`ministack`      a server that others wrote
`fresh_bucket`   an empty prefix as `s3://bucket/prefix?endpoint=...`: a test with it runs on both servers
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from hark.clock import FakeClock, SystemClock
from tests.s3.credentials import AWS_ENVIRONMENT
from tests.s3.ministack import Ministack, running_ministack
from tests.s3.processes import Process, running
from tests.s3.stub.inprocess import StubBucket
from tests.s3.stub.server import StubServer, serving_in_thread
from tests.s3.stub.store import StubStore


@pytest.fixture(autouse=True)
def aws_environment(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The credentials that every test server takes; also the settings for processes that a test starts."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    for name, value in AWS_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    return dict(AWS_ENVIRONMENT)


@pytest.fixture
def clock() -> FakeClock:
    """A clock that stands still until the test moves it."""
    return FakeClock()


@pytest.fixture
def stub_store(clock: FakeClock) -> StubStore:
    """An empty bucket in memory."""
    return StubStore(clock)


@pytest.fixture
def stub_bucket(stub_store: StubStore, clock: FakeClock) -> StubBucket:
    """A process that uses `stub_store`."""
    return StubBucket(stub_store, clock)


@pytest.fixture
async def process(stub_store: StubStore, clock: FakeClock) -> AsyncIterator[Process]:
    """An engine on `stub_store`."""
    async with running(stub_store, clock) as process:
        yield process


@pytest.fixture
async def other(stub_store: StubStore, clock: FakeClock) -> AsyncIterator[Process]:
    """Another one, which shares nothing but the bucket with it."""
    async with running(stub_store, clock) as other:
        yield other


@pytest.fixture
def stub_server() -> Iterator[StubServer]:
    """The stub over HTTP, for one test alone."""
    with serving_in_thread(StubServer(StubStore(SystemClock()))) as server:
        yield server


@pytest.fixture(scope="session")
def ministack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ministack]:
    """MiniStack, one for each process that runs tests: it starts in less than a second."""
    with running_ministack(tmp_path_factory.mktemp("ministack")) as server:
        yield server


@pytest.fixture
def no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of the one who runs the tests must not matter."""
    monkeypatch.chdir(tmp_path)
    for variable in ("HARK_ENGINE", "HARK_CONFIG", "HARK_URL", "HARK_POLLING_STRATEGY"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture(params=["stub", "ministack"])
def fresh_bucket(request: pytest.FixtureRequest) -> str:
    """An empty prefix of a bucket, on the stub over HTTP and on MiniStack."""
    server = request.getfixturevalue("stub_server" if request.param == "stub" else "ministack")
    assert isinstance(server, StubServer | Ministack)
    return server.bucket_url(f"prefix-{uuid.uuid4().hex[:12]}")
