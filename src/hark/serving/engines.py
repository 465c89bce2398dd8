"""Creates the engine that the settings name."""

from __future__ import annotations

from pathlib import Path

import msgspec

from hark.clock import Clock
from hark.engine.api import Engine
from hark.engine.sqlite import SqliteEngine
from hark.errors import InvalidSetting
from hark.polling import PollingStrategy, strategy_from
from hark.settings import Settings, shown

S3_SCHEME = "s3://"
_POSTGRES_SCHEMES = ("postgresql://", "postgres://")


def make_engine(settings: Settings, clock: Clock, polling: PollingStrategy | None = None) -> Engine:
    """The engine that the settings name. `polling` is for S3, which has to be polled for changes."""
    if is_postgres(settings):
        return _on_postgres(settings)
    if is_s3(settings):
        return _on_s3(settings, clock, strategy_from(settings, polling))
    path = sqlite_path(settings)
    if path is None:
        raise InvalidSetting(
            f"engine: {shown(settings, 'engine')!r} is not supported; use sqlite:///file.db, "
            f"postgresql://user:password@host:port/database, s3://bucket/prefix or memory, or leave it empty for a "
            f"SQLite file in {settings.data!r}"
        )
    retention = settings.retention
    return SqliteEngine(
        path,
        clock=clock,
        completed_retention_seconds=retention.completed_seconds,
        idle_group_seconds=retention.idle_group_days * 86400,
    )


def _on_postgres(settings: Settings) -> Engine:
    from hark.engine.postgres import PostgresEngine

    # Without a local clock: all servers use the clock of the database.
    return PostgresEngine(
        settings.engine,
        completed_retention_seconds=settings.retention.completed_seconds,
        idle_group_seconds=settings.retention.idle_group_days * 86400,
        **msgspec.structs.asdict(settings.postgres),
    )


def _on_s3(settings: Settings, clock: Clock, polling: PollingStrategy) -> Engine:
    from hark.engine.s3.engine import S3Engine

    return S3Engine(
        settings.engine,
        clock=clock,
        settings=settings.s3,
        completed_retention_seconds=settings.retention.completed_seconds,
        idle_group_seconds=settings.retention.idle_group_days * 86400,
        polling=polling,
    )


def refuse_company_on_sqlite(settings: Settings) -> None:
    """Reject settings for several servers on SQLite: a SQLite file has one server process."""
    if is_postgres(settings) or is_s3(settings):
        return
    if settings.workers > 1:
        raise InvalidSetting(
            f"setting workers: {settings.workers} server processes cannot share one SQLite store; use 1, or use "
            "PostgreSQL or S3"
        )
    for name, value in (("peers", settings.peers), ("peer.port", settings.peer.port)):
        if value:
            raise InvalidSetting(
                f"setting {name}: a SQLite store has one server and no peers; remove it, or use PostgreSQL or S3"
            )


def is_postgres(settings: Settings) -> bool:
    """Whether the settings name a PostgreSQL database."""
    return settings.engine.startswith(_POSTGRES_SCHEMES)


def is_s3(settings: Settings) -> bool:
    """Whether the settings name a bucket."""
    return settings.engine.startswith(S3_SCHEME)


def sqlite_path(settings: Settings) -> str | None:
    """The path of the SQLite file, or None if the settings name another engine."""
    if not settings.engine:
        return str(Path(settings.data) / "hark.db")
    if settings.engine in ("memory", "memory://", "sqlite://:memory:", "sqlite:///:memory:"):
        return ":memory:"
    if settings.engine.startswith("sqlite:///"):
        return settings.engine.removeprefix("sqlite:///")
    return None


def describe(settings: Settings) -> str:
    """The name of the store, without a password."""
    if is_postgres(settings):
        from hark.engine.postgres import failures

        return failures.shown(settings.engine)
    if is_s3(settings):
        from hark.engine.s3.bucket.address import Address

        return Address.parse(settings.engine).text
    path = sqlite_path(settings)
    return "from memory (nothing is kept)" if path == ":memory:" else str(path)
