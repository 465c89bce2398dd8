"""How often to look for what may have come without a word."""

from __future__ import annotations

from hark.clock import MILLISECOND, Clock
from hark.settings import Fallback


class Backoff:
    """The time of the next look: soon for the first few, then later and later, and soon again when something came."""

    def __init__(self, settings: Fallback, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self.reset()

    @property
    def due(self) -> int:
        """When to look, by the clock."""
        return self._due

    def reset(self) -> None:
        """Something came: more may follow soon."""
        self._look = 1
        self._schedule()

    def missed(self) -> None:
        """A look found nothing."""
        self._look += 1
        self._schedule()

    def _schedule(self) -> None:
        settings = self._settings
        wait: float = settings.initial_ms
        if self._look > settings.threshold:
            wait = min(wait * self._look * settings.multiplier, settings.max_ms)
        self._due = self._clock.now() + round(wait * MILLISECOND)
