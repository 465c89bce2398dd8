"""Tasks: their states, flows of them, and schedules."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import UnsetType

from hark.api.types import Answer, Body, Page, SuccessWith, renamed
from hark.model.messages import DEFAULT_PARTITION


class TaskStatus(Answer, omit_defaults=True):
    """The state of a task, with its result if it is done and one was stored."""

    state: Literal["pending", "scheduled", "running", "done", "failed", "cancelled"]
    result: msgspec.Raw | UnsetType = msgspec.UNSET
    error: str | None = None
    """Error text and traceback of the last attempt that failed."""
    attempts: int = 0
    progress: float | None = None
    """From 0 to 1."""
    note: str | None = None


class ProgressBody(Body, forbid_unknown_fields=True):
    """The progress of a running task."""

    lease_id: str
    progress: float | None = None
    note: str | None = None


# Flows ------------------------------------------------------------------------------------------------------


class FlowNode(Body, forbid_unknown_fields=True):
    """A step of a flow, which is one task; or a group of steps that run side by side."""

    queue: str = ""
    partition: str = DEFAULT_PARTITION
    payload: msgspec.Raw | UnsetType = msgspec.UNSET
    takes_result: bool = True
    priority: int | None = None
    delay: int | None = None
    backoff_schedule: list[int] | None = None
    ttl: int | None = None
    group: list[list[FlowNode]] | None = None
    """The members of a group, each with its steps. The other fields are those of a step."""


class FlowBody(Body, forbid_unknown_fields=True):
    """The steps of a flow, in order."""

    steps: list[FlowNode]
    id: str | None = None
    result_ttl: int | None = None


class PushedFlow(Answer):
    """A flow that is stored."""

    status: Literal["queued", "duplicate"]
    id: str
    queue: str


class FlowStep(Answer, omit_defaults=True):
    """The state of one step of a flow."""

    path: str
    task: str
    queue: str
    state: Literal["waiting", "pending", "scheduled", "running", "done", "failed", "cancelled"]
    """`waiting`: the steps before it are not done."""
    error: str | None = None
    attempts: int = 0
    progress: float | None = None
    note: str | None = None
    message_id: str | None = None
    partition_id: str | None = None


class FlowStatus(Answer, omit_defaults=True):
    """The state of a flow and of its steps."""

    id: str
    queue: str
    state: Literal["pending", "running", "done", "failed", "cancelled"]
    result: msgspec.Raw | UnsetType = msgspec.UNSET
    error: str | None = None
    steps: tuple[FlowStep, ...] = ()


# Schedules --------------------------------------------------------------------------------------------------

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
