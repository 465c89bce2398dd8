"""Consumers by WebSocket: GET /api/v1/consume."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

from hark.broker import Broker
from hark.broker.delivery.stream import Stream
from hark.errors import Forbidden, HarkError, NotFound
from hark.http.checks import int_param, query_params
from hark.http.responses import JSON_HEADER, Receive, Scope, Send, encode, error_body, error_headers, known_error
from hark.http.stream.connection import Connection
from hark.http.stream.frames import Ping
from hark.http.stream.line import PING_SECONDS, Gone, Line
from hark.http.stream.transport import transport_of
from hark.settings import Settings

PATH = "/api/v1/consume"


class WebSockets:
    """The route, bound to a broker."""

    def __init__(self, broker: Broker, settings: Settings, ping_seconds: float = PING_SECONDS) -> None:
        self._broker = broker
        self._settings = settings
        self._ping_seconds = ping_seconds

    async def consume(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Take a connection, or refuse it before it is one."""
        await receive()  # That somebody wants to connect.
        try:
            stream = self._open(scope)
        except Exception as error:
            await _refuse(send, known_error(error))
            return
        try:
            await send({"type": "websocket.accept"})
            await self._talk(stream, scope, receive, send)
        except OSError:
            return  # It left before it was there.
        finally:
            stream.close()

    def _open(self, scope: Scope) -> Stream:
        if scope["path"] != PATH:
            raise NotFound(f"no such route; WebSockets are taken at {PATH}", code="route_not_found")
        _check_origin(scope)
        credit = int_param(query_params(scope["query_string"]), "credit", 0, 0, self._settings.limits.max_batch)
        return self._broker.delivery.open_stream(credit)

    async def _talk(self, stream: Stream, scope: Scope, receive: Receive, send: Send) -> None:
        async def put(data: bytes) -> None:
            # Without data this writes nothing and waits like any other, which `Line` relies on.
            await send({"type": "websocket.send", "text": data.decode() if data else None})

        limits = self._settings.limits
        line = Line(
            put,
            transport_of(scope),
            patience=limits.stalled_seconds,
            ping=encode(Ping()),
            ping_seconds=self._ping_seconds,
        )
        connection = Connection(self._broker, self._settings, stream, line)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(line.keep_alive())
                tasks.create_task(connection.deliver())
                await connection.obey(receive, tasks)
                raise Gone  # Whatever else goes on for this client ends too.
        except* Gone:
            pass
        finally:
            connection.close()


def _check_origin(scope: Scope) -> None:
    """Pages of other sites may not connect: a browser would let them, and there is no password to stop them."""
    headers = dict(scope["headers"])
    origin = headers.get(b"origin", b"").decode("latin-1")
    if origin and _host_of(origin) != headers.get(b"host", b"").decode("latin-1"):
        raise Forbidden(f"origin: pages of {origin} may not connect to this server")


def _host_of(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


async def _refuse(send: Send, error: HarkError) -> None:
    headers = [JSON_HEADER, *((name.encode(), value.encode()) for name, value in error_headers(error).items())]
    await send({"type": "websocket.http.response.start", "status": error.status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": encode(error_body(error))})
