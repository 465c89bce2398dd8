"""A WebSocket client that does little more than it must: a thousand of them share a process with nothing to spare."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import cast

from bench.delivery.wires import HOST

TEXT, CLOSE, PING, PONG = 1, 8, 9, 10
_UPGRADE = (
    b"GET %s HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def upgrade(path: bytes) -> bytes:
    """The request that begins a WebSocket."""
    return _UPGRADE % path


def frame(payload: bytes, opcode: int = TEXT) -> bytes:
    """A client's frame; its mask is zero, which a benchmark may and a browser may not."""
    size = len(payload)
    if size < 126:
        head = bytes((0x80 | opcode, 0x80 | size))
    elif size < 65_536:
        head = bytes((0x80 | opcode, 0x80 | 126)) + size.to_bytes(2)
    else:
        head = bytes((0x80 | opcode, 0x80 | 127)) + size.to_bytes(8)
    return head + bytes(4) + payload


class Frames:
    """Cuts what a server sends into frames: opcode and payload."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def read(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """The frames that are whole now."""
        buffer = self._buffer
        buffer += data
        while len(buffer) >= 2:
            size, start = buffer[1] & 0x7F, 2
            if size >= 126:
                start += 2 if size == 126 else 8
                if len(buffer) < start:
                    return
                size = int.from_bytes(buffer[2:start])
            if len(buffer) < start + size:
                return
            opcode, payload = buffer[0] & 0x0F, bytes(buffer[start : start + size])
            del buffer[: start + size]
            yield opcode, payload


class Socket(asyncio.Protocol, ABC):
    """One WebSocket; what comes is handed to `on_text` as it comes."""

    def __init__(self) -> None:
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ended = ""
        """Why it is over; empty: it is not."""
        self._head: bytes | None = b""
        self._frames = Frames()
        self._transport: asyncio.Transport | None = None

    async def open(self, port: int, path: bytes) -> None:
        """Connect and wait for the server's consent."""
        await asyncio.get_running_loop().create_connection(lambda: self, HOST, port)
        self._write(upgrade(path))
        await self.opened

    @abstractmethod
    def on_text(self, text: bytes) -> None:
        """A frame came."""

    def on_end(self) -> None:
        """The connection is over; `ended` says why."""

    def send(self, text: bytes) -> None:
        """Send a frame."""
        self._write(frame(text))

    def close(self) -> None:
        """Say goodbye and leave."""
        if self._transport is not None:
            self._write(frame((1000).to_bytes(2), CLOSE))
            self._transport.close()

    def _write(self, data: bytes) -> None:
        if self._transport is None:
            raise ConnectionResetError(self.ended or "not connected")
        self._transport.write(data)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one, but not by name

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        self._transport = None
        self.ended = self.ended or f"the connection was lost: {exc}"
        if not self.opened.done():
            self.opened.set_exception(ConnectionResetError(self.ended))
        self.on_end()

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        if self._head is not None:
            head, found, data = (self._head + data).partition(b"\r\n\r\n")
            if not found:
                self._head = head
                return
            self._head = None
            if not head.startswith(b"HTTP/1.1 101"):
                self.opened.set_exception(ConnectionRefusedError((head + b"\n" + data).decode()))
                return
            self.opened.set_result(None)
        for opcode, payload in self._frames.read(data):
            if opcode == TEXT:
                self.on_text(payload)
            elif opcode == PING:
                self._write(frame(payload, PONG))
            elif opcode == CLOSE:
                self.ended = f"the server closed with {payload!r}"
