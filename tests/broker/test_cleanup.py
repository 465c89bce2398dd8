"""The duty that sweeps up locks and keys: it goes on, step by step, and can be switched off."""

from __future__ import annotations

import asyncio
from typing import cast

from hark.broker import Broker
from hark.broker.operations import Operations
from hark.broker.upkeep.cleanup import keep_cleaning
from hark.clock import SystemClock
from hark.engine.api import Engine
from hark.engine.sqlite import SqliteEngine
from hark.errors import EngineFailure
from hark.model import Expired
from hark.settings import Queue, Settings

ENOUGH = 9


class Store:
    """A store with much to sweep at first, which is away now and then."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.enough = asyncio.Event()
        self._leases, self._keys = [1000, 5, 0], [1000, 1000, 3, 0]

    async def expire(self, limit: int) -> Expired:
        """End so many leases."""
        self._note("expire")
        if not self._leases:
            raise EngineFailure("away")
        return Expired(min(limit, self._leases.pop(0)), None)

    async def sweep_keys(self, limit: int) -> int:
        """Remove so many keys."""
        self._note("sweep")
        return min(limit, self._keys.pop(0))

    def _note(self, what: str) -> None:
        self.done.append(what)
        if len(self.done) >= ENOUGH:
            self.enough.set()


async def test_it_takes_as_many_steps_as_there_is_work_for_and_goes_on_after_a_failure() -> None:
    store, operations = Store(), Operations(SystemClock())
    duty = asyncio.create_task(keep_cleaning(cast(Engine, store), 0, operations))
    await store.enough.wait()
    duty.cancel()
    assert store.done[:ENOUGH] == [
        *("expire", "expire", "sweep", "sweep", "sweep"),
        *("expire", "sweep"),
        *("expire", "expire"),
    ]
    tally = operations.tallies()["cleanup"]
    assert tally.count >= 3
    assert tally.errors == tally.count - 2


async def test_no_interval_no_sweep() -> None:
    for interval, running in ((60_000, True), (0, False)):
        settings = Settings(queue=Queue(cleanup_interval=interval))
        broker = Broker(SqliteEngine(":memory:", clock=SystemClock()), settings, SystemClock())
        await broker.start()
        assert ("cleanup" in {task.get_name() for task in asyncio.all_tasks()}) == running
        await broker.close()
