"""The background task that reads the maintenance flags, which another server on the same store can change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from hark.errors import HarkError

log = logging.getLogger(__name__)

_INTERVAL = 1.0


async def keep_learning(refresh: Callable[[], Awaitable[None]]) -> None:
    """Read the flags once a second. While the store is unavailable they keep their values."""
    while True:
        await asyncio.sleep(_INTERVAL)
        try:
            await refresh()
        except HarkError as error:
            log.debug("cannot read the maintenance flags; retrying: %s", error)
