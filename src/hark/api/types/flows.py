"""Flows: tasks that run one after the other, side by side, or both."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UnsetType

from hark.api.types import Answer, Body
from hark.model.messages import DEFAULT_PARTITION


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
