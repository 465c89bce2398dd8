"""Adaptive polling: the pauses between polls, the strategies that calculate them, and what polls cost."""

from __future__ import annotations

import asyncio
import math
import random as random_module
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Literal

import msgspec

from hark.errors import InvalidInput
from hark.settings import Settings

JITTER = 0.1
"""Share by which a pause is lengthened or shortened at random, so that consumers do not poll in step."""


class PollingStrategy(msgspec.Struct, frozen=True, kw_only=True):
    """How long a consumer pauses after a poll that found no work. The default is adaptive, from 100 ms to 5 s.

    Create it with `PollingStrategy.adaptive()` or `PollingStrategy.fixed()`. Arguments are milliseconds, methods return
    seconds.
    """

    strategy: Literal["adaptive", "fixed"] = "adaptive"
    """`adaptive` or `fixed`."""
    min_interval_ms: float = 100
    """Adaptive: shortest interval in milliseconds."""
    max_interval_ms: float = 5000
    """Adaptive: longest interval in milliseconds."""
    backoff_multiplier: float = 2.0
    """Adaptive: factor by which each empty poll lengthens the interval. Above 1."""
    interval_ms: float = 500
    """Fixed: interval in milliseconds."""

    @classmethod
    def adaptive(
        cls, *, min_interval_ms: float = 100, max_interval_ms: float = 5000, backoff_multiplier: float = 2.0
    ) -> PollingStrategy:
        """Pause longer after each empty poll, up to `max_interval_ms`. A poll that finds work resets the interval.

        The first pause is `min_interval_ms` times `backoff_multiplier`. Raises `InvalidInput` if a value is invalid.
        """
        return cls(
            min_interval_ms=min_interval_ms, max_interval_ms=max_interval_ms, backoff_multiplier=backoff_multiplier
        )

    @classmethod
    def fixed(cls, *, interval_ms: float = 500) -> PollingStrategy:
        """Pause for `interval_ms` milliseconds after each empty poll."""
        return cls(strategy="fixed", interval_ms=interval_ms)

    def __post_init__(self) -> None:
        """Reject intervals that would spin or never grow."""
        if self.strategy not in ("adaptive", "fixed"):
            raise InvalidInput(f"strategy: expected adaptive or fixed, got {self.strategy!r}")
        bounds = {"min_interval_ms": 0, "max_interval_ms": 0, "interval_ms": 0, "backoff_multiplier": 1}
        for name, low in bounds.items():
            value, unit = getattr(self, name), "" if low else " of milliseconds"
            if isinstance(value, bool) or not isinstance(value, int | float) or not low < value < math.inf:
                raise InvalidInput(f"{name}: expected a number{unit} above {low}, got {value!r}")
        if self.min_interval_ms > self.max_interval_ms:
            raise InvalidInput(
                f"min_interval_ms: expected at most max_interval_ms, which is {self.max_interval_ms:g}, "
                f"got {self.min_interval_ms:g}"
            )

    def __repr__(self) -> str:
        """The call that creates it, without fields that have no effect."""
        if self.strategy == "fixed":
            return f"PollingStrategy.fixed(interval_ms={self.interval_ms:g})"
        return (
            f"PollingStrategy.adaptive(min_interval_ms={self.min_interval_ms:g}, "
            f"max_interval_ms={self.max_interval_ms:g}, backoff_multiplier={self.backoff_multiplier:g})"
        )

    def initial_interval(self) -> float:
        """The first interval in seconds: the fixed one, or the shortest."""
        return (self.interval_ms if self.strategy == "fixed" else self.min_interval_ms) / 1000

    def longest_interval(self) -> float:
        """The interval of an idle consumer in seconds: the fixed one, or the longest."""
        return (self.interval_ms if self.strategy == "fixed" else self.max_interval_ms) / 1000

    def next_interval(self, current: float, found: bool) -> float:
        """The interval in seconds after a poll: the first one if it found work, otherwise a longer one."""
        if found or self.strategy == "fixed":
            return self.initial_interval()
        return min(current * self.backoff_multiplier, self.longest_interval())

    def apply_jitter(self, interval: float, random: Callable[[], float] = random_module.random) -> float:
        """Lengthen or shorten a pause by up to 10 % at random."""
        return interval * (1 - JITTER + 2 * JITTER * random())


def strategy_from(settings: Settings, given: PollingStrategy | None = None) -> PollingStrategy:
    """The strategy from the run options, otherwise from the settings.

    If no strategy is given in code, `settings` come from `hark.settings.load({}, os.environ)`. Fields that do not
    belong to the selected strategy are ignored.
    """
    if given is not None:
        return given
    polling = settings.worker.polling
    if polling.strategy == "fixed":
        return PollingStrategy.fixed(interval_ms=polling.interval_ms)
    adaptive = {name: getattr(polling, name) for name in ("min_interval_ms", "max_interval_ms", "backoff_multiplier")}
    return PollingStrategy.adaptive(**adaptive)


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

    def text(self, labels: Mapping[str, str] = MappingProxyType({})) -> str:
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


# The poller ------------------------------------------------------------------------------------------------

Pause = Callable[[asyncio.Event, float], Awaitable[None]]
"""Waits until an event is set, for a number of seconds at most."""

# Errors have a separate backoff, which does not depend on how much work there is.
FIRST_ERROR_SECONDS = 0.1
LONGEST_ERROR_SECONDS = 30.0
ERROR_MULTIPLIER = 2.0


async def pause(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event by the clock of the event loop, for a number of seconds at most, which may be infinite."""
    try:
        async with asyncio.timeout(None if math.isinf(seconds) else seconds):
            await event.wait()
    except TimeoutError:
        pass


class Poller:
    """The state of one polling loop. Call `begin`, then `saw` or `failed`, then `rest`, for each poll.

    A loop that finds work polls without pauses: `rest` only yields to other tasks. After empty polls the pauses grow up
    to the maximum. `wake` ends a pause early, `stop` ends all of them. A poller belongs to one event loop. From another
    thread, use `loop.call_soon_threadsafe`.
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
        self.interval = self.metrics.interval_seconds = strategy.initial_interval()
        """The current interval in seconds, without jitter."""

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
        before, self.interval = self.interval, self.strategy.next_interval(self.interval, found)
        self.metrics.interval_seconds = self.interval
        self.metrics.empty += not found
        self.metrics.backoffs += not found and self.interval > before

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
            seconds = self._jittered(max(0.0, self.interval - waited))
            if next_due is not None:
                seconds = min(seconds, self._until(next_due))
        await self._sleep(self._woken, seconds)

    def wake(self) -> None:
        """End the current pause: there may be work."""
        self._woken.set()

    def follow(self, strategy: PollingStrategy) -> None:
        """Use another strategy from now on, starting with its first interval."""
        self.strategy = strategy
        self.interval = self.metrics.interval_seconds = strategy.initial_interval()
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


# Costs -----------------------------------------------------------------------------------------------------

MONTH_SECONDS = 30 * 86_400


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """Prices of a store in dollars per thousand requests."""

    name: str
    get_per_thousand: float
    put_per_thousand: float


AWS_S3 = Price(name="AWS S3 Standard", get_per_thousand=0.0004, put_per_thousand=0.005)
AT_A_SERVER = Price(name="a Hark server", get_per_thousand=0, put_per_thousand=0)


class Estimate(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The polls of one consumer in a month of 30 days, priced as GET requests."""

    polls_per_month: int
    dollars_per_month: float


class Case(msgspec.Struct, frozen=True):
    """A row of a comparison: a strategy, and the share of time with work."""

    name: str
    strategy: PollingStrategy
    busy_share: float


SEED_CASES = (
    Case("Fixed 500ms", PollingStrategy.fixed(interval_ms=500), 0),
    Case("Fixed 100ms", PollingStrategy.fixed(interval_ms=100), 0),
    Case("Adaptive (mostly idle)", PollingStrategy.adaptive(), 0),
    Case("Adaptive (50% busy)", PollingStrategy.adaptive(), 0.5),
    Case("Adaptive (always busy)", PollingStrategy.adaptive(), 1),
)
"""The cases that `hark polling` compares."""


def estimate(
    strategy: PollingStrategy,
    busy_share: float = 0.0,
    *,
    batch_seconds: float | None = None,
    wait_seconds: float = 0.0,
    price: Price = AWS_S3,
) -> Estimate:
    """Estimate polls per month and their price, for a consumer that is busy for a share of the time.

    An idle consumer polls by the clock, so the number of polls can be calculated. A busy consumer sends one poll per
    batch, so the number depends on its work. `batch_seconds` is the time per batch; the default is the shortest
    interval. `wait_seconds` is how long a server holds an empty poll; 0 if there is no server.
    """
    if not 0 <= busy_share <= 1:
        raise InvalidInput(f"busy_share: expected a number from 0 to 1, got {busy_share!r}")
    if batch_seconds is not None and not 0 < batch_seconds < math.inf:
        raise InvalidInput(f"batch_seconds: expected a number of seconds above 0, got {batch_seconds!r}")
    if not 0 <= wait_seconds < math.inf:
        raise InvalidInput(f"wait_seconds: expected a number of seconds of at least 0, got {wait_seconds!r}")
    idle_interval = max(strategy.longest_interval(), wait_seconds)
    busy_interval = batch_seconds or strategy.initial_interval()
    polls = MONTH_SECONDS * ((1 - busy_share) / idle_interval + busy_share / busy_interval)
    return Estimate(polls_per_month=round(polls), dollars_per_month=round(polls / 1000 * price.get_per_thousand, 4))
