"""The export format of a queue and of keys as lines of JSON: `hark export` writes it and `hark import` reads it.

The lines of a file are: the queue, its groups, then for each partition the positions of the groups and its messages in
order, then the dead letters from the oldest failure on, then keys, and at last `end`. A file without that line is
incomplete. A file that has only keys begins with `keys`. `unreadable` lines are in place of what could not be read.

Readers ignore unknown fields, so a new field does not change the format. A new type of line does. Format 1 had neither
dead letters nor keys.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from hark.api.options import Limits
from hark.model.messages import GroupMode, Key

FORMAT = 2
_encode = msgspec.json.Encoder().encode


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
    """Approximate number of dead letters that follow; none follow in format 1."""


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


class _Stored(_Line, frozen=True, kw_only=True):
    """What messages and dead letters have in common; times are microseconds since the epoch."""

    partition: str
    transaction_id: str
    payload: msgspec.Raw
    created_at: int
    trace_id: str | None = None
    producer_sub: str | None = None
    priority: int = 0
    backoff_schedule: tuple[int, ...] | None = None
    keys_if_undelivered: tuple[Key, ...] = ()
    traceparent: str | None = None
    tracestate: str | None = None


class MessageLine(_Stored, frozen=True, kw_only=True, tag="message"):
    """A message."""

    offset: int
    deliver_at: int | None = None
    expires_at: int | None = None


class DeadLetterLine(_Stored, frozen=True, kw_only=True, tag="deadLetter"):
    """A dead letter."""

    id: str
    group: str
    attempts: int
    error: str
    failed_at: int


class KeysLine(_Line, frozen=True, kw_only=True, tag="keys"):
    """The first line of a file that has only keys."""

    format: int


class KeyLine(_Line, frozen=True, kw_only=True, tag="key"):
    """A key and its value."""

    key: Key
    value: msgspec.Raw
    expires_at: int | None = None
    """Microseconds since the epoch."""


class UnreadableLine(_Line, frozen=True, kw_only=True, tag="unreadable"):
    """Something that the export leaves out, because its payload cannot be read: where it is, and the reason."""

    kind: Literal["message", "dead letter", "key"]
    reason: str
    """Error code and text."""
    partition: str | None = None
    transaction_id: str | None = None
    key: Key | None = None


class EndLine(_Line, frozen=True, kw_only=True, tag="end"):
    """The last line: how many lines there are of each type."""

    messages: int
    dead_letters: int = 0
    keys: int = 0
    unreadable: int = 0


class ErrorLine(_Line, frozen=True, kw_only=True, tag="error"):
    """Replaces the last line if the export failed: the reason."""

    error: str
    code: str


ExportLine = (
    QueueLine
    | GroupLine
    | PositionLine
    | MessageLine
    | DeadLetterLine
    | KeysLine
    | KeyLine
    | UnreadableLine
    | EndLine
    | ErrorLine
)


def encode_line(line: msgspec.Struct) -> bytes:
    """Encode a line. Payloads stay as they were sent: a line break in them is mere space, but would begin a line."""
    text: bytes = _encode(line)
    if b"\n" in text or b"\r" in text:
        text = text.replace(b"\n", b" ").replace(b"\r", b" ")
    return text + b"\n"
