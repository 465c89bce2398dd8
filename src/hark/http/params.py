"""Query parameters: their names, what they may be, and what they mean, said once for the code and for the document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from hark.errors import InvalidInput
from hark.http.checks import (
    MAX_NAME_BYTES,
    MAX_NUMBER,
    bool_param,
    check_text,
    int_param,
    name_param,
    short,
    time_param,
)

MAX_PAGE = 1000
MAX_LIST = 10_000

Schema = dict[str, object]
Query = Mapping[str, str]


class Param(msgspec.Struct, frozen=True):
    """A parameter whose text is taken as it is; empty means absent."""

    name: str
    meaning: str

    def schema(self) -> Schema:
        """What it may be, as JSON schema."""
        return {"type": "string"}

    def text(self, query: Query) -> str | None:
        """Its text, or None when it is absent or empty."""
        return query.get(self.name) or None


class IntParam(Param, frozen=True):
    """An integer within bounds."""

    default: int
    low: int
    high: int

    def schema(self) -> Schema:
        """What it may be, as JSON schema."""
        # A default that nobody could ask for stands for what is done without the parameter.
        default = {"default": self.default} if self.low <= self.default <= self.high else {}
        return {"type": "integer", "minimum": self.low, "maximum": self.high, **default}

    def of(self, query: Query) -> int:
        """Its value."""
        return int_param(query, self.name, self.default, self.low, self.high)


class BoolParam(Param, frozen=True):
    """A switch."""

    default: bool = False

    def schema(self) -> Schema:
        """What it may be, as JSON schema."""
        return {"type": "string", "enum": ["true", "false", "1", "0", ""], "default": str(self.default).lower()}

    def of(self, query: Query) -> bool:
        """Its value."""
        return bool_param(query, self.name, self.default)


class NameParam(Param, frozen=True):
    """The name of a queue, a partition, a group or a label."""

    def schema(self) -> Schema:
        """What it may be, as JSON schema."""
        return {"type": "string", "maxLength": MAX_NAME_BYTES}

    def of(self, query: Query) -> str | None:
        """Its value, or None when it is absent or empty."""
        return name_param(query, self.name)


class IdParam(Param, frozen=True):
    """An id: one that nothing has is an answer, not an error."""

    def schema(self) -> Schema:
        """What it may be, as JSON schema."""
        return {"type": "string", "maxLength": MAX_NAME_BYTES}

    def of(self, query: Query) -> str | None:
        """Its value, or None when it is absent or empty."""
        return check_text(query.get(self.name, ""), self.name) or None


class TimeParam(Param, frozen=True):
    """A time: ISO 8601, or milliseconds since 1970."""

    def schema(self) -> Schema:
        """What it may be, as JSON schema."""
        return {"type": "string"}

    def of(self, query: Query) -> int | None:
        """Its value in microseconds, or None when it is absent or empty."""
        return time_param(query, self.name)


class ChoiceParam(Param, frozen=True):
    """One of a few words."""

    choices: tuple[str, ...]
    default: str | None = None

    def schema(self) -> Schema:
        """What it may be, as JSON schema; empty means absent."""
        default = {} if self.default is None else {"default": self.default}
        return {"type": "string", "enum": ["", *self.choices], **default}

    def of(self, query: Query) -> str | None:
        """Its value, or the default when it is absent or empty."""
        text = query.get(self.name)
        if not text:
            return self.default
        if text not in self.choices:
            raise InvalidInput(f"{self.name}: expected one of {', '.join(self.choices)}, got {short(text)}")
        return text


class Paging(NamedTuple):
    """Which part of a list is wanted."""

    limit: IntParam
    offset: IntParam

    def of(self, query: Query) -> tuple[int, int]:
        """How many entries, and how many to leave out before them."""
        return self.limit.of(query), self.offset.of(query)


def paging(default: int = 100, most: int = MAX_PAGE) -> Paging:
    """The parameters of a list."""
    return Paging(
        IntParam("limit", "How many entries at most.", default, 1, most),
        IntParam("offset", "How many entries to leave out before them.", 0, 0, MAX_NUMBER),
    )
