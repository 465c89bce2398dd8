"""The key-value API: work queues, keys and their metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

import msgspec
from msgspec import UNSET

from hark.api.types import Answer, Body, Number, OptionalRaw, Single, SuccessWith, renamed

T = TypeVar("T")


class Ok(Answer):
    """A successful operation."""

    ok: bool


# Work queues -----------------------------------------------------------------------------------------------


class EnqueueOptions(Body, gc=False):
    """Options of a message. Null means absent."""

    delay: Number | None = None
    deliver_at: str | int | None = None
    backoff_schedule: Sequence[Number] | None = None
    keys_if_undelivered: OptionalRaw = UNSET
    priority: int | None = None
    ttl: Number | None = None
    traceparent: str | None = None
    tracestate: str | None = None
    unique_key: str | None = None
    unique_until: str | None = None


class EnqueueBody(Body, gc=False):
    """A message to enqueue."""

    value: OptionalRaw = UNSET
    options: EnqueueOptions | None = None


class CancelBody(Body, gc=False):
    """The message to cancel."""

    id: str = ""


class WorkAckBody(CancelBody, gc=False):
    """The message to acknowledge. With a receipt, only that delivery can be acknowledged."""

    receipt: str | None = None


class NackBody(WorkAckBody, gc=False):
    """The message to reject, with the error and the delay before its redelivery."""

    error: str | None = None
    delay: Number | None = None


class WireMessage(msgspec.Struct, gc=False, omit_defaults=True):
    """A delivered message. Its receipt identifies this delivery."""

    id: str
    value: msgspec.Raw
    attempts: int
    receipt: str
    priority: int = 0
    traceparent: str | None = None
    tracestate: str | None = None


Enqueued = renamed(SuccessWith[str], "Enqueued", "The message was stored.", success="ok", value="id")


Polled = renamed(
    Single[WireMessage | None], "Polled", "The received message, or null if no message is available.", value="message"
)


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


SettingsBody = renamed(Single[int | None], "SettingsBody", "The settings of a work queue.", value="lockDuration")


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


class CheckBody(Body):
    """A condition on the version of a key. Null: the key must not exist."""

    key: object = None
    versionstamp: str | msgspec.UnsetType | None = UNSET


class MutationBody(Body):
    """A change of a key, or a message to enqueue."""

    type: str
    queue: str | None = None
    key: object = None
    value: OptionalRaw = UNSET
    expires_in: int | None = None
    options: EnqueueOptions | None = None


class AtomicBody(Body, kw_only=True):
    """An atomic commit: checks and mutations."""

    checks: list[CheckBody] | None = None
    mutations: list[MutationBody]


class DeleteBody(Body):
    """Options of a deletion."""

    exact: bool | None = None
    where: OptionalRaw = UNSET


class KeysBody(DeleteBody):
    """Several keys."""

    keys: object = None


class ListBody(Body):
    """A range of keys. Keys are arrays, so that the types of their parts are exact."""

    prefix: list[object] | None = None
    start: list[object] | None = None
    end: list[object] | None = None
    limit: int | None = None
    reverse: bool | None = None
    where: OptionalRaw = UNSET


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


Deleted = renamed(Single[int], "Deleted", "The number of deleted entries or dead letters.", value="deletedCount")


Written = renamed(
    SuccessWith[str],
    "Written",
    "The key was written and has a new version.",
    success="ok",
    value="versionstamp",
)


class AtomicResult(Ok, omit_defaults=True):
    """The result of a commit. `ok` false means that a check failed and nothing was applied."""

    versionstamp: str | None = None
    """The versionstamp of everything that it wrote."""
    ids: tuple[str, ...] = ()
    """The ids of the enqueued messages, in order."""

    def __bool__(self) -> bool:
        return self.ok


class EntryPage(Answer):
    """A page of entries, and the cursor of the next page."""

    entries: tuple[WireEntry, ...]
    cursor: str | None
    has_more: bool


KeyCount = renamed(Single[int], "KeyCount", "A number of entries.", value="count")


class PolledEntries(Answer, Generic[T]):
    """The changed entries, and the current versionstamps: in the order of the keys, or as text for the next request."""

    entries: tuple[WireEntry, ...]
    versionstamps: T


PolledKeys = renamed(
    PolledEntries[tuple[str, ...]],
    "PolledKeys",
    "The changed entries, and the current versionstamps in the order of the keys.",
)
PolledPrefix = renamed(
    PolledEntries[str],
    "PolledPrefix",
    "The changed entries, and the current versionstamps as text for the next request.",
)


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
