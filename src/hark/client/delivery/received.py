"""The readable part of a delivered message, shared by the async and the sync client."""

from __future__ import annotations

from datetime import datetime
from typing import Any, TypeVar

import msgspec

from hark.client.delivery.sources import Delivered
from hark.errors import InvalidInput

T = TypeVar("T")

_UNREAD = object()


class Received:
    """A delivered message: its payload and its metadata."""

    __slots__ = ("_data", "delivered")

    def __init__(self, delivered: Delivered) -> None:
        self.delivered = delivered
        self._data: Any = _UNREAD

    @property
    def id(self) -> str:
        """Id of the message, unique across all queues."""
        return self.delivered.id

    @property
    def raw(self) -> bytes:
        """The payload as bytes, exactly as it was pushed."""
        return bytes(self.delivered.data)

    @property
    def data(self) -> Any:
        """The payload, decoded from JSON on first access."""
        if self._data is _UNREAD:
            self._data = msgspec.json.decode(self.delivered.data)
        return self._data

    def decode(self, shape: type[T]) -> T:
        """Decode the payload as a type, for example a msgspec struct. Raises `InvalidInput` if it does not fit."""
        try:
            return msgspec.json.decode(self.delivered.data, type=shape)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidInput(
                f"message {self.id} cannot be decoded as {getattr(shape, '__name__', shape)}: {error}"
            ) from error

    @property
    def queue(self) -> str:
        """Name of the queue."""
        return self.delivered.queue

    @property
    def partition(self) -> str:
        """Name of the partition."""
        return self.delivered.partition

    @property
    def offset(self) -> int:
        """Offset of the message in its partition. The first message of a partition has offset 1."""
        return self.delivered.offset

    @property
    def attempt(self) -> int:
        """Number of this delivery attempt, from 1. Failures and expired leases count; released deliveries do not."""
        return self.delivered.delivery_attempt

    @property
    def created_at(self) -> datetime:
        """Time of the push, by the server's clock."""
        return datetime.fromisoformat(self.delivered.created_at)

    @property
    def transaction_id(self) -> str:
        """Idempotency key of the push."""
        return self.delivered.transaction_id

    @property
    def trace_id(self) -> str | None:
        """The `trace_id` that the producer gave, or None."""
        return self.delivered.trace_id

    @property
    def lease_id(self) -> str:
        """Id of the lease. Empty if the message was received with `auto_ack`."""
        return self.delivered.lease_id

    @property
    def group(self) -> str:
        """Name of the consumer group that received the message."""
        return self.delivered.consumer_group

    @property
    def priority(self) -> int:
        """Priority of the message, 0 to 9. Shared groups receive higher priorities first."""
        return self.delivered.priority
