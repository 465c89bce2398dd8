"""What the tests of delivery are given: a broker whose time the test has in hand, or a delivery on pops held back."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from .bench import Bench
from .harness import Server, serving


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving() as server:
        yield server


@pytest.fixture
async def bench() -> Bench:
    return Bench()
