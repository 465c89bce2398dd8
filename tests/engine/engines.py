"""The engines that the suite runs on. A new engine adds one entry to `ENGINES`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from hark.clock import Clock
from hark.engine.api import Engine
from hark.engine.sqlite import SqliteEngine
from tests.postgres_server import PostgresServer

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


@contextmanager
def _file(_request: pytest.FixtureRequest) -> Iterator[Open]:
    with tempfile.TemporaryDirectory(prefix="hark-store-") as place:
        yield lambda clock: SqliteEngine(str(Path(place) / "hark.db"), clock=clock)


@contextmanager
def _memory(_request: pytest.FixtureRequest) -> Iterator[Open]:
    yield lambda clock: SqliteEngine(":memory:", clock=clock)


@contextmanager
def _database(request: pytest.FixtureRequest) -> Iterator[Open]:
    from hark.engine.postgres import PostgresEngine

    server: PostgresServer = request.getfixturevalue("postgres_server")
    with server.fresh_database() as url:
        yield lambda clock: PostgresEngine(url, clock=clock)


MEMORY = EngineKind("memory", durable=False, exclusive=False, leases_survive=False, store=_memory)
ENGINES = [
    EngineKind("sqlite", durable=True, exclusive=True, leases_survive=False, store=_file),
    EngineKind("postgres", durable=True, exclusive=False, leases_survive=True, store=_database),
    MEMORY,
]
DURABLE_ENGINES = [kind for kind in ENGINES if kind.durable]
EXCLUSIVE_ENGINES = [kind for kind in ENGINES if kind.exclusive]
