"""Polling strategies: how long a consumer pauses between polls, and how one is selected."""

from __future__ import annotations

import math
import random as random_module
from collections.abc import Callable
from typing import Literal

import msgspec

from hark.errors import InvalidInput
from hark.settings import Settings

# PollingStrategy.adaptive(max_interval_ms=30_000)   # longer and longer pauses while there is no work
# PollingStrategy.fixed(interval_ms=500)             # equal pauses


Kind = Literal["adaptive", "fixed"]

JITTER = 0.1
"""Share by which a pause is lengthened or shortened at random, so that consumers do not poll in step."""


class PollingStrategy(msgspec.Struct, frozen=True, kw_only=True):
    """How long a consumer pauses after a poll that found no work. The default is adaptive, from 100 ms to 5 s.

    Create it with `PollingStrategy.adaptive()` or `PollingStrategy.fixed()`. Arguments are milliseconds, methods return
    seconds.
    """

    strategy: Kind = "adaptive"
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
            strategy="adaptive",
            min_interval_ms=min_interval_ms,
            max_interval_ms=max_interval_ms,
            backoff_multiplier=backoff_multiplier,
        )

    @classmethod
    def fixed(cls, *, interval_ms: float = 500) -> PollingStrategy:
        """Pause for `interval_ms` milliseconds after each empty poll."""
        return cls(strategy="fixed", interval_ms=interval_ms)

    def __post_init__(self) -> None:
        """Reject intervals that would spin or never grow."""
        if self.strategy not in ("adaptive", "fixed"):
            raise InvalidInput(f"strategy: expected adaptive or fixed, got {self.strategy!r}")
        for name in ("min_interval_ms", "max_interval_ms", "interval_ms"):
            if not _is_number(getattr(self, name)) or not 0 < getattr(self, name) < math.inf:
                raise InvalidInput(f"{name}: expected a number of milliseconds above 0, got {getattr(self, name)!r}")
        if not _is_number(self.backoff_multiplier) or not 1 < self.backoff_multiplier < math.inf:
            raise InvalidInput(f"backoff_multiplier: expected a number above 1, got {self.backoff_multiplier!r}")
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


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# An idle consumer polls by the clock, so the number of polls can be calculated. A busy consumer sends one poll per
# batch,
# so the number depends on its work, and the time per batch has to be given. The default is the shortest interval, as
# in
# seed 002.


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


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a comparison: a strategy, and the share of time with work."""

    name: str
    strategy: PollingStrategy
    busy_share: float


SEED_CASES = (
    Case(name="Fixed 500ms", strategy=PollingStrategy.fixed(interval_ms=500), busy_share=0),
    Case(name="Fixed 100ms", strategy=PollingStrategy.fixed(interval_ms=100), busy_share=0),
    Case(name="Adaptive (mostly idle)", strategy=PollingStrategy.adaptive(), busy_share=0),
    Case(name="Adaptive (50% busy)", strategy=PollingStrategy.adaptive(), busy_share=0.5),
    Case(name="Adaptive (always busy)", strategy=PollingStrategy.adaptive(), busy_share=1),
)
"""The table of seed 002. Its own figures for the third and the fourth row do not follow from its intervals."""


def estimate(
    strategy: PollingStrategy,
    busy_share: float = 0.0,
    *,
    batch_seconds: float | None = None,
    wait_seconds: float = 0.0,
    price: Price = AWS_S3,
) -> Estimate:
    """Estimate polls per month and their price, for a consumer that is busy for a share of the time.

    `batch_seconds` is the time per batch, and so the interval between polls of a busy consumer. `wait_seconds` is how
    long a server holds an empty poll; 0 if there is no server.
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
    return PollingStrategy.adaptive(
        min_interval_ms=polling.min_interval_ms,
        max_interval_ms=polling.max_interval_ms,
        backoff_multiplier=polling.backoff_multiplier,
    )
