"""The PostgreSQL engine: many servers, one store."""

from hark.errors import InvalidSetting

try:
    import asyncpg  # noqa: F401  # looked for here, so that no part of the engine has to
except ImportError as error:
    raise InvalidSetting(
        "engine: asyncpg for PostgreSQL is missing; install it with: pip install 'hark-mq[postgres]'"
    ) from error

from hark.engine.postgres.engine import PostgresEngine

__all__ = ["PostgresEngine"]
