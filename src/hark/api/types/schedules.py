"""Schedules, and their runs."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

import msgspec

from hark.api.types import Answer, Body, Page, SuccessWith, renamed

Overlap = Literal["allow", "skip"]
CatchUp = Literal["none", "latest", "all"]
_OverlapText = Annotated[str, msgspec.Meta(extra_json_schema={"enum": ["allow", "skip"]})]
_CatchUpText = Annotated[str, msgspec.Meta(extra_json_schema={"enum": ["none", "latest", "all"]})]
Seconds = Annotated[
    str | float,
    msgspec.Meta(extra_json_schema={"anyOf": [{"type": "number"}, {"type": "string", "examples": ["90s", "1h30m"]}]}),
]
"""A number of seconds, or a text with units such as `1h30m`."""


class ScheduleBody(Body, forbid_unknown_fields=True):
    """A schedule: what is pushed, and when. Exactly one of `cron` and `every`."""

    queue: str
    partition: str | None = None
    payload: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))
    cron: str | None = None
    every: Seconds | None = None
    timezone: str | None = None
    start_at: str | int | None = None
    jitter: Seconds | None = None
    overlap: _OverlapText | None = None
    catch_up: _CatchUpText | None = None
    priority: int | None = None
    ttl: int | None = None
    backoff_schedule: tuple[int, ...] | None = None


class ScheduleRun(Answer):
    """A run of a schedule: the message that was pushed."""

    at: datetime
    due_at: datetime | None
    transaction_id: str
    message_id: str | None
    partition_id: str | None


class ScheduleSkip(Answer):
    """The last due time that a schedule skipped."""

    at: datetime
    due_at: datetime
    reason: Literal["overlap", "missed"]
    text: str


class ScheduleError(Answer):
    """The last failure of a schedule to push."""

    at: datetime
    code: str
    error: str


class ListedSchedule(Answer):
    """A schedule and its state."""

    name: str
    queue: str
    partition: str
    cron: str | None
    every: float | None
    timezone: str
    start_at: datetime | None
    jitter: float
    overlap: Overlap
    catch_up: CatchUp
    priority: int
    ttl: int | None
    backoff_schedule: tuple[int, ...] | None
    state: Literal["active", "paused", "failing", "ended"]
    next_run_at: datetime | None
    last_run_at: datetime | None
    runs: int
    skipped: int
    last_skip: ScheduleSkip | None
    last_error: ScheduleError | None
    created_at: datetime
    updated_at: datetime


class ShownSchedule(ListedSchedule):
    """A schedule with its payload and its last runs."""

    payload: msgspec.Raw
    unreadable: str | None
    last_runs: tuple[ScheduleRun, ...]


SchedulePage = renamed(Page[ListedSchedule], "SchedulePage", "A page of schedules, by name.", items="schedules")
DeletedSchedule = renamed(
    SuccessWith[str], "DeletedSchedule", "The schedule was deleted.", success="deleted", value="name"
)
