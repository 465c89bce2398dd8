"""Checks of HTTP input, in turns of bounded time. Each error names the field that is invalid."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from itertools import accumulate, islice, takewhile
from time import perf_counter
from typing import Any, TypeVar, cast, overload
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec

from hark.api.types import OptionalRaw
from hark.clock import EARLIEST, LATEST, MILLISECOND, SECOND, format_time, format_time_ms
from hark.errors import InvalidInput
from hark.model import Status

T = TypeVar("T")

AT_ONCE = 64 * 1024
"""Work on a body up to this size, in bytes, needs one turn."""
_LONGEST = 0.01
"""Seconds of work after which a turn ends."""


async def in_turns(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield the items. When a turn has taken long enough, the event loop serves others first."""
    began = perf_counter()
    for item in items:
        yield item
        if perf_counter() - began > _LONGEST:
            await asyncio.sleep(0)
            began = perf_counter()


MAX_DEPTH = 256
_SIGNS = bytes.maketrans(b"{}", b"[]")
_NO_SIGNS = bytes(byte for byte in range(256) if byte not in b'[{]}"')
_STEPS = bytes.maketrans(b"[]", b"\x01\xff")  # As signed bytes: +1 and -1.


def check_nesting(body: bytes) -> None:
    """Reject JSON that is nested too deeply, in one turn of the event loop."""
    if _may_be_deep(body):
        Scan().read(body)


async def check_nesting_in_turns(body: bytes) -> None:
    """Reject JSON that is nested too deeply. Other requests are served while a large body is scanned."""
    if len(body) <= AT_ONCE:
        check_nesting(body)
    elif _may_be_deep(body):
        scan = Scan()
        async for chunk in in_turns(chunks(memoryview(body))):
            scan.read(chunk)


def _may_be_deep(body: bytes) -> bool:
    return body.count(b"[") + body.count(b"{") > MAX_DEPTH


class Scan:
    """The state of a scan between two pieces of a body."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._rest = b""
        """The first half of an escape whose second half is in the next piece."""

    def read(self, chunk: bytes) -> None:
        """Raise if the JSON is nested too deeply in this piece."""
        if b"\\" in chunk or self._rest:
            chunk = self._rest + chunk
            backslashes = len(chunk) - len(chunk.rstrip(b"\\"))
            self._rest = b"\\" * (backslashes % 2)
            chunk = chunk[: len(chunk) - len(self._rest)].replace(b"\\\\", b"").replace(b'\\"', b"")
        # Two quotes without a bracket between them change nothing for the brackets around them.
        parts = chunk.translate(_SIGNS, _NO_SIGNS).replace(b'""', b"").split(b'"')
        outside = b"".join(parts[self._in_string :: 2])
        self._in_string ^= len(parts) % 2 == 0
        opening = outside.count(b"[")
        if self._depth + opening > MAX_DEPTH:
            levels = accumulate(memoryview(outside.translate(_STEPS)).cast("b"), initial=self._depth)
            if max(levels) > MAX_DEPTH:
                raise InvalidInput(f"body: must be nested at most {MAX_DEPTH} levels deep")
        self._depth += 2 * opening - len(outside)


MAX_NAME_BYTES = 255
_SURELY_SHORT = MAX_NAME_BYTES // 4
MAX_PARAMS = 1000
MAX_NUMBER = 2**53 - 1
"""The largest integer that every JSON parser represents exactly."""

MAX_VALUES = 200_000
"""Number of values in a body, without its payloads: no other request is served while they are decoded."""
MAX_ITEMS = 10_000
"""Number of items in a body that has more values than these."""
MAX_WITH_PAYLOADS = 2_000_000
"""Number of values in a body with those in its payloads: they are skipped, which takes time, too."""
MAX_FLOATS = 20_000
"""Number of numbers with a fraction or an exponent in a body, without its payloads."""
_LONG_NUMBER = b"0" * 500
_VALUES_PER_LONG_NUMBER = 50
_DIGITS = bytes(ord("0") if chr(byte).isdigit() and byte < 128 else byte for byte in range(256))
_CHUNK = 64 * 1024
_FEW_BYTES = 16 * 1024
"""A body of this size is decoded fast, whatever it has."""
_LONGEST_REASON = 300
"""Reasons of the decoder are cut: they quote the request."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LONGEST_TIME = 64
INTEGER = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_STATUSES = {"completed": "completed", "success": "completed", "failed": "failed", "retry": "retry", "dlq": "dlq"}
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
_AT_MOST = "Expected `array` of at most length"
_PATH = re.compile(r"(.*) - at `\$\.?([^`]*)`", re.DOTALL)


# Names and words -------------------------------------------------------------------------------------------


def check_name(value: str, field: str) -> str:
    """Check the name of a queue, partition or group: 1 to 255 bytes, no NUL."""
    # A character has at most four bytes, so the length of short names is known without encoding them.
    if 0 < len(value) <= _SURELY_SHORT and "\0" not in value:
        return value
    if not value:
        raise InvalidInput(f"{field}: must not be empty")
    return check_text(value, field)


def check_text(value: str, field: str) -> str:
    """Check an identifier that may be empty: at most 255 bytes, no NUL."""
    if "\0" in value:
        raise InvalidInput(f"{field}: must not contain a NUL character")
    if len(value) <= _SURELY_SHORT:
        return value
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
    text = ascii(value[:60]) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# Times -----------------------------------------------------------------------------------------------------


def parse_time(value: str | int, field: str) -> int:
    """Return the microseconds of an ISO 8601 time (UTC unless it has an offset) or of integer milliseconds."""
    text = str(value)
    if INTEGER.fullmatch(text):
        return check_int(int(text), field, 0, LATEST // MILLISECOND) * MILLISECOND
    try:
        if len(text) > _LONGEST_TIME:
            raise ValueError(text[:_LONGEST_TIME])
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        since = moment - _EPOCH
    except (ValueError, OverflowError):
        raise InvalidInput(
            f"{field}: expected a time such as 2026-01-02T03:04:05Z, or milliseconds since 1970, got {short(text)}"
        ) from None
    us = (since.days * 86_400 + since.seconds) * SECOND + since.microseconds
    if not EARLIEST <= us <= LATEST:  # Only an offset can lead out of these years.
        raise InvalidInput(f"{field}: expected a time in the years 1 to 9999 in UTC, got {short(text)}")
    return us


@overload
def time_of(us: int) -> datetime: ...
@overload
def time_of(us: int | None) -> datetime | None: ...
def time_of(us: int | None) -> datetime | None:
    """Return a time with milliseconds for an answer.

    It is the text already: the server only writes its answers, and to write a `datetime` takes three times as long.
    """
    return None if us is None else cast(datetime, format_time_ms(us))


def exact_time_of(us: int) -> datetime:
    """Return a time with microseconds for an answer. See `time_of`."""
    return cast(datetime, format_time(us))


# Query parameters and paths --------------------------------------------------------------------------------


def query_params(query_string: bytes) -> dict[str, str]:
    """Return the parameters of a query string. If a parameter is given twice, the first value counts."""
    try:
        if query_string.count(b"&") >= MAX_PARAMS:
            raise InvalidInput(f"the query string has more than {MAX_PARAMS} parameters")
        pairs = parse_qsl(query_string.decode(), keep_blank_values=True, errors="strict")
    except (UnicodeDecodeError, ValueError):
        raise InvalidInput("the query string is not valid UTF-8; percent-encode the parameters as UTF-8") from None
    return dict(reversed(pairs))


def path_segments(raw_path: bytes) -> list[str]:
    """Return the segments of a path, split before decoding, so that a name may contain a slash as %2F."""
    try:
        if b"%" not in raw_path:
            return raw_path.decode().split("/")[1:]
        return [unquote_to_bytes(segment).decode() for segment in raw_path.split(b"/")[1:]]
    except UnicodeDecodeError:
        raise InvalidInput("the path is not valid UTF-8; percent-encode names in the path as UTF-8") from None


# Bodies ----------------------------------------------------------------------------------------------------


def many_values(body: bytes) -> int:
    """Return the number of values if it is so large that the body is not decoded as it is, else 0."""
    if len(body) <= MAX_VALUES:
        return 0
    number = separators(body)
    if number > MAX_WITH_PAYLOADS:
        raise too_many_values(MAX_WITH_PAYLOADS)
    number += _long_numbers(body)
    return number if number > MAX_VALUES else 0


def check_values(number: int, payloads: Iterable[msgspec.Raw]) -> None:
    """Reject a body with this number of values, if too many of them are not in its payloads."""
    if number - sum(separators(one) + _long_numbers(one) for one in islice(payloads, MAX_VALUES)) > MAX_VALUES:
        raise too_many_values()


def separators(data: bytes | msgspec.Raw) -> int:
    """Return the number of commas and opening brackets: JSON has at most one value more. Those in strings count."""
    view = memoryview(data)
    return len(view) - sum(len(chunk.translate(None, b",[{")) for chunk in chunks(view))


def _long_numbers(data: bytes | msgspec.Raw) -> int:
    """Return how many values take as long to decode as the long numbers do: the square of their digits counts."""
    runs = sum(chunk.translate(_DIGITS).count(_LONG_NUMBER) for chunk in chunks(memoryview(data)))
    return runs * _VALUES_PER_LONG_NUMBER


def chunks(view: memoryview) -> Iterator[bytes]:
    """Return the bytes in pieces that need no new memory from the system, which takes longer than a look at them."""
    return (bytes(view[start : start + _CHUNK]) for start in range(0, len(view), _CHUNK))


def too_many_values(most: int = MAX_VALUES) -> InvalidInput:
    """Return the error for a body with too many values."""
    return InvalidInput(
        f"the request body has more than {most} values (commas, opening brackets, long numbers); send smaller batches",
        code="batch_too_large",
    )


@cache
def array_of(shape: Any) -> Any:
    """Return a type of arrays at whose first element after `MAX_ITEMS` the decoder stops, which it does for no list."""
    fields = [(f"at_{index}", shape, None) for index in range(MAX_ITEMS)]
    return msgspec.defstruct("Array", fields, array_like=True, forbid_unknown_fields=True, gc=False)


def elements(array: msgspec.Struct) -> Iterator[Any]:
    """Return the elements of an `array_of`."""
    return takewhile(lambda one: one is not None, msgspec.structs.astuple(array))


Payloads = Callable[[bytes], Iterable[msgspec.Raw]]
"""Returns the parts of a body that are not decoded."""


def raw_parts(field: str, array: str = "", what: str = "body", texts: Mapping[str, str] | None = None) -> Payloads:
    """Return a function that finds the parts of a body that are not decoded: a field of it, or of items in it."""

    def parts(body: bytes) -> Iterator[msgspec.Raw]:
        outline = decode_unbounded(body, outline_of(field, array=array), what, texts)
        found = (getattr(one, field) for one in (elements(getattr(outline, array)) if array else (outline,)))
        return (value for value in found if value is not msgspec.UNSET)

    return parts


@cache
def outline_of(*fields: str, array: str = "") -> Any:
    """Return a type of bodies of which some parts are kept, undecoded: fields of the body, or of items in `array`."""
    one = msgspec.defstruct("One", [(field, OptionalRaw, msgspec.UNSET) for field in fields], gc=False)
    return msgspec.defstruct("Outline", [(array, array_of(one))]) if array else one


def decode_json(body: bytes, type: type[T], what: str, texts: Mapping[str, str] | None = None) -> T:
    """Decode a body without payloads. `what` names it in errors; `texts` has error texts by field."""
    if type is not msgspec.Raw and many_values(body):
        raise too_many_values()
    return decode_unbounded(body, type, what, texts)


def decode_unbounded(body: bytes, type: type[T], what: str, texts: Mapping[str, str] | None = None) -> T:
    """Decode a body whose number of values the type limits, or the caller has checked."""
    if not body:
        raise InvalidInput("Empty request body")
    try:
        # Raw parts would otherwise keep bytes that are not valid UTF-8.
        if not body.isascii():
            body.decode()
        if len(body) <= _FEW_BYTES:
            return msgspec.json.decode(body, type=type)
        return msgspec.json.Decoder(type, float_hook=Floats()).decode(body)
    except msgspec.ValidationError as error:
        if _AT_MOST in str(error):
            raise too_many_values() from None
        raise InvalidInput(explain(str(error), what, texts)) from None
    except msgspec.DecodeError as error:
        raise InvalidInput(f"Invalid JSON: {error}", code="invalid_json") from None
    except UnicodeDecodeError as error:
        raise InvalidInput(f"Invalid JSON: not valid UTF-8 at byte {error.start}", code="invalid_json") from None
    except RecursionError:
        raise InvalidInput("Invalid JSON: nested too deeply", code="invalid_json") from None


class Floats:
    """Converts the numbers that are not typed, faster than the decoder does at worst, and a limited number of them."""

    def __init__(self) -> None:
        self._left = MAX_FLOATS

    def __call__(self, text: str) -> float:
        self._left -= 1
        if self._left < 0:
            raise InvalidInput(
                f"the request body has more than {MAX_FLOATS} fractions or exponents; send smaller batches",
                code="batch_too_large",
            )
        return float(text)


def explain(text: str, what: str, texts: Mapping[str, str] | None = None) -> str:
    """Rewrite a decoder error as `items[3].priority: expected an integer, got a string`."""
    path = ""
    if match := _PATH.fullmatch(text):
        text, path = match.groups()
    if match := _MISSING.fullmatch(text):
        path = f"{path}.{match[1]}" if path else match[1]
        text = "is required"
    elif match := _EXPECTED.fullmatch(text):
        text = f"expected {_type_names(match[1])}, got {_type_names(match[2])}"
    else:
        text = text[:1].lower() + text[1:_LONGEST_REASON]
    known = texts.get(path.rpartition(".")[2]) if texts else None
    if known is not None:
        return f"{path}: {known}" if "." in path else known
    return f"{path or what}: {text}"


def _type_names(types: str) -> str:
    # null means absent everywhere, so error texts leave it out; an integer is also a number.
    noise = {"null", "int"} if "float" in types else {"null"}
    names = [name for name in types.split(" | ") if name not in noise] or ["null"]
    return " or ".join(_TYPE_NAMES.get(name, name) for name in names)
