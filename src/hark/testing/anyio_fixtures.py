"""The async fixtures for test suites that use anyio's pytest plugin."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from hark.client.client import Client
    from hark.testing.server import HarkServer


@pytest.fixture
async def hark_client(hark_server: HarkServer) -> AsyncIterator[Client]:
    """A client of `hark_server`."""
    async with hark_server.connect() as client:
        yield client
