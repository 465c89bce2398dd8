"""What the tests of workers share: a worker of the queue of the test, and that no session is left open."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from hark.worker import Worker
from tests.client.conftest import sessions

__all__ = ["sessions", "worker"]


@pytest.fixture
async def worker(server_url: str, queue: str) -> AsyncIterator[Worker]:
    """A worker of the shared server, without tasks."""
    made = Worker(server_url, queue=queue)
    yield made
    await made.close()
