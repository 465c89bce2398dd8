"""Checks of names, times and values before they are sent, so that the error points at the invalid argument."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import TypeVar

import msgspec

from hark.errors import InvalidInput

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
    # isascii() takes constant time, whatever the length.
    size = len(value) if value.isascii() else _bytes_of(value, field)
    if size > MAX_NAME_BYTES:
        raise InvalidInput(f"{field}: expected at most {MAX_NAME_BYTES} bytes of UTF-8, got {size}")
    return value


def _bytes_of(text: str, field: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise InvalidInput(f"{field}: contains half of a surrogate pair, got {text[:40]!r}") from None


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
    if b"null" in written and not _is_finite(msgspec.to_builtins(value, enc_hook=_leave_out)):
        raise InvalidInput(f"{field}: contains NaN or infinity, which JSON cannot represent")
    return msgspec.Raw(written)


def _leave_out(_part: object) -> None:
    """Skip raw JSON within other data: it contains no Python numbers."""


def _is_finite(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_is_finite, value))
    return True


def milliseconds(value: float | timedelta, field: str, low: float, high: float) -> int:
    """Convert seconds within bounds, or a timedelta, to milliseconds."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not math.isfinite(seconds):
        raise InvalidInput(f"{field}: expected a number of seconds or a timedelta, got {value!r}")
    if not low <= seconds <= high:
        raise InvalidInput(f"{field}: expected {low:g} to {high:.0f} seconds, got {seconds:g}")
    return round(seconds * 1000)
