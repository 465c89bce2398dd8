"""What queries that only look have in common."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import asyncpg

from hark.engine.postgres import connections
from hark.engine.postgres.connections import Connections
from hark.errors import EngineFailure, StoreUnusable

NOW = "(select hark.time_v1($1))"
"""The time of the call, worked out once. The first parameter is the time given; null: the database's own."""


class Where:
    """Conditions of a query, with all its parameters; what does not matter is left out, so that plans are made for
    what is asked."""

    def __init__(self, *args: object) -> None:
        self.args = list(args)
        """Parameters, first those that the query has anyhow."""
        self._conditions = ["true"]

    def __str__(self) -> str:
        """The conditions in SQL."""
        return " and ".join(self._conditions)

    def also(self, condition: str, *values: object) -> None:
        """Insist on a condition, which says `{}` for each of its values; if the first is None it does not matter."""
        if values[0] is None:
            return
        if not can_be_stored(*values):
            self.nothing()
            return
        numbers = range(len(self.args) + 1, len(self.args) + len(values) + 1)
        self.args += values
        self._conditions.append(condition.format(*(f"${number}" for number in numbers)))

    def page(self, limit: int, offset: int) -> tuple[str, list[object]]:
        """The end of a query for some of the rows, and all its parameters."""
        count = len(self.args)
        return f"limit ${count + 1} offset ${count + 2}", [*self.args, limit, offset]

    def nothing(self) -> None:
        """Match no row."""
        self._conditions.append("false")


def can_be_stored(*values: object) -> bool:
    """Whether PostgreSQL can have such values at all; if not, nothing is equal to them."""
    return not any(isinstance(value, str) and "\0" in value for value in values)


T = TypeVar("T")


class Looks:
    """Runs lists and counts beside the verbs of the queue, which must always find a connection.

    Of equal ones, one runs at a time. Those that come meanwhile share the next one, which begins after all of them
    have asked: so each sees what was committed before it asked.
    """

    def __init__(self, limit: int, wait_seconds: float) -> None:
        self._turns = asyncio.Semaphore(limit)
        self._wait_seconds = wait_seconds
        self._running: dict[Hashable, asyncio.Task[Any]] = {}
        self._waiting: dict[Hashable, asyncio.Task[Any]] = {}

    async def share(self, key: Hashable, look: Callable[[], Awaitable[T]]) -> T:
        """Run a look, or wait for an equal one that has not begun yet; raises `EngineFailure` if its turn is late."""
        task: asyncio.Task[T] | None = self._waiting.get(key)
        if task is None:
            task = self._waiting[key] = asyncio.create_task(self._run(key, look))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(task)

    async def _run(self, key: Hashable, look: Callable[[], Awaitable[T]]) -> T:
        task = asyncio.current_task()
        assert task is not None
        try:
            async with asyncio.timeout(self._wait_seconds):
                while key in self._running:
                    await asyncio.wait([self._running[key]])
                await self._turns.acquire()
        except TimeoutError as error:
            raise EngineFailure(
                f"too many lists are being computed: this one could not begin within {self._wait_seconds:g} s; it had "
                "no effect; retry later"
            ) from error
        finally:
            del self._waiting[key]
        self._running[key] = task
        try:
            return await look()
        finally:
            del self._running[key]
            self._turns.release()


# Nothing is kept in a session, so a pooler in transaction mode may stand between. One that knows no prepared
# statements
# or refuses start-up parameters needs `prepared=False`. Then a call costs four round trips instead of one: it opens a
# transaction, which also sets the limits that a session has otherwise.


OLDEST_SERVER = 14

_CONNECT_SECONDS = 8.0
_GRACE_SECONDS = 5.0
"""How much later than the server, which ends a statement that takes too long, a call gives its connection up."""
_NOTICE = "HK100"
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
        on_notices: Callable[[Sequence[str]], None] = lambda _notices: None,
    ) -> None:
        self._url = url
        self._on_notices = on_notices
        self._notices: dict[asyncpg.Connection, list[str]] = {}
        """What the database said during the calls that run, beside their answers."""
        self._call_seconds = statement_timeout_ms / 1000 + _GRACE_SECONDS
        self._prepared = prepared
        self._session = {
            "statement_timeout": str(statement_timeout_ms),
            "idle_in_transaction_session_timeout": str(statement_timeout_ms),
            "jit": "off",
            "plan_cache_mode": "force_generic_plan",  # else each statement of a procedure is planned again and again
            # Not where other roles may create functions, which would run with the rights of this one.
            "search_path": "pg_catalog, pg_temp",
        }
        self._set_local = "; ".join(f"set local {name} = {value}" for name, value in self._session.items())
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
            raise connections.of_first_connection(error, self._url) from error
        version = connection.get_server_version().major
        self._connections.give(connection)
        if version < OLDEST_SERVER:
            await self.close()
            raise StoreUnusable(
                f"{connections.shown(self._url)} runs PostgreSQL {version}; upgrade it to {OLDEST_SERVER} or newer"
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
        if message.sqlstate == _NOTICE:
            self._notices.setdefault(connection, []).append(message.message)

    def _pass_on(self, connection: asyncpg.Connection, committed: bool) -> None:
        """A call is over: what was said during it counts if it was committed."""
        notices = self._notices.pop(connection, None)
        if notices and committed:
            self._on_notices(notices)

    # Calls -------------------------------------------------------------------------------------------------

    async def fetch(self, sql: str, *args: object) -> list[asyncpg.Record]:
        """Run one statement as one transaction; raises `EngineFailure`.

        A caller that is cancelled leaves its call to finish: half a call would cost a connection.
        """
        for pause in _PAUSES:
            try:
                return await self._call(sql, args)
            except connections.TRY_AGAIN:
                # Jitter: those that got into each other's way must not meet again.
                await asyncio.sleep(random.uniform(0, pause))
        try:
            return await self._call(sql, args)
        except connections.TRY_AGAIN as error:
            raise connections.of_call(error, broken=False) from error

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

    async def run_alone(self, sql: str) -> None:
        """Run a statement that can't be part of a transaction; raises `EngineFailure`."""
        connection = await self._connections.take()
        try:
            await connection.execute(sql, timeout=self._call_seconds)
        except asyncio.CancelledError:
            connection.terminate()
            raise
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
            raise self._failed(connection, error) from error
        finally:
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
        except connections.TRY_AGAIN:
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
        broken = connection.is_closed() or connections.is_broken(error)
        if broken:
            connection.terminate()
        if isinstance(error, TimeoutError):
            # Not even an error came back: the network is gone, and the connections that are idle know nothing of it.
            self._connections.drop_idle()
        return connections.of_call(error, broken)
