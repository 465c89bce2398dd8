"""A key-value store in a dict, and watchers on it whose time is the test's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TypeVar

import msgspec

from hark.broker.watching.watcher import Change
from hark.broker.watching.watchers import Watchers
from hark.clock import SECOND
from hark.errors import HarkError
from hark.keys import encode_key, prefix_bounds
from hark.model import Key, KeyEntry, KeyNews, KeyRange
from hark.settings import Fallback, Limits, Settings
from hark.testing.timers import FakeTimers

T = TypeVar("T")


class Store:
    """Entries, the watchers that are told of them, and how often they were read."""

    def __init__(self, *, most: int = 10, polls: bool = False) -> None:
        self.timers = FakeTimers()
        self.entries: dict[bytes, KeyEntry] = {}
        self.reads: list[int] = []
        """How many entries each call asked for; a listing counts as its limit, below 0."""
        self.failure: HarkError | None = None
        self.behind = 0.0
        """Seconds that the store's clock is behind."""
        settings = Settings(limits=Limits(max_streams=most), fallback=Fallback(initial_ms=100, max_ms=1000, jitter=0))
        self.watchers = Watchers(self, settings, self.timers, lambda: 0.5, polls=polls)
        self._version = 0

    # What is watched ---------------------------------------------------------------------------------------

    async def fetch(self, keys: Sequence[Key]) -> list[KeyEntry | None]:
        """Read keys."""
        self.reads.append(len(keys))
        await self._work()
        return [self._live().get(encode_key(key)) for key in keys]

    async def fetch_range(self, wanted: KeyRange) -> list[KeyEntry]:
        """List a prefix."""
        self.reads.append(-wanted.limit)
        await self._work()
        low, high = prefix_bounds(wanted.prefix)
        found = [entry for identity, entry in sorted(self._live().items()) if low <= identity < high]
        return found[: wanted.limit]

    def open(self, entry: KeyEntry) -> KeyEntry:
        """Nothing is sealed here."""
        return entry

    async def _work(self) -> None:
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure

    def _live(self) -> dict[bytes, KeyEntry]:
        now = self.timers.now() - round(self.behind * SECOND)
        return {
            identity: entry
            for identity, entry in self.entries.items()
            if entry.expires_at is None or entry.expires_at > now
        }

    # What happens to it ------------------------------------------------------------------------------------

    def put(self, key: Key, value: object = None, *, seconds: float | None = None, tell: bool = True) -> int:
        """Write a key, for ever or for so many seconds; its version."""
        self._version += 1
        expires_at = None if seconds is None else self.timers.now() + round(seconds * SECOND)
        entry = KeyEntry(key, msgspec.Raw(msgspec.json.encode(value)), self._version, expires_at)
        self.entries[encode_key(key)] = entry
        if tell:
            self.watchers.tell(KeyNews((key,)))
        return self._version

    def remove(self, *keys: Key, tell: bool = True) -> None:
        """Remove keys."""
        for key in keys:
            self.entries.pop(encode_key(key), None)
        if tell:
            self.watchers.tell(KeyNews(keys))


async def soon(work: Awaitable[T]) -> T:
    """What should come at once."""
    return await asyncio.wait_for(work, 5)


async def rest() -> None:
    """Let everything run that can run without time passing."""
    for _ in range(20):
        await asyncio.sleep(0)


def seen(changes: Sequence[Change]) -> list[tuple[Key, object]]:
    """Keys with their values, and with `...` where they are gone."""
    return [
        (change.key, ... if change.entry is None else msgspec.json.decode(change.entry.value)) for change in changes
    ]
