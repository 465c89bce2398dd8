"""What a consumer can read of a message, however it settles it."""

from __future__ import annotations

from datetime import datetime
from typing import Any, TypeVar

import msgspec

from hark.client.delivery.sources import Delivered
from hark.errors import InvalidInput

T = TypeVar("T")

_UNREAD = object()


class Received:
    """A message that was delivered: its payload, and where it comes from."""

    __slots__ = ("_data", "delivered")

    def __init__(self, delivered: Delivered) -> None:
        self.delivered = delivered
        self._data: Any = _UNREAD

    @property
    def id(self) -> str:
        """Of the message, unique everywhere."""
        return self.delivered.id

    @property
    def raw(self) -> bytes:
        """The payload, byte for byte as it was pushed."""
        return bytes(self.delivered.data)

    @property
    def data(self) -> Any:
        """The payload, decoded when it is first asked for."""
        if self._data is _UNREAD:
            self._data = msgspec.json.decode(self.delivered.data)
        return self._data

    def decode(self, shape: type[T]) -> T:
        """The payload as a type of yours; raises `InvalidInput` that says where it does not fit."""
        try:
            return msgspec.json.decode(self.delivered.data, type=shape)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidInput(f"message {self.id} is no {getattr(shape, '__name__', shape)}: {error}") from error

    @property
    def queue(self) -> str:
        """Where it was pushed."""
        return self.delivered.queue

    @property
    def partition(self) -> str:
        """Where it was pushed."""
        return self.delivered.partition

    @property
    def offset(self) -> int:
        """Its place in the partition, from 1 on."""
        return self.delivered.offset

    @property
    def attempt(self) -> int:
        """1 when it is delivered for the first time; failed and expired deliveries count."""
        return self.delivered.delivery_attempt

    @property
    def created_at(self) -> datetime:
        """When it was pushed, by the server's clock."""
        return datetime.fromisoformat(self.delivered.created_at)

    @property
    def transaction_id(self) -> str:
        """The idempotency key of its push."""
        return self.delivered.transaction_id

    @property
    def trace_id(self) -> str | None:
        """What its producer gave to trace it by."""
        return self.delivered.trace_id

    @property
    def lease_id(self) -> str:
        """The lease it is held under; empty if it was settled at delivery."""
        return self.delivered.lease_id

    @property
    def group(self) -> str:
        """The group it was delivered to."""
        return self.delivered.consumer_group

    @property
    def priority(self) -> int:
        """As it was pushed; higher first, in shared groups."""
        return self.delivered.priority
