"""When the next record may be begun.

A record costs the same whatever it carries. So under load records are a while apart, and cost is bounded by time, not
by the number of messages; and whoever is alone does not wait.

And who has just written lets others write, if there are others. A process that lost a number has to read who won it
before it tries the next: without a rest of the winner it would be too late every time. Those who never won are not
known to the winner, so one who writes record after record rests now and then all the same.
"""

from __future__ import annotations

import random as random_module
from collections.abc import Callable

_FIRST_SECONDS = 0.004
OTHERS_SECONDS = 5.0
"""For so long a record of another process means that there are others."""
TURNS = 8
"""So many records in a row are written without a rest for those who are not known."""
_TRIPS = 3.0
"""A rest lasts so many round trips: one to read what was lost to, one to write."""
_SURE_TRIPS = 1.5
"""For so many round trips what was seen of the head is likely still so."""
_LONGEST_TRIP_SECONDS = 0.5
"""An append that took longer waited for a store that did not answer, or the process slept: others need no more."""
_WEIGHT = 0.2


class Pace:
    """Belongs to the thread of the state; times are seconds of a monotonic clock."""

    def __init__(self, longest_seconds: float, random: Callable[[], float] = random_module.random) -> None:
        self._longest = longest_seconds
        self._random = random
        self._begun = self._ended = self._foreign = float("-inf")
        self._is_ours = False
        """The last record is ours."""
        self._in_a_row = 0
        self._between = 0.0
        """How far apart the records of others are, about; 0: there was one, or none."""
        self.apart = 0.0
        """How many seconds records are apart under load, from begin to begin."""
        self.round_trip = 0.0
        """What an append takes, about."""

    def pause(self, now: float) -> float:
        """How long to wait before the next record is begun."""
        begin = self._begun + self.apart if self.apart else now
        if self._is_ours and (self.has_company(now) or self._in_a_row >= TURNS):
            self._in_a_row = 0
            begin = max(begin, self._ended + self._rest())
        return max(0.0, begin - now)

    def _rest(self) -> float:
        # Not all the same, or those who lost together would try together.
        return self.round_trip * _TRIPS * (0.75 + self._random() / 2)

    def has_company(self, now: float) -> bool:
        """Whether others write too."""
        return now - self._foreign < OTHERS_SECONDS

    def is_likely_behind(self, now: float, sight_age: float) -> bool:
        """Whether to look before an append: where others write, a look costs less than a number that is lost."""
        if not self.has_company(now):
            return False
        return sight_age > max(_SURE_TRIPS * self.round_trip, self._between / 2)

    def begin(self, now: float) -> None:
        """A record is begun."""
        if now - self._ended > self.round_trip * _TRIPS:
            self._in_a_row = 0
        self._begun = now

    def wrote(self, now: float, calls: int) -> None:
        """It is in the log, with so many calls in it."""
        took = min(now - self._begun, _LONGEST_TRIP_SECONDS)
        self.round_trip = took if not self.round_trip else self.round_trip + _WEIGHT * (took - self.round_trip)
        self._ended, self._is_ours = now, True
        self._in_a_row += 1
        if calls > 1:
            self.apart = min(self._longest, max(_FIRST_SECONDS, self.apart * 2))
        else:
            self.apart = self.apart / 2 if self.apart > _FIRST_SECONDS else 0.0

    def saw_other(self, now: float) -> None:
        """A record of another process was applied."""
        if self.has_company(now):
            between = now - self._foreign
            self._between = self._between + _WEIGHT * (between - self._between) if self._between else between
        else:
            self._between = 0.0
        self._foreign, self._is_ours, self._in_a_row = now, False, 0
