"""The verbs of `KeyValueEngine` on SQLite."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import apsw

from hark.clock import Clock
from hark.engine.api import Answers
from hark.engine.keyvalue import StatsMemory, written_of
from hark.engine.sqlite import keyvalue, settle
from hark.engine.sqlite.transaction import WriteTransaction
from hark.model import Key, KeyEntry, KeyRange, KeyStats, KeyWrite, KeyWritten, Transaction

T = TypeVar("T")


class KeyVerbs(ABC):
    """Written on the writer, read beside it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._key_stats = StatsMemory(self._count_all)

    @abstractmethod
    def _write(self, body: Callable[[WriteTransaction], T]) -> Awaitable[T]: ...

    @abstractmethod
    async def _read_committed(self, body: Callable[[apsw.Connection], T]) -> T: ...

    async def read_keys(self, keys: Sequence[Key]) -> list[KeyEntry | None]:
        """See `KeyValueEngine.read_keys`."""
        now = self._clock.now()
        return await self._read_committed(lambda connection: keyvalue.read_keys(connection, now, keys))

    async def list_keys(self, ranges: Sequence[KeyRange]) -> list[list[KeyEntry]]:
        """See `KeyValueEngine.list_keys`."""
        now = self._clock.now()
        return await self._read_committed(lambda connection: keyvalue.list_keys(connection, now, ranges))

    async def count_keys(self, prefix: Key) -> int:
        """See `KeyValueEngine.count_keys`."""
        now = self._clock.now()
        return await self._read_committed(lambda connection: keyvalue.count_keys(connection, now, prefix))

    async def write_keys(self, requests: Sequence[KeyWrite]) -> Answers[KeyWritten]:
        """See `KeyValueEngine.write_keys`."""
        transactions = [Transaction((), keys=request) for request in requests]
        outcomes = await self._write(lambda transaction: settle.transact(transaction, transactions))
        return [written_of(outcome) for outcome in outcomes]

    async def sweep_keys(self, limit: int = 1000) -> int:
        """See `KeyValueEngine.sweep_keys`."""
        return await self._write(lambda transaction: transaction.keys.sweep(limit))

    async def key_stats(self) -> KeyStats:
        """See `KeyValueEngine.key_stats`."""
        return await self._key_stats.stats(self._clock.now())

    async def _count_all(self) -> KeyStats:
        now = self._clock.now()
        return await self._read_committed(lambda connection: keyvalue.key_stats(connection, now))
