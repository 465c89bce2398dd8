"""What went wrong with the database, in the words and codes of Hark."""

from __future__ import annotations

import logging
import re

import asyncpg

from hark.errors import EngineFailure, InvalidSetting, StoreUnusable

log = logging.getLogger(__name__)

TRY_AGAIN = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)
"""The database rolled the transaction back because of another one; the same call may well succeed now."""

_DISK_FULL_RETRY_SECONDS = 10


def shown(url: str) -> str:
    """The URL of a database without its password, which may also be in the query."""
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
            return EngineFailure("the database takes no writes (a standby?); nothing of this request was kept")
        case _ if broken:
            log.warning("a connection to the database was lost under a call: %s", _words(error))
            return EngineFailure(
                f"the connection to the database was lost ({_words(error)}); whether this request was kept is unknown",
                code="outcome_unknown",
            )
        case asyncpg.DiskFullError():
            text = "the database's disk is full: nothing of this request was kept"
            return EngineFailure(text, code="disk_full", retry_after=_DISK_FULL_RETRY_SECONDS)
        case asyncpg.QueryCanceledError():
            return EngineFailure(
                "the database took longer than postgres.statement_timeout_ms; nothing of this request was kept"
            )
        case asyncpg.PostgresError():
            log.error("the database refused a call: %s", error, exc_info=error)
            return EngineFailure(f"the database failed: {_words(error)}; nothing of this request was kept")
        case _:
            log.error("a call of the database failed", exc_info=error)
            text = f"internal error: {type(error).__name__}; nothing of this request was kept"
            return EngineFailure(text, code="internal")


def of_first_connection(error: Exception, url: str) -> StoreUnusable | InvalidSetting:
    """Why the database can't be used at all, and what to do."""
    where = shown(url)
    match error:
        case asyncpg.InvalidCatalogNameError():
            return StoreUnusable(f"{where}: there is no such database; make it with createdb")
        case asyncpg.InvalidAuthorizationSpecificationError():
            return StoreUnusable(f"{where}: {_words(error)}; check user, password and the server's pg_hba.conf")
        case asyncpg.TooManyConnectionsError():
            return StoreUnusable(
                f"{where}: {_words(error)}; raise the server's max_connections or lower postgres.pool_size"
            )
        case asyncpg.CannotConnectNowError():
            return StoreUnusable(f"{where}: {_words(error)}; try again in a moment")
        case asyncpg.PostgresError() if "startup parameter" in str(error):
            return StoreUnusable(f"{where}: {_words(error)}; behind pgbouncer set postgres.prepared to false")
        case asyncpg.PostgresError():
            return StoreUnusable(f"{where}: {_words(error)}")
        case OSError():
            return StoreUnusable(
                f"{where} is not reachable ({_words(error)}); is the server running, is the URL right?"
            )
        case _:
            # Its words may quote the URL, and so the password.
            return InvalidSetting("engine: expected postgresql://user:password@host:port/database")


def of_waiting(seconds: float, away: bool, why: str) -> EngineFailure:
    """No connection became free in time."""
    if away:
        return EngineFailure(f"the database is away ({why}); nothing of this request was kept")
    return EngineFailure(
        f"all connections to the database were busy for {seconds:g} s; nothing of this request was kept; "
        "postgres.pool_size says how many there are"
    )


def _words(error: Exception) -> str:
    """An error's own words, on one line."""
    return " ".join(str(error).split()) or type(error).__name__
