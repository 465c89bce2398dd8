"""The background task that removes messages at the end of their retention."""

from __future__ import annotations

import asyncio
import logging

from hark.engine.api import Engine
from hark.errors import HarkError

log = logging.getLogger(__name__)


async def keep_collecting(engine: Engine, interval: float) -> None:
    """Run retention every interval, in small steps, so that requests can run between them."""
    while True:
        await asyncio.sleep(interval)
        removed = 0
        try:
            more = True
            while more:
                step = await engine.collect()
                removed += step.removed
                more = step.more
        except HarkError as error:
            log.error("retention failed; retrying in %s s: %s", interval, error)
        if removed:
            log.info("retention removed %d messages", removed, extra={"fields": {"removed": removed}})
