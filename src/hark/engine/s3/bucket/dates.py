"""What time it is at the store, from the dates of its answers.

A date is cut to whole seconds, and nobody knows when between request and answer it was written. So one answer allows
a range of offsets between the store's clock and ours, and all answers together allow what their ranges share: a few
of them narrow it to about the time of a round trip. The range grows as time passes, because clocks drift apart.
"""

from __future__ import annotations

import threading

from hark.clock import SECOND, Clock

DRIFT_PPM = 200
"""Microseconds in a second by which two clocks may drift apart; quartz is ten times better."""


class ServerTime:
    """The time of the store. Any thread may ask and note."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._range: tuple[int, int] | None = None
        self._at = 0
        """When the range was right, by our clock."""

    def note(self, date: int, sent: int, received: int) -> None:
        """An answer says `date` (whole seconds, in microseconds); our clock said `sent` before and `received` after."""
        # The date may have been written at any time on the way, and clocks drift on the way too.
        drift = (received - sent) * DRIFT_PPM // SECOND
        low, high = date - received - drift, date + SECOND - sent + drift
        with self._lock:
            known = self._grown(received)
            if known is not None and max(low, known[0]) <= min(high, known[1]):
                low, high = max(low, known[0]), min(high, known[1])
            # Else a clock was set, ours or theirs: what was known before is worth nothing.
            self._range = (low, high)
            self._at = max(self._at, received)

    def offset(self) -> int:
        """What to add to our clock: the least that the answers allow, so a clock that is right stays as it is."""
        with self._lock:
            known = self._grown(self._clock.now())
        return 0 if known is None else min(max(0, known[0]), known[1])

    def allowed(self) -> tuple[int, int] | None:
        """The least and the largest offset that the answers allow by now; None: there was no answer yet."""
        with self._lock:
            return self._grown(self._clock.now())

    def now(self) -> int:
        """The time of the store in microseconds, as far as it is known."""
        return self._clock.now() + self.offset()

    def _grown(self, now: int) -> tuple[int, int] | None:
        if self._range is None:
            return None
        # Answers may be noted in another order than they came: time does not run back for that.
        drift = -(-max(0, now - self._at) * DRIFT_PPM // SECOND)
        return self._range[0] - drift, self._range[1] + drift
