"""The rests between polls of one loop.

    poller = Poller(PollingStrategy.adaptive())
    while not poller.stopped:
        poller.begin()
        try:
            work = await look()
        except HarkError as error:
            poller.failed(error.retry_after)
        else:
            poller.saw(bool(work))
        await poller.rest()

A loop that finds work polls back to back: `rest` only gives others their turn. After empty polls the rests are
min x multiplier, min x multiplier^2 and so on up to the longest. `wake` ends a rest early, `stop` ends them all.
"""

from __future__ import annotations

import asyncio
import random as random_module
import time
from collections.abc import Awaitable, Callable
from typing import Literal

from hark.polling.metrics import PollMetrics
from hark.polling.strategy import PollingStrategy

Pause = Callable[[asyncio.Event, float], Awaitable[None]]
"""Waits until an event is set, for so many seconds at most."""

# Errors have a backoff of their own: how long it lasts depends on who is ill, not on how much work there is.
FIRST_ERROR_SECONDS = 0.1
LONGEST_ERROR_SECONDS = 30.0
ERROR_MULTIPLIER = 2.0


async def pause(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, for so many seconds at most."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass


class Poller:
    """What one polling loop remembers. It belongs to one event loop; from a thread, use `call_soon_threadsafe`."""

    def __init__(
        self,
        strategy: PollingStrategy,
        *,
        metrics: PollMetrics | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = random_module.random,
        pause: Pause = pause,
    ) -> None:
        self.strategy = strategy
        self.metrics = PollMetrics() if metrics is None else metrics
        self._monotonic = monotonic
        self._random = random
        self._pause = pause
        self._last: Literal["found", "empty", "failed"] = "found"
        self._error_seconds = 0.0
        self._retry_after = 0.0
        self._woken = asyncio.Event()
        self._stopping = asyncio.Event()
        self._interval = strategy.initial_interval()
        self.metrics.interval_seconds = self._interval

    @property
    def interval(self) -> float:
        """The seconds that the strategy has come to, without jitter."""
        return self._interval

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopping.is_set()

    def begin(self) -> None:
        """Say that a poll begins: who wakes the poller from now on may know of work that this poll misses."""
        self.metrics.polls += 1
        if not self.stopped:
            self._woken.clear()

    def saw(self, found: bool) -> None:
        """Say how a poll ended: with work that could be claimed, even if others were faster, or without."""
        self._last = "found" if found else "empty"
        self._error_seconds = self._retry_after = 0.0
        before, self._interval = self._interval, self.strategy.next_interval(self._interval, found)
        self.metrics.interval_seconds = self._interval
        self.metrics.empty += not found
        self.metrics.backoffs += not found and self._interval > before

    def failed(self, retry_after: float | None = None) -> None:
        """Say that a poll failed, and how long the server asked to be left alone if it did."""
        self._last = "failed"
        self._retry_after = retry_after or 0.0
        longer = self._error_seconds * ERROR_MULTIPLIER
        self._error_seconds = min(max(longer, FIRST_ERROR_SECONDS), LONGEST_ERROR_SECONDS)

    async def rest(self, next_due: float | None = None, waited: float = 0.0) -> None:
        """Sleep until the next poll should begin.

        `next_due`: when the next message that is known of becomes due, by `monotonic`; it is not slept past.
        `waited`: how many seconds the poll itself waited for work, at the server; they count as sleep.
        """
        if self._last == "failed":
            # A hint heals nobody: only `stop` ends this rest.
            await self._sleep(self._stopping, max(self._jittered(self._error_seconds), self._retry_after))
            return
        seconds = 0.0
        if self._last == "empty":
            seconds = self._jittered(max(0.0, self._interval - waited))
            if next_due is not None:
                seconds = min(seconds, self._until(next_due))
        await self._sleep(self._woken, seconds)

    def wake(self) -> None:
        """Poll soon: there is work here, or there may be."""
        self._woken.set()

    def follow(self, strategy: PollingStrategy) -> None:
        """Rest as another strategy says from now on, and begin with its first interval."""
        self.strategy = strategy
        self._interval = self.metrics.interval_seconds = strategy.initial_interval()
        self.wake()

    def skip(self) -> None:
        """Rest once more without a poll: what it would have told is known. Nothing is counted."""
        self._last = "empty"
        if not self.stopped:
            self._woken.clear()

    def stop(self) -> None:
        """End this rest and every later one at once."""
        self._stopping.set()
        self._woken.set()

    def _until(self, due: float) -> float:
        # What is due already and was not found must not make the loop spin.
        seconds = due - self._monotonic()
        return seconds if seconds > 0 else self.strategy.initial_interval()

    def _jittered(self, seconds: float) -> float:
        return self.strategy.apply_jitter(seconds, self._random)

    async def _sleep(self, event: asyncio.Event, seconds: float) -> None:
        if seconds > 0 and not event.is_set():
            await self._pause(event, seconds)
        else:
            await asyncio.sleep(0)
