"""Several servers on the same store: the client uses one until it fails, then the next."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

import msgspec

from hark.client.transport.api import Answer, ConnectionFailed, Request, Transport
from hark.client.transport.http import HttpTransport
from hark.errors import InvalidInput

_ELSEWHERE = frozenset({"stopping", "engine_failure"})
"""Errors after which nothing was done, and that another server may not have."""
_IN_TROUBLE = frozenset({502, 503, 504})


class _Problem(msgspec.Struct):
    """The relevant part of an error response."""

    code: str


_decode_problem = msgspec.json.Decoder(_Problem).decode


class FailoverTransport:
    """Sends requests to one of several servers on the same store, and to another if it is unreachable or shutting down.

    A request whose reply was lost is not repeated here, because it may have been applied. The caller decides, and its
    next request goes to another server. A server that failed is the last choice for `pause` seconds.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        pause: float = 5.0,
        monotonic: Callable[[], float] = time.monotonic,
        make: Callable[[str], Transport] = HttpTransport,
    ) -> None:
        if not urls:
            raise InvalidInput("urls: expected at least one server")
        self._urls = tuple(dict.fromkeys(urls))
        self._pause = pause
        self._monotonic = monotonic
        self._make = make
        self._servers = [make(url) for url in self._urls]
        self._failed_at: dict[int, float] = {}
        self._current = 0

    @property
    def url(self) -> str:
        """The server in use."""
        return self._servers[self._current].url

    @property
    def urls(self) -> tuple[str, ...]:
        """All servers, in order of preference."""
        return self._urls

    @property
    def tls(self) -> ssl.SSLContext | None:
        """The TLS context of all servers. None: trust what the system trusts."""
        return next((server.tls for server in self._servers if isinstance(server, HttpTransport)), None)

    async def send(self, request: Request) -> Answer:
        """Send one request to an available server. Raises `ConnectionFailed` if there is no response."""
        refused: Answer | None = None
        unreachable: list[ConnectionFailed] = []
        for index in self._order():
            try:
                answer = await self._servers[index].send(request)
            except ConnectionFailed as error:
                self._leave(index)
                if error.sent:
                    raise
                unreachable.append(error)
                continue
            if answer.status in _IN_TROUBLE:
                code = _code(answer)
                if code in _ELSEWHERE or code is None:
                    self._leave(index)
                if code in _ELSEWHERE:
                    refused = answer
                    continue
            else:
                self._stay(index)
            return answer
        if refused is not None:
            return refused
        raise _nowhere(unreachable)

    def fork(self) -> FailoverTransport:
        """The same servers for another event loop."""
        return FailoverTransport(self._urls, pause=self._pause, monotonic=self._monotonic, make=self._make)

    async def close(self) -> None:
        """Close all connections."""
        async with AsyncExitStack() as servers:  # All of them, even if one fails or this is cancelled.
            for server in self._servers:
                servers.push_async_callback(server.close)

    def _order(self) -> list[int]:
        """The server in use and the following ones. Servers that failed recently are last, the latest at the end."""
        ring = [(self._current + step) % len(self._servers) for step in range(len(self._servers))]
        if not self._failed_at:
            return ring
        recent = self._monotonic() - self._pause
        return sorted(ring, key=lambda index: max(recent, self._failed_at.get(index, recent)))

    def _leave(self, index: int) -> None:
        """A server failed: the next request goes to another one."""
        self._failed_at[index] = self._monotonic()
        self._current = self._order()[0]

    def _stay(self, index: int) -> None:
        """A server works: use it until it fails, unless the current one works as well."""
        if self._current in self._failed_at:
            self._current = index
        self._failed_at.pop(index, None)


def _code(answer: Answer) -> str | None:
    """The error code of a Hark server. None: the response comes from a proxy."""
    try:
        return _decode_problem(answer.body).code
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _nowhere(failures: Sequence[ConnectionFailed]) -> ConnectionFailed:
    if len(failures) == 1:
        return failures[0]
    return ConnectionFailed(
        f"none of {len(failures)} servers can be reached: " + "; ".join(failure.text for failure in failures),
        sent=False,
    )
