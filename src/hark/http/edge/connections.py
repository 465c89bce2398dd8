"""Limits on connections: their number, the time for a request to arrive, and the size of its headers.

A timer runs only while a part of a request is missing, so requests that arrive in one piece cost nothing extra.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from hark.http.responses import JSON_HEADER, NOSNIFF, encode
from hark.settings import Limits

MAX_HEADERS = 100
MAX_HEADER_BYTES = 64 * 1024
"""Size limit of all headers of a request together."""
MAX_TARGET_BYTES = 256 * 1024
"""Size limit of path and query: a prefix poll sends the versions of up to a thousand keys."""
MAX_HEAD_BYTES = 1024 * 1024
"""Size limit of an incomplete head, including pipelined data; beyond it the server rejects the request."""
MIN_BODY_BYTES_PER_SECOND = 1024
"""The server rejects a body that arrives more slowly than this, averaged over `limits.body_timeout_seconds`."""


class Problem(NamedTuple):
    """The reason to reject a request before it is read completely."""

    status: int
    code: str
    text: str
    retry_after: int | None = None


MALFORMED = Problem(400, "invalid_http", "the request is not valid HTTP/1.1")
HEAD_TOO_LARGE = Problem(
    431,
    "headers_too_large",
    f"the headers or the URL are too large: at most {MAX_HEADERS} headers with {MAX_HEADER_BYTES} bytes in total, and "
    f"{MAX_TARGET_BYTES} bytes of path and query",
)
SLOW = Problem(
    408,
    "request_timeout",
    "the request did not arrive in time (settings limits.header_timeout_seconds and limits.body_timeout_seconds); "
    "send it again",
)
TOO_MANY = Problem(
    503,
    "too_many_connections",
    "the server has too many connections (setting limits.max_connections); retry later, or reuse connections",
    1,
)


class GuardedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with limits."""

    def __init__(self, *arguments: Any, limits: Limits, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._limits = limits
        self._timer: asyncio.TimerHandle | None = None
        self._waits_for_body = False
        """Whether the timer waits for the rest of a body; else it waits for a head."""
        self._arrived = 0
        """Number of bytes of the incomplete part, or more."""
        self._upgraded = False
        self._problem = MALFORMED
        """The problem to report when the parser fails."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # As uvicorn's own.
        """Accept the connection, unless there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self._limits.max_connections:
            self._answer(TOO_MANY)
        else:
            self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse the data, and start the timer if a part is missing."""
        self._arrived += len(data)
        super().data_received(data)
        cycle = self.cycle
        if cycle is not None and not cycle.more_body and "method" in self.scope:
            if self._timer is not None:
                self._stop_waiting()
            self._arrived = 0
        else:
            self._wait_for_the_rest()

    def on_headers_complete(self) -> None:
        """Check the size of the head first."""
        if len(self.headers) > MAX_HEADERS or (self._arrived > MAX_HEADER_BYTES and self._head_is_large()):
            self._problem = HEAD_TOO_LARGE
            raise ValueError  # The parser turns it into a parse error.
        super().on_headers_complete()

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection over to the WebSocket protocol."""
        self._stop_waiting()
        self._upgraded = True
        super().handle_websocket_upgrade()

    def send_400_response(self, msg: str) -> None:
        """Report a parse error in the form of all other errors."""
        del msg
        self._answer(self._problem)

    # Waiting -----------------------------------------------------------------------------------------------

    def _wait_for_the_rest(self) -> None:
        if self.transport.is_closing() or self._upgraded:
            return
        cycle = self.cycle
        head_is_complete = cycle is not None and "method" in self.scope
        if head_is_complete and not cycle.response_complete:
            if self._timer is None or not self._waits_for_body:
                self._wait_for_body()
        elif self._timer is None or self._waits_for_body:
            self._arrived = 1
            self._wait_for_head()
        elif self._arrived > MAX_HEAD_BYTES and not head_is_complete:
            self._answer(HEAD_TOO_LARGE)

    def _wait_for_head(self) -> None:
        self._wait(self._limits.header_timeout_seconds, for_body=False)

    def _wait_for_body(self) -> None:
        self._wait(self._limits.body_timeout_seconds, for_body=True)

    def _wait(self, seconds: float, *, for_body: bool) -> None:
        self._stop_waiting()
        self._waits_for_body = for_body
        self._timer = self.loop.call_later(seconds, self._late)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        """Close a connection that is too slow, but never in the middle of a response."""
        self._timer = None
        if self.transport.is_closing():
            return
        cycle = self.cycle
        if self._waits_for_body:
            enough = MIN_BODY_BYTES_PER_SECOND * self._limits.body_timeout_seconds
            if self._arrived >= enough or self.flow.read_paused:
                self._arrived = 0
                self._wait_for_body()
            elif cycle.response_started:
                self.transport.close()
            else:
                self._answer(SLOW)
        elif cycle is not None and not cycle.response_complete:
            self._wait_for_head()  # The next request began to arrive during the current response.
        elif self._arrived:
            self._answer(SLOW)
        else:
            self.transport.close()

    def _head_is_large(self) -> bool:
        size = sum(len(name) + len(value) + 4 for name, value in self.headers)
        return size > MAX_HEADER_BYTES or len(self.url) > MAX_TARGET_BYTES

    def _answer(self, problem: Problem) -> None:
        """Send the error and close the connection."""
        self._stop_waiting()
        body = encode({"error": problem.text, "code": problem.code})
        headers = [JSON_HEADER, NOSNIFF, (b"content-length", b"%d" % len(body)), (b"connection", b"close")]
        if problem.retry_after is not None:
            headers.append((b"retry-after", b"%d" % problem.retry_after))
        lines = [b"%b: %b\r\n" % header for header in headers]
        self.transport.write(b"".join([STATUS_LINE[problem.status], *lines, b"\r\n", body]))
        self.transport.close()
