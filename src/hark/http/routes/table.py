"""Operations in a table of routes: role, queues, parameters, body and responses."""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from hark.access.identity import Role
from hark.http.params import Param

WEBSOCKET = "WEBSOCKET"
"""The method of requests that open a WebSocket."""

JSON = "application/json"
EVENTS = "text/event-stream"
LINES = "application/x-ndjson"

Endpoint = Callable[[Request], Awaitable[Response]]


class Reach(enum.Enum):
    """The queues of an operation, and how they are checked against the queues of a restricted token."""

    NOTHING = enum.auto()
    """The operation concerns no queue."""
    PATH = enum.auto()
    """The queue `{queue}` in the path, checked before the endpoint is called."""
    QUERY = enum.auto()
    """The queue in the parameter `queue`, checked before the endpoint is called. Restricted tokens must name it."""
    ITEMS = enum.auto()
    """The queues that the body or an id names; the endpoint checks each of them."""
    LISTED = enum.auto()
    """All queues that the caller may use; the endpoint leaves out the others."""
    SERVER = enum.auto()
    """All queues; restricted tokens are rejected."""


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


def public(endpoint: Callable[..., Awaitable[object] | None], **said: Any) -> Operation:
    """Return a public operation that concerns no queue."""
    return Operation(endpoint=endpoint, role=None, reach=Reach.NOTHING, **said)


def read(endpoint: Callable[..., Awaitable[object] | None], reach: Reach, **said: Any) -> Operation:
    """Return an operation for the role read-only: it changes nothing."""
    return Operation(endpoint=endpoint, role=Role.READ_ONLY, reach=reach, **said)


def write(endpoint: Callable[..., Awaitable[object] | None], reach: Reach, **said: Any) -> Operation:
    """Return an operation for the role read-write: for producers and consumers."""
    return Operation(endpoint=endpoint, role=Role.READ_WRITE, reach=reach, **said)


def admin(endpoint: Callable[..., Awaitable[object] | None], reach: Reach, **said: Any) -> Operation:
    """Return an operation for the role admin: it cannot be undone, or it concerns the whole server."""
    return Operation(endpoint=endpoint, role=Role.ADMIN, reach=reach, **said)
