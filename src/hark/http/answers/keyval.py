"""Answers of the key-value API."""

from __future__ import annotations

from typing import NotRequired, TypedDict

import msgspec

from hark.http.keyval.entries import WireEntry
from hark.http.keyval.messages import WireMessage


class Ok(TypedDict):
    """It is done."""

    ok: bool


# Work queues -----------------------------------------------------------------------------------------------


class Enqueued(Ok):
    """A message is stored."""

    id: str


class Polled(TypedDict):
    """A message, or null if there is none."""

    message: WireMessage | None


class Settled(Ok):
    """A message is settled; without a receipt, `found` false says that there was nothing to settle."""

    found: NotRequired[bool]


class Cancelled(Ok):
    """Whether a message was taken back, or why not."""

    cancelled: bool
    reason: NotRequired[str]


class WorkStats(TypedDict):
    """How many messages of a queue are in which state."""

    pending: int
    processing: int
    dlq: int
    total: int


class WorkSettings(TypedDict):
    """How long consumers of a queue hold a message, and whether that is the server's word."""

    queue: str
    lockDuration: int
    inherited: bool


class WorkDeadLetter(TypedDict):
    """A message that could not be delivered."""

    id: str
    originalId: str
    value: msgspec.Raw
    attempts: int
    errorMessage: str | None
    originalCreatedAt: int
    failedAt: int


class Requeued(Ok):
    """A dead letter is a message again."""

    newId: str
    id: str


# Keys ------------------------------------------------------------------------------------------------------


class Deleted(TypedDict):
    """How many were removed."""

    deletedCount: int


class Written(Ok):
    """A key has a new version."""

    versionstamp: str


class Committed(Ok):
    """What became of a commit; with `ok` false a check did not hold, and nothing was done."""

    versionstamp: NotRequired[str]
    ids: NotRequired[list[str | None]]


class EntryPage(TypedDict):
    """A page of entries, and the cursor of the next one."""

    entries: list[WireEntry]
    cursor: str | None
    hasMore: bool


class Counted(TypedDict):
    """How many there are."""

    count: int


class PolledKeys(TypedDict):
    """What changed, and what is known now, by position."""

    entries: list[WireEntry]
    versionstamps: list[str]


class PolledPrefix(TypedDict):
    """What changed, and what is known now, to be sent back as it is."""

    entries: list[WireEntry]
    versionstamps: str


# Numbers ---------------------------------------------------------------------------------------------------


class OperationNumbers(TypedDict):
    """How often an operation was asked for, how often it failed, and how long it took."""

    count: int
    errors: int
    avgLatencyMs: float


class OperationTotals(TypedDict):
    """All operations together."""

    operations: int
    errors: int


class OperationsNumbers(TypedDict):
    """The operations that were asked for."""

    operations: dict[str, OperationNumbers]
    totals: OperationTotals


class Storage(TypedDict):
    """How much is stored."""

    entries: int
    sizeBytes: int


class KeyvalMetrics(TypedDict):
    """Numbers about the key-value API."""

    operations: OperationsNumbers
    queue: WorkStats
    storage: Storage
