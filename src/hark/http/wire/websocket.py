"""A WebSocket on a connection: frames by the sans-I/O layer of `websockets`, events as ASGI has them."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from time import time
from typing import TYPE_CHECKING

from websockets.datastructures import Headers
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol

from hark.errors import HarkError
from hark.http.exchange import Exchange, Header
from hark.http.responses import JSON_HEADERS, Event, Response, encode, error_response
from hark.http.wire.asgi import CODE, SMALL, Writing, scope_of
from hark.http.wire.connection import end_exchange, make_head

if TYPE_CHECKING:
    from hark.http.wire.server import Server

_quiet = logging.getLogger("hark.http.wire.frames")
_quiet.setLevel(logging.CRITICAL)  # Otherwise `websockets` logs every connection.

PING_SECONDS = 20.0
"""A client that sends nothing for this time gets a ping; one that does not answer in the same time is disconnected."""
CLOSE_SECONDS = 5.0
"""Time limit for the close frame of the client."""
_CHUNK = 8 * 1024
"""Number of bytes that are parsed in one turn of the event loop: small frames take long."""
_AT_ONCE = 16
"""Number of messages that the application gets in one turn of the event loop."""
FRAMES_PER_SECOND = 2000
"""Frames that one connection may send per second. The server reads no more until the next ones are due."""
FRAMES_AT_ONCE = 2000
"""Frames that a connection may send at any speed, after it has sent few."""
_UNREAD_BYTES = 256 * 1024
_MAX_FRAGMENTS = 10_000


class WebSocket(Writing):
    """The protocol of a connection after its upgrade."""

    def __init__(self, server: Server, transport: asyncio.Transport, exchange: Exchange) -> None:
        super().__init__()
        self._server = server
        self.transport = transport
        self.exchange = self._exchange = exchange
        self._frames = ServerProtocol(state=State.OPEN, max_size=server.max_body_bytes, logger=_quiet)
        self._accepted = self._closed = False
        self._refusal: tuple[int, list[Header]] | None = None
        self._parts: list[bytes] = []
        """The fragments of the message that is being received."""
        self._is_text = False
        self._rest = b""
        """What was received but not parsed."""
        self._events: deque[Event] = deque([{"type": "websocket.connect"}])
        self._arrived: asyncio.Future[None] | None = None
        self._taken = 0
        self._gathered = 0
        """Bytes since the last complete message."""
        self._reserved_bytes = self._unread = 0
        """Bytes that count as bytes in flight: those of an arriving message, and those that the client has to read."""
        self._allowance = float(FRAMES_AT_ONCE)
        """Number of frames that may come now. It is negative if too many have come."""
        self._refilled_at = server.loop.time()
        self._waiting = False
        """Whether parsing waits until further frames are due."""
        self._received = True
        self._timer: asyncio.TimerHandle | None = None

    def start(self, rest: bytes) -> None:
        """Take over the connection, and serve it with the application."""
        exchange, server = self._exchange, self._server
        names = Headers((name.decode("latin-1"), value.decode("latin-1")) for name, value in exchange.headers.items())
        self._handshake = ServerProtocol(logger=_quiet).accept(Request(exchange.path, names))
        server.begun += 1
        self.transport.set_protocol(self)
        if self._handshake.status_code != 101:
            text = bytes(self._handshake.body or b"").decode().strip()
            body = encode({"error": text, "code": "invalid_http"})
            server.app.begin(exchange, self._handshake.status_code, ())
            self._end_with((self._handshake.status_code, JSON_HEADERS, body))
            end_exchange(server, exchange)
            return
        server.run(self._serve())
        if rest:
            self.data_received(rest)

    # The connection ----------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Parse the data, a piece in each turn of the event loop."""
        self._received = True
        waiting = bool(self._rest)
        self._rest += data
        if not waiting:
            self._parse()

    def _parse(self) -> None:
        if self._closed or not self._accepted or self._events or self._waiting:
            if self._rest:
                self.transport.pause_reading()
            return  # `receive` goes on, or `_go_on`.
        chunk, self._rest = self._rest[:_CHUNK], self._rest[_CHUNK:]
        self._gathered += len(chunk)
        if self._gathered > SMALL and not self._holds_message():
            self._frames.fail(CloseCode.TRY_AGAIN_LATER, CODE)
        else:
            self._frames.receive_data(chunk)
        events = self._frames.events_received()
        for event in events:
            if isinstance(event, Frame):
                self._take(event)
        if events and not self._parts:
            self._release()
        self._flush()
        if self._frames.state is not State.OPEN:
            self._disconnect(self._frames.close_code or CloseCode.ABNORMAL_CLOSURE)
        elif events and (seconds := self._ahead(len(events))) > 0:
            self.transport.pause_reading()
            self._waiting = True
            self._server.loop.call_later(seconds, self._go_on)
        elif self._rest:
            self.transport.pause_reading()
            self._server.loop.call_soon(self._parse)
        elif not self._events:
            self.transport.resume_reading()

    def _holds_message(self) -> bool:
        """Count a message that arrives among the bytes in flight; False if they are too many."""
        budget, subject = self._server.budget, self._exchange.identity.subject
        try:
            self._reserved_bytes = budget.reserve(subject, self._reserved_bytes, self._gathered)
        except HarkError:
            return False
        return True

    def _release(self) -> None:
        """Count the bytes of the message no longer."""
        self._gathered = 0
        if self._reserved_bytes:
            self._server.budget.remove(self._exchange.identity.subject, self._reserved_bytes)
            self._reserved_bytes = 0

    def _ahead(self, number: int) -> float:
        """Count frames; return by how many seconds the client is ahead of the permitted rate."""
        now = self._server.loop.time()
        earned = (now - self._refilled_at) * FRAMES_PER_SECOND
        self._refilled_at = now
        self._allowance = min(float(FRAMES_AT_ONCE), self._allowance + earned) - number
        return -self._allowance / FRAMES_PER_SECOND

    def _go_on(self) -> None:
        self._waiting = False
        self._parse()

    def _take(self, frame: Frame) -> None:
        if frame.opcode in (Opcode.TEXT, Opcode.BINARY):
            self._is_text, self._parts = frame.opcode is Opcode.TEXT, []
        elif frame.opcode is not Opcode.CONT:
            return  # `websockets` answers pings and close frames.
        self._parts.append(bytes(frame.data))
        if len(self._parts) > _MAX_FRAGMENTS:  # Each fragment costs memory.
            self.transport.abort()
        elif frame.fin:
            data, self._parts = b"".join(self._parts), []
            if not self._is_text:
                self._put({"type": "websocket.receive", "bytes": data})
                return
            try:
                self._put({"type": "websocket.receive", "text": data.decode()})
            except UnicodeDecodeError:
                self._frames.fail(CloseCode.INVALID_DATA)

    def _flush(self) -> None:
        """Send what `websockets` has to send, such as answers to pings, unless the client does not read."""
        output = b"".join(self._frames.data_to_send())
        if output and not self.transport.is_closing():
            if self.transport.get_write_buffer_size() > _UNREAD_BYTES:
                self.transport.abort()
            else:
                self.transport.write(output)

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify the application."""
        del exc
        self._server.closed(self)
        if self._timer is not None:
            self._timer.cancel()
        self._exchange.leave()
        self._release()
        self._disconnect(CloseCode.ABNORMAL_CLOSURE)
        self.resume_writing()

    def shut_down(self) -> None:
        """Close the connection, because the server stops."""
        if self._accepted:
            self._close(CloseCode.SERVICE_RESTART)
        else:
            self.transport.close()

    def _disconnect(self, code: int) -> None:
        """Tell the application that the client has disconnected, once, and close the connection."""
        if not self._closed:
            self._closed = True
            self._put({"type": "websocket.disconnect", "code": code})
            self.transport.close()

    def _close(self, code: int) -> None:
        """Send a close frame. The client has some time to answer it."""
        if self._frames.state is State.OPEN and not self.transport.is_closing():
            self._frames.send_close(code)
            self._flush()
            self._closed = True
            self._put({"type": "websocket.disconnect", "code": code})
            self._set_timer(CLOSE_SECONDS, self.transport.abort)

    # Time --------------------------------------------------------------------------------------------------

    def _set_timer(self, seconds: float, callback: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._server.loop.call_later(seconds, callback)

    def _keep_alive(self) -> None:
        if not self._received:
            self.transport.abort()
            return
        self._received = False
        self._frames.send_ping(b"")
        self._flush()
        self._set_timer(PING_SECONDS, self._keep_alive)

    # Back-pressure -----------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        """Note that the buffer of the transport is full."""
        self._paused = True

    def resume_writing(self) -> None:
        """Note that the buffer has room again."""
        if self._unread:
            self._server.budget.remove(self._exchange.identity.subject, self._unread)
            self._unread = 0
        self._end_drain()

    # ASGI --------------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        exchange, server = self._exchange, self._server
        try:
            await server.asgi(scope_of(exchange, self.transport, "websocket"), self.receive, self.send)
        except Exception as error:
            response = error_response(error)  # It logs the error.
            if not self._accepted and not exchange.status:
                server.app.begin(exchange, response[0], ())
                self._end_with(response)
        finally:
            if self._accepted:
                self._close(CloseCode.NORMAL_CLOSURE)
            else:
                self.transport.close()
            end_exchange(server, exchange)

    def _put(self, event: Event) -> None:
        self._events.append(event)
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)

    async def receive(self) -> Event:
        """Return the next event."""
        while not self._events:
            self._arrived = self._server.loop.create_future()
            self._server.loop.call_soon(self._parse)
            await self._arrived
        self._taken += 1
        if not self._taken % _AT_ONCE:
            await asyncio.sleep(0)
        return self._events.popleft()

    async def send(self, event: Event) -> None:
        """Send an event, after the buffer of the connection has room. Raises `OSError` after the connection is lost."""
        await self.drain()
        if self.transport.is_closing() or self._closed:
            raise ConnectionResetError("the client has disconnected")
        match event["type"]:
            case "websocket.accept":
                self._accepted = True
                self.transport.write(self._handshake.serialize())
                self._set_timer(PING_SECONDS, self._keep_alive)
            case "websocket.send":
                text = event.get("text")
                data = event.get("bytes") if text is None else text.encode()
                if data:
                    self._check_budget(len(data))
                    self._exchange.size += len(data)
                    send = self._frames.send_binary if text is None else self._frames.send_text
                    send(data)
                    self.transport.write(b"".join(self._frames.data_to_send()))
                    if self._paused and len(data) > SMALL and not self._unread:
                        self._unread = len(data)
                        self._server.budget.add(self._exchange.identity.subject, self._unread)
            case "websocket.close":
                self._close(event.get("code", CloseCode.NORMAL_CLOSURE))
            case "websocket.http.response.start":
                self._refusal = event["status"], list(event.get("headers", ()))
            case "websocket.http.response.body" if self._refusal is not None:
                status, headers = self._refusal
                self._end_with((status, tuple(headers), event.get("body", b"")))

    def _check_budget(self, size: int) -> None:
        """Raise if a large message is too much for the bytes in flight. The connection ends; messages are released."""
        if size > SMALL:
            refusal = self._server.budget.refusal(self._exchange.identity.subject, size)
            if refusal is not None:
                self._close(CloseCode.TRY_AGAIN_LATER)
                raise refusal

    def _end_with(self, response: Response) -> None:
        """Answer the request for a WebSocket with an ordinary response, and close the connection."""
        status, headers, body = response
        end = ((b"content-length", b"%d" % len(body)), (b"connection", b"close"))
        self.transport.write(b"%b\r\n%b" % (make_head(status, (*headers, *end), int(time())), body))
        self.transport.close()
