"""Translates PostgreSQL errors to Hark's errors and codes."""

from __future__ import annotations

import logging
import re

import asyncpg

from hark.errors import EngineFailure, InvalidSetting, StoreUnusable

log = logging.getLogger(__name__)

TRY_AGAIN = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)
"""PostgreSQL rolled the transaction back because of a concurrent one; a retry of the call can succeed."""

_DISK_FULL_RETRY_SECONDS = 10


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
            text = "the disk of the PostgreSQL server is full; the request had no effect; free disk space"
            return EngineFailure(text, code="disk_full", retry_after=_DISK_FULL_RETRY_SECONDS)
        case asyncpg.QueryCanceledError():
            return EngineFailure(
                "PostgreSQL took longer than postgres.statement_timeout_ms; the request had no effect; retry, or "
                "raise that setting"
            )
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


def of_waiting(seconds: float, away: bool, why: str) -> EngineFailure:
    """The error of a call that got no connection in time."""
    if away:
        return EngineFailure(f"PostgreSQL is unavailable ({why}); the request had no effect; retry later")
    return EngineFailure(
        f"all PostgreSQL connections were busy for {seconds:g} s; the request had no effect; retry, or raise "
        "postgres.pool_size"
    )


def _words(error: Exception) -> str:
    """The text of an error, on one line."""
    return " ".join(str(error).split()) or type(error).__name__
