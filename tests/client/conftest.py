"""What the tests of the client share: one real server, and names that nobody else uses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest

import hark
from hark.client.calling import Caller
from hark.client.client import Client
from hark.client.http import HttpTransport
from tests.client.transports import Recorder


@pytest.fixture(scope="session")
def url(server_url: str) -> str:
    """The shared server: take the queue's name from the fixture `queue`."""
    return server_url


@pytest.fixture(autouse=True)
def sessions(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[aiohttp.ClientSession]]:
    """All sessions that a test opens. Each must be closed at its end: else there is a warning when Python collects its
    garbage, in whichever test runs then.
    """
    opened: list[aiohttp.ClientSession] = []
    construct = aiohttp.ClientSession.__init__

    def note(session: aiohttp.ClientSession, **options: object) -> None:
        construct(session, **options)  # type: ignore[arg-type]  # As they were given.
        opened.append(session)

    monkeypatch.setattr(aiohttp.ClientSession, "__init__", note)
    yield opened
    assert [session for session in opened if not session.closed] == []


@pytest.fixture
async def caller(url: str) -> AsyncIterator[Caller]:
    """Calls of the shared server; hung up at the end."""
    transport = HttpTransport(url)
    yield Caller(transport)
    await transport.close()


@pytest.fixture
async def recorder(url: str) -> AsyncIterator[Recorder]:
    """A way to the shared server that remembers, and loses what the test says."""
    transport = Recorder(HttpTransport(url))
    yield transport
    await transport.close()


@pytest.fixture
async def client(url: str) -> AsyncIterator[Client]:
    """A client of the shared server."""
    async with hark.connect(url) as opened:
        yield opened
