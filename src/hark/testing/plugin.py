"""The pytest plugin: fixtures for every environment with Hark installed. Imports nothing until a test needs it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from hark.sync import Client as SyncClient
    from hark.testing.server import HarkServer


def pytest_configure(config: pytest.Config) -> None:
    """Register the async fixtures for the plugin that runs async tests here."""
    if config.pluginmanager.hasplugin("asyncio"):
        from hark.testing import asyncio_fixtures

        config.pluginmanager.register(asyncio_fixtures, "hark-asyncio")
    elif config.pluginmanager.hasplugin("anyio"):
        from hark.testing import anyio_fixtures

        config.pluginmanager.register(anyio_fixtures, "hark-anyio")


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
