"""uvicorn's protocols, with the socket in reach: a client that does not read can only be got rid of there."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, cast

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

from hark.http.edge.connections import GuardedProtocol
from hark.http.responses import Scope

if TYPE_CHECKING:
    from uvicorn.server import ServerState

WEBSOCKET_LOG = "uvicorn.error.websocket"
_STATE = "hark.transport"
_SERVER = "hark.server"
_UNREAD_BYTES = 256 * 1024
_MAX_FRAGMENTS = 10_000


class OpenProtocol(GuardedProtocol):
    """uvicorn's HTTP with bounds, and its transport in the state of each request, which WebSockets inherit."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # As uvicorn's own.
        """Once per connection, so that requests cost nothing more."""
        super().connection_made(transport)
        self.app_state = self.app_state | {_STATE: transport, _SERVER: self.server_state}

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of the connection at once: one that was reset uvicorn would keep until its idle time is over."""
        super().connection_lost(exc)
        self._unset_keepalive_if_required()


class QuietWebSocket(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket, but what it says of every connection can be kept out of the log."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Use a logger of its own."""
        super().connection_made(transport)
        self.logger = self.conn.logger = logging.getLogger(WEBSOCKET_LOG)

    def handle_ping(self) -> None:
        """Answer, unless the client reads nothing of what it is sent."""
        if self.transport.get_write_buffer_size() > _UNREAD_BYTES:
            self.transport.abort()
        else:
            super().handle_ping()

    def handle_cont(self, event: Frame) -> None:
        """Put the parts of a message together; each costs memory, however small it is."""
        if len(self.frames) >= _MAX_FRAGMENTS:
            self.transport.abort()
        else:
            super().handle_cont(event)


def is_worth_logging(record: logging.LogRecord) -> bool:
    """Whether uvicorn says of a WebSocket what somebody should know: one that was refused has been answered."""
    return record.levelno >= logging.WARNING and "without completing handshake" not in record.msg


def transport_of(scope: Scope) -> asyncio.Transport:
    """The transport that a request came by."""
    return cast(asyncio.Transport, scope["state"][_STATE])


def load_of(scope: Scope) -> tuple[int, int]:
    """How many connections the server has that a request came by, and how many requests it is answering."""
    server: ServerState | None = scope.get("state", {}).get(_SERVER)
    return (0, 0) if server is None else (len(server.connections), len(server.tasks))
