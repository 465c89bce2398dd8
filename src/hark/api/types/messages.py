"""Stored messages and their states; transactions; trace events."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import UnsetType

from hark.api.types.base import Answer, Pagination, Success, decode_value
from hark.model import MessageState, ScheduledReason

T = TypeVar("T")


class BusStatus(Answer):
    """How many consumer groups, other than the default group, have settled a message."""

    consumed_by: int
    total_groups: int


class ListedMessage(Answer):
    """A message without its payload."""

    id: str
    transaction_id: str
    partition_id: str
    queue_path: str
    queue: str
    partition: str
    namespace: str
    task: str
    offset: int
    status: MessageState
    """The most urgent state over all groups."""
    queue_status: MessageState | None
    """The state in the default group."""
    bus_status: BusStatus
    trace_id: str | None
    producer_sub: str | None
    priority: int
    queue_priority: int
    created_at: datetime
    deliver_at: datetime | None
    reason: ScheduledReason | None
    """Why the message is scheduled."""
    due_at: datetime | None
    """When a scheduled message becomes deliverable."""
    lease_expires_at: datetime | None


class Mode(Answer, omit_defaults=True):
    """The kinds of consumer groups: only the default group (queue), only others (bus), both (hybrid), or none."""

    has_queue_mode: bool
    bus_groups_count: int
    type: Literal["queue", "bus", "hybrid", "none"]
    consumed_by_groups: tuple[str, ...] | None = None
    """Of one message: the groups that have settled it."""


class MessagePage(Answer):
    """Messages, the newest first."""

    messages: tuple[ListedMessage, ...]
    mode: Mode


class MessageGroup(Answer):
    """The state of a message in a consumer group."""

    name: str
    consumed: bool
    lease_expires_at: datetime | None
    status: MessageState
    reason: ScheduledReason | None
    due_at: datetime | None
    attempts: int
    error: str | None = msgspec.field(name="errorMessage")


class MessageQueue(Answer):
    """Some options of the queue of a message."""

    lease_time: int
    retry_limit: int
    retry_delay: int
    ttl: int
    priority: int


class ShownMessage(ListedMessage):
    """A message with its payload and its state in each consumer group."""

    payload: msgspec.Raw
    payload_error: str | None
    """Error code and text if the server cannot read the payload, which is null then."""
    is_encrypted: bool
    error: str | None = msgspec.field(name="errorMessage")
    retry_count: int
    queue_config: MessageQueue
    mode: Mode
    groups: tuple[MessageGroup, ...] = msgspec.field(name="consumerGroups")

    @property
    def data(self) -> Any:
        """The payload, decoded from JSON."""
        return msgspec.json.decode(self.payload)

    def decode(self, shape: type[T]) -> T:
        """Decode the payload as a type. Raises `InvalidInput` if it does not fit."""
        return decode_value(self.payload, shape, f"the payload of message {self.id}")


class DeletedMessage(Success):
    """Whether the message was deleted."""

    partition_id: str
    transaction_id: str
    message: str


class RemovedMessage(Success, omit_defaults=True):
    """The message was deleted or cancelled."""

    id: str
    cancelled: bool | None = None


# Transactions ----------------------------------------------------------------------------------------------


class OperationResult(Answer):
    """The result of one push or acknowledgement of a transaction. The server leaves out what is not of its type."""

    index: int
    """Position in the transaction, from 0."""
    type: Literal["push", "ack"]
    success: bool
    transaction_id: str | None
    status: str | UnsetType | None = None
    """For a push: `queued` or `duplicate`."""
    message_id: str | UnsetType | None = None
    partition_id: str | UnsetType | None = None
    queue: str | UnsetType | None = msgspec.field(name="queueName", default=None)
    error: str | UnsetType | None = None
    dead_lettered: bool | UnsetType = msgspec.field(name="dlq", default=False)
    """For an acknowledgement: whether the message was dead-lettered."""
    code: str | UnsetType | None = None


class WrittenKeys(Answer, omit_defaults=True):
    """The result of the key-value part of a transaction."""

    ok: bool
    versionstamp: str | None = None


class TransactionAnswer(Answer, omit_defaults=True):
    """The result of a transaction. `success` false means that it was refused and nothing was applied."""

    transaction_id: str
    success: bool
    results: tuple[OperationResult, ...]
    error: str | None = None
    code: str | None = None
    kv: WrittenKeys | None = None


# Traces ----------------------------------------------------------------------------------------------------


class RecordedTrace(Success):
    """The trace event was recorded."""

    trace_id: str


class TraceEvent(Answer, rename=None):
    """A trace event that a consumer recorded about a message."""

    id: str
    event_type: str
    payload: msgspec.Raw = msgspec.field(name="data")
    consumer_group: str
    worker_id: None
    created_at: datetime
    trace_names: Sequence[str]

    @property
    def data(self) -> Any:
        """The recorded data, decoded from JSON."""
        return msgspec.json.decode(self.payload)

    def decode(self, shape: type[T]) -> T:
        """Decode the recorded data as a type. Raises `InvalidInput` if it does not fit."""
        return decode_value(self.payload, shape, f"the data of trace {self.id}")


class TracesOfMessage(Answer):
    """Trace events about one message, the oldest first."""

    traces: tuple[TraceEvent, ...]


class NamedTrace(TraceEvent, rename=None):
    """A trace event with its message."""

    transaction_id: str
    partition_id: str
    queue_name: str
    partition_name: str
    message_payload: msgspec.Raw
    payload_error: str | None = msgspec.field(name="payloadError", default=None)

    @property
    def message_data(self) -> Any:
        """The payload of the message. None if the message was removed."""
        return msgspec.json.decode(self.message_payload)


class NamedTraces(Answer):
    """A page of trace events of one name, the newest first."""

    items: tuple[NamedTrace, ...] = msgspec.field(name="traces")
    total: int
    pagination: Pagination


class TraceName(Answer, rename=None):
    """A trace name with counts."""

    trace_name: str
    trace_count: int
    message_count: int
    last_seen: datetime


class TraceNames(Answer):
    """A page of trace names."""

    items: tuple[TraceName, ...] = msgspec.field(name="trace_names")
    total: int
    pagination: Pagination
