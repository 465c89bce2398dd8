"""Connections to PostgreSQL, and calls on them: one statement is one transaction.

No state is kept in a session, so a pooler in transaction mode may stand between. A pooler that knows no prepared
statements or refuses start-up parameters needs `prepared=False`. Then a call takes four round trips instead of one: it
opens a transaction, which also sets the limits that a session has otherwise.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Any, TypeVar

import asyncpg

from hark.batching import Answer, when_done
from hark.clock import Clock
from hark.errors import DiskFull, EngineFailure, InvalidSetting, StoreUnusable

log = logging.getLogger(__name__)

Q = TypeVar("Q")
S = TypeVar("S")
T = TypeVar("T")

OLDEST_SERVER = 14
_CONNECT_SECONDS = 8.0
_GRACE_SECONDS = 5.0
"""How much later than the server, which ends a statement that takes too long, a call gives its connection up."""
_NOTICE = "HK100"
"""The code of notices that procedures send to the server, not to people."""
_TRY_AGAIN = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)
"""PostgreSQL rolled the transaction back because of a concurrent one; a retry of the call can succeed."""
_PAUSES = (0.005, 0.01, 0.02, 0.04, 0.08)
"""Maximum seconds before each retry."""
_ATTEMPT_SECONDS = 1.0
"""Between the beginnings of two attempts to connect; after this time without an answer the database is unavailable."""
_PROBE_SECONDS = (1.0, 2.0, 4.0, 8.0)
"""Limits of the attempts while the database is unavailable: an attempt that hangs must not hide its return."""
_PROBE_PAUSES = (0.1, 0.2, 0.4, 0.8, 1.0)
"""Between two attempts while the database is unavailable."""
_CLOSE_SECONDS = 2.0


class Call(Answer[T]):
    """A coroutine that runs without a task: at once until it waits for a future, then in a callback of that future.

    A caller that is cancelled cancels only this answer, and the coroutine runs to its end. The coroutine must not use
    what needs a task (`asyncio.timeout`).
    """

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        super().__init__(loop=asyncio.get_running_loop())
        self._coroutine = coroutine
        self._step()

    def _step(self, _awaited: object = None) -> None:
        try:
            future = self._coroutine.send(None)
        except StopIteration as end:
            if not self.done():
                self.set_result(end.value)
        except asyncio.CancelledError:
            self.cancel()
        except Exception as error:
            if not self.done():
                self.set_exception(error)
        else:
            if future is None:  # a sleep of no length
                self.get_loop().call_soon(self._step)
            else:
                future._asyncio_future_blocking = False  # the sign that its awaiter waits for it
                when_done(future, self._step)


def without_task(body: Callable[[S, Sequence[Q]], Coroutine[Any, Any, T]]) -> Callable[[S, Sequence[Q]], Awaitable[T]]:
    """Make a verb of many callers, which needs no task of its own."""

    def verb(store: S, requests: Sequence[Q]) -> Awaitable[T]:
        return Call(body(store, requests))

    return verb


class Pool:
    """Runs statements on up to `size` connections, which are made as they are needed and used last in, first out."""

    def __init__(
        self,
        url: str,
        *,
        size: int = 8,
        statement_timeout_ms: int = 30_000,
        wait_ms: int = 10_000,
        prepared: bool = True,
        clock: Clock | None = None,
        on_return: Callable[[], None] = lambda: None,
        on_notice: Callable[[Sequence[str]], None] = lambda _texts: None,
    ) -> None:
        self._url = url
        self._limit = size
        self._wait_seconds = wait_ms / 1000
        self._call_seconds = statement_timeout_ms / 1000 + _GRACE_SECONDS
        self._prepared = prepared
        self.clock = clock
        """Of a test; None: the database uses its own."""
        self._on_return = on_return
        self._on_notice = on_notice
        self._notices: dict[asyncpg.Connection, list[str]] = {}
        """Texts of procedures during the calls that run."""
        self._session = {
            "statement_timeout": str(statement_timeout_ms),
            "idle_in_transaction_session_timeout": str(statement_timeout_ms),
            "jit": "off",
            "plan_cache_mode": "force_generic_plan",  # else each statement of a procedure is planned again and again
            # Not where other roles may create functions, which would run with the rights of this one.
            "search_path": "pg_catalog, pg_temp",
        }
        self._set_local = "; ".join(f"set local {name} = {value}" for name, value in self._session.items())
        self.connects = 0
        """Connections that were made so far."""
        self.failures = 0
        """Attempts to connect that failed so far."""
        self._open: set[asyncpg.Connection] = set()
        self._idle: list[asyncpg.Connection] = []
        self._waiters: deque[asyncio.Future[asyncpg.Connection]] = deque()
        self._target = 1
        """Wanted number of connections: the most that were ever needed at once."""
        self._attempts: set[asyncio.Task[bool]] = set()
        self._lacking = asyncio.Event()
        self._given_back = asyncio.Event()
        self._lost_all = False
        self._away = False
        """No connection works: calls are refused at once, and one attempt at a time tries the database (rule 29)."""
        self._why = ""
        self.closing = False
        self._keeper: asyncio.Task[None] | None = None

    @property
    def size(self) -> int:
        """Number of open connections."""
        return len(self._open)

    @property
    def idle(self) -> int:
        """Number of idle connections."""
        return len(self._idle)

    @property
    def waiting(self) -> int:
        """Number of calls that wait for a connection."""
        return len(self._waiters)

    # Life --------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Make the first connection; raises `StoreUnusable` with what to do."""
        try:
            connection = await self._make()
        except Exception as error:
            raise _of_first_connection(error, self._url) from error
        self._keeper = asyncio.create_task(self._keep())
        version = connection.get_server_version().major
        self._give(connection)
        if version < OLDEST_SERVER:
            await self.close()
            raise StoreUnusable(f"{shown(self._url)} runs PostgreSQL {version}; upgrade it to {OLDEST_SERVER} or newer")

    async def close(self) -> None:
        """Refuse the calls that wait, finish those that run, and close all connections."""
        self.closing = True
        tasks = {*self._attempts, *([self._keeper] if self._keeper else ())}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._refuse_waiters(_stopping)
        while self._open:
            while self._idle:
                with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                    await self._idle.pop().close(timeout=_CLOSE_SECONDS)
            self._given_back.clear()
            if self._open and not self._idle:
                await self._given_back.wait()

    # Calls -------------------------------------------------------------------------------------------------

    async def fetch(self, sql: str, *args: object) -> list[asyncpg.Record]:
        """Run one statement as one transaction; raises `EngineFailure`.

        The statement of a caller that is cancelled runs to its end: half a call would cost a connection.
        """
        for tries in count():
            connection = await self._take()
            run = self._run(connection, sql, args)
            try:
                # Only a task can be cancelled. A verb that is a `Call` has none.
                return await (run if asyncio.current_task() is None else Call(run))
            except _TRY_AGAIN as error:
                if tries == len(_PAUSES):
                    raise _of_call(error, broken=False) from error
                # Jitter: transactions that got into each other's way must not meet again.
                await asyncio.sleep(random.uniform(0, _PAUSES[tries]))
        raise AssertionError

    @property
    def time(self) -> int | None:
        """The first argument of procedures that depend on the time; null: that of the database."""
        return None if self.clock is None else self.clock.now()

    def call(self, sql: str, *args: object) -> Coroutine[Any, Any, list[asyncpg.Record]]:
        """Do as `fetch`, with the time as the first argument."""
        return self.fetch(sql, self.time, *args)

    async def fetchrow(self, sql: str, *args: object) -> asyncpg.Record | None:
        """Do as `fetch`, for the first row."""
        rows = await self.fetch(sql, *args)
        return rows[0] if rows else None

    async def fetchval(self, sql: str, *args: object) -> Any:
        """Do as `fetch`, for the first value of the first row."""
        rows = await self.fetch(sql, *args)
        return rows[0][0] if rows else None

    @asynccontextmanager
    async def connection(self, *, transaction: bool = True) -> AsyncIterator[asyncpg.Connection]:
        """A connection for a few statements that belong together, inside a transaction unless they can't be."""
        connection = await self._take()
        try:
            if transaction:
                async with connection.transaction():
                    if not self._prepared:
                        await connection.execute(self._set_local)
                    yield connection
            else:
                yield connection
            self._pass_on(connection)
        except asyncio.CancelledError:
            connection.terminate()
            raise
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
            raise self._failed(connection, error) from error
        finally:
            self._notices.pop(connection, None)
            self._give(connection)

    async def run_alone(self, sql: str) -> None:
        """Run a statement that can't be part of a transaction; raises `EngineFailure`."""
        async with self.connection(transaction=False) as connection:
            await connection.execute(sql, timeout=self._call_seconds)

    async def _run(self, connection: asyncpg.Connection, sql: str, args: tuple[object, ...]) -> list[asyncpg.Record]:
        try:
            if self._prepared:
                rows: list[asyncpg.Record] = await connection.fetch(sql, *args, timeout=self._call_seconds)
            else:
                rows = await self._run_in_transaction(connection, sql, args)
            if self._notices:
                self._pass_on(connection)
            return rows
        except _TRY_AGAIN:
            raise
        except Exception as error:
            raise self._failed(connection, error) from error
        finally:
            self._notices.pop(connection, None)
            self._give(connection)

    async def _run_in_transaction(
        self, connection: asyncpg.Connection, sql: str, args: tuple[object, ...]
    ) -> list[asyncpg.Record]:
        await connection.execute(f"begin; {self._set_local}", timeout=self._call_seconds)
        try:
            rows: list[asyncpg.Record] = await connection.fetch(sql, *args, timeout=self._call_seconds)
        except (asyncpg.PostgresError, asyncpg.InterfaceError):
            await connection.execute("rollback", timeout=self._call_seconds)
            raise
        await connection.execute("commit", timeout=self._call_seconds)
        return rows

    def _listen(self, connection: asyncpg.Connection, message: asyncpg.PostgresLogMessage) -> None:
        if message.sqlstate == _NOTICE:
            self._notices.setdefault(connection, []).append(message.message)

    def _pass_on(self, connection: asyncpg.Connection) -> None:
        """Pass on the notices of a call that was committed."""
        texts = self._notices.pop(connection, None)
        if texts and not self.closing:
            self._on_notice(texts)

    def _failed(self, connection: asyncpg.Connection, error: Exception) -> EngineFailure:
        """Drop the connection if it can't be used again, and translate the error."""
        broken = connection.is_closed() or _is_broken(error)
        if broken:
            connection.terminate()
        if isinstance(error, TimeoutError):
            # Not even an error came back: the network is gone, and the connections that are idle know nothing of it.
            for idle in self._idle:
                idle.terminate()
        return _of_call(error, broken)

    # Handing out -------------------------------------------------------------------------------------------

    async def _take(self) -> asyncpg.Connection:
        """Get a connection that lives; what breaks before anything was sent costs the caller nothing."""
        if self.closing:
            raise _stopping()
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        if self._away:
            raise _unavailable(self._why)
        self._target = min(self._limit, max(self._target, len(self._open) + len(self._waiters) + 1))
        self._look_for_lack()
        loop = asyncio.get_running_loop()
        until = loop.time() + self._wait_seconds
        while (connection := await self._next(until)).is_closed():
            pass
        return connection

    def _give(self, connection: asyncpg.Connection) -> None:
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

    async def _next(self, until: float) -> asyncpg.Connection:
        """Wait for a connection that is given back or made, until a time of the loop."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[asyncpg.Connection] = loop.create_future()
        timer = loop.call_at(until, self._waited, waiter)
        self._waiters.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._give(waiter.result())
            raise
        finally:
            timer.cancel()
            with suppress(ValueError):
                self._waiters.remove(waiter)

    def _waited(self, waiter: asyncio.Future[asyncpg.Connection]) -> None:
        if not waiter.done():
            text = (
                f"all PostgreSQL connections were busy for {self._wait_seconds:g} s; the request had no effect; retry, "
                "or raise postgres.pool_size"
            )
            waiter.set_exception(EngineFailure(text))

    def _refuse_waiters(self, error: Callable[[], EngineFailure]) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(error())

    # Keeping -----------------------------------------------------------------------------------------------

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

    async def session(self) -> asyncpg.Connection | None:
        """A connection beside the limit, for what needs a session of its own; None behind a pooler."""
        return await self._connect() if self._prepared else None

    async def _make(self) -> asyncpg.Connection:
        connection = await self._connect()
        connection.add_termination_listener(self._lost)
        self._open.add(connection)
        self.connects += 1
        return connection

    def _lost(self, connection: asyncpg.Connection) -> None:
        """Forget a connection that ended; the keeper makes another one."""
        self._open.discard(connection)
        with suppress(ValueError):
            self._idle.remove(connection)
        self._given_back.set()
        if not self._open and not self.closing:
            self._lost_all = True
            log.warning(
                "PostgreSQL is unavailable: lost all connections; reconnecting", extra={"fields": {"store": "away"}}
            )
        self._look_for_lack()

    def _is_away(self, why: str) -> None:
        """An attempt to connect failed, or got no answer: unless there are connections, nothing can be done now."""
        self._why = why
        if self._open or self.closing:
            return
        self._away = True
        self._refuse_waiters(lambda: _unavailable(why))

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
        self._give(connection)
        if self._lost_all:
            self._lost_all = False
            log.warning("PostgreSQL is available again", extra={"fields": {"store": "back"}})
            asyncio.get_running_loop().call_soon(self._on_return)
        return True


# Errors ----------------------------------------------------------------------------------------------------


def shown(url: str) -> str:
    """The URL of a database without its password, which can also be in the query."""
    return re.sub(r"//.*@", "//", url).partition("?")[0]


def _is_broken(error: Exception) -> bool:
    """Whether a connection on which this happened must not be used again."""
    if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
        return True  # the server became a standby: a new connection may find the one that writes
    if isinstance(error, asyncpg.PostgresError):
        fatal = getattr(error, "severity_en", None) in ("FATAL", "PANIC")
        return fatal or isinstance(error, asyncpg.PostgresConnectionError)
    # What asyncpg itself refuses was never sent. Of what else may happen, nothing is known.
    return not isinstance(error, asyncpg.InterfaceError)


def _of_call(error: Exception, broken: bool) -> EngineFailure:
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


def _of_first_connection(error: Exception, url: str) -> StoreUnusable | InvalidSetting:
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


def _stopping() -> EngineFailure:
    return EngineFailure("the server is shutting down; retry", code="stopping")


def _unavailable(why: str) -> EngineFailure:
    return EngineFailure(
        f"PostgreSQL is unavailable ({why}); the request had no effect; retry later", code="store_unavailable"
    )


def _words(error: Exception) -> str:
    """The text of an error, on one line."""
    if isinstance(error, FileNotFoundError):
        return "no server listens on its socket"
    return " ".join(str(error).split()) or type(error).__name__
