"""Keys in paths and parameters: `users/123`, or a JSON array with exact types."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from hark.errors import InvalidInput
from hark.http.checks import MAX_NUMBER, short
from hark.http.params import BoolParam, Param, Query, Schema
from hark.keys import MAX_PART_LENGTH, MAX_PARTS, InvalidKey, check_key, check_keys
from hark.model import Key, KeyPart

_INTEGER = re.compile(r"-?[0-9]{1,16}", re.ASCII)


# Paths -----------------------------------------------------------------------------------------------------


def keys_in_path(segments: Sequence[str], query: Mapping[str, str]) -> list[Key]:
    """Return the keys that a path can mean, in the order in which they are tried.

    `users/123` is `["users", 123]`, else `["users", "123"]`; with `strings=true` only the latter, with `strings=false`
    only the former. A single segment that begins with a bracket is a key as a JSON array.
    """
    strings = STRINGS.of(query) if STRINGS.name in query else None
    if not strings and len(segments) == 1 and segments[0].startswith("["):
        return [_json_key(segments[0], "the key in the path")]
    parts = _parts(segments)
    if not parts:
        raise InvalidInput("Key path cannot be empty")
    forms = [] if strings else [_key(_number_or_text(part) for part in parts)]
    if strings or (strings is None and any(_is_number(part) for part in parts)):
        forms.append(_key(parts))
    return forms


def _parts(segments: Iterable[str]) -> list[str]:
    """Return the segments that are not empty, checked."""
    parts = [segment for segment in segments if segment]
    if len(parts) > MAX_PARTS:
        raise InvalidInput(f"Key path too deep (max {MAX_PARTS} parts)")
    if any(len(part.encode("utf-16-le")) // 2 > MAX_PART_LENGTH for part in parts):
        raise InvalidInput(f"Key part too long (max {MAX_PART_LENGTH} chars)")
    return parts


def _key(parts: Iterable[KeyPart]) -> Key:
    try:
        return check_key(tuple(parts))
    except InvalidKey as error:
        raise InvalidInput(str(error)) from None


def _number_or_text(part: str) -> KeyPart:
    return int(part) if _is_number(part) else part


def _is_number(part: str) -> bool:
    return _INTEGER.fullmatch(part) is not None and abs(int(part)) <= MAX_NUMBER


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
        """Return the JSON schema of the parameter, without a default."""
        return {name: value for name, value in BoolParam.schema(self).items() if name != "default"}

    def described(self) -> str:
        """Return the description for the OpenAPI document, without a default."""
        return self.meaning


STRINGS = _StringsParam(
    "strings",
    "Type of path parts that look like numbers. `true`: text. `false`: numbers. By default the server tries numbers "
    "first, then text.",
)


def key_of_text(text: str, field: str) -> Key | None:
    """Return a key from a path or a JSON array; None for an empty path."""
    if text.startswith("["):
        return _json_key(text, field)
    parts = _parts(text.split("/"))
    return _key(_number_or_text(part) for part in parts) if parts else None


class KeysParam(Param, frozen=True):
    """Several keys: paths separated by commas, or a JSON array of keys."""

    def of(self, query: Query) -> Sequence[Key]:
        """Return the value."""
        name, text = self.name, query.get(self.name, "")
        if not text:
            raise InvalidInput(f"Missing '{name}' query parameter")
        given = (
            _json(text, name) if text.startswith("[") else [key_of_text(path, name) or () for path in text.split(",")]
        )
        if isinstance(given, list) and given and not isinstance(given[0], list | tuple):
            given = [given]
        return keys_of(given)


KEYS = KeysParam(
    "keys", "Required. Keys to watch, as paths such as `users/1,users/2` or as a JSON array of keys. At most 1000."
)


# Bodies ----------------------------------------------------------------------------------------------------


def key_of(value: object, field: str) -> Key:
    """Return a checked key from JSON. `field` names it in errors."""
    try:
        return check_key(value)
    except InvalidKey as error:
        raise InvalidInput(f"{field}: {error}") from None


def keys_of(value: object) -> Sequence[Key]:
    """Return several checked keys from JSON."""
    try:
        return check_keys(value)
    except InvalidKey as error:
        raise InvalidInput(str(error)) from None


def _json_key(text: str, field: str) -> Key:
    return key_of(_json(text, field), field)


def _json(text: str, field: str) -> object:
    try:
        value: object = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        raise InvalidInput(
            f"{field}: a value that begins with [ must be a valid JSON array, got {short(text)}"
        ) from None
    return value
