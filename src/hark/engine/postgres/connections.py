"""Translates PostgreSQL errors to Hark's errors and codes."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count

import asyncpg

from hark.errors import DiskFull, EngineFailure, InvalidSetting, StoreUnusable

log = logging.getLogger(__name__)

TRY_AGAIN = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)
"""PostgreSQL rolled the transaction back because of a concurrent one; a retry of the call can succeed."""


def shown(url: str) -> str:
    """The URL of a database without its password, which can also be in the query."""
    return re.sub(r"//.*@", "//", url).partition("?")[0]


def is_broken(error: Exception) -> bool:
    """Whether a connection on which this happened must not be used again."""
    if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
        return True  # the server became a standby: a new connection may find the one that writes
    if isinstance(error, asyncpg.PostgresError):
        fatal = getattr(error, "severity_en", None) in ("FATAL", "PANIC")
        return fatal or isinstance(error, asyncpg.PostgresConnectionError)
    # What asyncpg itself refuses was never sent. Of what else may happen, nothing is known.
    return not isinstance(error, asyncpg.InterfaceError)


def of_call(error: Exception, broken: bool) -> EngineFailure:
    """The failure of a call; `broken` when its connection was lost under it."""
    match error:
        case asyncpg.ReadOnlySQLTransactionError():
            return EngineFailure(
                "PostgreSQL accepts no writes; the request had no effect; check that the engine URL names the primary"
            )
        case _ if broken:
            log.warning("lost a PostgreSQL connection during a call; its outcome is unknown: %s", _words(error))
            return EngineFailure(
                f"lost the connection to PostgreSQL ({_words(error)}); it is unknown whether the request took effect",
                code="outcome_unknown",
            )
        case asyncpg.DiskFullError():
            return DiskFull("the disk of the PostgreSQL server is full; the request had no effect; free disk space")
        case asyncpg.QueryCanceledError():
            return EngineFailure(
                "PostgreSQL took longer than postgres.statement_timeout_ms; the request had no effect; retry, or "
                "raise that setting"
            )
        case asyncpg.LockNotAvailableError():
            return EngineFailure("a table of PostgreSQL was in use for too long; the request had no effect; retry")
        case asyncpg.PostgresError():
            log.error("PostgreSQL rejected a call: %s", error, exc_info=error)
            return EngineFailure(f"PostgreSQL failed: {_words(error)}; the request had no effect")
        case _:
            log.error("a PostgreSQL call failed because of a bug; please report it", exc_info=error)
            text = f"internal error: {type(error).__name__}; the request had no effect; see the server log"
            return EngineFailure(text, code="internal")


def of_first_connection(error: Exception, url: str) -> StoreUnusable | InvalidSetting:
    """Why the server cannot connect to the database at start-up, and the remedy."""
    where = shown(url)
    match error:
        case asyncpg.InvalidCatalogNameError():
            return StoreUnusable(f"{where}: the database does not exist; create it with createdb")
        case asyncpg.InvalidAuthorizationSpecificationError():
            return StoreUnusable(f"{where}: {_words(error)}; check the user, the password and pg_hba.conf")
        case asyncpg.TooManyConnectionsError():
            return StoreUnusable(
                f"{where}: {_words(error)}; raise max_connections in PostgreSQL or lower postgres.pool_size"
            )
        case asyncpg.CannotConnectNowError():
            return StoreUnusable(f"{where}: {_words(error)}; retry in a moment")
        case asyncpg.PostgresError() if "startup parameter" in str(error):
            return StoreUnusable(f"{where}: {_words(error)}; behind pgbouncer set postgres.prepared to false")
        case asyncpg.PostgresError():
            return StoreUnusable(f"{where}: {_words(error)}")
        case OSError():
            return StoreUnusable(
                f"{where} is not reachable ({_words(error)}); check that PostgreSQL is running, and the engine URL"
            )
        case _:
            # The error text can quote the URL, and so the password.
            return InvalidSetting("engine: expected postgresql://user:password@host:port/database")


def away(why: str) -> EngineFailure:
    """The error of a call while no connection to PostgreSQL works."""
    return EngineFailure(
        f"PostgreSQL is unavailable ({why}); the request had no effect; retry later", code="store_unavailable"
    )


def of_waiting(seconds: float) -> EngineFailure:
    """The error of a call that got no connection in time."""
    return EngineFailure(
        f"all PostgreSQL connections were busy for {seconds:g} s; the request had no effect; retry, or raise "
        "postgres.pool_size"
    )


def _words(error: Exception) -> str:
    """The text of an error, on one line."""
    if isinstance(error, FileNotFoundError):
        return "no server listens on its socket"
    return " ".join(str(error).split()) or type(error).__name__


pass


_ATTEMPT_SECONDS = 1.0
"""Between the beginnings of two attempts to connect; after this time without an answer the database is away."""
_PROBE_SECONDS = (1.0, 2.0, 4.0, 8.0)
"""How long an attempt may take while the database is away: an attempt that hangs must not hide its return."""
_PROBE_PAUSES = (0.1, 0.2, 0.4, 0.8, 1.0)
"""Between two attempts while the database is away."""
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
        self._lost_all = False
        self._away = False
        """No connection works: calls are refused at once, and one attempt at a time tries the database (rule 29)."""
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
        if self._away:
            raise away(self._why)
        self._target = min(self._limit, max(self._target, len(self._open) + len(self._waiters) + 1))
        self._look_for_lack()
        try:
            async with asyncio.timeout(self._wait_seconds):
                while (connection := await self._next()).is_closed():
                    pass
                return connection
        except TimeoutError as error:
            raise of_waiting(self._wait_seconds) from error

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
            self._lost_all = True
            log.warning(
                "PostgreSQL is unavailable: lost all connections; reconnecting", extra={"fields": {"store": "away"}}
            )
        self._look_for_lack()

    def _is_away(self, why: str) -> None:
        """An attempt to connect failed, or got no answer: unless there are connections, nothing can be done now."""
        self._why = why
        if self._open or self._closing:
            return
        self._away = True
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(away(why))

    def _look_for_lack(self) -> None:
        """Wake the keeper if connections are missing and not yet being made."""
        if len(self._open) + len(self._attempts) < self._target:
            self._lacking.set()
        else:
            self._lacking.clear()

    async def _keep(self) -> None:
        """Make what is missing: at once, and once a second while that fails, or with pauses that grow if none is left.

        An attempt may hang. While others work the next one does not wait for it.
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
            if not done and not self._open:
                self._is_away(f"it has not answered for {_ATTEMPT_SECONDS:g} s")
                attempt.cancel()
            for tried in count():
                if not self._away:
                    break
                await asyncio.sleep(_PROBE_PAUSES[min(tried, len(_PROBE_PAUSES) - 1)])
                await self._attempt(_PROBE_SECONDS[min(tried, len(_PROBE_SECONDS) - 1)])
            if done and not attempt.result():
                await asyncio.sleep(began + _ATTEMPT_SECONDS - clock())

    def _attempt_ended(self, attempt: asyncio.Task[bool]) -> None:
        self._attempts.discard(attempt)
        self._look_for_lack()

    async def _attempt(self, seconds: float | None = None) -> bool:
        """Try to make one connection."""
        try:
            async with asyncio.timeout(seconds):
                connection = await self._make()
        except Exception as error:  # whatever it is, the next attempt may succeed
            self.failures += 1
            why = _words(error)
            if why != self._why:
                log.warning("cannot connect to PostgreSQL; retrying: %s", why, extra={"fields": {"store": "away"}})
            self._is_away(why)
            return False
        self._why = ""
        self._away = False
        self.give(connection)
        if self._lost_all:
            self._lost_all = False
            log.warning("PostgreSQL is available again", extra={"fields": {"store": "back"}})
            asyncio.get_running_loop().call_soon(self._on_return)
        return True


def _stopping() -> EngineFailure:
    return EngineFailure("the server is shutting down; retry", code="stopping")
