"""Writes to one streaming client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

Put = Callable[[bytes], Awaitable[None]]
"""Passes bytes to the server, after its buffer has room. With empty bytes it only waits."""

PING_SECONDS = 15.0


class Gone(Exception):
    """The client has disconnected, or has not read for too long."""


class Line:
    """Serialises writes to a client and sends pings while it is idle. Each write reaches the socket before the next."""

    def __init__(
        self, put: Put, transport: asyncio.Transport, *, patience: float, ping: bytes, ping_seconds: float
    ) -> None:
        self._put = put
        self._transport = transport
        self._patience = patience
        self._ping = ping
        self._ping_seconds = ping_seconds
        self._left = 0
        """Bytes of a write that the socket has not accepted yet."""
        self._turn = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._written_at = self._loop.time()
        if not transport.is_closing():
            # A limit of zero makes writes wait until the socket has the last byte. (For TLS transports the limit is 1:
            # with 0 they treat an empty buffer as full. They count only their own buffer, not that of the socket's
            # transport.)
            secure = transport.get_extra_info("sslcontext") is not None
            transport.set_write_buffer_limits(high=1 if secure else 0, low=0)

    async def write(self, data: bytes) -> None:
        """Return when the socket has all data; raises `Gone` if the client has disconnected or does not read."""
        async with self._turn:
            self._check()
            try:
                await self._wait_for_room()  # The server itself also writes, for example to answer pings.
                await self._put(data)
                await self._wait_for_room()
            except OSError:
                raise Gone from None
            self._check()
            self._written_at = self._loop.time()

    async def _wait_for_room(self) -> None:
        self._left = self._transport.get_write_buffer_size()
        if not self._left:
            return
        self._watch()
        try:
            await self._put(b"")
        finally:
            self._timer.cancel()

    def _watch(self) -> None:
        self._timer = self._loop.call_later(self._patience, self._look_at_progress)

    def _look_at_progress(self) -> None:
        left = self._transport.get_write_buffer_size()
        if left < self._left:
            self._left = left
            self._watch()
        else:  # `close` would wait until the client reads the rest.
            self._transport.abort()

    def _check(self) -> None:
        if self._transport.is_closing():
            raise Gone

    async def keep_alive(self, first_seconds: float | None = None) -> None:
        """Send a ping whenever nothing was written for a while, until the client disconnects."""
        pause = self._ping_seconds if first_seconds is None else first_seconds
        try:
            while True:
                wait = self._written_at + pause - self._loop.time()
                if wait > 0:
                    await asyncio.sleep(wait)
                else:
                    await self.write(self._ping)
                    pause = self._ping_seconds
        except Gone:
            return
