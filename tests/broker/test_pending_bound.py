"""The bound on what waits for an engine: it may be reached, and not passed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from hark.batching import Batcher
from hark.errors import Overloaded


async def test_as_much_may_wait_as_max_pending_says_and_nothing_more() -> None:
    async def call(requests: Sequence[int]) -> Sequence[int]:
        return requests

    batcher: Batcher[int, int] = Batcher("push", call, max_items=1000, max_wait=60, max_pending=10)
    waiting = [batcher.submit(1, 6), batcher.submit(2, 4)]
    with pytest.raises(Overloaded):
        batcher.submit(3, 1)
    assert await asyncio.gather(*waiting) == [1, 2]
