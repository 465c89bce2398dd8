"""Consumers over WebSocket: GET /api/v1/consume."""

from __future__ import annotations

import asyncio

from hark.broker import Broker
from hark.broker.delivery.stream import Stream
from hark.http.callers import caller
from hark.http.checks import query_params
from hark.http.edge.identities import identity_of
from hark.http.exchange import exchange_of
from hark.http.params import IntParam
from hark.http.responses import Receive, Scope, Send, encode, error_response, refuse_websocket
from hark.http.routes.table import WEBSOCKET, Reach, Table, read
from hark.http.stream.connection import Connection
from hark.http.stream.frames import Ping
from hark.http.stream.line import PING_SECONDS, Gone, Line
from hark.http.wire.asgi import TRANSPORT
from hark.settings import Settings


class WebSockets:
    """The route, bound to a broker."""

    def __init__(self, broker: Broker, settings: Settings, ping_seconds: float = PING_SECONDS) -> None:
        self._broker = broker
        self._settings = settings
        self._ping_seconds = ping_seconds
        self._credit = IntParam(
            "credit",
            "Initial credit: maximum number of unacknowledged messages that the client holds. A frame `credit` "
            "changes it.",
            0,
            0,
            settings.limits.max_batch,
        )

    def table(self) -> Table:
        """Return the table of this route."""
        return {
            "/api/v1/consume": {
                WEBSOCKET: read(self.consume, Reach.ITEMS, query=(self._credit,), answer={101: None}, raw=True)
            }
        }

    async def consume(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Consume over WebSocket.

        Opens a WebSocket connection. The client sends frames to subscribe, to grant credit, and to acknowledge, reject
        and renew messages. Frames are JSON objects with a field `type`. Subscriptions that receive messages, and frames
        that settle or renew them, require the role read-write.
        """
        try:
            stream = self._open(scope)
        except Exception as error:
            await refuse_websocket(receive, send, error_response(error))
            return
        await receive()  # The connect event.
        try:
            await send({"type": "websocket.accept"})
            await self._talk(stream, scope, receive, send)
        except OSError:
            return  # The client disconnected during the handshake.
        finally:
            stream.close()

    def _open(self, scope: Scope) -> Stream:
        credit = self._credit.of(query_params(scope["query_string"]))
        return self._broker.delivery.open_stream(credit)

    async def _talk(self, stream: Stream, scope: Scope, receive: Receive, send: Send) -> None:
        async def put(data: bytes) -> None:
            # Without data this writes nothing and waits like any other, which `Line` relies on.
            await send({"type": "websocket.send", "text": data.decode() if data else None})

        limits = self._settings.limits
        line = Line(
            put,
            scope[TRANSPORT],
            patience=limits.stalled_seconds,
            ping=encode(Ping()),
            ping_seconds=self._ping_seconds,
        )
        connection = Connection(
            self._broker, self._settings, stream, line, identity_of(scope), caller(exchange_of(scope))
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(line.keep_alive())
                tasks.create_task(connection.deliver())
                await connection.obey(receive, tasks)
                raise Gone  # Ends the other tasks of this client.
        except* Gone:
            pass
        finally:
            connection.close()
