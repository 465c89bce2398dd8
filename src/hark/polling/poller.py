"""The pauses between polls of one loop, and the metrics of polling."""

from __future__ import annotations

import asyncio
import random as random_module
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Literal

import msgspec

from hark.polling.strategy import PollingStrategy

NO_LABELS: Mapping[str, str] = MappingProxyType({})

_METRICS = (
    ("worker_poll_interval_seconds", "gauge", "The current poll interval.", "interval_seconds"),
    ("worker_poll_total", "counter", "Polls.", "polls"),
    ("worker_poll_empty_total", "counter", "Polls that found no work.", "empty"),
    ("worker_backoff_total", "counter", "Times that the poll interval grew.", "backoffs"),
)


class PollMetrics(msgspec.Struct):
    """The metrics of one poller, or of several that share them."""

    interval_seconds: float = 0.0
    """Current poll interval in seconds."""
    polls: int = 0
    """Number of polls."""
    empty: int = 0
    """Number of polls that found no work."""
    backoffs: int = 0
    """Number of times the poll interval grew."""

    def text(self, labels: Mapping[str, str] = NO_LABELS) -> str:
        """The metrics in the text format of Prometheus."""
        return prometheus_text([(labels, self)])


def prometheus_text(pollers: Iterable[tuple[Mapping[str, str], PollMetrics]]) -> str:
    """The metrics of several pollers with their labels."""
    # Imported here, because it is slow to import and only needed for a scrape.
    from hark.prometheus import counter, gauge, text

    rows = list(pollers)
    kinds = {"counter": counter, "gauge": gauge}
    return text(
        kinds[kind](name, meaning, [(labels, getattr(metrics, field)) for labels, metrics in rows])
        for name, kind, meaning, field in _METRICS
    ).decode()


# poller = Poller(PollingStrategy.adaptive())
# while not poller.stopped:
# poller.begin()
# try:
# work = await look()
# except HarkError as error:
# poller.failed(error.retry_after)
# else:
# poller.saw(bool(work))
# await poller.rest()
#
# A loop that finds work polls without pauses: `rest` only yields to other tasks. After empty polls the pauses are min
# x
# multiplier, min x multiplier^2 and so on, up to the maximum. `wake` ends a pause early, `stop` ends all of them.


Pause = Callable[[asyncio.Event, float], Awaitable[None]]
"""Waits until an event is set, for a number of seconds at most."""

# Errors have a separate backoff, which does not depend on how much work there is.
FIRST_ERROR_SECONDS = 0.1
LONGEST_ERROR_SECONDS = 30.0
ERROR_MULTIPLIER = 2.0


async def pause(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, for a number of seconds at most."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass


class Poller:
    """The state of one polling loop. Call `begin`, then `saw` or `failed`, then `rest`, for each poll.

    A poller belongs to one event loop. From another thread, use `loop.call_soon_threadsafe`.
    """

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
        """The current interval in seconds, without jitter."""
        return self._interval

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopping.is_set()

    def begin(self) -> None:
        """Report the start of a poll. A later `wake` may announce work that this poll misses."""
        self.metrics.polls += 1
        if not self.stopped:
            self._woken.clear()

    def saw(self, found: bool) -> None:
        """Report the result of a poll: whether it found work, even if other consumers were faster."""
        self._last = "found" if found else "empty"
        self._error_seconds = self._retry_after = 0.0
        before, self._interval = self._interval, self.strategy.next_interval(self._interval, found)
        self.metrics.interval_seconds = self._interval
        self.metrics.empty += not found
        self.metrics.backoffs += not found and self._interval > before

    def failed(self, retry_after: float | None = None) -> None:
        """Report a failed poll. `retry_after` are the seconds that the server asked to wait, or None."""
        self._last = "failed"
        self._retry_after = retry_after or 0.0
        longer = self._error_seconds * ERROR_MULTIPLIER
        self._error_seconds = min(max(longer, FIRST_ERROR_SECONDS), LONGEST_ERROR_SECONDS)

    async def rest(self, next_due: float | None = None, waited: float = 0.0) -> None:
        """Sleep until the next poll is due.

        `next_due` is the time, by `monotonic`, when the next known message is due; the poller does not sleep past it.
        `waited` are the seconds that the poll itself waited at the server; they count as sleep.
        """
        if self._last == "failed":
            # A wake-up does not repair an error, so only `stop` ends this pause.
            await self._sleep(self._stopping, max(self._jittered(self._error_seconds), self._retry_after))
            return
        seconds = 0.0
        if self._last == "empty":
            seconds = self._jittered(max(0.0, self._interval - waited))
            if next_due is not None:
                seconds = min(seconds, self._until(next_due))
        await self._sleep(self._woken, seconds)

    def wake(self) -> None:
        """End the current pause: there may be work."""
        self._woken.set()

    def follow(self, strategy: PollingStrategy) -> None:
        """Use another strategy from now on, starting with its first interval."""
        self.strategy = strategy
        self._interval = self.metrics.interval_seconds = strategy.initial_interval()
        self.wake()

    def skip(self) -> None:
        """Pause once more without a poll, because its result is known. Nothing is counted."""
        self._last = "empty"
        if not self.stopped:
            self._woken.clear()

    def stop(self) -> None:
        """End this pause and every later one immediately."""
        self._stopping.set()
        self._woken.set()

    def _until(self, due: float) -> float:
        # A message that is due and was not found must not make the loop spin.
        seconds = due - self._monotonic()
        return seconds if seconds > 0 else self.strategy.initial_interval()

    def _jittered(self, seconds: float) -> float:
        return self.strategy.apply_jitter(seconds, self._random)

    async def _sleep(self, event: asyncio.Event, seconds: float) -> None:
        if seconds > 0 and not event.is_set():
            await self._pause(event, seconds)
        else:
            await asyncio.sleep(0)
