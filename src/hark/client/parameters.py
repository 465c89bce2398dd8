"""What users give, checked and as the wire has it: times, values, keys, and which message is meant."""

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
"""A key of the key-value store as users write it: `("users", 17)`."""

_encode = msgspec.json.Encoder().encode


class Placed(Protocol):
    """Whatever says which message it is about: a delivery, a dead letter, a view of a message."""

    @property
    def transaction_id(self) -> str:
        """The idempotency key that the message was pushed with, or its id."""

    @property
    def partition_id(self) -> str:
        """Where it is."""


class Held(Placed, Protocol):
    """A message in a consumer's hands."""

    @property
    def lease_id(self) -> str:
        """What it is held under; empty if it was settled at delivery."""

    @property
    def consumer_group(self) -> str:
        """The group that it was delivered to."""


class Wrapped(Protocol):
    """A message of the client around the delivery that it came with."""

    @property
    def delivered(self) -> Held:
        """The delivery."""


def held(message: Held | Wrapped) -> Held:
    """The delivery of a message."""
    return cast(Held, _delivery(message))


def _delivery(message: object) -> Placed:
    found = getattr(message, "delivered", message)
    if not (hasattr(found, "partition_id") and hasattr(found, "transaction_id")):
        raise InvalidInput(f"message: expected one that was delivered, got {message!r}")
    return cast(Placed, found)


def placed(message: Placed | Wrapped | None, partition_id: str | None, transaction_id: str | None) -> tuple[str, str]:
    """Partition id and transaction id of a message that is given by itself or by these two."""
    if message is not None:
        if partition_id is not None or transaction_id is not None:
            raise InvalidInput("give either the message, or its partition_id and transaction_id")
        found = _delivery(message)
        return found.partition_id, found.transaction_id
    if not partition_id or not transaction_id:
        raise InvalidInput("give a message, or both partition_id and transaction_id")
    return partition_id, transaction_id


def moment(value: datetime, field: str) -> str:
    """A time; one without a time zone could mean several."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise InvalidInput(f"{field}: expected a datetime with a time zone (datetime.now(UTC)), got {value!r}")
    return value.isoformat()


def optional_moment(value: datetime | None, field: str) -> str | None:
    """A time that may be absent."""
    return None if value is None else moment(value, field)


def time_to_live(value: float | timedelta | None, field: str) -> int | None:
    """Milliseconds of what is given in seconds."""
    return None if value is None else milliseconds(value, field, 0.001, MAX_TTL)


def key_of(parts: KeyParts, field: str = "key") -> Key:
    """A checked key."""
    if isinstance(parts, str):
        raise InvalidInput(f"{field}: expected the parts of a key, such as ({parts!r},), got a string")
    try:
        return check_key(tuple(parts) if isinstance(parts, Sequence) else parts)
    except InvalidKey as error:
        raise InvalidInput(f"{field}: {error}") from None


def key_text(key: Key) -> str:
    """A key as JSON, which keeps the types of its parts in a path or a parameter too."""
    return _encode(key).decode()
