"""The memory engine, with a way to wait until it is idle."""

from __future__ import annotations

import asyncio
from typing import Any

from hark.clock import Clock
from hark.engine.sqlite import SqliteEngine
from hark.engine.sqlite.calls import Call

_FOR_EVER = 100 * 365 * 86400
_QUIET_TURNS = 8
"""Turns of the event loop without a new call, after which the engine counts as idle."""


class ObservedEngine(SqliteEngine):
    """A store in memory that keeps settled messages for tests, and knows when no call is in flight."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(":memory:", clock=clock, completed_retention_seconds=_FOR_EVER, idle_group_seconds=_FOR_EVER)
        self._calls = 0
        self._open: set[asyncio.Future[Any]] = set()

    def _submit(self, call: Call) -> None:
        super()._submit(call)
        self._calls += 1
        if call.future is not None:
            self._open.add(call.future)
            call.future.add_done_callback(self._open.discard)

    async def rest(self) -> None:
        """Wait until every call has been answered and no answer has led to another call."""
        quiet = 0
        while quiet < _QUIET_TURNS:
            calls = self._calls
            if self._open:
                await asyncio.wait(self._open)
            await asyncio.sleep(0)
            quiet = quiet + 1 if calls == self._calls and not self._open else 0
