"""Responses of the key-value API."""

from __future__ import annotations

from typing import NotRequired, TypedDict

import msgspec

from hark.http.keyval.entries import WireEntry
from hark.http.keyval.messages import WireMessage


class Ok(TypedDict):
    """A successful operation."""

    ok: bool


# Work queues -----------------------------------------------------------------------------------------------


class Enqueued(Ok):
    """The message was stored."""

    id: str


class Polled(TypedDict):
    """The received message, or null if no message is available."""

    message: WireMessage | None


class Settled(Ok):
    """The message was settled. Without a receipt, `found` false means that there was no delivery to settle."""

    found: NotRequired[bool]


class Cancelled(Ok):
    """Whether the message was cancelled, or the reason why not."""

    cancelled: bool
    reason: NotRequired[str]


class WorkStats(TypedDict):
    """Message counts of a work queue, by state."""

    pending: int
    processing: int
    dlq: int
    total: int


class WorkSettings(TypedDict):
    """The settings of a work queue."""

    queue: str
    lockDuration: int
    inherited: bool


class WorkDeadLetter(TypedDict):
    """A dead letter: a message that could not be delivered."""

    id: str
    originalId: str
    value: msgspec.Raw
    attempts: int
    errorMessage: str | None
    originalCreatedAt: int
    failedAt: int


class Requeued(Ok):
    """The dead letter was requeued as a new message."""

    newId: str
    id: str


# Keys ------------------------------------------------------------------------------------------------------


class Deleted(TypedDict):
    """The number of deleted entries or dead letters."""

    deletedCount: int


class Written(Ok):
    """The key was written and has a new version."""

    versionstamp: str


class Committed(Ok):
    """The result of a commit. `ok` false means that a check failed and nothing was applied."""

    versionstamp: NotRequired[str]
    ids: NotRequired[list[str | None]]


class EntryPage(TypedDict):
    """A page of entries, and the cursor of the next page."""

    entries: list[WireEntry]
    cursor: str | None
    hasMore: bool


class Counted(TypedDict):
    """A number of entries."""

    count: int


class PolledKeys(TypedDict):
    """The changed entries, and the current versionstamps in the order of the keys."""

    entries: list[WireEntry]
    versionstamps: list[str]


class PolledPrefix(TypedDict):
    """The changed entries, and the current versionstamps as text for the next request."""

    entries: list[WireEntry]
    versionstamps: str


# Metrics ---------------------------------------------------------------------------------------------------


class OperationNumbers(TypedDict):
    """Count, errors and latency of an operation."""

    count: int
    errors: int
    avgLatencyMs: float


class OperationTotals(TypedDict):
    """Totals of all operations."""

    operations: int
    errors: int


class OperationsNumbers(TypedDict):
    """Metrics by operation, and totals."""

    operations: dict[str, OperationNumbers]
    totals: OperationTotals


class Storage(TypedDict):
    """The size of the key-value store."""

    entries: int
    sizeBytes: int


class KeyvalMetrics(TypedDict):
    """Metrics of the key-value API."""

    operations: OperationsNumbers
    queue: WorkStats
    storage: Storage
