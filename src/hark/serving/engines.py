"""Which engine the settings name, and what to call it."""

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
    """The engine that the settings name; `polling` is for a store that has to be asked whether there is news."""
    if is_postgres(settings):
        return _on_postgres(settings)
    if is_s3(settings):
        return _on_s3(settings, clock, strategy_from(settings, polling))
    path = sqlite_path(settings)
    if path is None:
        raise InvalidSetting(
            f"engine: {shown(settings, 'engine')!r} is not an engine that this Hark has; use sqlite:///file.db, "
            f"postgresql://user:password@host:port/database, s3://bucket/prefix, memory, or leave it empty for a file "
            f"under {settings.data!r}"
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

    # Without a clock of ours: many servers share the database's.
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
    """A file has one server: whoever wants more than that should know, and not wonder why nothing comes of it."""
    if is_postgres(settings) or is_s3(settings):
        return
    if settings.workers > 1:
        raise InvalidSetting(f"workers: {settings.workers} server processes can't share one SQLite store; use 1")
    for name, value in (("peers", settings.peers), ("peer.port", settings.peer.port)):
        if value:
            raise InvalidSetting(
                f"{name}: a SQLite store has one server, so it has no peers; leave it out, or use PostgreSQL or S3"
            )


def is_postgres(settings: Settings) -> bool:
    """Whether the settings name a PostgreSQL database."""
    return settings.engine.startswith(_POSTGRES_SCHEMES)


def is_s3(settings: Settings) -> bool:
    """Whether the settings name a bucket."""
    return settings.engine.startswith(S3_SCHEME)


def sqlite_path(settings: Settings) -> str | None:
    """Where the SQLite engine keeps its data; None when the settings name another engine."""
    if not settings.engine:
        return str(Path(settings.data) / "hark.db")
    if settings.engine in ("memory", "memory://", "sqlite://:memory:", "sqlite:///:memory:"):
        return ":memory:"
    if settings.engine.startswith("sqlite:///"):
        return settings.engine.removeprefix("sqlite:///")
    return None


def describe(settings: Settings) -> str:
    """The store, in words and without a password."""
    if is_postgres(settings):
        from hark.engine.postgres import failures

        return failures.shown(settings.engine)
    if is_s3(settings):
        from hark.engine.s3.bucket.address import Address

        return Address.parse(settings.engine).text
    path = sqlite_path(settings)
    return "from memory (nothing is kept)" if path == ":memory:" else str(path)
