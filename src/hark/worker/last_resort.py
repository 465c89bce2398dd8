"""The end of a process whose handlers block their loop for longer than the grace period.

Such a loop hears nothing, so a graceful stop never begins there. Whoever stops processes kills them then, and their
tasks come again only when their leases end, with an attempt less. The line hands them back instead, and ends the
process itself.
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
    """On the line, from the stop on, until the line is closed.

    After so many seconds `ask` asks the loop of the handlers for a sign of life, again and again. If there is none
    for as long as `patience`, `give_back` and `leave`.
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
    _log.error("a handler blocks the event loop and does not end: all tasks go back, and the process ends")
    await give_back()
    leave(EXIT_CODE)
