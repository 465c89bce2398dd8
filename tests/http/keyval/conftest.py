"""Fixtures of the tests of the key-value API."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from hark.clock import FakeClock
from tests.http.keyval.keys import Keys
from tests.http.keyval.work import Work
from tests.http.streaming import inside


@pytest.fixture
def work(http: httpx.Client, queue: str) -> Work:
    """A queue of the module's server that no other test uses."""
    return Work(http, queue)


@pytest.fixture
def clock() -> FakeClock:
    """The time of the server in `timed`."""
    return FakeClock()


@pytest.fixture
def timed(clock: FakeClock) -> Iterator[Work]:
    """A queue of a server whose clock stands still."""
    with inside(clock=clock) as server, httpx.Client(base_url=server.url, timeout=30) as client:
        yield Work(client)


@pytest.fixture
def keys(http: httpx.Client, queue: str) -> Keys:
    """Keys of the module's server that no other test uses."""
    return Keys(http, queue)
