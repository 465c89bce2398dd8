"""Polling strategies: how long a consumer pauses between polls.

PollingStrategy.adaptive(max_interval_ms=30_000)   # longer and longer pauses while there is no work
PollingStrategy.fixed(interval_ms=500)             # equal pauses
"""

from __future__ import annotations

import math
import random as random_module
from collections.abc import Callable
from typing import Literal

import msgspec

from hark.errors import InvalidInput

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
