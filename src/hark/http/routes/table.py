"""What a table of routes says of each operation: who may ask for it, what it is about, what it takes and answers."""

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
"""The method under which a table has an endpoint that takes WebSockets."""

JSON = "application/json"
EVENTS = "text/event-stream"

Endpoint = Callable[[Request], Awaitable[Response]]


class Reach(enum.Enum):
    """Which queues an operation is about: how somebody who may use only some of them is kept to these."""

    NOTHING = enum.auto()
    """None at all."""
    PATH = enum.auto()
    """The one that is `{queue}` in the path; it is checked before the endpoint is called."""
    QUERY = enum.auto()
    """The one in the parameter `queue`; it is checked before, and who may not use all queues has to give it."""
    ITEMS = enum.auto()
    """Those that the body or an id names; the endpoint checks each."""
    LISTED = enum.auto()
    """All that the asker may use; the endpoint leaves out the others."""
    SERVER = enum.auto()
    """All there are; refused to those who may use only some."""


class Failure(NamedTuple):
    """An error that an operation may answer with, beside those that every operation may."""

    status: int
    code: str


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One method of one path."""

    endpoint: Callable[..., Awaitable[object]]
    """A function from a request to a response, or if `raw` an ASGI application."""
    role: Role | None
    """The least role that may ask; None: everybody may, without a token too."""
    reach: Reach
    query: tuple[Param, ...] = ()
    body: Any = None
    """The type of the body, if it has one."""
    body_optional: bool = False
    """Whether an empty body is as good as an empty object."""
    answer: Any = None
    """The type of the body of the answer; or these types by status, None where the answer has no body."""
    media: str = JSON
    """What the answer is, if it is no error."""
    errors: tuple[Failure, ...] = ()
    raw: bool = False

    @property
    def answers(self) -> Mapping[int, Any]:
        """The types of what it answers, by status."""
        return self.answer if isinstance(self.answer, Mapping) else {200: self.answer}


Table = Mapping[str, Mapping[str, Operation]]
"""Path patterns, each with an operation per HTTP method.

`{name}` takes one segment as the client wrote it, so that %2F is part of a name; `{name:path}` at the end takes all
segments that are left, one or more, as a list. Where two patterns fit a path, the first that has the method counts.
"""


def public(endpoint: Callable[..., Awaitable[object]], **said: Any) -> Operation:
    """An operation for everybody, about no queue."""
    return Operation(endpoint=endpoint, role=None, reach=Reach.NOTHING, **said)


def read(endpoint: Callable[..., Awaitable[object]], reach: Reach, **said: Any) -> Operation:
    """An operation that changes nothing."""
    return Operation(endpoint=endpoint, role=Role.READ_ONLY, reach=reach, **said)


def write(endpoint: Callable[..., Awaitable[object]], reach: Reach, **said: Any) -> Operation:
    """An operation of those who produce and consume."""
    return Operation(endpoint=endpoint, role=Role.READ_WRITE, reach=reach, **said)


def admin(endpoint: Callable[..., Awaitable[object]], reach: Reach, **said: Any) -> Operation:
    """An operation that can't be undone, or that concerns the whole server."""
    return Operation(endpoint=endpoint, role=Role.ADMIN, reach=reach, **said)
