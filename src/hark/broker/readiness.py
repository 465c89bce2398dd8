"""Whether the store answered lately: what a load balancer wants to know before it sends requests."""

from __future__ import annotations

import asyncio

from hark.broker.measured import EngineCalls
from hark.engine.api import Engine
from hark.errors import HarkError

LATELY_SECONDS = 5.0
"""An answer this old still counts."""
PING_SECONDS = 5.0


class Readiness:
    """Knows when the store last answered; asks it only where that is too long ago."""

    def __init__(self, engine: Engine, calls: EngineCalls) -> None:
        self._engine = engine
        self._calls = calls
        self._asking: asyncio.Task[str | None] | None = None
        self.stopping = False
        """The server is about to stop: whoever has a choice should go elsewhere."""

    async def problem(self) -> str | None:
        """Why requests should not come here now; None: they may."""
        if self.stopping:
            return "the server is stopping"
        answered = self._calls.answered_at
        if answered is not None and self._calls.timer() - answered <= LATELY_SECONDS:
            return None
        return await self.reach()

    async def reach(self) -> str | None:
        """Ask the store, however lately it answered: why it can't be reached now; None: it can."""
        if self._asking is None or self._asking.done():
            # One question for all who ask: a store in trouble needs no crowd, and anybody may ask, without a token.
            self._asking = asyncio.create_task(self._ask())
        return await asyncio.shield(self._asking)

    async def _ask(self) -> str | None:
        try:
            async with asyncio.timeout(PING_SECONDS):
                await self._engine.ping()
        except TimeoutError:
            return f"the store did not answer within {PING_SECONDS:g} seconds"
        except HarkError as error:
            return error.text
        return None
