"""The duty that learns of switches which another server on the same store was asked to set."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from hark.errors import HarkError

log = logging.getLogger(__name__)

_INTERVAL = 1.0


async def keep_learning(refresh: Callable[[], Awaitable[None]]) -> None:
    """Read the switches once a second; while the store is away they stay as they are."""
    while True:
        await asyncio.sleep(_INTERVAL)
        try:
            await refresh()
        except HarkError as error:
            log.debug("the switches could not be read, trying again: %s", error)
