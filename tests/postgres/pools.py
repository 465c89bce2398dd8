"""Pools for the tests of the pool and of the schema, and a way to PostgreSQL that can fall silent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit, urlunsplit

from hark.engine.postgres.pool import Pool

SOON = 10.0
"""Seconds after which a test gives up on what should have happened."""


@asynccontextmanager
async def opened(
    url: str,
    *,
    size: int = 8,
    statement_timeout_ms: int = 30_000,
    wait_ms: int = 10_000,
    prepared: bool = True,
    on_return: Callable[[], None] = lambda: None,
) -> AsyncIterator[Pool]:
    """An open pool, closed at the end."""
    pool = Pool(
        url,
        size=size,
        statement_timeout_ms=statement_timeout_ms,
        wait_ms=wait_ms,
        prepared=prepared,
        on_return=on_return,
    )
    await pool.open()
    try:
        yield pool
    finally:
        await pool.close()


async def soon(event: asyncio.Event) -> None:
    """Wait for what should happen."""
    await asyncio.wait_for(event.wait(), SOON)


async def until(condition: Callable[[], bool]) -> None:
    """Let others run until something is so."""
    async with asyncio.timeout(SOON):
        while not condition():  # noqa: ASYNC110  # what a pool counts has no events
            await asyncio.sleep(0)


async def until_blocked(watcher: Pool, count: int = 1) -> None:
    """Wait until so many statements wait for an advisory lock."""
    async with asyncio.timeout(SOON):
        while (
            await watcher.fetchval("select count(*) from pg_locks where locktype = 'advisory' and not granted") < count
        ):
            pass


async def until_locked(pool: Pool, procedure: str) -> None:
    """Wait until a procedure waits for a lock; each question lets the others go on."""
    waits = f"select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like '%{procedure}%'"
    async with asyncio.timeout(SOON):
        while not await pool.fetchval(waits):
            pass


class Proxy:
    """A way to PostgreSQL that can fall silent, as a network does whose other end has no power.

    Once silenced, the connections that there are stay open and nothing comes through. Once cut, they are closed.
    """

    def __init__(self, url: str) -> None:
        self._target = urlsplit(url)
        self.url = ""
        self._server: asyncio.Server | None = None
        self._passing: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []
        self.refuses = False

    async def __aenter__(self) -> Self:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        credentials = self._target.netloc.rpartition("@")[0]
        self.url = urlunsplit(self._target._replace(netloc=f"{credentials}@127.0.0.1:{port}"))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close everything."""
        assert self._server is not None
        self._server.close()
        self.cut()
        await self._server.wait_closed()

    def silence(self) -> None:
        """Pass on nothing more on the connections that there are."""
        for task in self._passing:
            task.cancel()

    def cut(self, *, refuse: bool = False) -> None:
        """Close the connections that there are; PostgreSQL goes on with a statement until it has an answer to send."""
        self.refuses = refuse
        self.silence()
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuses:
            writer.transport.abort()
            return
        far_reader, far_writer = await asyncio.open_connection(self._target.hostname, self._target.port)
        self._writers += [writer, far_writer]
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            task = asyncio.create_task(self._pass(source, sink))
            self._passing.add(task)
            task.add_done_callback(self._passing.discard)

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65_536):
            sink.write(data)
        sink.close()
