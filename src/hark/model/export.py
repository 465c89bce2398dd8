"""The export format of a queue as lines of JSON: `GET .../export` writes it and `hark import` reads it.

The lines of a file are: the queue, its groups, then for each partition the positions of the groups and its messages in
order, and at last `end`. A file without that line is incomplete.
"""

from __future__ import annotations

from typing import Any

import msgspec

from hark.model.queues import Limits
from hark.model.words import GroupMode, Key

FORMAT = 1


class _Line(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag_field="type", omit_defaults=True):
    """Base class of all lines."""


class QueueLine(_Line, frozen=True, kw_only=True, tag="queue"):
    """The first line: the queue."""

    format: int
    name: str
    namespace: str
    task: str
    paused: bool = False
    options: dict[str, Any]
    """Options that differ from their defaults, by their names in the HTTP API."""
    messages: int
    """Approximate number of messages that follow."""
    dead_letters: int = 0
    """Number of dead letters of the queue; the file does not contain them."""


class GroupLine(_Line, frozen=True, kw_only=True, tag="group"):
    """A consumer group of the queue."""

    name: str
    mode: GroupMode
    paused: bool = False
    limits: Limits | None = None
    """None: no limits."""


class PositionLine(_Line, frozen=True, kw_only=True, tag="position"):
    """The position of a group: it has settled all messages before the offset, and possibly some of the others."""

    group: str
    partition: str
    offset: int


class MessageLine(_Line, frozen=True, kw_only=True, tag="message"):
    """A message; times are microseconds since the epoch."""

    partition: str
    offset: int
    transaction_id: str
    payload: msgspec.Raw
    created_at: int
    trace_id: str | None = None
    producer_sub: str | None = None
    priority: int = 0
    deliver_at: int | None = None
    expires_at: int | None = None
    backoff_schedule: tuple[int, ...] | None = None
    keys_if_undelivered: tuple[Key, ...] = ()
    traceparent: str | None = None
    tracestate: str | None = None


class EndLine(_Line, frozen=True, kw_only=True, tag="end"):
    """The last line: the number of messages."""

    messages: int


class ErrorLine(_Line, frozen=True, kw_only=True, tag="error"):
    """Replaces the last line if the export failed: the reason."""

    error: str
    code: str


ExportLine = QueueLine | GroupLine | PositionLine | MessageLine | EndLine | ErrorLine
