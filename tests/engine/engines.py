"""The engines that the suite runs on. A new engine adds one entry to `ENGINES`."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from hark.clock import Clock
from hark.engine.api import Engine
from hark.engine.s3.objects import Pause
from hark.engine.sqlite import SqliteEngine
from hark.settings.sections import S3
from tests.postgres_programs import fast_folder
from tests.postgres_server import PostgresServer
from tests.s3.stub.faults import Faults
from tests.s3.stub.inprocess import StubBucket
from tests.s3.stub.store import StubStore

Open = Callable[[Clock], Engine]
"""Makes an engine, not yet started, on one and the same store."""


class EngineKind(NamedTuple):
    """How to open an engine of one kind, and what outlives it."""

    name: str
    durable: bool
    """Whether what it keeps outlives it."""
    exclusive: bool
    """Whether one engine at a time may have the store."""
    leases_survive: bool
    """Whether leases outlive it too."""
    store: Callable[[pytest.FixtureRequest], AbstractContextManager[Open]]
    """An empty store that is there as long as the context is; the request is for fixtures that it needs."""
    servers: int = 1
    """How many servers the engine stands for."""


@contextmanager
def _file(_request: pytest.FixtureRequest) -> Iterator[Open]:
    with tempfile.TemporaryDirectory(prefix="hark-store-", dir=fast_folder()) as folder:
        yield lambda clock: SqliteEngine(str(Path(folder) / "hark.db"), clock=clock)


@contextmanager
def _memory(_request: pytest.FixtureRequest) -> Iterator[Open]:
    yield lambda clock: SqliteEngine(":memory:", clock=clock)


@contextmanager
def _database(request: pytest.FixtureRequest) -> Iterator[Open]:
    from hark.engine.postgres import PostgresEngine

    server: PostgresServer = request.getfixturevalue("postgres_server")
    with server.database() as url:
        yield lambda clock: PostgresEngine(url, clock=clock)


class LocalBucket:
    """A bucket in this process."""

    def __init__(
        self, faults: Callable[[], Faults] = Faults, pause: Pause = asyncio.sleep, snapshot_records: int = 1000
    ) -> None:
        self._pause = pause
        self._faults = faults
        # All engines have the same clock.
        self._settings = S3(skew_margin_ms=0, snapshot_records=snapshot_records)
        self.store: StubStore | None = None

    def open(self, clock: Clock) -> Engine:
        """An engine on it, as another process has it."""
        from hark.engine.s3 import S3Engine

        self.store = self.store or StubStore(clock)
        bucket = StubBucket(self.store, clock, faults=self._faults())
        return S3Engine(
            "s3://tests/conformance", clock=clock, settings=self._settings, bucket=bucket, pause=self._pause
        )


@contextmanager
def _bucket(_request: pytest.FixtureRequest) -> Iterator[Open]:
    yield LocalBucket().open


MEMORY = EngineKind("memory", durable=False, exclusive=False, leases_survive=False, store=_memory)
"""The SQLite engine without a file: the state machines run on it, with few examples, and the tests over HTTP."""
ENGINES = [
    EngineKind("sqlite", durable=True, exclusive=True, leases_survive=False, store=_file),
    EngineKind("postgres", durable=True, exclusive=False, leases_survive=True, store=_database),
    EngineKind("s3", durable=True, exclusive=False, leases_survive=True, store=_bucket),
]
EXCLUSIVE_ENGINES = [kind for kind in ENGINES if kind.exclusive]
