"""Ends a process whose handlers block their event loop for longer than the grace period.

A blocked event loop cannot start a graceful shutdown. The supervisor of the process would then kill it, and its tasks
would run again only after their leases expire, with one attempt less. Instead, the network thread releases them and
ends the process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

EXIT_CODE = 1
_log = logging.getLogger("hark.worker")


async def leave_if_blocked(
    *,
    after: float,
    patience: float,
    ask: Callable[[Callable[[], None]], None],
    give_back: Callable[[], Awaitable[None]],
    leave: Callable[[int], object],
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> None:
    """Runs in the network thread, from the stop on, until the thread is closed.

    After `after` seconds, `ask` requests a response from the handlers' event loop, again and again. If there is none
    within `patience` seconds, it calls `give_back` and `leave`.
    """
    await sleep(after)
    while True:
        answered = asyncio.Event()
        ask(answered.set)
        try:
            async with asyncio.timeout(patience):
                await answered.wait()
        except TimeoutError:
            break
        await sleep(patience)
    _log.error("a handler blocks the event loop: all tasks are released, and the process exits with code 1")
    await give_back()
    leave(EXIT_CODE)
