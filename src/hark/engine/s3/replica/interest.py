"""Whether anybody in this process waits for what others write.

A process that only pushes learns nothing from the records of others, and polls for them as seldom as it may.
"""

from __future__ import annotations

import time
from collections.abc import Callable

LASTS_SECONDS = 120.0
"""Longer than a consumer waits before it asks again."""


class Interest:
    """Noted by those who ask and will ask again. For any thread: it is one number."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._noted = float("-inf")

    def note(self) -> None:
        """Somebody waits."""
        self._noted = self._monotonic()

    def is_there(self) -> bool:
        """Whether somebody has waited lately."""
        return self._monotonic() - self._noted < LASTS_SECONDS
