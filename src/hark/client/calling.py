"""Calls to a server: the interface of transports, retries where they are safe, decoded responses and errors."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence, Set
from typing import Any, Protocol, TypedDict, TypeVar, Unpack
from urllib.parse import urlencode

import msgspec

from hark.api.operations import Operation
from hark.api.types import ErrorAnswer
from hark.client import tracing
from hark.errors import HarkError, InvalidInput, NotFound, error_of

T = TypeVar("T")

Value = str | int | float | bool
Query = Mapping[str, Value | None]
"""None: the parameter is omitted."""

_encode = msgspec.json.Encoder().encode
_SAFE = frozenset({"GET", "HEAD", "PUT", "DELETE"})
_FROM_A_GATEWAY = frozenset({502, 503, 504})
_MOST_DOUBLINGS = 60
"""More doublings would overflow, and no delay is that long."""


# Transports ------------------------------------------------------------------------------------------------


class Request(msgspec.Struct, frozen=True, gc=False):
    """A request to a server."""

    method: str
    path: str
    """Percent-encoded, starting with `/`."""
    query: Query | None = None
    body: bytes | None = None
    timeout: float = 30.0
    """Time limit of the response in seconds."""
    headers: Mapping[str, str] | None = None
    """Headers in addition to those of every request."""
    first_line: Callable[[bytes], None] | None = None
    """Called with the first line of the response body as soon as it arrives, if the status is 200."""

    @property
    def query_string(self) -> str:
        """The query, percent-encoded."""
        query = self.query or {}
        return urlencode({name: query_text(value) for name, value in query.items() if value is not None})


class Answer(msgspec.Struct, frozen=True, gc=False):
    """The response of a server, with any status."""

    status: int
    body: bytes
    retry_after: float | None = None


class ConnectionFailed(HarkError):
    """No server answered.

    `sent` is False if the request did not reach a server: it had no effect, and you can safely repeat it. If `sent` is
    True, the request may have been applied.
    """

    code = "connection_failed"
    status = 503
    retryable = True

    def __init__(self, text: str, *, sent: bool) -> None:
        super().__init__(text)
        self.sent = sent
        """Whether the request may have reached the server, and may have been applied."""


def client_closed() -> HarkError:
    """The error of a call after the client was closed."""
    return HarkError("the client is closed; create a new one with connect()", code="client_closed")


class Transport(Protocol):
    """A connection to one server, or to several on the same store. Belongs to the event loop that first uses it."""

    @property
    def url(self) -> str:
        """The address, for messages."""

    async def send(self, request: Request) -> Answer:
        """Send one request. Raises `ConnectionFailed` if there is no response."""

    def fork(self) -> Transport | None:
        """The same transport for another event loop. None if the server lives in this event loop."""

    async def close(self) -> None:
        """Close all connections. Needs nothing if the transport was never used."""


class Home:
    """The event loop that an object belongs to: the one that first used it."""

    __slots__ = ("_loop",)

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def check(self) -> None:
        """Raises `HarkError` if the running event loop is another one."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._loop is not None:
                text = "the client belongs to another event loop; create a client with connect() in this one"
                raise HarkError(text, code="wrong_loop")
            self._loop = loop


def query_text(value: Value) -> str:
    """A query value in the format of the API."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def retry_after_seconds(text: str | None) -> float | None:
    """A Retry-After in seconds. Dates are ignored, because Hark does not send them."""
    try:
        return None if text is None else max(0.0, float(text))
    except ValueError:
        return None


# Calls -----------------------------------------------------------------------------------------------------


class CallPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How failed calls are retried, for `hark.connect(..., retry=CallPolicy(...))`.

    The client retries calls that the server rejects temporarily (429, 503) and calls that did not reach the server. It
    repeats a call whose reply was lost only if that is safe.
    """

    attempts: int = 7
    """Maximum number of attempts in total, default 7. 1 means no retry."""
    first_delay: float = 0.05
    """Delay in seconds before the first retry, default 0.05. It doubles with each further retry."""
    max_delay: float = 2.0
    """Maximum delay in seconds between attempts, default 2. Delays are shortened by up to half at random, and
    extended if the server requests it."""
    give_up_after: float = 30.0
    """Seconds after the first attempt after which no new attempt starts, default 30."""

    def __post_init__(self) -> None:
        if isinstance(self.attempts, bool) or not isinstance(self.attempts, int) or self.attempts < 1:
            raise InvalidInput(f"attempts: expected an integer of at least 1, got {self.attempts!r}")
        for name in ("first_delay", "max_delay", "give_up_after"):
            seconds = getattr(self, name)
            if not isinstance(seconds, (int, float)) or not seconds >= 0:
                raise InvalidInput(f"{name}: expected a number of seconds of at least 0, got {seconds!r}")

    def delay(self, failures: int, chance: Callable[[], float] = random.random) -> float:
        """The delay in seconds before the next attempt, after this many failures. `chance` returns 0 to 1."""
        doublings = min(failures - 1, _MOST_DOUBLINGS)
        return min(self.max_delay, self.first_delay * 2.0**doublings) * (0.5 + chance() / 2)


class CallOptions(TypedDict, total=False):
    """Options of a call beside its method and route."""

    query: Query | None
    body: object
    """Encoded as JSON."""
    raw_body: bytes | None
    seconds: float
    """Time limit of one attempt in seconds."""
    safe: bool | None
    """The request can be repeated after a lost reply, because a repetition has no further effect."""
    final: Set[str]
    """Error codes that are not retried."""
    first_line: Callable[[bytes], None] | None
    """Called with the first line of a response as soon as it arrives."""


def path_of(operation: Operation[Any], *names: str) -> str:
    """The path of an operation, with percent-encoded names."""
    for name in names:
        if not isinstance(name, str):
            raise InvalidInput(f"{name!r}: expected a string")
    try:
        return operation.at(*names)
    except UnicodeEncodeError as error:
        raise _no_text(error) from None


def _no_text(error: UnicodeEncodeError) -> InvalidInput:
    return InvalidInput(f"expected valid text, got half of a surrogate pair in {error.object[:40]!r}")


class Caller:
    """Sends requests over a transport and decodes the responses."""

    def __init__(
        self,
        transport: Transport,
        retry: CallPolicy | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        monotonic: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.transport = transport
        self.retry = retry or CallPolicy()
        self._sleep = sleep
        self._monotonic = monotonic
        self._chance = chance

    async def call(self, method: str, route: str, **options: Unpack[CallOptions]) -> Answer:
        """Send a request. Returns a 2xx response; raises the server's error, or `ConnectionFailed`.

        Temporary errors (429, 503) are retried by the retry policy. A lost connection is retried if the request was not
        sent, or if it is `safe`. By default GET, PUT and DELETE are safe. An error says what all attempts together may
        have done.
        """
        body, content, query = options.get("body"), options.get("raw_body"), options.get("query")
        try:
            if content is None and body is not None:
                content = _encode(body)
            for value in (query or {}).values():
                if isinstance(value, str) and not value.isascii():
                    value.encode()
        except UnicodeEncodeError as error:
            raise _no_text(error) from None
        seconds, first_line = options.get("seconds", 30.0), options.get("first_line")
        request = Request(method, route, query, content, seconds, tracing.headers(), first_line)
        safe = options.get("safe")
        if safe is None:
            safe = method in _SAFE
        final = options.get("final", frozenset())
        began = self._monotonic()
        failures = 0
        lost: HarkError | None = None
        while True:
            try:
                answer = await self.transport.send(request)
                if answer.status < 300:
                    return answer
                failure = refusal(answer, request)
            except ConnectionFailed as error:
                failure = error
            except HarkError:
                if lost is not None:
                    raise lost from None  # The client was closed meanwhile.
                raise
            if is_lost(failure):
                lost = failure
            elif lost is not None and failure.retryable:
                failure = after_lost(failure)
            failures += 1
            pause = max(failure.retry_after or 0.0, self.retry.delay(failures, self._chance))
            if (
                not failure.retryable
                or (is_lost(failure) and not safe)
                or failure.code in final
                or failures >= self.retry.attempts
                or self._monotonic() - began + pause > self.retry.give_up_after
            ):
                raise failure
            await self._sleep(pause)

    async def ask(self, operation: Operation[T], *names: str, **options: Unpack[CallOptions]) -> T:
        """Call an operation with the names in its path, and decode the answer."""
        return decode((await self.send(operation, *names, **options)).body, operation.answer())

    async def send(self, operation: Operation[Any], *names: str, **options: Unpack[CallOptions]) -> Answer:
        """Call an operation with the names in its path, as `call` does."""
        return await self.call(operation.method, path_of(operation, *names), **options)

    async def find(
        self, missing: str, operation: Operation[Any], *names: str, **options: Unpack[CallOptions]
    ) -> Answer | None:
        """Call an operation with the names in its path. None if the error code says that the object is missing."""
        try:
            return await self.send(operation, *names, **options)
        except NotFound as error:
            if error.code != missing:
                raise
            return None


def is_lost(failure: HarkError) -> bool:
    """Whether the request may have been applied, although it failed."""
    return failure.sent if isinstance(failure, ConnectionFailed) else failure.code == "outcome_unknown"


def after_lost(failure: HarkError) -> ConnectionFailed:
    """A temporary failure of a repeated request whose first reply was lost: the first one may have been applied."""
    other = ConnectionFailed(f"{failure.text}; an earlier attempt may have been applied", sent=True)
    other.retry_after, other.__cause__ = failure.retry_after, failure
    return other


def refusal(answer: Answer, request: Request) -> HarkError:
    """The error of a response that is not a 2xx."""
    try:
        problem = msgspec.json.decode(answer.body, type=ErrorAnswer)
    except (msgspec.DecodeError, UnicodeDecodeError):
        text = f"{request.method} {request.path} returned status {answer.status} without a Hark error; check the URL"
        # A proxy could not reach the server, or lost the connection, so the outcome is unknown.
        code = "outcome_unknown" if answer.status in _FROM_A_GATEWAY else "not_hark"
        return error_of(answer.status, code, text, answer.retry_after)
    return error_of(answer.status, problem.code, problem.error, answer.retry_after)


def decode(body: bytes | msgspec.Raw, shape: type[T]) -> T:
    """Decode a response. An invalid one does not come from a Hark server."""
    try:
        return msgspec.json.decode(body, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise not_hark(f"the response does not come from a Hark server: {error}; check the URL") from error


def not_hark(text: str) -> HarkError:
    """The error of a response that no Hark server sends."""
    return HarkError(text, code="not_hark")


def parts_of(items: Sequence[T], max_items: int, max_bytes: int, size_of: Callable[[T], int]) -> Iterator[Sequence[T]]:
    """Split items, in order, into requests that fit. An item that is too large for any request is sent alone."""
    start = size = 0
    for index, item in enumerate(items):
        size += (added := size_of(item))
        if index > start and (size > max_bytes or index - start == max_items):
            yield items[start:index]
            start, size = index, added
    yield items[start:]
