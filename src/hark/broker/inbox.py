"""The background task that moves messages from the inbox of the store into their partitions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from hark.engine.inbox import Inbox, Note, Seal
from hark.errors import HarkError

log = logging.getLogger(__name__)

_PAUSE = 1.0


async def keep_moving(
    inbox: Inbox, seal: Seal, note: Note, learn: Callable[[], Awaitable[None]], is_stopped: Callable[[], bool]
) -> None:
    """Move messages as they are committed. `learn` reads which queues are encrypted."""
    async with inbox.listening():
        while True:
            await inbox.wait()
            if is_stopped():
                await asyncio.sleep(_PAUSE)
                continue
            try:
                if await inbox.move(seal, note):
                    await learn()
            except HarkError as error:
                # The log has the failure of the store already.
                level = logging.DEBUG if error.code == "store_unavailable" else logging.ERROR
                log.log(level, "cannot move messages from the inbox; retrying every second: %s", error)
                await asyncio.sleep(_PAUSE)
