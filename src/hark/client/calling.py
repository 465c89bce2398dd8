"""Calls of a server: requests that are tried again as long as that is safe, answers decoded, refusals raised."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Set
from typing import TypedDict, TypeVar, Unpack
from urllib.parse import quote

import msgspec

from hark.client import tracing
from hark.client.transport.api import Answer, ConnectionFailed, Query, Request, Transport
from hark.errors import HarkError, InvalidInput, error_of

T = TypeVar("T")

_encode = msgspec.json.Encoder().encode
_SAFE = frozenset({"GET", "HEAD", "PUT", "DELETE"})
_FROM_A_GATEWAY = frozenset({502, 503, 504})
_MOST_DOUBLINGS = 60
"""More would leave the range of numbers, and no delay is that long."""


class CallPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How often, and how long, a call is tried again."""

    attempts: int = 7
    """In all; 1: never again."""
    first_delay: float = 0.05
    max_delay: float = 2.0
    """Seconds between attempts: doubled each time, with half of it at random; longer if the server asks for it."""
    give_up_after: float = 30.0
    """Seconds after the first attempt, from which on none begins."""

    def __post_init__(self) -> None:
        if isinstance(self.attempts, bool) or not isinstance(self.attempts, int) or self.attempts < 1:
            raise InvalidInput(f"attempts: expected an integer from 1 on, got {self.attempts!r}")
        for name in ("first_delay", "max_delay", "give_up_after"):
            seconds = getattr(self, name)
            if not isinstance(seconds, (int, float)) or not seconds >= 0:
                raise InvalidInput(f"{name}: expected seconds from 0 on, got {seconds!r}")

    def delay(self, failures: int, chance: Callable[[], float] = random.random) -> float:
        """Seconds before the next attempt, after so many failures; `chance` is from 0 to 1."""
        doublings = min(failures - 1, _MOST_DOUBLINGS)
        return min(self.max_delay, self.first_delay * 2.0**doublings) * (0.5 + chance() / 2)


class CallOptions(TypedDict, total=False):
    """What a call may have beside its method and its route."""

    query: Query | None
    body: object
    """Written as JSON."""
    raw_body: bytes | None
    seconds: float
    """Until an attempt must have its answer."""
    safe: bool | None
    """Doing it twice is doing it once, so it may be tried again when the reply was lost."""
    final: Set[str]
    """Codes of refusals that are not waited out."""


class _Problem(msgspec.Struct):
    """The body of an error."""

    error: str
    code: str


def path(*segments: str) -> str:
    """A path under /api/v1, each segment percent-encoded."""
    for segment in segments:
        if not isinstance(segment, str):
            raise InvalidInput(f"{segment!r}: expected a string")
    try:
        return "/".join(("/api/v1", *(quote(segment, safe="") for segment in segments)))
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
    return InvalidInput(f"half of a surrogate pair is no character, got {error.object[:40]!r}")


class Caller:
    """Sends requests over a transport and reads the answers."""

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
        """Send; the answer is a 2xx. Raises the server's refusal, or `ConnectionFailed`.

        A refusal that passes (429, 503) is waited out, as the retry policy says. So is a lost connection if the
        request did not go out, or is `safe`. By default that is so for GET, PUT and DELETE.
        """
        body, content = options.get("body"), options.get("raw_body")
        if content is None and body is not None:
            content = encoded(body)
        query = options.get("query")
        if query:
            _check_query(query)
        request = Request(method, route, query, content, options.get("seconds", 30.0), tracing.headers())
        safe = options.get("safe")
        if safe is None:
            safe = method in _SAFE
        final = options.get("final", frozenset())
        began = self._monotonic()
        failures = 0
        while True:
            try:
                answer = await self.transport.send(request)
                if answer.status < 300:
                    return answer
                failure = refusal(answer, request)
            except ConnectionFailed as error:
                failure = error
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

    async def read(self, shape: type[T], method: str, route: str, **options: Unpack[CallOptions]) -> T:
        """Send, and decode the answer."""
        return decode((await self.call(method, route, **options)).body, shape)


def _may_try_again(failure: HarkError, safe: bool) -> bool:
    """Whether a failure passes, and the request had no effect or may have it twice."""
    if not failure.retryable:
        return False
    lost = failure.sent if isinstance(failure, ConnectionFailed) else failure.code == "outcome_unknown"
    return safe or not lost


def refusal(answer: Answer, request: Request) -> HarkError:
    """The error that an answer other than a 2xx means."""
    try:
        problem = msgspec.json.decode(answer.body, type=_Problem)
    except (msgspec.DecodeError, UnicodeDecodeError):
        text = f"{request.method} {request.path} was answered {answer.status}; is that a Hark server?"
        # Somebody in between could not reach the server, or lost it: nobody knows what it did.
        code = "outcome_unknown" if answer.status in _FROM_A_GATEWAY else "not_hark"
        return error_of(answer.status, code, text, answer.retry_after)
    return error_of(answer.status, problem.code, problem.error, answer.retry_after)


def decode(body: bytes | msgspec.Raw, shape: type[T]) -> T:
    """Decode what a server said; one that says something else is not Hark."""
    try:
        return msgspec.json.decode(body, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise HarkError(f"the server's answer is not Hark's: {error}; check the URL", code="not_hark") from error
