"""Query parameters of operations: their checks, and their descriptions for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from hark.api.types import Pagination
from hark.errors import InvalidInput
from hark.http.checks import INTEGER, MAX_NAME_BYTES, MAX_NUMBER, check_name, parse_time, short

MAX_PAGE = 1000
MAX_LIST = 10_000

Schema = dict[str, object]
Query = Mapping[str, str]


class Param(msgspec.Struct, frozen=True):
    """A text parameter without further checks. An empty value counts as absent."""

    name: str
    meaning: str

    def schema(self) -> Schema:
        """Return the JSON schema of the parameter."""
        return {"type": "string"}

    def described(self) -> str:
        """Return the description for the OpenAPI document: the meaning, and the default and bounds if it has any."""
        return self.meaning

    def text(self, query: Query) -> str | None:
        """Return the text, or None when it is absent or empty."""
        return query.get(self.name) or None


class IntParam(Param, frozen=True):
    """An integer between two bounds. With a default outside of them the parameter has no default value."""

    default: int
    low: int
    high: int

    def schema(self) -> Schema:
        default = {"default": self.default} if self.low <= self.default <= self.high else {}
        return {"type": "integer", "minimum": self.low, "maximum": self.high, **default}

    def described(self) -> str:
        text = f"{self.meaning} From {self.low} to {self.high}."
        return f"{text} The default is {self.default}." if self.low <= self.default <= self.high else text

    def of(self, query: Query) -> int:
        """Return the value."""
        text = query.get(self.name)
        if text is None:
            return self.default
        if INTEGER.fullmatch(text) and self.low <= (value := int(text)) <= self.high:
            return value
        raise InvalidInput(f"{self.name}: expected an integer from {self.low} to {self.high}, got {short(text)}")


class BoolParam(Param, frozen=True):
    """A boolean: true, 1, false, 0, or empty for false."""

    default: bool = False

    def schema(self) -> Schema:
        return {"type": "string", "enum": ["true", "false", "1", "0", ""], "default": str(self.default).lower()}

    def described(self) -> str:
        return f"{self.meaning} The default is {str(self.default).lower()}."

    def of(self, query: Query) -> bool:
        """Return the value."""
        text = query.get(self.name)
        if text is None:
            return self.default
        if text not in {"true", "1", "false", "0", ""}:
            raise InvalidInput(f"{self.name}: expected true or false, got {short(text)}")
        return text in {"true", "1"}


class NameParam(Param, frozen=True):
    """A name or an id: at most 255 bytes."""

    def schema(self) -> Schema:
        return {"type": "string", "maxLength": MAX_NAME_BYTES}

    def of(self, query: Query) -> str | None:
        """Return the value, or None when it is absent or empty."""
        return check_name(text, self.name) if (text := query.get(self.name)) else None


class TimeParam(Param, frozen=True):
    """A time: ISO 8601, or integer milliseconds since 1970."""

    def of(self, query: Query) -> int | None:
        """Return the value in microseconds, or None when it is absent or empty."""
        return parse_time(text, self.name) if (text := query.get(self.name)) else None


class ChoiceParam(Param, frozen=True):
    """One of several fixed words. An empty value counts as absent."""

    choices: tuple[str, ...]
    default: str | None = None

    def schema(self) -> Schema:
        default = {} if self.default is None else {"default": self.default}
        return {"type": "string", "enum": ["", *self.choices], **default}

    def described(self) -> str:
        return self.meaning if self.default is None else f"{self.meaning} The default is `{self.default}`."

    def of(self, query: Query) -> str | None:
        """Return the value, or the default when it is absent or empty."""
        text = query.get(self.name)
        if not text:
            return self.default
        if text not in self.choices:
            raise InvalidInput(f"{self.name}: expected one of {', '.join(self.choices)}, got {short(text)}")
        return text


class Paging(NamedTuple):
    """The parameters of a page of a list."""

    limit: IntParam
    offset: IntParam

    def of(self, query: Query) -> Pagination:
        """Return the number of entries to return and the number of entries to skip."""
        return Pagination(limit=self.limit.of(query), offset=self.offset.of(query))


def paging(default: int = 100, most: int = MAX_PAGE) -> Paging:
    """Return the parameters of a list: `limit` and `offset`."""
    return Paging(
        IntParam("limit", "Maximum number of entries to return.", default, 1, most),
        IntParam("offset", "Number of entries to skip.", 0, 0, MAX_NUMBER),
    )
