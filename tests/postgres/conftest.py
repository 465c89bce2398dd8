"""Fixtures of the tests for PostgreSQL: two engines on one database, as two servers have them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from hark.clock import Clock, FakeClock
from hark.engine.api import Engine
from hark.engine.postgres import PostgresEngine
from tests.engine.driver import Driver
from tests.postgres_server import OwnPostgresServer, own_server


@pytest.fixture(scope="session")
def own_postgres_server() -> Iterator[OwnPostgresServer]:
    """A PostgreSQL that tests of this folder stop, and start again before they end."""
    with own_server() as server:
        yield server


@pytest.fixture
def clock() -> FakeClock:
    """The clock of both engines; it moves when a test says so."""
    return FakeClock()


@pytest.fixture
async def pair(postgres_url: str, clock: FakeClock) -> AsyncIterator[tuple[Driver, Driver]]:
    """Two started engines on one empty database."""

    def open_engine(clock: Clock) -> Engine:
        return PostgresEngine(postgres_url, clock=clock)

    drivers = Driver(open_engine, clock), Driver(open_engine, clock)
    for driver in drivers:
        await driver.start()
    yield drivers
    for driver in drivers:
        await driver.engine.close()


@pytest.fixture
def here(pair: tuple[Driver, Driver]) -> Driver:
    """One of the two."""
    return pair[0]


@pytest.fixture
def there(pair: tuple[Driver, Driver]) -> Driver:
    """The other one."""
    return pair[1]
