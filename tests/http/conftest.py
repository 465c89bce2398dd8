"""Fixtures of the HTTP tests."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.http.api import Api
from tests.http.streaming import Socket, websocket


@pytest.fixture(scope="module")
def http(server_url: str) -> Iterator[httpx.Client]:
    """A client of the module's server."""
    with httpx.Client(base_url=server_url, timeout=30) as client:
        yield client


@pytest.fixture(scope="module")
def api(http: httpx.Client) -> Api:
    """The API of the module's server."""
    return Api(http)


@pytest.fixture
def fresh_api(fresh_server_url: str) -> Iterator[Api]:
    """The API of a server that no other test uses."""
    with httpx.Client(base_url=fresh_server_url, timeout=30) as client:
        yield Api(client)


@pytest.fixture
def socket(server_url: str) -> Iterator[Socket]:
    """A connection without credit."""
    with websocket(server_url) as connected:
        yield connected
