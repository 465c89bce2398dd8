"""The background task that removes expired locks and keys."""

from __future__ import annotations

import asyncio
import logging

from hark.broker.operations import Operations
from hark.engine.api import Engine
from hark.errors import HarkError

log = logging.getLogger(__name__)

_STEP = 1000


async def keep_cleaning(engine: Engine, interval: float, operations: Operations) -> None:
    """Remove expired locks and keys every interval, in small steps. They have no effect after their expiry anyway."""
    while True:
        await asyncio.sleep(interval)
        try:
            with operations.measure("cleanup"):
                while (await engine.expire(_STEP)).leases >= _STEP:
                    pass
                while await engine.sweep_keys(_STEP) >= _STEP:
                    pass
        except HarkError as error:
            log.error("cannot remove expired locks and keys; retrying in %s s: %s", interval, error)
