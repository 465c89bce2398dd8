"""The key-value store above the engine: calls that go together, readable values, and those who watch."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import chain
from typing import Protocol, TypeVar

import msgspec

from hark.batching import Batcher, BatchSizes
from hark.broker.sealing import SealedQueues
from hark.broker.timers import Timers
from hark.broker.watch import Watchers
from hark.engine.api import Engine
from hark.errors import Conflict, HarkError
from hark.keys import encode_key
from hark.model import Key, KeyEntry, KeyRange, KeyStats, KeyWrite, KeyWritten
from hark.settings import Settings

Q = TypeVar("Q")
A = TypeVar("A")

_SEALING_TRIES = 3
_BYTES_PER_ITEM = 16 * 1024


class MakeBatcher(Protocol):
    """How the broker makes its batchers."""

    def __call__(self, name: str, call: Callable[[Sequence[Q]], Awaitable[Sequence[A | HarkError]]]) -> Batcher[Q, A]:
        """A batcher of one verb."""


class KeyValue:
    """Keys and their values; `watchers` notifies the clients that watch them."""

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        sealed: SealedQueues,
        timers: Timers,
        random: Callable[[], float],
        *,
        make_batcher: MakeBatcher,
        check_pushes: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._sealed = sealed
        self._check_pushes = check_pushes
        self._reads: Batcher[Sequence[Key], list[KeyEntry | None]] = make_batcher("read_keys", self._read_together)
        self._writes: Batcher[KeyWrite, KeyWritten] = make_batcher("write_keys", engine.write_keys)
        self.watchers = Watchers(self, settings, timers, random, polls=engine.shared and not engine.follows)

    async def read_keys(self, keys: Sequence[Key]) -> list[KeyEntry | None]:
        """The entries of these keys, with readable values."""
        return [entry if entry is None else self.open(entry) for entry in await self.fetch(keys)]

    async def list_keys(self, wanted: KeyRange) -> list[KeyEntry]:
        """A page of entries, with readable values."""
        return [self.open(entry) for entry in await self.fetch_range(wanted)]

    async def count_keys(self, prefix: Key) -> int:
        """How many entries are below a prefix."""
        return await self._engine.count_keys(prefix)

    async def key_stats(self) -> KeyStats:
        """How much there is."""
        return await self._engine.key_stats()

    async def write_keys(self, write: KeyWrite) -> KeyWritten:
        """Check and change keys, and push what goes with it, all or nothing; returns when it is on stable storage."""
        if write.messages:
            self._check_pushes()
        for _ in range(_SEALING_TRIES):
            try:
                return await self._writes.submit(self._with_sealed_messages(write), _weight(write))
            except HarkError as error:
                if error.code != "sealing_mismatch":
                    raise
            await self._sealed.learn()
        raise Conflict("the encryption of a queue was changed during this request; retry")

    async def fetch(self, keys: Sequence[Key]) -> list[KeyEntry | None]:
        """Entries as they are stored; calls of the same moment go to the engine together."""
        return await self._reads.submit(keys, len(keys))

    async def fetch_range(self, wanted: KeyRange) -> list[KeyEntry]:
        """A page of entries as they are stored."""
        [entries] = await self._engine.list_keys([wanted])
        return entries

    def open(self, entry: KeyEntry) -> KeyEntry:
        """An entry with a readable value, or with the reason why it can't be read."""
        if entry.sealed_by is None:
            return entry
        value, reason = self._sealed.shown(entry.sealed_by, entry.value)
        return msgspec.structs.replace(entry, value=value, sealed_by=None, unreadable=reason)

    def batch_sizes(self) -> dict[str, BatchSizes]:
        """By verb, how many requests shared a call of the engine."""
        return {"read_keys": self._reads.sizes, "write_keys": self._writes.sizes}

    async def drain(self) -> None:
        """Finish what was accepted."""
        await self._reads.drain()
        await self._writes.drain()

    async def _read_together(self, requests: Sequence[Sequence[Key]]) -> list[list[KeyEntry | None]]:
        # Watchers of the same key are notified at the same time, so the key is read once. (Keyed by its bytes, because
        # in Python the keys [1] and [true] are equal.)
        indexes: dict[bytes, int] = {}
        keys: list[Key] = []
        found = []
        for key in chain.from_iterable(requests):
            index = indexes.setdefault(encode_key(key), len(keys))
            if index == len(keys):
                keys.append(key)
            found.append(index)
        entries = await self._engine.read_keys(keys)
        rest = iter(found)
        return [[entries[next(rest)] for _ in request] for request in requests]

    def _with_sealed_messages(self, write: KeyWrite) -> KeyWrite:
        if not write.messages or not self._sealed.names:
            return write
        return msgspec.structs.replace(write, messages=self._sealed.seal(write.messages))


def _weight(write: KeyWrite) -> int:
    """What a write counts against the bound of what may wait: large values count for more than one."""
    size = sum(len(mutation.value) for mutation in write.mutations) + sum(len(item.payload) for item in write.messages)
    return max(1, len(write.checks) + len(write.mutations) + len(write.messages)) + size // _BYTES_PER_ITEM
