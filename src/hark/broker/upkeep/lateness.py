"""The background task that measures the latency of the event loop."""

from __future__ import annotations

import asyncio

from hark.clock import SECOND, Clock
from hark.histograms import Histogram

_INTERVAL = 0.5


async def keep_measuring(lateness: Histogram, clock: Clock) -> None:
    """Sleep for a known time, repeatedly, and record how much longer it took."""
    while True:
        started = clock.now()
        await asyncio.sleep(_INTERVAL)
        lateness.add(max(0.0, (clock.now() - started) / SECOND - _INTERVAL))
