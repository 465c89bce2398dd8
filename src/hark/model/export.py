"""A queue as lines of JSON: what `GET .../export` writes and `hark import` reads.

The lines of a file: the queue, its groups, then for each partition where the groups stand in it and its messages in
order, and at last `end`. A file without that line is not whole.
"""

from __future__ import annotations

from typing import Any

import msgspec

from hark.model.queues import Limits
from hark.model.words import GroupMode, Key

FORMAT = 1


class _Line(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag_field="type", omit_defaults=True):
    """What all lines have."""


class QueueLine(_Line, frozen=True, kw_only=True, tag="queue"):
    """The first line: which queue it is."""

    format: int
    name: str
    namespace: str
    task: str
    paused: bool = False
    options: dict[str, Any]
    """By their names in the HTTP API; only those that are not as by default."""
    messages: int
    """About how many will follow."""
    dead_letters: int = 0
    """How many there are; they are not in the file."""


class GroupLine(_Line, frozen=True, kw_only=True, tag="group"):
    """A group of the queue."""

    name: str
    mode: GroupMode
    paused: bool = False
    limits: Limits | None = None
    """None: no bound."""


class PositionLine(_Line, frozen=True, kw_only=True, tag="position"):
    """A group is done with all of a partition that is before an offset, and maybe with some of what follows."""

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
    """The last line: how many messages there were."""

    messages: int


class ErrorLine(_Line, frozen=True, kw_only=True, tag="error"):
    """Instead of the last line: why there is no more."""

    error: str
    code: str


ExportLine = QueueLine | GroupLine | PositionLine | MessageLine | EndLine | ErrorLine
