"""Readiness for load balancers: whether the store has responded recently."""

from __future__ import annotations

import asyncio

from hark.broker.measured import EngineCalls
from hark.engine.api import Engine
from hark.errors import HarkError

LATELY_SECONDS = 5.0
"""Maximum age of a response that still counts."""
PING_SECONDS = 5.0


class Readiness:
    """Knows when the store last responded, and pings it only if that is too long ago."""

    def __init__(self, engine: Engine, calls: EngineCalls) -> None:
        self._engine = engine
        self._calls = calls
        self._asking: asyncio.Task[str | None] | None = None
        self.stopping = False
        """The server is shutting down: clients should use another server if they can."""

    async def problem(self) -> str | None:
        """Why this server should get no requests now, or None if it is ready."""
        if self.stopping:
            return "the server is shutting down"
        answered = self._calls.answered_at
        if answered is not None and self._calls.timer() - answered <= LATELY_SECONDS:
            return None
        return await self.reach()

    async def reach(self) -> str | None:
        """Ping the store regardless of its last response. Returns why it cannot be reached, or None."""
        if self._asking is None or self._asking.done():
            # All callers share one ping: health checks need no token and must not overload a store in trouble.
            self._asking = asyncio.create_task(self._ask())
        return await asyncio.shield(self._asking)

    async def _ask(self) -> str | None:
        try:
            async with asyncio.timeout(PING_SECONDS):
                await self._engine.ping()
        except TimeoutError:
            return f"the store did not respond within {PING_SECONDS:g} seconds"
        except HarkError as error:
            return error.text
        return None
