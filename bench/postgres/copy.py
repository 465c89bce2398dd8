"""Limit (c): binary COPY of messages into Hark's table, a batch a commit."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from itertools import count

from bench.postgres.table import Connection, make_partitions, open_tables
from bench.rows import SIZE
from hark.cli.bench import payload_of

BATCH = 1000
COLUMNS = ("slot", "partition", "offset", "created_at", "payload", "transaction_id")
CREATED_AT = 1_700_000_000_000_000


class TransactionIds:
    """New transaction ids of 36 characters, as the official clients send; or none at all."""

    def __init__(self, wanted: bool) -> None:
        self._tag = f"{secrets.token_hex(4)}-0000-4000-8000-" if wanted else ""
        self._serial = count()

    def batch(self) -> list[str | None]:
        """One for each message of a batch."""
        if not self._tag:
            return [None] * BATCH
        return [f"{self._tag}{next(self._serial):012x}" for _ in range(BATCH)]


class Copier:
    """Copies batches into a database, the messages of each in turn to all partitions."""

    def __init__(self, connection: Connection, partitions: Sequence[int], ids: TransactionIds) -> None:
        self._connection = connection
        self._partitions = partitions
        self._ids = ids
        self._payload = payload_of(SIZE)
        self._serial = 0

    @classmethod
    async def open(cls, url: str, partitions: int, ids: TransactionIds) -> Copier:
        """With new partitions in the database."""
        connection = await open_tables(url)
        return cls(connection, await make_partitions(connection, [f"p{n}" for n in range(partitions)]), ids)

    async def batch(self) -> None:
        """Copy the next batch."""
        width = len(self._partitions)
        numbers = range(self._serial, self._serial + BATCH)
        self._serial += BATCH
        records = [
            (0, self._partitions[n % width], n // width + 1, CREATED_AT, self._payload, transaction_id)
            for n, transaction_id in zip(numbers, self._ids.batch(), strict=True)
        ]
        await self._connection.copy_records_to_table("messages", schema_name="hark", columns=COLUMNS, records=records)

    async def close(self) -> None:
        """Let go of the database."""
        await self._connection.close()
