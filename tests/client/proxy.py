"""A way to a server that fails as networks do: it loses replies, falls silent, or hangs up."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit


class Proxy:
    """Passes bytes on, until it is told to lose something."""

    def __init__(self, url: str) -> None:
        self._target = urlsplit(url)
        self.url = ""
        self.lost_replies = 0
        """How many replies were lost so far."""
        self._losing = 0
        self._silent = False
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close everything."""
        assert self._server is not None
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    def lose_replies(self, count: int) -> None:
        """The server gets the next requests, and its client gets a hung-up connection instead of a reply."""
        self._losing = count

    def fall_silent(self) -> None:
        """Nothing comes back any more, and nobody hangs up."""
        self._silent = True

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        far_reader, far_writer = await asyncio.open_connection(self._target.hostname, self._target.port)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._requests(reader, far_writer))
                both.create_task(self._replies(far_reader, writer))
        except (BaseExceptionGroup, asyncio.CancelledError):
            pass  # Either side hung up, or the test is over.
        finally:
            writer.transport.abort()
            far_writer.transport.abort()
            self._connections.discard(task)

    async def _requests(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65_536):
            sink.write(data)
        raise ConnectionAbortedError

    async def _replies(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65_536):
            if self._losing:
                self._losing -= 1
                self.lost_replies += 1
                break
            if not self._silent:
                sink.write(data)
        raise ConnectionAbortedError
