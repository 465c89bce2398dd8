"""The key-value API: work queues, keys and their metrics."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from hark.api.types import Answer, Single, renamed

T = TypeVar("T")


class Ok(Answer):
    """A successful operation."""

    ok: bool


# Work queues -----------------------------------------------------------------------------------------------


class WireMessage(msgspec.Struct, gc=False, omit_defaults=True):
    """A delivered message. Its receipt identifies this delivery."""

    id: str
    value: msgspec.Raw
    attempts: int
    receipt: str
    priority: int = 0
    traceparent: str | None = None
    tracestate: str | None = None


class Enqueued(Ok):
    """The message was stored."""

    id: str


Polled = renamed(Single[WireMessage | None], "Polled", value="message")
"""The received message, or null if no message is available."""


class Settled(Ok, omit_defaults=True):
    """The message was settled. Without a receipt, `found` false means that there was no delivery to settle."""

    found: bool | None = None


class Cancelled(Ok, omit_defaults=True):
    """Whether the message was cancelled, or the reason why not."""

    cancelled: bool
    reason: str | None = None


class WorkStats(Answer):
    """Message counts of a work queue, by state."""

    pending: int
    processing: int
    dlq: int
    total: int


SettingsBody = renamed(Single[int | None], "SettingsBody", value="lockDuration")
"""The settings of a work queue."""


class WorkSettings(Answer):
    """How long consumers of the key-value API hold a message."""

    queue: str
    lock_duration: int
    """Milliseconds."""
    inherited: bool
    """Whether this is the server's setting, not the queue's own."""


class WorkDeadLetter(Answer, omit_defaults=True):
    """A dead letter: a message that could not be delivered."""

    id: str
    original_id: str
    value: msgspec.Raw
    attempts: int
    error_message: str | None
    original_created_at: int
    failed_at: int
    payload_error: str | None = None


class Requeued(Ok):
    """The dead letter was requeued as a new message."""

    new_id: str
    id: str


# Keys ------------------------------------------------------------------------------------------------------


class WireEntry(msgspec.Struct, gc=False):
    """A key and its value. A missing key has null as its value and its versionstamp."""

    key: tuple[str | int | float | bool, ...]
    """Not `Key`, which would convert integers to floats."""
    value: msgspec.Raw
    versionstamp: str | None
    expires_at: int | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="expiresAt")
    """Milliseconds since 1970; absent when the key does not expire."""
    payload_error: str | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="payloadError")
    """Why the value, which is null then, cannot be read: code and text."""


Deleted = renamed(Single[int], "Deleted", value="deletedCount")
"""The number of deleted entries or dead letters."""


class Written(Ok):
    """The key was written and has a new version."""

    versionstamp: str


class Committed(Ok, omit_defaults=True):
    """The result of a commit. `ok` false means that a check failed and nothing was applied."""

    versionstamp: str | None = None
    ids: tuple[str | None, ...] | None = None


class EntryPage(Answer):
    """A page of entries, and the cursor of the next page."""

    entries: tuple[WireEntry, ...]
    cursor: str | None
    has_more: bool


KeyCount = renamed(Single[int], "KeyCount", value="count")
"""A number of entries."""


class PolledEntries(Answer, Generic[T]):
    """The changed entries, and the current versionstamps: in the order of the keys, or as text for the next request."""

    entries: tuple[WireEntry, ...]
    versionstamps: T


PolledKeys = renamed(PolledEntries[tuple[str, ...]], "PolledKeys")
PolledPrefix = renamed(PolledEntries[str], "PolledPrefix")


# Metrics ---------------------------------------------------------------------------------------------------


class OperationNumbers(Answer):
    """Count, errors and latency of an operation."""

    count: int
    errors: int
    avg_latency_ms: float


class OperationsNumbers(Answer):
    """Metrics by operation, and totals."""

    operations: dict[str, OperationNumbers]
    totals: dict[str, int]


class Storage(Answer):
    """The size of the key-value store."""

    entries: int
    size_bytes: int


class KeyvalMetrics(Answer):
    """Metrics of the key-value API: operations, the work queue and the stored data."""

    operations: OperationsNumbers
    queue: WorkStats
    storage: Storage
