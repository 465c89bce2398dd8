"""Polling strategies: how long a consumer rests after it looked for work.

PollingStrategy.adaptive(max_interval_ms=30_000)   # rests longer and longer while there is nothing
PollingStrategy.fixed(interval_ms=500)             # rests as long each time
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
"""The share by which a sleep is longer or shorter at random, so that consumers do not fall into step."""


class PollingStrategy(msgspec.Struct, frozen=True, kw_only=True):
    """What a consumer does after it looked for work; the default is adaptive, from 100 ms up to 5 s.

    It is made by `adaptive` or `fixed`. Intervals go in as milliseconds, fractions allowed, and come out as seconds.
    """

    strategy: Kind = "adaptive"
    min_interval_ms: float = 100
    max_interval_ms: float = 5000
    backoff_multiplier: float = 2.0
    interval_ms: float = 500

    @classmethod
    def adaptive(
        cls, *, min_interval_ms: float = 100, max_interval_ms: float = 5000, backoff_multiplier: float = 2.0
    ) -> PollingStrategy:
        """Rest `min_interval_ms` times the multiplier after the first empty look, and longer after each further one."""
        return cls(
            strategy="adaptive",
            min_interval_ms=min_interval_ms,
            max_interval_ms=max_interval_ms,
            backoff_multiplier=backoff_multiplier,
        )

    @classmethod
    def fixed(cls, *, interval_ms: float = 500) -> PollingStrategy:
        """Rest equally long after each empty look."""
        return cls(strategy="fixed", interval_ms=interval_ms)

    def __post_init__(self) -> None:
        """Refuse what would spin, never grow, or mean nothing."""
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
        """Show it as it is made, without the fields that have no effect."""
        if self.strategy == "fixed":
            return f"PollingStrategy.fixed(interval_ms={self.interval_ms:g})"
        return (
            f"PollingStrategy.adaptive(min_interval_ms={self.min_interval_ms:g}, "
            f"max_interval_ms={self.max_interval_ms:g}, backoff_multiplier={self.backoff_multiplier:g})"
        )

    def initial_interval(self) -> float:
        """The seconds to begin with: the interval, or the shortest one."""
        return (self.interval_ms if self.strategy == "fixed" else self.min_interval_ms) / 1000

    def longest_interval(self) -> float:
        """The seconds that an idle consumer ends up with: the interval, or the longest one."""
        return (self.interval_ms if self.strategy == "fixed" else self.max_interval_ms) / 1000

    def next_interval(self, current: float, found: bool) -> float:
        """The seconds after a look: the shortest again if it found work, else longer than before up to the longest."""
        if found or self.strategy == "fixed":
            return self.initial_interval()
        return min(current * self.backoff_multiplier, self.longest_interval())

    def apply_jitter(self, interval: float, random: Callable[[], float] = random_module.random) -> float:
        """Make a sleep up to a tenth longer or shorter; never the interval that is remembered."""
        return interval * (1 - JITTER + 2 * JITTER * random())


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
