"""The interface between the client and the network: one request, one response."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from hark.errors import HarkError

Value = str | int | float | bool
Query = Mapping[str, Value | None]
"""None: the parameter is omitted."""


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
