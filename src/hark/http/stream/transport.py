"""uvicorn's protocols with access to the transport, to disconnect clients that do not read."""

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
    """uvicorn's HTTP protocol with limits, and its transport in the state of each request and WebSocket."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # As uvicorn's own.
        """Store the transport once per connection, so that requests cost nothing extra."""
        super().connection_made(transport)
        self.app_state = self.app_state | {_STATE: transport, _SERVER: self.server_state}

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the connection immediately. uvicorn would keep a reset connection until its idle timeout."""
        super().connection_lost(exc)
        self._unset_keepalive_if_required()


class QuietWebSocket(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket protocol with a separate logger."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Use the separate logger."""
        super().connection_made(transport)
        self.logger = self.conn.logger = logging.getLogger(WEBSOCKET_LOG)

    def handle_ping(self) -> None:
        """Answer a ping, unless the client does not read."""
        if self.transport.get_write_buffer_size() > _UNREAD_BYTES:
            self.transport.abort()
        else:
            super().handle_ping()

    def handle_cont(self, event: Frame) -> None:
        """Collect the fragments of a message, up to a limit: each fragment costs memory."""
        if len(self.frames) >= _MAX_FRAGMENTS:
            self.transport.abort()
        else:
            super().handle_cont(event)


def is_worth_logging(record: logging.LogRecord) -> bool:
    """Return whether a WebSocket log record is worth logging. Rejected connections are not."""
    return record.levelno >= logging.WARNING and "without completing handshake" not in record.msg


def transport_of(scope: Scope) -> asyncio.Transport:
    """Return the transport of a request."""
    return cast(asyncio.Transport, scope["state"][_STATE])


def load_of(scope: Scope) -> tuple[int, int]:
    """Return the number of open connections and of requests in progress."""
    server: ServerState | None = scope.get("state", {}).get(_SERVER)
    return (0, 0) if server is None else (len(server.connections), len(server.tasks))
