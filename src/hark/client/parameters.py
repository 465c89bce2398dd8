"""Arguments from users, checked and converted for the API: times, values, keys and references to messages."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Protocol, cast

import msgspec

from hark.client.producing.new_message import MAX_TTL
from hark.client.values import milliseconds
from hark.errors import InvalidInput
from hark.keys import InvalidKey, check_key
from hark.model import Key

KeyParts = Sequence[str | float | bool]
"""A key of the key-value store as users write it, for example `("users", 17)`."""

_encode = msgspec.json.Encoder().encode


class Placed(Protocol):
    """An object that identifies a message: a delivery, a dead letter or a stored message."""

    @property
    def transaction_id(self) -> str:
        """The idempotency key of the push."""

    @property
    def partition_id(self) -> str:
        """The id of the partition of the message."""


class Held(Placed, Protocol):
    """A delivered message."""

    @property
    def lease_id(self) -> str:
        """The id of its lease. Empty if the server acknowledged the message on delivery."""

    @property
    def consumer_group(self) -> str:
        """The group that the message was delivered to."""


class Wrapped(Protocol):
    """A client's message, which wraps a delivery."""

    @property
    def delivered(self) -> Held:
        """The wrapped delivery."""


def held(message: Held | Wrapped) -> Held:
    """The delivery of a message."""
    return cast(Held, _delivery(message))


def _delivery(message: object) -> Placed:
    found = getattr(message, "delivered", message)
    if not (hasattr(found, "partition_id") and hasattr(found, "transaction_id")):
        raise InvalidInput(f"message: expected a delivered message, got {message!r}")
    return cast(Placed, found)


def placed(message: Placed | Wrapped | None, partition_id: str | None, transaction_id: str | None) -> tuple[str, str]:
    """The partition id and the transaction id of a message, given as an object or as these two ids."""
    if message is not None:
        if partition_id is not None or transaction_id is not None:
            raise InvalidInput("message: give either the message, or its partition_id and transaction_id, not both")
        found = _delivery(message)
        return found.partition_id, found.transaction_id
    if not partition_id or not transaction_id:
        raise InvalidInput("message: give the message, or both partition_id and transaction_id")
    return partition_id, transaction_id


def moment(value: datetime, field: str) -> str:
    """Check a datetime, which must have a time zone, and return it as ISO 8601."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise InvalidInput(f"{field}: expected a datetime with a time zone (datetime.now(UTC)), got {value!r}")
    return value.isoformat()


def optional_moment(value: datetime | None, field: str) -> str | None:
    """Check a datetime that may be None."""
    return None if value is None else moment(value, field)


def time_to_live(value: float | timedelta | None, field: str) -> int | None:
    """Convert a time to live from seconds to milliseconds."""
    return None if value is None else milliseconds(value, field, 0.001, MAX_TTL)


def key_of(parts: KeyParts, field: str = "key") -> Key:
    """Check a key of the key-value store."""
    if isinstance(parts, str):
        raise InvalidInput(f"{field}: expected a tuple of key parts such as ({parts!r},), got a string")
    try:
        return check_key(tuple(parts) if isinstance(parts, Sequence) else parts)
    except InvalidKey as error:
        raise InvalidInput(f"{field}: {error}") from None


def key_text(key: Key) -> str:
    """A key as JSON, which keeps the types of its parts in a path or a parameter."""
    return _encode(key).decode()
