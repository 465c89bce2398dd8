"""Checks of HTTP input. Each error names the field that is invalid."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TypeVar, cast
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec

from hark.clock import MILLISECOND, SECOND
from hark.errors import InvalidInput
from hark.model import Status

T = TypeVar("T")

MAX_NAME_BYTES = 255
MAX_NUMBER = 2**53 - 1
"""The largest integer that every JSON parser represents exactly."""

_MAX_TIME_MS = 253_402_300_799_999
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_INTEGER = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_STATUSES = {
    "completed": "completed",
    "success": "completed",
    "failed": "failed",
    "retry": "retry",
    "dlq": "dlq",
}
_TYPE_NAMES = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "array": "an array",
    "object": "an object",
    "null": "null",
}
_EXPECTED = re.compile(r"Expected `([^`]*)`, got `([^`]*)`")
_MISSING = re.compile(r"Object missing required field `([^`]*)`")
_PLACE = re.compile(r"(.*) - at `\$\.?([^`]*)`", re.DOTALL)


# Names and words -------------------------------------------------------------------------------------------


def check_name(value: str, field: str) -> str:
    """Check the name of a queue, partition or group: 1 to 255 bytes, no NUL."""
    # A character has at most four bytes, so the length of short names is known without encoding them.
    if 0 < len(value) < 64 and "\0" not in value:
        return value
    if not value:
        raise InvalidInput(f"{field}: must not be empty")
    return check_text(value, field)


def check_text(value: str, field: str) -> str:
    """Check an identifier that may be empty: at most 255 bytes, no NUL."""
    if "\0" in value:
        raise InvalidInput(f"{field}: must not contain a NUL character")
    # Lone surrogates cannot come from JSON or from a path.
    size = len(value.encode("utf-8", "surrogatepass"))
    if size > MAX_NAME_BYTES:
        raise InvalidInput(f"{field}: must be at most {MAX_NAME_BYTES} bytes of UTF-8, got {size}")
    return value


def check_status(value: str, field: str) -> Status:
    """Check the status of an acknowledgement; `success` is an alias of `completed`."""
    status = _STATUSES.get(value)
    if status is None:
        raise InvalidInput(f"{field}: expected completed, failed, retry or dlq, got {short(value)}")
    return cast(Status, status)


def check_int(value: int, field: str, low: int, high: int) -> int:
    """Check an integer against its bounds."""
    if low <= value <= high:
        return value
    raise InvalidInput(f"{field}: expected an integer from {low} to {high}, got {short(value)}")


def short(value: object) -> str:
    """Return a value for an error text: on one line and at most 60 characters."""
    text = ascii(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# Times -----------------------------------------------------------------------------------------------------


def parse_time(text: str, field: str) -> int:
    """Return the microseconds of an ISO 8601 time (UTC unless it has an offset) or of integer milliseconds."""
    if _INTEGER.fullmatch(text):
        return check_int(int(text), field, 0, _MAX_TIME_MS) * MILLISECOND
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        since = moment - _EPOCH
    except (ValueError, OverflowError):
        raise InvalidInput(
            f"{field}: expected a time such as 2026-01-02T03:04:05Z, or milliseconds since 1970, got {short(text)}"
        ) from None
    return (since.days * 86_400 + since.seconds) * SECOND + since.microseconds


def parse_moment(value: str | int, field: str) -> int:
    """Return the microseconds of a time in a JSON body: text as in `parse_time`, or integer milliseconds."""
    return parse_time(value if isinstance(value, str) else str(value), field)


def format_time(us: int) -> str:
    """Format a time with microseconds; called for every delivered message."""
    if us < SECOND:
        return f"{_second_text(str(us // SECOND))}.{us % SECOND:06d}Z"
    digits = str(us)
    return f"{_second_text(digits[:-6])}.{digits[-6:]}Z"


def format_time_ms(us: int) -> str:
    """Format a time with milliseconds."""
    return f"{_second_text(str(us // SECOND))}.{us % SECOND // MILLISECOND:03d}Z"


# Messages of one response mostly share a few seconds. Splitting the digits as text is cheaper than a division, a
# remainder and their formatting.
@lru_cache(maxsize=4096)
def _second_text(seconds: str) -> str:
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%S").rjust(19, "0")


# Query parameters and paths --------------------------------------------------------------------------------


def query_params(query_string: bytes) -> dict[str, str]:
    """Return the parameters of a query string. If a parameter is given twice, the first value counts."""
    try:
        pairs = parse_qsl(query_string.decode(), keep_blank_values=True, errors="strict")
    except (UnicodeDecodeError, ValueError):
        raise InvalidInput("the query string is not valid UTF-8; percent-encode the parameters as UTF-8") from None
    return dict(reversed(pairs))


def int_param(query: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    """Return an integer parameter, checked against its bounds."""
    text = query.get(name)
    if text is None:
        return default
    if _INTEGER.fullmatch(text) and low <= (value := int(text)) <= high:
        return value
    raise InvalidInput(f"{name}: expected an integer from {low} to {high}, got {short(text)}")


def bool_param(query: Mapping[str, str], name: str, default: bool = False) -> bool:
    """Return a boolean parameter: true, 1, false, 0, or empty for false."""
    text = query.get(name)
    if text is None:
        return default
    if text in {"true", "1"}:
        return True
    if text in {"false", "0", ""}:
        return False
    raise InvalidInput(f"{name}: expected true or false, got {short(text)}")


def name_param(query: Mapping[str, str], name: str) -> str | None:
    """Return a name, or None when the parameter is absent or empty."""
    text = query.get(name)
    return check_name(text, name) if text else None


def time_param(query: Mapping[str, str], name: str) -> int | None:
    """Return a time in microseconds, or None when the parameter is absent or empty."""
    text = query.get(name)
    return parse_time(text, name) if text else None


def path_segments(raw_path: bytes) -> list[str]:
    """Return the segments of a path, split before decoding, so that a name may contain a slash as %2F."""
    try:
        if b"%" not in raw_path:
            return raw_path.decode().split("/")[1:]
        return [unquote_to_bytes(segment).decode() for segment in raw_path.split(b"/")[1:]]
    except UnicodeDecodeError:
        raise InvalidInput("the path is not valid UTF-8; percent-encode names in the path as UTF-8") from None


# Bodies ----------------------------------------------------------------------------------------------------


def raw_default(value: msgspec.Raw) -> Any:
    """Return a field with a raw default. (A plain default could not be written into a schema.)"""
    return msgspec.field(default_factory=lambda: value)


def decode_json(body: bytes, type: type[T], what: str, texts: Mapping[str, str] | None = None) -> T:
    """Decode a body. `what` names it in errors; `texts` has error texts by field."""
    if not body:
        raise InvalidInput("Empty request body")
    try:
        # Raw parts would otherwise keep bytes that are not valid UTF-8.
        if not body.isascii():
            body.decode()
        return msgspec.json.decode(body, type=type)
    except msgspec.ValidationError as error:
        raise InvalidInput(explain(str(error), what, texts)) from None
    except msgspec.DecodeError as error:
        raise InvalidInput(f"Invalid JSON: {error}", code="invalid_json") from None
    except UnicodeDecodeError as error:
        raise InvalidInput(f"Invalid JSON: not valid UTF-8 at byte {error.start}", code="invalid_json") from None
    except RecursionError:
        raise InvalidInput("Invalid JSON: nested too deeply", code="invalid_json") from None


def explain(text: str, what: str, texts: Mapping[str, str] | None = None) -> str:
    """Rewrite a decoder error as `items[3].priority: expected an integer, got a string`."""
    place = ""
    if match := _PLACE.fullmatch(text):
        text, place = match.groups()
    if match := _MISSING.fullmatch(text):
        place = f"{place}.{match[1]}" if place else match[1]
        text = "is required"
    elif match := _EXPECTED.fullmatch(text):
        text = f"expected {_type_names(match[1])}, got {_type_names(match[2])}"
    else:
        text = text[:1].lower() + text[1:]
    known = texts.get(place.rpartition(".")[2]) if texts else None
    if known is not None:
        return f"{place}: {known}" if "." in place else known
    return f"{place or what}: {text}"


def _type_names(types: str) -> str:
    # null means absent everywhere, so error texts leave it out; an integer is also a number.
    noise = {"null", "int"} if "float" in types else {"null"}
    names = [name for name in types.split(" | ") if name not in noise] or ["null"]
    return " or ".join(_TYPE_NAMES.get(name, name) for name in names)
