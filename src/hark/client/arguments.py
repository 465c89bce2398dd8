"""Arguments from users, checked before they are sent, so that the error points at the invalid one."""

from __future__ import annotations

import math
import os
import ssl
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol, TypedDict, TypeVar, cast, get_args
from uuid import UUID

import msgspec
from msgspec import UNSET

from hark.api.types import OptionalRaw, raw
from hark.errors import InvalidInput
from hark.keys import InvalidKey, check_key, check_keys
from hark.model import Key
from hark.model.messages import UniqueUntil

F = TypeVar("F")

MAX_NAME_BYTES = 255

_encode = msgspec.json.Encoder().encode


def a_name(value: object, field: str) -> str:
    """Check a name: 1 to 255 bytes of UTF-8."""
    if not isinstance(value, str):
        raise InvalidInput(f"{field}: expected a string, got {value!r}")
    if not value:
        raise InvalidInput(f"{field}: must not be empty")
    if "\0" in value:
        raise InvalidInput(f"{field}: must not contain a NUL character")
    try:
        # isascii() takes constant time, whatever the length.
        size = len(value) if value.isascii() else len(value.encode())
    except UnicodeEncodeError:
        raise InvalidInput(f"{field}: contains half of a surrogate pair, got {value[:40]!r}") from None
    if size > MAX_NAME_BYTES:
        raise InvalidInput(f"{field}: expected at most {MAX_NAME_BYTES} bytes of UTF-8, got {size}")
    return value


def an_integer(value: object, field: str, low: int, high: int) -> int:
    """Check that a value is an integer within bounds."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidInput(f"{field}: expected an integer from {low} to {high}, got {value!r}")
    return value


def a_function(value: F, field: str) -> F:
    """Check that a value can be called."""
    if not callable(value):
        raise InvalidInput(f"{field}: expected a function, got {value!r}")
    return value


def name_of(function: object) -> str:
    """The short name of a function, for messages."""
    return str(getattr(function, "__qualname__", repr(function))).rpartition(".")[2]


def json_value(value: object, field: str) -> msgspec.Raw:
    """A value as JSON. A `msgspec.Raw` is sent byte for byte."""
    if isinstance(value, msgspec.Raw):
        return value
    try:
        written = _encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidInput(f"{field}: cannot be encoded as JSON: {error}") from error
    # The encoder writes NaN and infinity as null, which would go unnoticed.
    # Raw JSON within other data contains no Python numbers, so it is skipped.
    if b"null" in written and not _is_finite(msgspec.to_builtins(value, enc_hook=lambda _raw: None)):
        raise InvalidInput(f"{field}: contains NaN or infinity, which JSON cannot represent")
    return msgspec.Raw(written)


def _is_finite(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_is_finite, value))
    return True


MAX_PRIORITY = 9
MAX_RETRY_DELAYS = 100
_YEAR = 365 * 86_400.0
MAX_DELAY = 10 * _YEAR
MAX_TTL = 100 * _YEAR


def seconds_of(value: float | timedelta, field: str, low: float = 0.0, high: float = MAX_DELAY) -> float:
    """Check a number of seconds within bounds, or a timedelta."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not math.isfinite(seconds):
        raise InvalidInput(f"{field}: expected a number of seconds or a timedelta, got {value!r}")
    if not low <= seconds <= high:
        raise InvalidInput(f"{field}: expected {low:g} to {high:.0f} seconds, got {seconds:g}")
    return float(seconds)


def milliseconds(value: float | timedelta, field: str, low: float = 0.0, high: float = MAX_DELAY) -> int:
    """Convert seconds within bounds, or a timedelta, to milliseconds."""
    return round(seconds_of(value, field, low, high) * 1000)


def a_moment(value: datetime, field: str) -> str:
    """Check a datetime, which must have a time zone, and return it as ISO 8601."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise InvalidInput(f"{field}: expected a datetime with a time zone (datetime.now(UTC)), got {value!r}")
    return value.isoformat()


def optional_moment(value: datetime | None, field: str) -> str | None:
    """Check a datetime that may be None."""
    return None if value is None else a_moment(value, field)


def time_to_live(value: float | timedelta | None, field: str) -> int | None:
    """Convert a time to live from seconds to milliseconds."""
    return None if value is None else milliseconds(value, field, 0.001, MAX_TTL)


KeyParts = Sequence[str | float | bool]
"""A key of the key-value store as users write it, for example `("users", 17)`."""


class DeliveryOptions(TypedDict, total=False):
    """When and how often a message is delivered. Times are seconds or a `timedelta`."""

    key: str | None
    """Idempotency key, 1 to 255 bytes. A second push with the same key to the same partition is a `duplicate`, for
    as long as the first message is stored. The default is a new unique key."""
    delay: float | timedelta | None
    """Wait this long before the message can be delivered. The default is no delay."""
    deliver_at: datetime | None
    """Deliver the message not before this time, which must have a time zone. An alternative to `delay`."""
    priority: int | None
    """0 to 9, default 0. Shared groups receive messages with a higher priority first."""
    ttl: float | timedelta | None
    """Expire the message if it was not delivered within this time. The default is the `ttl` of the queue."""


class SendOptions(DeliveryOptions, total=False):
    """Options of a message that is not pushed by a task."""

    retry_delays: Sequence[float | timedelta] | None
    """Delay before each retry, at most 100. The number of delays is the number of retries. The default is the
    queue's policy."""
    trace_id: str | UUID | None
    """A UUID that consumers get with the message, for your own tracing."""


class PushOptions(SendOptions, total=False):
    """Options of a push."""

    keys_if_undelivered: Sequence[KeyParts] | None
    """Keys of the key-value store that get the payload if the message is dead-lettered."""
    unique_key: str | None
    """Key that at most one message of the queue holds, 1 to 255 bytes. Another push with it, to any partition, is a
    `duplicate` of that message."""
    unique_until: UniqueUntil | None
    """How long the message holds its `unique_key`: until it is `done` or dead-lettered (the default), until it is
    `started`, or as long as it is `retained`."""


class NewMessage(msgspec.Struct, frozen=True, kw_only=True, gc=False, rename="camel", omit_defaults=True):
    """An item of a push in the format of the API: times in milliseconds, None is omitted."""

    queue: str
    partition: str | None = None
    payload: msgspec.Raw
    transaction_id: str
    """The idempotency key. Every message has one, so that a repeated request is safe."""
    trace_id: str | None = None
    priority: int | None = None
    delay: int | None = None
    deliver_at: str | None = None
    backoff_schedule: tuple[int, ...] | None = None
    ttl: int | None = None
    keys_if_undelivered: OptionalRaw = UNSET
    traceparent: str | None = None
    tracestate: str | None = None
    unique_key: str | None = None
    unique_until: UniqueUntil | None = None


def new_message(
    queue: str,
    data: object,
    *,
    partition: str | None = None,
    key: str | None = None,
    delay: float | timedelta | None = None,
    deliver_at: datetime | None = None,
    priority: int | None = None,
    ttl: float | timedelta | None = None,
    retry_delays: Sequence[float | timedelta] | None = None,
    keys_if_undelivered: Sequence[KeyParts] | None = None,
    trace_id: str | UUID | None = None,
    unique_key: str | None = None,
    unique_until: UniqueUntil | None = None,
) -> NewMessage:
    """Check the arguments and build a message. Times are seconds; `key` is the idempotency key (default: a new one).

    `data` is any value that msgspec can encode as JSON; a `msgspec.Raw` is sent byte for byte.
    """
    if delay is not None and deliver_at is not None:
        raise InvalidInput("deliver_at: give either delay or deliver_at, not both")
    return NewMessage(
        queue=a_name(queue, "queue"),
        partition=None if partition is None else a_name(partition, "partition"),
        payload=json_value(data, "data"),
        transaction_id=new_key() if key is None else a_name(key, "key"),
        trace_id=None if trace_id is None else _trace_id(trace_id),
        priority=None if priority is None else an_integer(priority, "priority", 0, MAX_PRIORITY),
        delay=None if delay is None else milliseconds(delay, "delay"),
        deliver_at=optional_moment(deliver_at, "deliver_at"),
        backoff_schedule=None if retry_delays is None else retry_schedule(retry_delays),
        ttl=time_to_live(ttl, "ttl"),
        keys_if_undelivered=UNSET if keys_if_undelivered is None else raw(_keys(keys_if_undelivered)),
        unique_key=None if unique_key is None else a_name(unique_key, "unique_key"),
        unique_until=None if unique_until is None else an_until(unique_until, unique_key is not None),
    )


def new_key() -> str:
    """A unique idempotency key. Later ones sort after earlier ones, which suits database indexes."""
    return f"{time.time_ns():016x}{os.urandom(8).hex()}"


def an_until(value: str, has_key: bool) -> UniqueUntil:
    """Check how long a message holds its unique key."""
    if not has_key:
        raise InvalidInput("unique_until: is allowed only together with unique_key")
    for until in get_args(UniqueUntil):
        if value == until:
            return cast(UniqueUntil, until)
    raise InvalidInput(f"unique_until: expected {' or '.join(get_args(UniqueUntil))}, got {value!r}")


def retry_schedule(delays: Sequence[float | timedelta]) -> tuple[int, ...]:
    """Convert the delays before retries from seconds to milliseconds."""
    if len(delays) > MAX_RETRY_DELAYS:
        raise InvalidInput(f"retry_delays: expected at most {MAX_RETRY_DELAYS} delays, got {len(delays)}")
    return tuple(
        # Most are valid numbers: this is a quarter of the cost of a push.
        round(delay * 1000)
        if type(delay) is float and 0 <= delay <= MAX_DELAY
        else milliseconds(delay, f"retry_delays[{step}]")
        for step, delay in enumerate(delays)
    )


def _keys(keys: Sequence[KeyParts]) -> tuple[Key, ...]:
    try:
        return check_keys(keys)
    except InvalidKey as error:
        raise InvalidInput(f"keys_if_undelivered: {error}") from None


def _trace_id(value: str | UUID) -> str:
    try:
        return str(value if isinstance(value, UUID) else UUID(value))
    except (ValueError, AttributeError, TypeError):
        raise InvalidInput(f"trace_id: expected a UUID, got {value!r}") from None


class Identified(Protocol):
    """An object that identifies a message: a delivery, a dead letter or a stored message."""

    @property
    def transaction_id(self) -> str:
        """The idempotency key of the push."""

    @property
    def partition_id(self) -> str:
        """The id of the partition of the message."""


class DeliveredMessage(Identified, Protocol):
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
    def delivered(self) -> DeliveredMessage:
        """The wrapped delivery."""


def delivered_message(message: Identified | Wrapped) -> DeliveredMessage:
    """The delivery of a message. Of what only identifies a message, only the ids may be used."""
    found = getattr(message, "delivered", message)
    if not (hasattr(found, "partition_id") and hasattr(found, "transaction_id")):
        raise InvalidInput(f"message: expected a delivered message, got {message!r}")
    return cast(DeliveredMessage, found)


def ids_of(
    message: Identified | Wrapped | None, partition_id: str | None, transaction_id: str | None
) -> tuple[str, str]:
    """The partition id and the transaction id of a message, given as an object or as these two ids."""
    if message is not None:
        if partition_id is not None or transaction_id is not None:
            raise InvalidInput("message: give either the message, or its partition_id and transaction_id, not both")
        found = delivered_message(message)
        return found.partition_id, found.transaction_id
    if not partition_id or not transaction_id:
        raise InvalidInput("message: give the message, or both partition_id and transaction_id")
    return partition_id, transaction_id


def key_of(parts: KeyParts, field: str = "key") -> Key:
    """Check a key of the key-value store."""
    if isinstance(parts, str):
        raise InvalidInput(f"{field}: expected a tuple of key parts such as ({parts!r},), got a string")
    try:
        return check_key(tuple(parts) if isinstance(parts, Sequence) else parts)
    except InvalidKey as error:
        raise InvalidInput(f"{field}: {error}") from None


def key_text(parts: KeyParts, field: str = "key") -> str:
    """A key, checked, as JSON, which keeps the types of its parts in a path or a parameter."""
    return _encode(key_of(parts, field)).decode()


# Credentials: the token of a client, and the certificates that it trusts -------------------------------------

AUTHORIZATION = "Authorization"


def checked_token(token: str, name: str = "token") -> str:
    """A token without surrounding spaces that fits into a header. Raises `InvalidInput` without quoting it."""
    if not isinstance(token, str):
        raise InvalidInput(f"{name}: expected a string, got {type(token).__name__}")
    token = token.strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidInput(f"{name}: expected one word of ASCII, as `hark token create` printed it (not shown here)")
    return token


def bearer(token: str) -> str:
    """The value of the Authorization header."""
    return f"Bearer {token}"


def with_token(headers: Mapping[str, str], token: str | None, default: str | None) -> dict[str, str]:
    """The headers of all requests, with the token. A given Authorization header wins over the `default` token."""
    given = any(name.lower() == AUTHORIZATION.lower() for name in headers)
    if given and token is not None:
        raise InvalidInput("token: expected either a token or an Authorization header, got both")
    if token is None and (given or default is None):
        return dict(headers)
    checked = checked_token(default or "", "HARK_TOKEN") if token is None else checked_token(token)
    return {**headers, AUTHORIZATION: bearer(checked)}


def trusting(ca_file: str, name: str = "ca_file") -> ssl.SSLContext:
    """A TLS context that trusts only the authorities in a PEM file. Raises `InvalidInput`."""
    try:
        return ssl.create_default_context(cafile=ca_file)
    except ssl.SSLError as error:
        raise InvalidInput(f"{name}: {ca_file} contains no PEM certificates: {error.reason or error}") from error
    except OSError as error:
        raise InvalidInput(f"{name}: {ca_file} cannot be read: {error.strerror or error}") from error


def refused_by_tls(url: str, error: BaseException | str) -> str:
    """Why there is no trusted connection, and what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the certificate of {url} is not trusted: {error.verify_message}; give the certificate file of its "
            "authority as ca_file or HARK_CA_FILE"
        )
    return f"TLS connection to {url} failed: {error}; if the server does not use TLS, use http:// instead"
