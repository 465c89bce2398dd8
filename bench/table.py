"""Hark's message table, with its indexes and durability and nothing around it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import apsw

from hark.engine.core import schema

COLUMNS = ("partition", "offset", "created_at", "payload")
ROWS_PER_STATEMENT = 64
Value = int | bytes


def open_table(path: Path) -> apsw.Connection:
    """A new database with the message table: WAL, and a commit waits for the disk."""
    connection = apsw.Connection(str(path))
    connection.pragma("journal_mode", "wal")
    connection.pragma("synchronous", "full")
    connection.pragma("cache_size", -64 * 1024)  # KiB: else a commit over 1000 partitions writes its pages twice
    schema.migrate(connection)  # The other tables stay empty.
    return connection


def insert_sql(rows: int = 1) -> str:
    """An insert of so many rows."""
    placeholders = ", ".join([f"({', '.join('?' * len(COLUMNS))})"] * rows)
    return f"insert into messages ({', '.join(COLUMNS)}) values {placeholders}"


def insert_wide(connection: apsw.Connection, flat: Sequence[Value]) -> None:
    """Insert rows given as one flat list, 64 to a statement.

    apsw gives up the interpreter lock once a row: beside a busy event loop that costs 15 us, a wide one 4 us.
    """
    width = ROWS_PER_STATEMENT * len(COLUMNS)
    whole = len(flat) - len(flat) % width
    for start in range(0, whole, width):
        connection.execute(insert_sql(ROWS_PER_STATEMENT), flat[start : start + width])
    if whole < len(flat):
        connection.execute(insert_sql((len(flat) - whole) // len(COLUMNS)), flat[whole:])
