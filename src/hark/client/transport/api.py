"""The seam between the client and the wire: one request, one answer, nothing of what they mean."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

import msgspec

from hark.errors import HarkError

Value = str | int | float | bool
Query = Mapping[str, Value | None]
"""None means absent."""


class Request(msgspec.Struct, frozen=True, gc=False):
    """What is asked of a server."""

    method: str
    path: str
    """Percent-encoded, from `/` on."""
    query: Query | None = None
    body: bytes | None = None
    timeout: float = 30.0
    """Seconds until there must be an answer."""
    headers: Mapping[str, str] | None = None
    """Beside those that every request has."""


class Answer(msgspec.Struct, frozen=True, gc=False):
    """What a server said, whatever its status."""

    status: int
    body: bytes
    retry_after: float | None = None


class ConnectionFailed(HarkError):
    """There was no answer."""

    code = "connection_failed"
    status = 503
    retryable = True

    def __init__(self, text: str, *, sent: bool) -> None:
        super().__init__(text)
        self.sent = sent
        """Whether the request may have reached the server: then it may have had its effect."""


class Transport(Protocol):
    """A way to one server, or to several that are equal. Belongs to the event loop that first used it."""

    @property
    def url(self) -> str:
        """Where to, for people."""

    async def send(self, request: Request) -> Answer:
        """Ask once; raises `ConnectionFailed` when there is no answer."""

    def fork(self) -> Transport | None:
        """The same way for another event loop; None if there is none, because the server lives in this one."""

    async def close(self) -> None:
        """Hang up. A transport that was never used has nothing to close."""


class Home:
    """The event loop that something belongs to: the one that first used it."""

    __slots__ = ("_loop",)

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def check(self) -> None:
        """Raises when this is another one."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._loop is not None:
                text = "the client belongs to the event loop that first used it; connect again in this one"
                raise HarkError(text, code="wrong_loop")
            self._loop = loop


def query_text(value: Value) -> str:
    """A query value as the API reads it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def retry_after_seconds(text: str | None) -> float | None:
    """A Retry-After in seconds; dates are not ours."""
    try:
        return None if text is None else max(0.0, float(text))
    except ValueError:
        return None
