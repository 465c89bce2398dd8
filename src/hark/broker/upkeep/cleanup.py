"""The duty that sweeps up what is over: locks, and keys past their expiry."""

from __future__ import annotations

import asyncio
import logging

from hark.broker.operations import Operations
from hark.engine.api import Engine
from hark.errors import HarkError

log = logging.getLogger(__name__)

_STEP = 1000


async def keep_cleaning(engine: Engine, interval: float, operations: Operations) -> None:
    """Every interval, in small steps; hygiene only, for what is over counts as over at its time anyway."""
    while True:
        await asyncio.sleep(interval)
        try:
            with operations.measure("cleanup"):
                while (await engine.expire(_STEP)).leases >= _STEP:
                    pass
                while await engine.sweep_keys(_STEP) >= _STEP:
                    pass
        except HarkError as error:
            log.error("the cleanup stopped early, trying again in %s s: %s", interval, error)
