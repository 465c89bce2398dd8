"""What happens after a task failed: how often it is tried again, and when."""

from __future__ import annotations

import math
import random as _random
from collections.abc import Callable, Sequence
from datetime import timedelta

import msgspec

from hark.errors import InvalidInput

MAX_RETRIES = 100
"""Entries that a message's schedule may have."""
MAX_DELAY = 315_360_000.0
"""Seconds that a message may wait: ten years."""


class Retry(Exception):
    """Raised in a handler: come again, after so many seconds or else as the task's policy says.

    It uses an attempt, as a failure does, unless `counted` is False.
    """

    def __init__(
        self, after: float | timedelta | None = None, *, reason: str = "asked for", counted: bool = True
    ) -> None:
        self.after = None if after is None else seconds_of("Retry(after)", after)
        self.counted = counted
        super().__init__(reason)


class Discard(Exception):
    """Raised in a handler: this task need not be done any more; it is settled, and counted as discarded."""

    def __init__(self, reason: str = "discarded") -> None:
        self.reason = reason
        super().__init__(reason)


class RetryPolicy(msgspec.Struct, frozen=True):
    """Seconds before each retry: after the last one that fails, the task is a dead letter."""

    delays: tuple[float, ...]
    jitter: float = 0.0
    """The share by which a delay is longer or shorter at random."""

    def __post_init__(self) -> None:
        if len(self.delays) > MAX_RETRIES:
            raise InvalidInput(f"the schedule has {len(self.delays)} delays, expected at most {MAX_RETRIES}")
        for index, delay in enumerate(self.delays):
            seconds_of(f"delays[{index}]", delay)
        _check_jitter(self.jitter)

    @classmethod
    def exponential(
        cls,
        *,
        max_retries: int = 5,
        first: float = 1.0,
        factor: float = 2.0,
        max_delay: float = 3600.0,
        jitter: float = 0.2,
    ) -> RetryPolicy:
        """Wait longer each time: `first` seconds, then `factor` times as long, `max_delay` at the most."""
        if not 0 <= max_retries <= MAX_RETRIES:
            raise InvalidInput(f"max_retries is {max_retries!r}, expected 0 to {MAX_RETRIES}")
        if not (math.isfinite(factor) and factor >= 1):
            raise InvalidInput(f"factor is {factor!r}, expected a number of at least 1")
        begin, most = seconds_of("first", first), seconds_of("max_delay", max_delay)
        delays: list[float] = []
        delay = min(begin, most)
        for _ in range(max_retries):
            delays.append(delay)
            delay = min(delay * factor, most)
        return cls(tuple(delays), jitter)

    @classmethod
    def schedule(cls, delays: Sequence[float | timedelta], *, jitter: float = 0.0) -> RetryPolicy:
        """Wait for these seconds, one after the other."""
        return cls(tuple(seconds_of(f"delays[{index}]", delay) for index, delay in enumerate(delays)), jitter)

    @classmethod
    def never(cls) -> RetryPolicy:
        """One attempt: what fails is a dead letter at once."""
        return cls(())

    def delay(self, attempt: int, random: Callable[[], float] = _random.random) -> float | None:
        """Seconds to wait after the attempt of this number (from 1) failed; None if there is no retry at all."""
        if not self.delays:
            return None
        delay = self.delays[min(max(attempt, 1), len(self.delays)) - 1]
        return self._shaken(delay, random)

    def jittered(self, random: Callable[[], float] = _random.random) -> tuple[float, ...]:
        """All delays, each with its jitter."""
        return tuple(self._shaken(delay, random) for delay in self.delays)

    def _shaken(self, delay: float, random: Callable[[], float]) -> float:
        return min(delay * (1 + self.jitter * (2 * random() - 1)), MAX_DELAY)


def seconds_of(field: str, value: float | timedelta) -> float:
    """Seconds within bounds; the error names the field."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= MAX_DELAY:
        raise InvalidInput(f"{field} is {value!r}, expected seconds from 0 to {MAX_DELAY:.0f}")
    return float(seconds)


def _check_jitter(jitter: float) -> None:
    if not 0 <= jitter <= 1:
        raise InvalidInput(f"jitter is {jitter!r}, expected 0 to 1")
