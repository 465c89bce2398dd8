"""Routes: operations with their parameters and endpoints, and calls of endpoints."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
from starlette.responses import Response

from hark.access.tokens import Identity
from hark.api import operations
from hark.api.operations import Reach, Role
from hark.api.types import Pagination
from hark.errors import InvalidInput
from hark.http import checks, responses
from hark.http.checks import Payloads, check_name, check_text, decode_json, query_params
from hark.http.exchange import Exchange, Header, exchange_of
from hark.http.responses import Receive, Scope, Send, decode_in_turns, encode

if TYPE_CHECKING:
    from hark.http.app import App

T = TypeVar("T")

SMALL_BODY = 2**20
"""Maximum size of a body without payloads, in bytes."""
LARGE_BODY = 2**31
"""More than `max_body_bytes` can be."""

JSON = "application/json"
EVENTS = "text/event-stream"
LINES = "application/x-ndjson"


# Query parameters: their checks, and their descriptions for the OpenAPI document -------------------------------

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
        if checks.INTEGER.fullmatch(text) and self.low <= (value := int(text)) <= self.high:
            return value
        raise InvalidInput(f"{self.name}: expected an integer from {self.low} to {self.high}, got {checks.short(text)}")


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
            raise InvalidInput(f"{self.name}: expected true or false, got {checks.short(text)}")
        return text in {"true", "1"}


class NameParam(Param, frozen=True):
    """A name or an id: at most 255 bytes."""

    def schema(self) -> Schema:
        return {"type": "string", "maxLength": checks.MAX_NAME_BYTES}

    def of(self, query: Query) -> str | None:
        """Return the value, or None when it is absent or empty."""
        return check_name(text, self.name) if (text := query.get(self.name)) else None


class TimeParam(Param, frozen=True):
    """A time: ISO 8601, or integer milliseconds since 1970."""

    def of(self, query: Query) -> int | None:
        """Return the value in microseconds, or None when it is absent or empty."""
        return checks.parse_time(text, self.name) if (text := query.get(self.name)) else None


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
            raise InvalidInput(f"{self.name}: expected one of {', '.join(self.choices)}, got {checks.short(text)}")
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
        IntParam("offset", "Number of entries to skip.", 0, 0, checks.MAX_NUMBER),
    )


# Operations --------------------------------------------------------------------------------------------------


class Failure(NamedTuple):
    """An error response of an operation, in addition to those of every operation."""

    status: int
    code: str


NO_QUEUE = Failure(404, "queue_not_found")
NO_GROUP = Failure(404, "group_not_found")
NO_MESSAGE = Failure(404, "message_not_found")
TOO_MANY = Failure(400, "batch_too_large")
NOT_SUPPORTED = Failure(501, "not_supported")
MAINTENANCE = Failure(503, "maintenance")
QUEUE_FULL = Failure(429, "queue_full")
ANOTHER_MODE = Failure(409, "group_mode_conflict")


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One method of one path."""

    endpoint: Callable[..., Awaitable[object] | None]
    """A function from a call to an answer; an ASGI application if `raw`; a function of an exchange if `hot`."""
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
    """Whether the endpoint answers by itself, without a task: `Carrier.respond`, now or later."""

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
    operation: operations.Operation[Any], endpoint: Callable[..., Awaitable[object] | None], **output: Any
) -> Bound:
    """Bind an endpoint to an operation of the API, with its parameters, body, errors and further answers."""
    output.setdefault("answer", operation.answer())
    bound = Operation(endpoint=endpoint, role=operation.role, reach=operation.reach, **output)
    return operation.path, operation.method, bound


def table(*bound: Bound) -> Table:
    """Return the table of bound operations, in this order."""
    paths: dict[str, dict[str, Operation]] = {}
    for path, method, operation in bound:
        paths.setdefault(path, {})[method] = operation
    return paths


# Calls -----------------------------------------------------------------------------------------------------

MAX_PAGE_BYTES = 64 * 2**20
"""Maximum size of all values in a page, in bytes: a page is encoded as a whole."""


def check_page(values: Iterable[msgspec.Raw | bytes | None]) -> None:
    """Reject a page whose values are too large to be sent together."""
    size = sum(memoryview(value).nbytes for value in values if value is not None)
    if size > MAX_PAGE_BYTES:
        raise InvalidInput(
            f"the values of this page have {size} bytes, over the limit of {MAX_PAGE_BYTES}; ask for fewer at once",
            code="batch_too_large",
        )


class Call:
    """A request to an endpoint, and the server that it reached."""

    def __init__(self, app: App, scope: Scope, receive: Receive) -> None:
        self.app = app
        self.broker = app.broker
        self.engine = app.broker.engine
        self.settings = app.settings
        self.exchange: Exchange = exchange_of(scope)
        self.status = 200
        """Status of the response; an endpoint can set another one."""
        self.headers: tuple[Header, ...] = ()
        """Further headers of the response."""
        self._scope = scope
        self._receive = receive

    @property
    def identity(self) -> Identity:
        """The identity of the token."""
        return self.exchange.identity

    @cached_property
    def query(self) -> dict[str, str]:
        """The query parameters."""
        return query_params(self.exchange.query)

    def now(self) -> int:
        """Return the current time for ages in responses. (Due times depend only on the clock of the engine.)"""
        return self.broker.delivery.timers.now()

    def name(self, name: str) -> str:
        """Return a checked name from the path."""
        return check_name(str(self.exchange.params[name]), name)

    def id(self, name: str) -> str:
        """Return an id from the path. An unknown id is not an error of the request."""
        return check_text(str(self.exchange.params[name]), name)

    async def body(self) -> bytes:
        """Return the whole body; raises an error if it is larger than its operation allows, or nested too deeply."""
        return await responses.read_whole(self._scope, self._receive, self.settings)

    async def json(
        self, type: type[T], what: str, texts: Mapping[str, str] | None = None, payloads: Payloads | None = None
    ) -> T:
        """Return the decoded body."""
        return await decode_in_turns(await self.body(), type, what, texts, payloads)

    async def optional_json(self, type: type[T], what: str) -> T:
        """Return the decoded body; an empty body means all defaults."""
        return decode_json(await self.body() or b"{}", type, what)

    async def answer(self, endpoint: Endpoint, send: Send) -> None:
        """Call an endpoint, and send its answer. `msgspec.Raw` parts are sent byte for byte."""
        try:
            answer = await endpoint(self)
            body = b"" if isinstance(answer, Response) else encode(answer)
        except Exception as error:
            await responses.send_failure(send, error)
        else:
            if isinstance(answer, Response):
                await answer(self._scope, self._receive, send)
            else:
                await responses.send_response(send, (self.status, (responses.JSON_HEADER, *self.headers), body))


PathParams = Mapping[str, str | list[str]]
"""The parameters in a path."""
Endpoint = Callable[[Call], Awaitable[object]]
"""A function from a call to an answer, or to a response that is not JSON."""
