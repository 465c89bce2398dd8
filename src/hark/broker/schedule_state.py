"""A schedule as it is stored, with its state, and the writes of its keys."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal

import msgspec

from hark.broker.due_times import Timing
from hark.clock import SECOND
from hark.errors import EngineFailure
from hark.model import OWN, Key, KeyCheck, KeyEntry, KeyMutation, KeyWrite, NewMessage

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
        raise EngineFailure(
            f"schedule {entry.key[-1]!r} cannot be read: {error}; update this server, or replace it",
            code="schedule_unreadable",
        ) from error


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
