"""The server: accepts connections, counts them, and ends them when it stops."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol

from hark.errors import Unauthorized
from hark.http.exchange import Exchange, Header
from hark.http.responses import Receive, Scope, Send, error_response
from hark.http.wire.asgi import SMALL, Budget
from hark.http.wire.connection import Connection
from hark.http.wire.websocket import WebSocket
from hark.settings import Limits

HANDSHAKE_SECONDS = 10.0
"""Time limit of a TLS handshake, which happens before the limits of HTTP apply."""
_ABORT_SECONDS = 1.0
_DEFAULT_LIMITS = Limits()
Asgi = Callable[[Scope, Receive, Send], Awaitable[object]]


class Application(Protocol):
    """What the server serves."""

    def admit(self, exchange: Exchange) -> None:
        """Note the operation of a request whose head has arrived, or the reason to refuse it."""

    def body_limit(self, exchange: Exchange) -> int:
        """Return the maximum size of the body of a request, in bytes."""

    def answer_now(self, exchange: Exchange) -> bool:
        """Answer a complete request without a task; False if it is for `__call__`."""

    def begin(self, exchange: Exchange, status: int, headers: Sequence[Header]) -> Sequence[Header]:
        """Note the status of a response that begins, and return its headers, complete."""

    def is_revoked(self, exchange: Exchange) -> bool:
        """Return whether the token of a stream or a waiting pop is not valid any more."""

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[object]:
        """Serve a request as an ASGI application."""


_TOKENS_SECONDS = 2.0
"""Interval between checks of the tokens of streams and waiting pops. The files of tokens are checked every second."""


class Server:
    """All connections of a listening socket.

    `asgi` serves requests in place of the application itself, for example with a span around each. `on_end` is called
    with each exchange whose response is complete, or whose client has disconnected.
    """

    def __init__(
        self,
        app: Application,
        *,
        limits: Limits = _DEFAULT_LIMITS,
        max_body_bytes: int = 10 * 2**20,
        asgi: Asgi | None = None,
        on_end: Callable[[Exchange], None] | None = None,
    ) -> None:
        self.app = app
        self.asgi: Asgi = app if asgi is None else asgi
        self.limits = limits
        self.budget = Budget(limits)
        self.max_body_bytes = max_body_bytes
        self.small_body = min(SMALL, max_body_bytes)
        """Every operation accepts bodies of this size."""
        self.loop = asyncio.get_running_loop()
        self.connections: set[Connection | WebSocket] = set()
        self.begun = 0
        """Number of requests in progress."""
        self.stopping = False
        self.only_asgi = asgi is not None
        """Whether `asgi` serves all requests, also those that the application could answer without a task."""
        self.on_end = on_end
        self._tasks: set[asyncio.Task[None]] = set()
        self._listening: asyncio.Server | None = None
        self._empty: asyncio.Future[None] = self.loop.create_future()

    def load(self) -> tuple[int, int]:
        """Return the number of open connections and of requests in progress."""
        return len(self.connections), self.begun

    # Start and stop ----------------------------------------------------------------------------------------

    async def start(self, listener: socket.socket, tls: ssl.SSLContext | None = None, backlog: int = 4096) -> None:
        """Accept connections on a bound socket."""
        timeout = None if tls is None else HANDSHAKE_SECONDS
        self._listening = await self.loop.create_server(
            lambda: Connection(self), sock=listener, ssl=tls, backlog=backlog, ssl_handshake_timeout=timeout
        )
        self._look_at_tokens()

    def _look_at_tokens(self) -> None:
        if not self.stopping:
            self.end_revoked()
            self.loop.call_later(_TOKENS_SECONDS, self._look_at_tokens)

    def end_revoked(self) -> None:
        """End the streams and waiting pops whose tokens are not valid any more."""
        for connection in list(self.connections):
            exchange = connection.exchange
            if exchange is None or not self.app.is_revoked(exchange):
                continue
            if exchange.waits and not exchange.status:
                if exchange.on_left is not None:
                    exchange.on_left()
                exchange.carrier.respond(
                    exchange, *error_response(Unauthorized("the token was revoked or changed during the request"))
                )
            else:
                connection.transport.abort()

    def stop_accepting(self) -> None:
        """Accept no more connections. Responses from now on say that their connection ends."""
        self.stopping = True
        if self._listening is not None:
            self._listening.close()

    async def stop(self, seconds: float) -> None:
        """Accept no more connections, and wait for the responses in progress. The rest is aborted after `seconds`."""
        self.stop_accepting()
        for connection in list(self.connections):
            connection.shut_down()
        if not await self._emptied(seconds):
            for task in self._tasks:
                task.cancel()
            for connection in list(self.connections):
                connection.transport.abort()
            await self._emptied(_ABORT_SECONDS)

    async def _emptied(self, seconds: float) -> bool:
        """Return whether all connections and tasks have ended in time."""
        until = self.loop.time() + seconds
        while self.connections or self._tasks:
            self._empty = self.loop.create_future()
            try:
                await asyncio.wait_for(self._empty, until - self.loop.time())
            except TimeoutError:
                return False
        return True

    def _note_end(self) -> None:
        if self.stopping and not self._empty.done():
            self._empty.set_result(None)

    # For connections ---------------------------------------------------------------------------------------

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run the task of a request."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._note_end()

    def release(self, exchange: Exchange) -> None:
        """Note that the body of a request is no longer in memory."""
        self.budget.remove(exchange.identity.subject, exchange.reserved_bytes)
        exchange.reserved_bytes = 0

    def closed(self, connection: Connection | WebSocket) -> None:
        """Forget a connection."""
        self.connections.discard(connection)
        self._note_end()

    def open_websocket(self, connection: Connection, exchange: Exchange, rest: bytes) -> None:
        """Hand a connection over to a WebSocket."""
        self.connections.discard(connection)
        websocket = WebSocket(self, connection.transport, exchange)
        self.connections.add(websocket)
        websocket.start(rest)
