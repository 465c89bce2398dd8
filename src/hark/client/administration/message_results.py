"""What a server says about single messages: stored ones, dead letters, and what happened to them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, TypeVar

import msgspec

from hark.errors import InvalidInput

T = TypeVar("T")

MessageStatus = Literal["pending", "processing", "completed", "dead_letter"]


def decode_value(raw: msgspec.Raw, shape: type[T], what: str) -> T:
    """A value as the type that it should have."""
    try:
        return msgspec.json.decode(raw, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{what} is not what was expected: {error}", code="unexpected_value") from error


# Stored messages -------------------------------------------------------------------------------------------


class OtherGroups(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How many of the groups beside the default one are done with a message."""

    consumed_by: int
    total_groups: int


class MessageSummary(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A stored message in a list of them, without its payload."""

    id: str
    transaction_id: str
    partition_id: str
    queue: str
    partition: str
    namespace: str
    task: str
    offset: int
    status: MessageStatus
    """The most urgent of what its groups say."""
    queue_status: MessageStatus | None
    """What the default group says."""
    bus_status: OtherGroups
    trace_id: str | None
    priority: int
    queue_priority: int
    created_at: datetime
    deliver_at: datetime | None
    lease_expires_at: datetime | None


class MessageGroup(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What one group did with a message."""

    name: str
    consumed: bool
    status: MessageStatus
    attempts: int
    error: str | None = msgspec.field(name="errorMessage")
    lease_expires_at: datetime | None


class MessageDetails(MessageSummary, frozen=True, kw_only=True, rename="camel"):
    """A stored message with its payload and what each group did with it."""

    payload: msgspec.Raw
    is_encrypted: bool
    error: str | None = msgspec.field(name="errorMessage")
    retry_count: int
    groups: tuple[MessageGroup, ...] = msgspec.field(name="consumerGroups")

    @property
    def data(self) -> Any:
        """The payload."""
        return msgspec.json.decode(self.payload)

    def decode(self, shape: type[T]) -> T:
        """The payload as a type of yours."""
        return decode_value(self.payload, shape, f"the payload of message {self.id}")


class MessageList(msgspec.Struct, frozen=True, kw_only=True):
    """Some stored messages, newest first."""

    messages: tuple[MessageSummary, ...]


# Dead letters ----------------------------------------------------------------------------------------------


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A message that a group gave up on."""

    id: str
    """Of the message."""
    dead_letter_id: str
    """Of the dead letter: a message may be one in several groups."""
    transaction_id: str
    partition_id: str
    trace_id: str | None
    queue: str
    partition: str
    consumer_group: str
    error: str = msgspec.field(name="errorMessage")
    attempts: int
    retry_count: int
    payload: msgspec.Raw = msgspec.field(name="data")
    created_at: datetime
    failed_at: datetime

    @property
    def data(self) -> Any:
        """The payload."""
        return msgspec.json.decode(self.payload)

    def decode(self, shape: type[T]) -> T:
        """The payload as a type of yours."""
        return decode_value(self.payload, shape, f"the payload of dead letter {self.dead_letter_id}")


class DeadLetterPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some dead letters, newest failure first, and how many match in all."""

    items: tuple[DeadLetter, ...] = msgspec.field(name="messages")
    total: int


class Requeued(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A dead letter that is a message again."""

    dead_letter_id: str
    message_id: str
    """The new one."""
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
        """What was recorded."""
        return msgspec.json.decode(self.payload)

    def decode(self, shape: type[T]) -> T:
        """What was recorded, as a type of yours."""
        return decode_value(self.payload, shape, f"the data of trace {self.id}")


class NamedTrace(Trace, frozen=True, kw_only=True):
    """An event found by its name, with the message that it is about."""

    transaction_id: str
    partition_id: str
    queue_name: str
    partition_name: str
    message_payload: msgspec.Raw

    @property
    def message_data(self) -> Any:
        """The payload of the message; None when it is gone."""
        return msgspec.json.decode(self.message_payload)


class TraceList(msgspec.Struct, frozen=True, kw_only=True):
    """The events of one message, oldest first."""

    traces: tuple[Trace, ...]


class NamedTracePage(msgspec.Struct, frozen=True, kw_only=True):
    """Some events of one name, newest first, and how many there are."""

    items: tuple[NamedTrace, ...] = msgspec.field(name="traces")
    total: int


class TraceName(msgspec.Struct, frozen=True, kw_only=True):
    """A name that events were recorded under."""

    trace_name: str
    trace_count: int
    message_count: int
    last_seen: datetime


class TraceNamePage(msgspec.Struct, frozen=True, kw_only=True):
    """Some names, and how many there are."""

    items: tuple[TraceName, ...] = msgspec.field(name="trace_names")
    total: int
