"""Starts and stops the background tasks of a server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from hark.broker.operations import Operations
from hark.broker.upkeep.cleanup import keep_cleaning
from hark.broker.upkeep.expiry import keep_expiring
from hark.broker.upkeep.flags import keep_learning
from hark.broker.upkeep.lateness import keep_measuring
from hark.broker.upkeep.retention import keep_collecting
from hark.clock import Clock
from hark.engine.api import Engine
from hark.histograms import CALL_SECONDS, Histogram
from hark.settings import Settings


class Duties:
    """The background tasks of a server."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []
        self.lateness = Histogram(CALL_SECONDS)
        """Seconds that the event loop was late."""

    def begin(
        self,
        engine: Engine,
        settings: Settings,
        clock: Clock,
        operations: Operations,
        refresh_flags: Callable[[], Awaitable[None]],
    ) -> None:
        """Start the tasks that the settings and the store need."""
        duties = {
            "expiry": keep_expiring(engine, clock),
            "retention": keep_collecting(engine, settings.retention.interval_ms / 1000),
            "lateness": keep_measuring(self.lateness, clock),
        }
        if settings.queue.cleanup_interval:
            duties["cleanup"] = keep_cleaning(engine, settings.queue.cleanup_interval / 1000, operations)
        if engine.shared:
            duties["flags"] = keep_learning(refresh_flags)
        self._tasks = [asyncio.create_task(duty, name=name) for name, duty in duties.items()]

    async def end(self) -> None:
        """Stop them."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
