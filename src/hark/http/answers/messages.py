"""Answers about messages, leases, transactions, traces and dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NotRequired, TypedDict

import msgspec

from hark.http.answers.common import Pagination, Success
from hark.http.renewals import RenewalAnswer
from hark.model import MessageState


class BusStatus(TypedDict):
    """How many groups, beside the default one, are done with a message."""

    consumedBy: int
    totalGroups: int


class ListedMessage(TypedDict):
    """A message without its payload."""

    id: str
    transactionId: str
    partitionId: str
    queuePath: str
    queue: str
    partition: str
    namespace: str
    task: str
    offset: int
    status: MessageState
    queueStatus: MessageState | None
    busStatus: BusStatus
    traceId: str | None
    producerSub: str | None
    priority: int
    queuePriority: int
    createdAt: str
    deliverAt: str | None
    leaseExpiresAt: str | None


class Mode(TypedDict):
    """Which groups there are: only the default one (queue), only others (bus), both (hybrid), or none."""

    hasQueueMode: bool
    busGroupsCount: int
    type: Literal["queue", "bus", "hybrid", "none"]


class MessagePage(TypedDict):
    """Messages, newest first."""

    messages: list[ListedMessage]
    mode: Mode


class MessageGroup(TypedDict):
    """What a group did with a message."""

    name: str
    consumed: bool
    leaseExpiresAt: str | None
    status: MessageState
    attempts: int
    errorMessage: str | None


class MessageQueue(TypedDict):
    """Options of the queue of a message."""

    leaseTime: int
    retryLimit: int
    retryDelay: int
    ttl: int
    priority: int


class ModeOfMessage(Mode):
    """Which groups of the message's queue there are, and which of them are done with it."""

    consumedByGroups: list[str]


class ShownMessage(ListedMessage):
    """A message with its payload and what each group did with it."""

    payload: msgspec.Raw | None
    isEncrypted: bool
    errorMessage: str | None
    retryCount: int
    queueConfig: MessageQueue
    mode: ModeOfMessage
    consumerGroups: list[MessageGroup]


class DeletedMessage(Success):
    """Whether a message was removed."""

    partitionId: str
    transactionId: str
    message: str


class DeletedMessageById(Success):
    """A message was removed."""

    id: str


class CancelledMessage(Success):
    """A message was taken back."""

    id: str
    cancelled: bool


# Leases ----------------------------------------------------------------------------------------------------


class ExtendedLease(TypedDict):
    """Until when a lease is held; the time has three names because each official client reads another one."""

    index: int
    leaseId: str
    success: bool
    renewed: int
    error: str | None
    expiresAt: str | None
    newExpiresAt: str | None
    lease_expires_at: str | None
    code: NotRequired[str | None]


class ExtendedLeases(TypedDict):
    """What became of leases, by position."""

    results: list[RenewalAnswer]


# Transactions ----------------------------------------------------------------------------------------------


class OperationResult(TypedDict):
    """What became of a push or an ack of a transaction."""

    index: int
    type: Literal["push", "ack"]
    success: bool
    transactionId: str | None
    status: NotRequired[str]
    messageId: NotRequired[str | None]
    partitionId: NotRequired[str | None]
    queueName: NotRequired[str | None]
    error: NotRequired[str | None]
    dlq: NotRequired[bool]
    code: NotRequired[str | None]


class WrittenKeys(TypedDict):
    """What became of the keys of a transaction."""

    ok: bool
    versionstamp: NotRequired[str]


class TransactionAnswer(TypedDict):
    """What became of a transaction; one that is refused has `success` false, and nothing of it was done."""

    transactionId: str
    success: bool
    error: NotRequired[str | None]
    code: NotRequired[str | None]
    results: list[OperationResult]
    kv: NotRequired[WrittenKeys]


# Traces ----------------------------------------------------------------------------------------------------


class RecordedTrace(Success):
    """An event was recorded."""

    traceId: str


class TraceEvent(TypedDict):
    """An event about a message."""

    id: str
    event_type: str
    data: msgspec.Raw
    consumer_group: str
    worker_id: None
    created_at: str
    trace_names: Sequence[str]


class TracesOfMessage(TypedDict):
    """Events about one message, oldest first."""

    traces: list[TraceEvent]


class NamedTrace(TraceEvent):
    """An event, and the message that it is about."""

    transaction_id: str
    partition_id: str
    queue_name: str
    partition_name: str
    message_payload: msgspec.Raw | None


class NamedTraces(TypedDict):
    """Events of one name, newest first."""

    traces: list[NamedTrace]
    total: int
    pagination: Pagination


class TraceName(TypedDict):
    """A name that events were recorded under."""

    trace_name: str
    trace_count: int
    message_count: int
    last_seen: str


class TraceNames(TypedDict):
    """Names of events."""

    trace_names: list[TraceName]
    total: int
    pagination: Pagination
