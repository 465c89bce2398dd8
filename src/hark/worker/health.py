"""GET /health and GET /metrics of a worker: a minimal HTTP server for probes and scrapers.

It runs in the network thread, so it answers while a handler blocks the handlers' event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from hark.errors import InvalidInput

REQUEST_SECONDS = 5.0
_REASONS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}
_MAX_REQUEST = 8192


class Health(msgspec.Struct, frozen=True, rename="camel"):
    """Health of a worker."""

    status: str
    """`running`, `stopping`, `silent` (the server has not answered for too long) or `stuck` (all slots are blocked)."""
    worker: str
    queue: str
    concurrency: int
    running: int
    stuck: int
    """Functions in threads that did not end in time. Each keeps a slot."""
    seconds_since_answer: float
    """Seconds since the server last answered a poll."""
    problem: str | None
    """The error of the last poll, or None."""


class HealthEndpoint:
    """Answers probes until closed."""

    def __init__(self, health: Callable[[], Health], metrics: Callable[[], str]) -> None:
        self._health = health
        self._metrics = metrics
        self._server: asyncio.Server | None = None

    async def open(self, host: str, port: int) -> int:
        """Listen. Returns the port, which is a free one for port 0."""
        try:
            self._server = await asyncio.start_server(self._serve, host, port, limit=_MAX_REQUEST)
        except OSError as error:
            raise InvalidInput(f"health: cannot listen on {host}:{port}: {error.strerror or error}") from error
        opened: int = self._server.sockets[0].getsockname()[1]
        return opened

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer(head))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # An invalid request gets no answer.
        finally:
            writer.close()

    def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b" ")
        target = rest.partition(b" ")[0].partition(b"?")[0]
        if method not in (b"GET", b"HEAD"):
            answer = _response(405, "text/plain", b"only GET\n")
        elif target == b"/health":
            health = self._health()
            answer = _response(
                200 if health.status == "running" else 503, "application/json", msgspec.json.encode(health)
            )
        elif target == b"/metrics":
            # Imported here, because it is slow to import and only needed for a scrape.
            from hark.prometheus import CONTENT_TYPE

            answer = _response(200, CONTENT_TYPE, self._metrics().encode())
        else:
            answer = _response(404, "text/plain", b"not found; use /health or /metrics\n")
        return answer.partition(b"\r\n\r\n")[0] + b"\r\n\r\n" if method == b"HEAD" else answer


def _response(status: int, content_type: str, body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
