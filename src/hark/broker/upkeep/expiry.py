"""The background task that expires leases on time."""

from __future__ import annotations

import asyncio
import logging

from hark.clock import SECOND, Clock
from hark.engine.api import Engine
from hark.errors import HarkError

log = logging.getLogger(__name__)

_LONGEST_SLEEP = 1.0


async def keep_expiring(engine: Engine, clock: Clock) -> None:
    """Expire leases forever. A lease that is made meanwhile is noticed within a second, or by the next call to it."""
    while True:
        sleep = _LONGEST_SLEEP
        try:
            expired = await engine.expire()
            if expired.next_due is not None:
                sleep = min(sleep, max(0.0, (expired.next_due - clock.now()) / SECOND))
        except HarkError as error:
            log.error("cannot expire leases; retrying every second: %s", error)
        await asyncio.sleep(sleep)
