"""Query parameters and operations in tables of routes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from hark.api import operations
from hark.api.operations import Reach, Role
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
    """An integer between two bounds."""

    default: int
    low: int
    high: int

    def schema(self) -> Schema:
        """Return the JSON schema of the parameter."""
        # A default outside the bounds means that the parameter has no default value.
        default = {"default": self.default} if self.low <= self.default <= self.high else {}
        return {"type": "integer", "minimum": self.low, "maximum": self.high, **default}

    def described(self) -> str:
        """Return the description for the OpenAPI document, with the default and the bounds."""
        has_default = self.low <= self.default <= self.high
        bounds = f"From {self.low} to {self.high}."
        return f"{self.meaning} {bounds} The default is {self.default}." if has_default else f"{self.meaning} {bounds}"

    def of(self, query: Query) -> int:
        """Return the value."""
        return int_param(query, self.name, self.default, self.low, self.high)


class BoolParam(Param, frozen=True):
    """A boolean."""

    default: bool = False

    def schema(self) -> Schema:
        """Return the JSON schema of the parameter."""
        return {"type": "string", "enum": ["true", "false", "1", "0", ""], "default": str(self.default).lower()}

    def described(self) -> str:
        """Return the description for the OpenAPI document, with the default."""
        return f"{self.meaning} The default is {str(self.default).lower()}."

    def of(self, query: Query) -> bool:
        """Return the value."""
        return bool_param(query, self.name, self.default)


class NameParam(Param, frozen=True):
    """The name of a queue, a partition, a consumer group, a namespace or a task."""

    def schema(self) -> Schema:
        """Return the JSON schema of the parameter."""
        return {"type": "string", "maxLength": MAX_NAME_BYTES}

    def of(self, query: Query) -> str | None:
        """Return the value, or None when it is absent or empty."""
        return name_param(query, self.name)


class IdParam(Param, frozen=True):
    """An id. An unknown id is not an error of the request."""

    def schema(self) -> Schema:
        """Return the JSON schema of the parameter."""
        return {"type": "string", "maxLength": MAX_NAME_BYTES}

    def of(self, query: Query) -> str | None:
        """Return the value, or None when it is absent or empty."""
        return check_text(query.get(self.name, ""), self.name) or None


class TimeParam(Param, frozen=True):
    """A time: ISO 8601, or integer milliseconds since 1970."""

    def schema(self) -> Schema:
        """Return the JSON schema of the parameter."""
        return {"type": "string"}

    def of(self, query: Query) -> int | None:
        """Return the value in microseconds, or None when it is absent or empty."""
        return time_param(query, self.name)


class ChoiceParam(Param, frozen=True):
    """One of several fixed words."""

    choices: tuple[str, ...]
    default: str | None = None

    def schema(self) -> Schema:
        """Return the JSON schema of the parameter. An empty value counts as absent."""
        default = {} if self.default is None else {"default": self.default}
        return {"type": "string", "enum": ["", *self.choices], **default}

    def described(self) -> str:
        """Return the description for the OpenAPI document, with the default if there is one."""
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

    def of(self, query: Query) -> tuple[int, int]:
        """Return the number of entries to return and the number of entries to skip."""
        return self.limit.of(query), self.offset.of(query)


def paging(default: int = 100, most: int = MAX_PAGE) -> Paging:
    """Return the parameters of a list: `limit` and `offset`."""
    return Paging(
        IntParam("limit", "Maximum number of entries to return.", default, 1, most),
        IntParam("offset", "Number of entries to skip.", 0, 0, MAX_NUMBER),
    )


SMALL_BODY = 2**20
"""Maximum size of a body without payloads, in bytes."""
LARGE_BODY = 2**31
"""More than `max_body_bytes` can be."""

JSON = "application/json"
EVENTS = "text/event-stream"
LINES = "application/x-ndjson"

Endpoint = Callable[[Request], Awaitable[Response]]


class Failure(NamedTuple):
    """An error response of an operation, in addition to those of every operation."""

    status: int
    code: str


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One method of one path."""

    endpoint: Callable[..., Awaitable[object] | None]
    """A function from a request to a response; an ASGI application if `raw`; a function of an exchange if `hot`."""
    role: Role | None
    """The lowest role that may call the operation; None: public, no token required."""
    reach: Reach
    query: tuple[Param, ...] = ()
    body: Any = None
    """The type of the request body, if there is one."""
    body_optional: bool = False
    """Whether an empty body counts as an empty object."""
    body_bytes: int = SMALL_BODY
    """Maximum size of the body, in bytes, if the setting `max_body_bytes` is not lower."""
    answer: Any = None
    """The type of the response body, or types by status; None: no body."""
    media: str = JSON
    """The media type of successful responses."""
    errors: tuple[Failure, ...] = ()
    raw: bool = False
    hot: bool = False
    """Whether the endpoint answers by itself, without a task: `Exchange.respond`, now or later."""

    @property
    def answers(self) -> Mapping[int, Any]:
        """The types of response bodies, by status."""
        return self.answer if isinstance(self.answer, Mapping) else {200: self.answer}


Table = Mapping[str, Mapping[str, Operation]]
"""Path patterns, each with an operation per HTTP method.

`{name}` matches one segment before decoding, so %2F is part of a name. `{name:path}` at the end matches one or more
remaining segments as a list. If two patterns match a path, the first one with the method counts.
"""


Bound = tuple[str, str, Operation]
"""Path, method and operation."""


def bind(
    operation: operations.Operation[Any], endpoint: Callable[..., Awaitable[object] | None], **details: Any
) -> Bound:
    """Bind an endpoint to an operation of the API, with its parameters, body, errors and further answers."""
    details.setdefault("answer", operation.answer())
    return (
        operation.path,
        operation.method,
        Operation(endpoint=endpoint, role=operation.role, reach=operation.reach, **details),
    )


def table(*bound: Bound) -> Table:
    """Return the table of bound operations, in this order."""
    paths: dict[str, dict[str, Operation]] = {}
    for path, method, operation in bound:
        paths.setdefault(path, {})[method] = operation
    return paths
