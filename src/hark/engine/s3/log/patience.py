"""How long a request is tried again, and how long the rests between are."""

from __future__ import annotations

import asyncio
import random as random_module
import time
from collections.abc import Awaitable, Callable

Pause = Callable[[float], Awaitable[None]]
"""Waits for so many seconds."""

FIRST_REST_SECONDS = 0.05
LONGEST_REST_SECONDS = 2.0
# A store that asks for less counts requests by the second: coming back within one makes it worse.
FIRST_SLOW_REST_SECONDS = 1.0
LONGEST_SLOW_REST_SECONDS = 10.0
DEFAULT_SECONDS = 30.0


class Patience:
    """How long a duty of several requests goes on when the store does not answer as it should."""

    def __init__(
        self,
        seconds: float = DEFAULT_SECONDS,
        *,
        pause: Pause = asyncio.sleep,
        random: Callable[[], float] = random_module.random,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.seconds = seconds
        self._pause = pause
        self._random = random
        self._monotonic = monotonic

    def begin(self) -> Tries:
        """Start counting, for one duty."""
        return Tries(self.seconds, self._pause, self._random, self._monotonic)


class Tries:
    """The tries of one duty."""

    def __init__(
        self, seconds: float, pause: Pause, random: Callable[[], float], monotonic: Callable[[], float]
    ) -> None:
        self._pause = pause
        self._random = random
        self._monotonic = monotonic
        self._ends = monotonic() + seconds
        self._rests = 0
        self.rest_seconds = 0.0
        """The last rest as it was meant, before jitter: a caller who gives up can ask to be left alone for as long."""

    async def rest(self, slow_down: bool = False) -> bool:
        """Rest before the next try, longer each time; False: patience is over. The last try is at its very end."""
        first, longest = FIRST_REST_SECONDS, LONGEST_REST_SECONDS
        if slow_down:
            first, longest = FIRST_SLOW_REST_SECONDS, LONGEST_SLOW_REST_SECONDS
        left = self._ends - self._monotonic()
        if left <= 0:
            return False
        # Beyond 2**10 both are at their longest, and a float overflows at 2**1024.
        self.rest_seconds = min(longest, first * 2 ** min(self._rests, 10))
        self._rests += 1
        # Between half and all of it: those who failed together do not come back together.
        await self._pause(min(left, self.rest_seconds * (0.5 + self._random() / 2)))
        return True
