"""Connections to PostgreSQL: made as they are needed, handed out, and replaced in the background when they die."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress

import asyncpg

from hark.engine.postgres import failures
from hark.errors import EngineFailure

log = logging.getLogger(__name__)

_ATTEMPT_SECONDS = 1.0
"""Between the beginnings of two attempts to connect."""
_CLOSE_SECONDS = 2.0


class Connections:
    """Up to `limit` connections, handed out last in, first out."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[asyncpg.Connection]],
        *,
        limit: int,
        wait_seconds: float,
        on_return: Callable[[], None],
    ) -> None:
        self.made = 0
        self.failures = 0
        self._connect = connect
        self._limit = limit
        self._wait_seconds = wait_seconds
        self._on_return = on_return
        self._open: set[asyncpg.Connection] = set()
        self._idle: list[asyncpg.Connection] = []
        self._waiters: deque[asyncio.Future[asyncpg.Connection]] = deque()
        self._target = 1
        """How many there should be: as many as were ever needed at once."""
        self._attempts: set[asyncio.Task[bool]] = set()
        self._lacking = asyncio.Event()
        self._given_back = asyncio.Event()
        self._away = False
        self._why = ""
        self._closing = False
        self._keeper: asyncio.Task[None] | None = None

    @property
    def open(self) -> int:
        """How many there are."""
        return len(self._open)

    @property
    def idle(self) -> int:
        """The number of idle connections."""
        return len(self._idle)

    @property
    def waiting(self) -> int:
        """How many callers wait for one."""
        return len(self._waiters)

    async def start(self) -> asyncpg.Connection:
        """Make the first connection, which is taken then, and keep as many as are needed from now on."""
        connection = await self._make()
        self._keeper = asyncio.create_task(self._keep())
        return connection

    async def close(self) -> None:
        """Refuse who waits, wait for those that are in use, and close all."""
        self._closing = True
        tasks = {*self._attempts, *([self._keeper] if self._keeper else ())}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(_stopping())
        while self._open:
            while self._idle:
                with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                    await self._idle.pop().close(timeout=_CLOSE_SECONDS)
            self._given_back.clear()
            if self._open and not self._idle:
                await self._given_back.wait()

    # Handing out -------------------------------------------------------------------------------------------

    async def take(self) -> asyncpg.Connection:
        """Get a connection that lives; what breaks before anything was sent costs the caller nothing."""
        if self._closing:
            raise _stopping()
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        self._target = min(self._limit, max(self._target, len(self._open) + len(self._waiters) + 1))
        self._look_for_lack()
        try:
            async with asyncio.timeout(self._wait_seconds):
                while (connection := await self._next()).is_closed():
                    pass
                return connection
        except TimeoutError as error:
            raise failures.of_waiting(self._wait_seconds, self._away, self._why) from error

    def give(self, connection: asyncpg.Connection) -> None:
        """Hand a connection to who waits longest, or keep it."""
        if connection.is_closed():
            return
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(connection)
                return
        self._idle.append(connection)
        self._given_back.set()

    def drop_idle(self) -> None:
        """Close idle connections, because they may be broken like the last one."""
        for connection in self._idle:
            connection.terminate()

    async def _next(self) -> asyncpg.Connection:
        """Wait for a connection that is given back or made."""
        waiter: asyncio.Future[asyncpg.Connection] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.give(waiter.result())
            raise
        finally:
            with suppress(ValueError):
                self._waiters.remove(waiter)

    # Keeping -----------------------------------------------------------------------------------------------

    async def _make(self) -> asyncpg.Connection:
        connection = await self._connect()
        connection.add_termination_listener(self._lost)
        self._open.add(connection)
        self.made += 1
        return connection

    def _lost(self, connection: asyncpg.Connection) -> None:
        """Forget a connection that ended; the keeper makes another one."""
        self._open.discard(connection)
        with suppress(ValueError):
            self._idle.remove(connection)
        self._given_back.set()
        if not self._open and not self._closing:
            self._away = True
            log.warning(
                "PostgreSQL is unavailable: lost all connections; reconnecting", extra={"fields": {"store": "away"}}
            )
        self._look_for_lack()

    def _look_for_lack(self) -> None:
        """Wake the keeper if connections are missing and not yet being made."""
        if len(self._open) + len(self._attempts) < self._target:
            self._lacking.set()
        else:
            self._lacking.clear()

    async def _keep(self) -> None:
        """Make what is missing: at once, and once a second while that fails.

        An attempt may hang. The next one does not wait for it, so that a database is found as soon as it is back.
        """
        clock = asyncio.get_running_loop().time
        while True:
            await self._lacking.wait()
            began = clock()
            attempt = asyncio.create_task(self._attempt())
            self._attempts.add(attempt)
            attempt.add_done_callback(self._attempt_ended)
            self._look_for_lack()
            done, _ = await asyncio.wait({attempt}, timeout=_ATTEMPT_SECONDS)
            if done and not attempt.result():
                await asyncio.sleep(began + _ATTEMPT_SECONDS - clock())

    def _attempt_ended(self, attempt: asyncio.Task[bool]) -> None:
        self._attempts.discard(attempt)
        self._look_for_lack()

    async def _attempt(self) -> bool:
        """Try to make one connection."""
        try:
            connection = await self._make()
        except Exception as error:  # whatever it is, the next attempt may succeed
            self.failures += 1
            why = f"{type(error).__name__}: {error}"
            if why != self._why:
                log.warning(
                    "cannot connect to PostgreSQL; retrying every second: %s", why, extra={"fields": {"store": "away"}}
                )
            self._why = why
            return False
        self._why = ""
        self.give(connection)
        if self._away:
            self._away = False
            log.warning("PostgreSQL is available again", extra={"fields": {"store": "back"}})
            asyncio.get_running_loop().call_soon(self._on_return)
        return True


def _stopping() -> EngineFailure:
    return EngineFailure("the server is shutting down; retry", code="stopping")
