"""Responses about messages, leases, transactions and traces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NotRequired, TypedDict

import msgspec

from hark.http.answers.common import Pagination, Success
from hark.http.renewals import RenewalAnswer
from hark.model import MessageState


class BusStatus(TypedDict):
    """How many consumer groups, other than the default group, have settled a message."""

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
    """The kinds of consumer groups: only the default group (queue), only others (bus), both (hybrid), or none."""

    hasQueueMode: bool
    busGroupsCount: int
    type: Literal["queue", "bus", "hybrid", "none"]


class MessagePage(TypedDict):
    """Messages, the newest first."""

    messages: list[ListedMessage]
    mode: Mode


class MessageGroup(TypedDict):
    """The state of a message in a consumer group."""

    name: str
    consumed: bool
    leaseExpiresAt: str | None
    status: MessageState
    attempts: int
    errorMessage: str | None


class MessageQueue(TypedDict):
    """Some options of the queue of a message."""

    leaseTime: int
    retryLimit: int
    retryDelay: int
    ttl: int
    priority: int


class ModeOfMessage(Mode):
    """The kinds of consumer groups of the queue, and the groups that have settled the message."""

    consumedByGroups: list[str]


class ShownMessage(ListedMessage):
    """A message with its payload and its state in each consumer group."""

    payload: msgspec.Raw | None
    isEncrypted: bool
    errorMessage: str | None
    retryCount: int
    queueConfig: MessageQueue
    mode: ModeOfMessage
    consumerGroups: list[MessageGroup]


class DeletedMessage(Success):
    """Whether the message was deleted."""

    partitionId: str
    transactionId: str
    message: str


class DeletedMessageById(Success):
    """The message was deleted."""

    id: str


class CancelledMessage(Success):
    """The message was cancelled."""

    id: str
    cancelled: bool


# Leases ----------------------------------------------------------------------------------------------------


class ExtendedLease(TypedDict):
    """The result of a lease renewal. The time has three names, because clients read different ones."""

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
    """The results of lease renewals, in the order of the leases."""

    results: list[RenewalAnswer]


# Transactions ----------------------------------------------------------------------------------------------


class OperationResult(TypedDict):
    """The result of one push or acknowledgement of a transaction."""

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
    """The result of the key-value part of a transaction."""

    ok: bool
    versionstamp: NotRequired[str]


class TransactionAnswer(TypedDict):
    """The result of a transaction. `success` false means that it was refused and nothing was applied."""

    transactionId: str
    success: bool
    error: NotRequired[str | None]
    code: NotRequired[str | None]
    results: list[OperationResult]
    kv: NotRequired[WrittenKeys]


# Traces ----------------------------------------------------------------------------------------------------


class RecordedTrace(Success):
    """The trace event was recorded."""

    traceId: str


class TraceEvent(TypedDict):
    """A trace event about a message."""

    id: str
    event_type: str
    data: msgspec.Raw
    consumer_group: str
    worker_id: None
    created_at: str
    trace_names: Sequence[str]


class TracesOfMessage(TypedDict):
    """Trace events about one message, the oldest first."""

    traces: list[TraceEvent]


class NamedTrace(TraceEvent):
    """A trace event with its message."""

    transaction_id: str
    partition_id: str
    queue_name: str
    partition_name: str
    message_payload: msgspec.Raw | None


class NamedTraces(TypedDict):
    """A page of trace events of one name, the newest first."""

    traces: list[NamedTrace]
    total: int
    pagination: Pagination


class TraceName(TypedDict):
    """A trace name with counts."""

    trace_name: str
    trace_count: int
    message_count: int
    last_seen: str


class TraceNames(TypedDict):
    """A page of trace names."""

    trace_names: list[TraceName]
    total: int
    pagination: Pagination
