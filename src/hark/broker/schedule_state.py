"""A schedule as it is stored, with its due times and its state, and the writes of its keys.

A schedule is due by a cron expression in a time zone, or by an interval. Cron expressions have five fields and follow
Debian's cron when the clocks change: a due time in the hour that is skipped moves to the moment of the change, and one
in the hour that is repeated comes once. Expressions whose minute or hour begins with `*` follow the real time instead:
they skip nothing, and come in both repeated hours.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice, takewhile
from typing import Literal
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError

from hark.clock import SECOND
from hark.errors import EngineFailure, InvalidInput
from hark.keys import EXACT
from hark.model import OWN, Key, KeyCheck, KeyEntry, KeyMutation, KeyWrite, NewMessage

# Due times -------------------------------------------------------------------------------------------------

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
        else:
            moment = moment if self.start_at is None else max(moment, self.start_at - 1)
            due = None if moment > EXACT else next(self._after(moment), None)
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


# Stored schedules ------------------------------------------------------------------------------------------

SCHEDULES: Key = (OWN, "schedule")
DUE: Key = (OWN, "schedule_due")
MISSED_AFTER = 60 * SECOND
"""A due time that is over for longer, plus the jitter, was missed: `catch_up` applies."""
MAX_NAME_BYTES = 200
"""Limit of names, so that a name with a time is a valid transaction id."""
KEPT_RUNS = 5

Overlap = Literal["allow", "skip"]
CatchUp = Literal["none", "latest", "all"]


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """What a schedule pushes, and when."""

    timing: Timing
    message: NewMessage
    """The message of each run, without a transaction id. In the store its payload is encrypted if the queue is."""
    jitter: int = 0
    overlap: Overlap = "allow"
    catch_up: CatchUp = "latest"


class Run(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run that was pushed."""

    at: int
    due_at: int | None = None
    """None: it was requested."""
    transaction_id: str
    message_id: str | None = None
    """Not stored: the message is found by its transaction id."""
    partition_id: str | None = None


class Skip(msgspec.Struct, frozen=True, kw_only=True):
    """The last due times that were skipped, and why."""

    at: int
    due_at: int
    reason: Literal["overlap", "missed"]
    text: str


class ScheduleError(msgspec.Struct, frozen=True, kw_only=True):
    """Why a run could not be pushed."""

    at: int
    code: str
    error: str


class Schedule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A schedule and its state, as it is stored."""

    spec: Spec
    name: str
    anchor: int
    """Intervals count from here."""
    created_at: int
    changed_at: int
    next_at: int | None = None
    """The next due time; None: paused, or there is none."""
    wake_at: int | None = None
    """When to push it, and the time of its key: later than `next_at` by the jitter, or after a failure."""
    paused: bool = False
    runs: int = 0
    skipped: int = 0
    recent: tuple[Run, ...] = ()
    """The newest run is the first."""
    last_skip: Skip | None = None
    last_error: ScheduleError | None = None
    failures: int = 0
    """Failures since the last run."""
    unreadable: str | None = None
    """Not stored: why the payload, which is null then, cannot be read."""


def key_of(name: str) -> Key:
    """The key of a schedule."""
    return (*SCHEDULES, name)


def time_text(us: int) -> str:
    """A time as it is part of a transaction id."""
    return datetime.fromtimestamp(us / SECOND, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def jitter_of(name: str, due_at: int, jitter: int) -> int:
    """The delay of a due time: a part of the jitter that depends only on the name and the time."""
    if not jitter:
        return 0
    digest = hashlib.sha256(f"{name}\0{due_at}".encode()).digest()
    return int.from_bytes(digest[:6]) * jitter >> 48


def scheduled(schedule: Schedule, next_at: int | None, now: int) -> Schedule:
    """A schedule with this next due time."""
    wake_at = None
    if next_at is not None:
        # Not before now: schedules that catch up take turns with the others that are due.
        wake_at = max(next_at + jitter_of(schedule.name, next_at, schedule.spec.jitter), now)
    return msgspec.structs.replace(schedule, next_at=next_at, wake_at=wake_at)


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Schedule).decode


def read_schedule(entry: KeyEntry) -> Schedule:
    """The schedule of an entry. Raises `EngineFailure` if it cannot be read."""
    try:
        return _decode(entry.value)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        text = f"schedule {entry.key[-1]!r} cannot be read: {error}; update this server, or replace it"
        raise EngineFailure(text, code="schedule_unreadable") from error


def changes(
    name: str,
    entry: KeyEntry | None,
    current: Schedule | None,
    changed: Schedule | None,
    messages: Sequence[NewMessage] = (),
) -> KeyWrite:
    """The write that replaces a schedule and the key of its time, if the schedule is unchanged; None: deletes it."""
    before = None if current is None else current.wake_at
    after = None if changed is None else changed.wake_at
    mutations = [
        KeyMutation(kind="delete", key=key_of(name))
        if changed is None
        else KeyMutation(kind="set", key=key_of(name), value=_encode(changed))
    ]
    if before is not None and before != after:
        mutations.append(KeyMutation(kind="delete", key=(*DUE, before, name)))
    if after is not None and before != after:
        mutations.append(KeyMutation(kind="set", key=(*DUE, after, name)))
    return KeyWrite([KeyCheck(key_of(name), None if entry is None else entry.version)], mutations, messages)


def moved(due: KeyEntry, entry: KeyEntry | None, right: Key | None) -> KeyWrite:
    """The write that moves the key of a time that is not that of its schedule; None: deletes it."""
    mutations = [KeyMutation(kind="delete", key=due.key)]
    if right is not None:
        mutations.append(KeyMutation(kind="set", key=right))
    version = None if entry is None else entry.version
    return KeyWrite([KeyCheck(key_of(str(due.key[3])), version), KeyCheck(due.key, due.version)], mutations)
