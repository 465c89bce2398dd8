"""Keys in paths and parameters, entries and versions in the form of the HTTP API."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import wraps
from typing import Protocol, TypeVar

import msgspec

from hark.api.types.keys import WireEntry
from hark.broker import Broker
from hark.broker.keyvalue import Change, Shown
from hark.broker.tallies import Operation
from hark.broker.work_queues import DEFAULT_QUEUE
from hark.clock import MILLISECOND
from hark.errors import InvalidInput
from hark.http.checks import Floats, short
from hark.http.exchange import Header
from hark.http.responses import JSON_HEADERS, Receive, Scope, Send, encode, send_failure, send_response
from hark.http.routing import BoolParam, Call, Endpoint, NameParam, Param, Query, Schema, paging
from hark.keys import (
    MAX_KEYS,
    MAX_PART_LENGTH,
    MAX_PARTS,
    InvalidKey,
    check_key,
    check_keys,
    decode_key,
    encode_key,
    part_of_text,
)
from hark.model import Key, KeyEntry

T = TypeVar("T")

DEFAULT_LIMIT = 100
MAX_LIMIT = 1000
_PARAM_DIGITS = re.compile(r"[0-9]{1,4000}", re.ASCII)


class LimitParam(Param, frozen=True):
    """The length of a list. A higher value than the maximum counts as the maximum."""

    def schema(self) -> Schema:
        return {"type": "integer", "minimum": 1, "default": DEFAULT_LIMIT}

    def described(self) -> str:
        return f"{self.meaning} The default is {DEFAULT_LIMIT}."

    def of(self, query: Query) -> int:
        """Return the value."""
        text = query.get(self.name)
        if text is None:
            return DEFAULT_LIMIT
        if _PARAM_DIGITS.fullmatch(text) and (limit := int(text)) > 0:
            return min(limit, MAX_LIMIT)
        raise InvalidInput(f"{self.name} must be a positive number, got {short(text)}")


QUEUE = NameParam("queue", f"Name of the work queue. The default is `{DEFAULT_QUEUE}`.")
LIMIT = LimitParam("limit", f"Maximum number of entries to return. Values over {MAX_LIMIT} count as {MAX_LIMIT}.")
OFFSET = paging().offset


def queue_param(query: Query) -> str:
    """Return the work queue of a request."""
    return QUEUE.of(query) or DEFAULT_QUEUE


def timed(operation: Operation, endpoint: Endpoint) -> Endpoint:
    """Return an endpoint whose calls count as an operation."""

    @wraps(endpoint)
    async def measuring(call: Call) -> object:
        with call.broker.operations.measure(operation):
            return await endpoint(call)

    return measuring


class _Routes(Protocol):
    broker: Broker


R = TypeVar("R", bound=_Routes)


def answered(
    operation: Operation | None, headers: tuple[Header, ...] = JSON_HEADERS
) -> Callable[[Callable[[R, Scope, Receive], Awaitable[object]]], Callable[[R, Scope, Receive, Send], Awaitable[None]]]:
    """Return a decorator that makes a raw endpoint of a method, whose calls count as an operation."""

    def decorate(
        work: Callable[[R, Scope, Receive], Awaitable[object]],
    ) -> Callable[[R, Scope, Receive, Send], Awaitable[None]]:
        @wraps(work)
        async def endpoint(self: R, scope: Scope, receive: Receive, send: Send) -> None:
            try:
                with self.broker.operations.measure(operation) if operation else nullcontext():
                    answer = encode(await work(self, scope, receive))
            except Exception as error:
                await send_failure(send, error)
            else:
                await send_response(send, (200, headers, answer))

        return endpoint

    return decorate


# Paths -----------------------------------------------------------------------------------------------------


def keys_in_path(segments: Sequence[str], query: Mapping[str, str]) -> list[Key]:
    """Return the keys that a path can mean, in the order in which they are tried.

    `users/123` is `["users", 123]`, else `["users", "123"]`; with `strings=true` only the latter, with `strings=false`
    only the former. A single segment that begins with a bracket is a key as a JSON array.
    """
    strings = STRINGS.of(query) if STRINGS.name in query else None
    if not strings and len(segments) == 1 and segments[0].startswith("["):
        return [key_of(_json(segments[0], "the key in the path"), "the key in the path")]
    parts = _parts(segments)
    if not parts:
        raise InvalidInput("Key path cannot be empty")
    typed = tuple(map(part_of_text, parts))
    forms = [] if strings else [_checked(check_key, typed)]
    if strings or (strings is None and typed != tuple(parts)):
        forms.append(_checked(check_key, tuple(parts)))
    return forms


def _parts(segments: Iterable[str]) -> list[str]:
    """Return the segments that are not empty, checked."""
    parts = [segment for segment in segments if segment]
    if len(parts) > MAX_PARTS:
        raise InvalidInput(f"Key path too deep (max {MAX_PARTS} parts)")
    if any(len(part.encode("utf-16-le")) // 2 > MAX_PART_LENGTH for part in parts):
        raise InvalidInput(f"Key part too long (max {MAX_PART_LENGTH} chars)")
    return parts


# Parameters ------------------------------------------------------------------------------------------------


class KeyParam(Param, frozen=True):
    """A key or a prefix: `users/123`, or a JSON array."""

    def of(self, query: Query) -> Key | None:
        """Return the value, or None when it is absent or empty."""
        return key_of_text(query.get(self.name, ""), self.name)


PREFIX = KeyParam("prefix", "Prefix of the keys, as a path such as `users/123` or as a JSON array.")


class _StringsParam(BoolParam, frozen=True):
    """A boolean whose absence means neither true nor false."""

    def schema(self) -> Schema:
        return {name: value for name, value in BoolParam.schema(self).items() if name != "default"}

    def described(self) -> str:
        return self.meaning


STRINGS = _StringsParam(
    "strings",
    "Type of path parts that look like numbers. `true`: text. `false`: numbers. By default the server tries numbers "
    "first, then text.",
)


def key_of_text(text: str, field: str) -> Key | None:
    """Return a key from a path or a JSON array; None for an empty path."""
    if text.startswith("["):
        return key_of(_json(text, field), field)
    parts = _parts(text.split("/"))
    return _checked(check_key, tuple(map(part_of_text, parts))) if parts else None


class KeysParam(Param, frozen=True):
    """Several keys: paths separated by commas, or a JSON array of keys."""

    def of(self, query: Query) -> Sequence[Key]:
        """Return the value."""
        name, text = self.name, query.get(self.name, "")
        if not text:
            raise InvalidInput(f"Missing '{name}' query parameter")
        if text.startswith("["):
            given = _json(text, name)
        elif text.count(",") >= MAX_KEYS:
            raise InvalidInput(f"Too many keys: {text.count(',') + 1} (max {MAX_KEYS}).")
        else:
            given = [key_of_text(path, name) or () for path in text.split(",")]
        if isinstance(given, list) and given and not isinstance(given[0], list | tuple):
            given = [given]
        return keys_of(given)


KEYS = KeysParam(
    "keys", "Required. Keys to watch, as paths such as `users/1,users/2` or as a JSON array of keys. At most 1000."
)


# Bodies ----------------------------------------------------------------------------------------------------


def key_of(value: object, field: str) -> Key:
    """Return a checked key from JSON. `field` names it in errors."""
    return _checked(check_key, value, f"{field}: ")


def keys_of(value: object) -> Sequence[Key]:
    """Return several checked keys from JSON."""
    return _checked(check_keys, value)


def _checked(check: Callable[[object], T], value: object, where: str = "") -> T:
    try:
        return check(value)
    except InvalidKey as error:
        raise InvalidInput(f"{where}{error}") from None


def _json(text: str, field: str) -> object:
    try:
        value: object = msgspec.json.Decoder(float_hook=Floats()).decode(text)
    except (msgspec.DecodeError, RecursionError):
        raise InvalidInput(
            f"{field}: a value that begins with [ must be a valid JSON array, got {short(text)}"
        ) from None
    return value


_DIGITS = 20
_MOST = 2**63 - 1
_VERSION = re.compile(r"[0-9]{1,20}", re.ASCII)
_PLAIN = re.compile(r"[A-Za-z0-9_./-]+", re.ASCII)
"""Text that needs no escaping in a path, in a query or in a list with commas and colons."""
_OPAQUE = "~"


def wire_entry(entry: KeyEntry) -> WireEntry:
    """Return an entry in the form of the HTTP API."""
    ends = msgspec.UNSET if entry.expires_at is None else entry.expires_at // MILLISECOND
    return WireEntry(entry.key, entry.value, versionstamp(entry.version), ends, entry.unreadable or msgspec.UNSET)


def wire_missing(key: Key) -> WireEntry:
    """Return a missing key in the form of the HTTP API."""
    return WireEntry(key, msgspec.Raw(b"null"), None)


def wire_changes(changes: Iterable[Change]) -> tuple[WireEntry, ...]:
    """Return changes in the form of the HTTP API."""
    return tuple(wire_missing(change.key) if change.entry is None else wire_entry(change.entry) for change in changes)


# Versions --------------------------------------------------------------------------------------------------


def versionstamp(version: int) -> str:
    """Return a version as text with leading zeros, which sorts in the order of versions."""
    return f"{version:0{_DIGITS}d}"


def version_of(text: str, field: str) -> int:
    """Return the version of a versionstamp."""
    if not _VERSION.fullmatch(text) or int(text) > _MOST:
        raise InvalidInput(f"{field}: expected a versionstamp from a response of this server, got {short(text)}")
    return int(text)


# Places ----------------------------------------------------------------------------------------------------


def cursor_of(key: Key) -> str:
    """Return the cursor after a key, as text that needs no encoding in a URL."""
    return base64.urlsafe_b64encode(encode_key(key)).rstrip(b"=").decode()


def key_at(cursor: str, field: str) -> Key:
    """Return the key of a cursor."""
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        return check_key(decode_key(base64.b64decode(padded, altchars=b"-_", validate=True)))
    except (UnicodeEncodeError, binascii.Error, InvalidKey):
        raise InvalidInput(f"{field}: expected the value of an earlier response, got {short(cursor)}") from None


# What a client knows of a prefix ---------------------------------------------------------------------------


def known_text(shown: Mapping[bytes, Shown]) -> str:
    """Return keys with their versions, `users/1:00000000000000000007,...`. Keys without a path form are cursors."""
    return ",".join(f"{_token(shown[one].key)}:{versionstamp(shown[one].version)}" for one in sorted(shown))


def known_of_text(text: str, prefix: Key, field: str) -> dict[bytes, Shown]:
    """Return the versions that a client knows. Keys outside the prefix are ignored."""
    known: dict[bytes, Shown] = {}
    below = encode_key(prefix)
    items = text.split(",") if text else []
    if len(items) > MAX_KEYS:
        raise InvalidInput(f"{field}: at most {MAX_KEYS} keys, got {len(items)}; watch a longer prefix")
    for item in items:
        token, colon, stamp = item.rpartition(":")
        key = key_at(token[1:], field) if token.startswith(_OPAQUE) else key_of_text(token, field)
        if not colon or key is None:
            raise InvalidInput(f"{field}: expected key:versionstamp,key:versionstamp, got {short(item)}")
        identity = encode_key(key)
        if identity.startswith(below) and identity != below:
            known[identity] = Shown(key, version_of(stamp, field))
    return known


def _token(key: Key) -> str:
    text = "/".join(part if isinstance(part, str) else str(part) for part in key)
    if _PLAIN.fullmatch(text):
        parsed = key_of_text(text, "key")
        if parsed is not None and encode_key(parsed) == encode_key(key):
            return text
    return _OPAQUE + cursor_of(key)
