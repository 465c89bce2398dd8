"""What the tests of the client share: one real server, and names that nobody else uses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from hark.client.calling import Caller
from hark.client.transport.http import HttpTransport
from tests.conftest import running_server


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server on the memory engine for all tests of the client: take the queue's name from the fixture `queue`."""
    with running_server(tmp_path_factory.mktemp("client-server")) as address:
        yield address


@pytest.fixture
async def caller(url: str) -> AsyncIterator[Caller]:
    """Calls of the shared server; hung up at the end."""
    transport = HttpTransport(url)
    yield Caller(transport)
    await transport.close()
