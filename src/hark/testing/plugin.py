"""The pytest plugin: fixtures for every environment with Hark installed. Imports nothing until a test needs it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from hark.client.client import Client
    from hark.sync import Client as SyncClient
    from hark.testing.server import HarkServer


def pytest_configure(config: pytest.Config) -> None:
    """Register the fixture `hark_client` for the plugin that runs async tests here."""
    fixtures = ModuleType("hark.testing.async_fixtures")
    if config.pluginmanager.hasplugin("asyncio"):
        import pytest_asyncio

        vars(fixtures)["hark_client"] = pytest_asyncio.fixture(_hark_client)
    elif config.pluginmanager.hasplugin("anyio"):
        vars(fixtures)["hark_client"] = pytest.fixture(_hark_client)
    config.pluginmanager.register(fixtures, "hark-async")


async def _hark_client(hark_server: HarkServer) -> AsyncIterator[Client]:
    """A client of `hark_server`."""
    async with hark_server.connect() as client:
        yield client


@pytest.fixture
def hark_server() -> Iterator[HarkServer]:
    """A Hark server for one test, with real HTTP, a store in memory and a clock that stands still.

    `hark_server.clock.advance(seconds)` moves the clock. See `hark.testing.HarkServer`.
    """
    from hark.testing.server import HarkServer

    with HarkServer() as server:
        yield server


@pytest.fixture
def hark_sync(hark_server: HarkServer) -> Iterator[SyncClient]:
    """A blocking client of `hark_server`."""
    import hark.sync

    with hark.sync.connect(hark_server.url) as client:
        yield client
