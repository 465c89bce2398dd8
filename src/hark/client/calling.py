"""Calls to a server: retry requests where that is safe, decode responses and raise errors."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Set
from typing import Any, TypedDict, TypeVar, Unpack

import msgspec

from hark.api.operations import Operation
from hark.api.types.base import ErrorAnswer
from hark.client import tracing
from hark.client.transport.api import Answer, ConnectionFailed, Query, Request, Transport
from hark.errors import HarkError, InvalidInput, error_of

T = TypeVar("T")

_encode = msgspec.json.Encoder().encode
_SAFE = frozenset({"GET", "HEAD", "PUT", "DELETE"})
_FROM_A_GATEWAY = frozenset({502, 503, 504})
_MOST_DOUBLINGS = 60
"""More doublings would overflow, and no delay is that long."""


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


def encoded(body: object) -> bytes:
    """A body as JSON."""
    try:
        return _encode(body)
    except UnicodeEncodeError as error:
        raise _no_text(error) from None


def _check_query(query: Query) -> None:
    try:
        for value in query.values():
            if isinstance(value, str) and not value.isascii():
                value.encode()
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
        body, content = options.get("body"), options.get("raw_body")
        if content is None and body is not None:
            content = encoded(body)
        query = options.get("query")
        if query:
            _check_query(query)
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
                not _may_try_again(failure, safe)
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
        """Call an operation with the names in its path. See `call`."""
        return await self.call(operation.method, path_of(operation, *names), **options)

    async def read(self, shape: type[T], method: str, route: str, **options: Unpack[CallOptions]) -> T:
        """Send a request and decode the response."""
        return decode((await self.call(method, route, **options)).body, shape)


def _may_try_again(failure: HarkError, safe: bool) -> bool:
    """Whether a failure is temporary, and the request had no effect or can be repeated."""
    if not failure.retryable:
        return False
    return safe or not is_lost(failure)


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
        raise HarkError(
            f"the response does not come from a Hark server: {error}; check the URL", code="not_hark"
        ) from error
