"""Responses about single messages: stored messages, dead letters and trace events."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, TypeVar

import msgspec

from hark.errors import InvalidInput

T = TypeVar("T")

MessageStatus = Literal["pending", "processing", "completed", "dead_letter"]


def decode_value(raw: msgspec.Raw, shape: type[T], what: str) -> T:
    """Decode a value as a type."""
    try:
        return msgspec.json.decode(raw, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{what} does not have the expected type: {error}", code="unexpected_value") from error


# Stored messages -------------------------------------------------------------------------------------------


class OtherGroups(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How many groups, apart from the default group, have settled a message."""

    consumed_by: int
    total_groups: int


class MessageSummary(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A stored message in a list, without its payload."""

    id: str
    transaction_id: str
    partition_id: str
    queue: str
    partition: str
    namespace: str
    task: str
    offset: int
    status: MessageStatus
    """The most urgent state over all groups."""
    queue_status: MessageStatus | None
    """The state in the default group."""
    bus_status: OtherGroups
    trace_id: str | None
    priority: int
    queue_priority: int
    created_at: datetime
    deliver_at: datetime | None
    lease_expires_at: datetime | None


class MessageGroup(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The state of a message in one group."""

    name: str
    consumed: bool
    status: MessageStatus
    attempts: int
    error: str | None = msgspec.field(name="errorMessage")
    lease_expires_at: datetime | None


class MessageDetails(MessageSummary, frozen=True, kw_only=True, rename="camel"):
    """A stored message with its payload and its state in each group."""

    payload: msgspec.Raw
    is_encrypted: bool
    error: str | None = msgspec.field(name="errorMessage")
    retry_count: int
    groups: tuple[MessageGroup, ...] = msgspec.field(name="consumerGroups")

    @property
    def data(self) -> Any:
        """The payload, decoded from JSON."""
        return msgspec.json.decode(self.payload)

    def decode(self, shape: type[T]) -> T:
        """Decode the payload as a type. Raises `InvalidInput` if it does not fit."""
        return decode_value(self.payload, shape, f"the payload of message {self.id}")


class MessageList(msgspec.Struct, frozen=True, kw_only=True):
    """Stored messages, newest first."""

    messages: tuple[MessageSummary, ...]


# Dead letters ----------------------------------------------------------------------------------------------


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A message that a group could not process."""

    id: str
    """Id of the message."""
    dead_letter_id: str
    """Id of the dead letter. A message can be a dead letter in several groups."""
    transaction_id: str
    partition_id: str
    trace_id: str | None
    queue: str
    partition: str
    consumer_group: str
    error: str = msgspec.field(name="errorMessage")
    """The error of the last attempt."""
    attempts: int
    """Number of delivery attempts."""
    retry_count: int
    payload: msgspec.Raw = msgspec.field(name="data")
    created_at: datetime
    failed_at: datetime
    """Time of the last failure."""

    @property
    def data(self) -> Any:
        """The payload, decoded from JSON."""
        return msgspec.json.decode(self.payload)

    def decode(self, shape: type[T]) -> T:
        """Decode the payload as a type. Raises `InvalidInput` if it does not fit."""
        return decode_value(self.payload, shape, f"the payload of dead letter {self.dead_letter_id}")


class DeadLetterPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of dead letters, newest failure first, and the number of all matches."""

    items: tuple[DeadLetter, ...] = msgspec.field(name="messages")
    total: int


class Requeued(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A requeued dead letter."""

    dead_letter_id: str
    message_id: str
    """Id of the new message."""
    queue: str
    partition: str
    consumer_group: str


# Traces ----------------------------------------------------------------------------------------------------


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """An event that a consumer recorded about a message."""

    id: str
    event_type: str
    payload: msgspec.Raw = msgspec.field(name="data")
    consumer_group: str
    created_at: datetime
    trace_names: tuple[str, ...]

    @property
    def data(self) -> Any:
        """The recorded data, decoded from JSON."""
        return msgspec.json.decode(self.payload)

    def decode(self, shape: type[T]) -> T:
        """Decode the recorded data as a type. Raises `InvalidInput` if it does not fit."""
        return decode_value(self.payload, shape, f"the data of trace {self.id}")


class NamedTrace(Trace, frozen=True, kw_only=True):
    """A trace event found by its name, with its message."""

    transaction_id: str
    partition_id: str
    queue_name: str
    partition_name: str
    message_payload: msgspec.Raw

    @property
    def message_data(self) -> Any:
        """The payload of the message. None if the message was removed."""
        return msgspec.json.decode(self.message_payload)


class TraceList(msgspec.Struct, frozen=True, kw_only=True):
    """The trace events of one message, oldest first."""

    traces: tuple[Trace, ...]


class NamedTracePage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of trace events of one name, newest first, and their total number."""

    items: tuple[NamedTrace, ...] = msgspec.field(name="traces")
    total: int


class TraceName(msgspec.Struct, frozen=True, kw_only=True):
    """A name of recorded trace events."""

    trace_name: str
    trace_count: int
    message_count: int
    last_seen: datetime


class TraceNamePage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of names, and their total number."""

    items: tuple[TraceName, ...] = msgspec.field(name="trace_names")
    total: int
