"""The due times of a schedule: a cron expression in a time zone, or an interval.

Cron expressions have five fields and follow Debian's cron when the clocks change: a due time in the hour that is
skipped moves to the moment of the change, and one in the hour that is repeated comes once. Expressions whose minute or
hour begins with `*` follow the real time instead: they skip nothing, and come in both repeated hours.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice, takewhile
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError

from hark.clock import SECOND
from hark.errors import InvalidInput
from hark.keys import EXACT

NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
COUNT_LIMIT = 1000
"""Maximum number of missed due times of a cron expression that are counted."""
_MAX_TEXT = 255
_WINDOWS = tuple(seconds * SECOND for seconds in (3600, 86_400, 32 * 86_400, 400 * 86_400, 9 * 366 * 86_400))
"""How far back to search for the last due time: the further, the rarer are the due times."""


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """When a schedule is due: a cron expression or an interval, exactly one of them. Times are microseconds."""

    cron: str | None = None
    every: int | None = None
    timezone: str = "UTC"
    """The time zone of the cron expression."""
    start_at: int | None = None
    """No due time is before it. An interval counts from it, not from the creation."""

    def after(self, moment: int, anchor: int) -> int | None:
        """The first due time after a moment, or None if there is none. An interval counts from the anchor."""
        if self.every is not None:
            first = 1 if self.start_at is None else 0
            due: int | None = anchor + max((moment - anchor) // self.every + 1, first) * self.every
        elif moment > EXACT:
            due = None
        else:
            moment = moment if self.start_at is None else max(moment, self.start_at - 1)
            due = next(self._after(moment), None)
        return None if due is None or due > EXACT else due

    def last(self, first: int, moment: int, anchor: int) -> int:
        """The last due time up to a moment. `first` is a due time before it."""
        if self.every is not None:
            return anchor + (moment - anchor) // self.every * self.every
        for window in _WINDOWS:
            found = None
            for due in self._after(max(moment - window, first)):
                if due > moment:
                    break
                found = due
            if found is not None:
                return found
        return first

    def count(self, first: int, end: int) -> int:
        """The number of due times from `first`, which is one, to before `end`; of cron at most `COUNT_LIMIT`."""
        if self.every is not None:
            return max(0, -(-(end - first) // self.every))
        later = takewhile(lambda due: due < end, self._after(first))
        return (first < end) + sum(1 for _ in islice(later, COUNT_LIMIT - 1))

    def _after(self, moment: int) -> Iterator[int]:
        """The due times of the cron expression after a moment."""
        zone = zone_of(self.timezone)
        # The library counts in local time, so in a repeated hour it can begin with times that are over.
        for due in CronSim(self.cron or "", datetime.fromtimestamp(moment // SECOND, zone)):
            if (time := round(due.timestamp()) * SECOND) > moment:
                yield time


def check_cron(text: str) -> str:
    """Return the five fields of a cron expression. Raises `InvalidInput`."""
    cron = NICKNAMES.get(text.strip().lower(), text)
    fields = cron.split()
    reason = ""
    if len(cron) > _MAX_TEXT:
        reason = f"at most {_MAX_TEXT} characters"
    elif len(fields) != 5:
        reason = f"five fields (minute, hour, day of month, month, day of week), got {len(fields)}"
    else:
        try:
            CronSim(cron, datetime(2024, 1, 1, tzinfo=UTC))
        except (CronSimError, AssertionError, ValueError) as error:
            reason = f"a valid expression ({str(error).lower() or 'bad step'})"
    if reason:
        raise InvalidInput(f"cron: expected {reason}, such as '30 8 * * MON-FRI' for 8:30 on working days")
    return " ".join(fields)


def check_zone(name: str) -> str:
    """Return the name of a time zone. Raises `InvalidInput`."""
    try:
        zone_of(name)
    except (LookupError, ValueError, OSError):
        raise InvalidInput(
            f"timezone: expected a time zone of the tz database such as Europe/Berlin, got {name[:60]!r}; a system "
            "without the database needs the Python package tzdata"
        ) from None
    return name


@lru_cache(maxsize=1024)
def zone_of(name: str) -> ZoneInfo:
    """Return a time zone."""
    if len(name) > _MAX_TEXT or "\0" in name or not name:
        raise ValueError(name)
    return ZoneInfo(name)
