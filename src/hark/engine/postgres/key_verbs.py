"""The verbs of `KeyValueEngine` on PostgreSQL."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from hark.clock import Clock
from hark.engine.api import Answers, KeyListener, ignore_keys
from hark.engine.keyvalue import StatsMemory, written_of
from hark.engine.postgres import keyvalue
from hark.engine.postgres.pool import Pool
from hark.errors import HarkError
from hark.model import (
    Key,
    KeyEntry,
    KeyNews,
    KeyRange,
    KeyStats,
    KeyWrite,
    KeyWritten,
    Transaction,
    TransactionOutcome,
)


class KeyVerbs(ABC):
    """Each is one call of a procedure; `write_keys` is a transaction that has nothing but keys and messages."""

    _pool: Pool

    def __init__(self, local_clock: Clock) -> None:
        self._local_clock = local_clock
        self._key_listener: KeyListener = ignore_keys
        self._key_stats = StatsMemory(lambda: keyvalue.key_stats(self._pool, self._now))

    @property
    @abstractmethod
    def _now(self) -> int | None: ...

    @abstractmethod
    async def transact(self, requests: Sequence[Transaction]) -> Answers[TransactionOutcome]:
        """See `Engine.transact`."""

    @abstractmethod
    def _to_local(self, time: int) -> int: ...

    async def read_keys(self, keys: Sequence[Key]) -> list[KeyEntry | None]:
        """See `KeyValueEngine.read_keys`."""
        return await keyvalue.read_keys(self._pool, self._now, keys, self._to_local)

    async def list_keys(self, ranges: Sequence[KeyRange]) -> list[list[KeyEntry]]:
        """See `KeyValueEngine.list_keys`."""
        return await keyvalue.list_keys(self._pool, self._now, ranges, self._to_local)

    async def count_keys(self, prefix: Key) -> int:
        """See `KeyValueEngine.count_keys`."""
        return await keyvalue.count_keys(self._pool, self._now, prefix)

    async def write_keys(self, requests: Sequence[KeyWrite]) -> Answers[KeyWritten]:
        """See `KeyValueEngine.write_keys`."""
        outcomes = await self.transact([Transaction((), keys=request) for request in requests])
        return [outcome if isinstance(outcome, HarkError) else written_of(outcome) for outcome in outcomes]

    async def sweep_keys(self, limit: int = 1000) -> int:
        """See `KeyValueEngine.sweep_keys`."""
        return int(await self._pool.fetchval("select hark.sweep_keys_v1($1, $2)", self._now, limit))

    async def key_stats(self) -> KeyStats:
        """See `KeyValueEngine.key_stats`."""
        return await self._key_stats.stats(self._local_clock.now())

    def _tell_keys(self, changed: Iterable[Key]) -> None:
        """Keys were written by a call that has come back."""
        keys = tuple(changed)
        if keys:
            self._key_listener(KeyNews(keys))

    def _told_keys(self, told: Sequence[str]) -> None:
        """The database said which keys a call changed besides."""
        self._key_listener(keyvalue.news_of(told))
