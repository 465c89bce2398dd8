"""Names, times and values that users give: checked before they go out, so that the error points at what is wrong."""

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
    """A name of 1 to 255 bytes of UTF-8."""
    if not isinstance(value, str):
        raise InvalidInput(f"{field}: expected a string, got {value!r}")
    if not value:
        raise InvalidInput(f"{field}: must not be empty")
    if "\0" in value:
        raise InvalidInput(f"{field}: must not contain a NUL character")
    # To ask whether it is ASCII takes no time, however long it is.
    size = len(value) if value.isascii() else _bytes_of(value, field)
    if size > MAX_NAME_BYTES:
        raise InvalidInput(f"{field}: expected at most {MAX_NAME_BYTES} bytes of UTF-8, got {size}")
    return value


def _bytes_of(text: str, field: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise InvalidInput(f"{field}: half of a surrogate pair is no character, got {text[:40]!r}") from None


def a_function(value: F, field: str) -> F:
    """Something to call."""
    if not callable(value):
        raise InvalidInput(f"{field}: expected a function, got {value!r}")
    return value


def name_of(function: object) -> str:
    """What people call a function."""
    return str(getattr(function, "__qualname__", repr(function))).rpartition(".")[2]


def json_value(value: object, field: str) -> msgspec.Raw:
    """A value as JSON; a `msgspec.Raw` goes out byte for byte."""
    if isinstance(value, msgspec.Raw):
        return value
    try:
        written = _encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidInput(f"{field}: can't be written as JSON: {error}") from error
    # It is written as null, which nobody would notice.
    if b"null" in written and not _is_finite(msgspec.to_builtins(value, enc_hook=_leave_out)):
        raise InvalidInput(f"{field}: has a number that JSON does not have (NaN or infinity)")
    return msgspec.Raw(written)


def _leave_out(_part: object) -> None:
    """Raw JSON within other data has no numbers of ours."""


def _is_finite(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_is_finite, value))
    return True


def milliseconds(value: float | timedelta, field: str, low: float, high: float) -> int:
    """A number of seconds within bounds, or a timedelta, as milliseconds."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not math.isfinite(seconds):
        raise InvalidInput(f"{field}: expected a number of seconds or a timedelta, got {value!r}")
    if not low <= seconds <= high:
        raise InvalidInput(f"{field}: expected {low:g} to {high:.0f} seconds, got {seconds:g}")
    return round(seconds * 1000)
