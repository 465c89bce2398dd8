"""How often to look for what may have come without a word."""

from __future__ import annotations

from collections.abc import Callable

from hark.clock import MILLISECOND, Clock
from hark.settings import Fallback

_MEETING = 250 * MILLISECOND


class Backoff:
    """The time of the next look: soon for the first few, then later and later, and soon again when something came.

    With the defaults the looks are 100, 100, 100, 300, 900, 2700, 5000, 5000 ... ms apart, each by up to a tenth more
    or less, so that those who began together do not go on looking all together. `random` gives numbers from 0 to below
    1.
    """

    __slots__ = ("_clock", "_due", "_interval_ms", "_look", "_random", "_settings")

    def __init__(self, settings: Fallback, clock: Clock, random: Callable[[], float]) -> None:
        self._settings = settings
        self._clock = clock
        self._random = random
        self.reset()

    @property
    def due(self) -> int:
        """When to look, by the clock."""
        return self._due

    @property
    def interval_ms(self) -> float:
        """The milliseconds before the next look, without the jitter."""
        return self._interval_ms

    @property
    def at_start(self) -> bool:
        """Whether no look has been missed since the start or the last reset."""
        return self._look == 1

    @property
    def slowed(self) -> bool:
        """Whether the interval has grown beyond the initial one."""
        return self._look > max(1, self._settings.threshold)

    def reset(self) -> None:
        """Something came: more may follow soon."""
        self._look = 1
        self._interval_ms = float(self._settings.initial_ms)
        self._schedule()

    def missed(self) -> None:
        """A look found nothing."""
        self._look += 1
        self._schedule()

    def _schedule(self) -> None:
        settings = self._settings
        if self._look > settings.threshold:
            # Step by step: a power of a large number of looks would overflow.
            self._interval_ms = min(self._interval_ms * settings.multiplier, settings.max_ms)
        wait = self._interval_ms * MILLISECOND
        least, most = wait * (1 - settings.jitter), wait * (1 + settings.jitter)
        now = self._clock.now()
        self._due = now + round(least + (most - least) * self._random())
        if most - least >= 2 * _MEETING:
            # Those who look seldom look at full quarters of a second, within the jitter: many of them share a call.
            self._due = round(self._due / _MEETING) * _MEETING
            if self._due > now + most:
                self._due -= _MEETING
            elif self._due < now + least:
                self._due += _MEETING
