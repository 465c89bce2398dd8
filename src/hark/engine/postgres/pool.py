"""The way to the database: statements, each a transaction of its own, over a fixed number of connections.

Nothing is kept in a session, so a pooler in transaction mode may stand between. One that knows no prepared statements
or refuses start-up parameters needs `prepared=False`. Then a call costs four round trips instead of one: it opens a
transaction, which also sets the limits that a session has otherwise.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from hark.engine.postgres import failures
from hark.engine.postgres.connections import Connections
from hark.errors import EngineFailure, StoreUnusable

OLDEST_SERVER = 14

_CONNECT_SECONDS = 8.0
_GRACE_SECONDS = 5.0
"""How much later than the server, which ends a statement that takes too long, a call gives its connection up."""
_TOLD = "HK100"
"""What procedures say with this code is for the server, not for people."""
_PAUSES = (0.005, 0.01, 0.02, 0.04, 0.08)
"""Seconds to wait at most before a transaction that the database rolled back is tried again."""


class Pool:
    """Runs statements on up to `size` connections, which are opened as they are needed."""

    def __init__(
        self,
        url: str,
        *,
        size: int = 8,
        statement_timeout_ms: int = 30_000,
        wait_ms: int = 10_000,
        prepared: bool = True,
        on_return: Callable[[], None] = lambda: None,
        on_told: Callable[[Sequence[str]], None] = lambda _told: None,
    ) -> None:
        self._url = url
        self._on_told = on_told
        self._told: dict[asyncpg.Connection, list[str]] = {}
        """What the database said during the calls that run, beside their answers."""
        self._call_seconds = statement_timeout_ms / 1000 + _GRACE_SECONDS
        self._prepared = prepared
        self._session = {
            "statement_timeout": str(statement_timeout_ms),
            "idle_in_transaction_session_timeout": str(statement_timeout_ms),
            "jit": "off",
            "plan_cache_mode": "force_generic_plan",  # else each statement of a procedure is planned again and again
        }
        self._set_local = "; ".join(f"set local {name} = '{value}'" for name, value in self._session.items())
        self._connections = Connections(self._connect, limit=size, wait_seconds=wait_ms / 1000, on_return=on_return)
        self._calls: set[asyncio.Task[list[asyncpg.Record]]] = set()

    # For metrics -------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Connections that are open."""
        return self._connections.open

    @property
    def idle(self) -> int:
        """Connections that nobody uses."""
        return self._connections.idle

    @property
    def waiting(self) -> int:
        """Calls that wait for a connection."""
        return self._connections.waiting

    @property
    def connects(self) -> int:
        """Connections that were made so far."""
        return self._connections.made

    @property
    def failures(self) -> int:
        """Attempts to connect that failed so far."""
        return self._connections.failures

    # Life --------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Make the first connection; raises `StoreUnusable` with what to do."""
        try:
            connection = await self._connections.start()
        except Exception as error:
            raise failures.of_first_connection(error, self._url) from error
        version = connection.get_server_version().major
        self._connections.give(connection)
        if version < OLDEST_SERVER:
            await self.close()
            raise StoreUnusable(
                f"{failures.shown(self._url)} runs PostgreSQL {version}; upgrade it to {OLDEST_SERVER} or newer"
            )

    async def close(self) -> None:
        """Refuse what waits, finish what runs, and close all connections."""
        await self._connections.close()

    async def _connect(self) -> asyncpg.Connection:
        session = self._session if self._prepared else {}
        connection = await asyncpg.connect(
            self._url,
            timeout=_CONNECT_SECONDS,
            statement_cache_size=100 if self._prepared else 0,
            max_cached_statement_lifetime=0,
            server_settings={"application_name": "hark", **session},
        )
        connection.add_log_listener(self._listen)
        return connection

    def _listen(self, connection: asyncpg.Connection, message: asyncpg.PostgresLogMessage) -> None:
        if message.sqlstate == _TOLD:
            self._told.setdefault(connection, []).append(message.message)

    def _pass_on(self, connection: asyncpg.Connection, committed: bool) -> None:
        """A call is over: what was said during it counts if it was committed."""
        told = self._told.pop(connection, None)
        if told and committed:
            self._on_told(told)

    # Calls -------------------------------------------------------------------------------------------------

    async def fetch(self, sql: str, *args: object) -> list[asyncpg.Record]:
        """Run one statement as one transaction; raises `EngineFailure`.

        A caller that is cancelled leaves its call to finish: half a call would cost a connection.
        """
        for pause in _PAUSES:
            try:
                return await self._call(sql, args)
            except failures.TRY_AGAIN:
                # Jitter: those that got into each other's way must not meet again.
                await asyncio.sleep(random.uniform(0, pause))
        try:
            return await self._call(sql, args)
        except failures.TRY_AGAIN as error:
            raise failures.of_call(error, broken=False) from error

    async def fetchrow(self, sql: str, *args: object) -> asyncpg.Record | None:
        """Do as `fetch`, for the first row."""
        rows = await self.fetch(sql, *args)
        return rows[0] if rows else None

    async def fetchval(self, sql: str, *args: object) -> Any:
        """Do as `fetch`, for the first value of the first row."""
        rows = await self.fetch(sql, *args)
        return rows[0][0] if rows else None

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[asyncpg.Connection]:
        """A connection inside a transaction, for a few statements that belong together."""
        connection = await self._connections.take()
        try:
            async with connection.transaction():
                if not self._prepared:
                    await connection.execute(self._set_local)
                yield connection
            self._pass_on(connection, committed=True)
        except asyncio.CancelledError:
            connection.terminate()
            raise
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
            raise self._failed(connection, error) from error
        finally:
            self._pass_on(connection, committed=False)
            self._connections.give(connection)

    async def _call(self, sql: str, args: tuple[object, ...]) -> list[asyncpg.Record]:
        connection = await self._connections.take()
        call = asyncio.create_task(self._run(connection, sql, args))
        self._calls.add(call)  # the event loop alone would let go of it
        call.add_done_callback(self._calls.discard)
        return await asyncio.shield(call)

    async def _run(self, connection: asyncpg.Connection, sql: str, args: tuple[object, ...]) -> list[asyncpg.Record]:
        while connection.is_closed():  # since it was taken: nothing was sent yet, so any other one will do
            connection = await self._connections.take()
        try:
            run = self._rows if self._prepared else self._rows_in_transaction
            rows = await run(connection, sql, args)
            self._pass_on(connection, committed=True)
            return rows
        except failures.TRY_AGAIN:
            raise
        except Exception as error:
            raise self._failed(connection, error) from error
        finally:
            self._pass_on(connection, committed=False)
            self._connections.give(connection)

    async def _rows(self, connection: asyncpg.Connection, sql: str, args: tuple[object, ...]) -> list[asyncpg.Record]:
        rows: list[asyncpg.Record] = await connection.fetch(sql, *args, timeout=self._call_seconds)
        return rows

    async def _rows_in_transaction(
        self, connection: asyncpg.Connection, sql: str, args: tuple[object, ...]
    ) -> list[asyncpg.Record]:
        await connection.execute(f"begin; {self._set_local}", timeout=self._call_seconds)
        try:
            rows = await self._rows(connection, sql, args)
        except (asyncpg.PostgresError, asyncpg.InterfaceError):
            await connection.execute("rollback", timeout=self._call_seconds)
            raise
        await connection.execute("commit", timeout=self._call_seconds)
        return rows

    def _failed(self, connection: asyncpg.Connection, error: Exception) -> EngineFailure:
        """Drop the connection if it can't be used again, and say what happened to the call."""
        broken = connection.is_closed() or failures.is_broken(error)
        if broken:
            connection.terminate()
        if isinstance(error, TimeoutError):
            # Not even an error came back: the network is gone, and the connections that are idle know nothing of it.
            self._connections.drop_idle()
        return failures.of_call(error, broken)
