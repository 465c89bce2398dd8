"""Pools for the tests of the pool and of the schema."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

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
