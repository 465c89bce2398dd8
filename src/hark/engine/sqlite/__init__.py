"""The embedded engine: SQLite in the server's process."""

from hark.engine.sqlite.engine import SqliteEngine

__all__ = ["SqliteEngine"]
