"""All who watch keys on this server, and the way of news to those whom they concern."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from hark.broker.delivery.fallback import FallbackPolls
from hark.broker.timers import Timers
from hark.broker.watching.prefixes import PrefixWatcher
from hark.broker.watching.watcher import Change, KeyWatcher, Shown, Watcher
from hark.clock import SECOND
from hark.errors import Overloaded, Unavailable
from hark.keys import encode_key
from hark.model import Key, KeyEntry, KeyNews, KeyRange
from hark.settings import Settings

W = TypeVar("W", bound=Watcher)
_Index = dict[bytes, dict[Watcher, None]]


class Store(Protocol):
    """What is watched."""

    async def fetch(self, keys: Sequence[Key]) -> list[KeyEntry | None]:
        """Entries as they are stored."""

    async def fetch_range(self, wanted: KeyRange) -> list[KeyEntry]:
        """A page of entries as they are stored."""

    def open(self, entry: KeyEntry) -> KeyEntry:
        """An entry with a readable value."""


class Watchers:
    """Finds the watchers of a key by its bytes, and those of its prefixes by theirs. Without news nothing is read.

    With `polls`, other servers write to the same store and their news can be lost: then all watchers poll.
    """

    def __init__(
        self, store: Store, settings: Settings, timers: Timers, random: Callable[[], float], *, polls: bool
    ) -> None:
        self.timers = timers
        self._store = store
        self._most = settings.limits.max_streams
        self._by_key: _Index = {}
        self._by_prefix: _Index = {}
        self._all: dict[Watcher, None] = {}
        self._fallback: FallbackPolls[Watcher] | None = None
        if polls:
            self._fallback = FallbackPolls(settings.fallback, timers, self._poll, random)
        self._closed = False

    def __len__(self) -> int:
        return len(self._all)

    async def watch_keys(
        self, keys: Sequence[Key], shown: Mapping[bytes, Shown] | None = None, *, initial: bool = True
    ) -> KeyWatcher:
        """Watch keys, from what the client knows of them; without `initial` it is taken to know all there is."""
        self._admit()
        watcher = KeyWatcher(self, {encode_key(key): key for key in keys}, shown or {})
        # Before anything is read: it hears of what is written meanwhile.
        for identity in watcher.identities():
            self._by_key.setdefault(identity, {})[watcher] = None
        return await self._begin(watcher, initial)

    async def watch_prefix(
        self, prefix: Key, limit: int, shown: Mapping[bytes, Shown] | None = None, *, initial: bool = True
    ) -> PrefixWatcher:
        """Watch the first keys below a prefix, from what the client knows of them."""
        self._admit()
        watcher = PrefixWatcher(self, prefix, limit, shown or {})
        self._by_prefix.setdefault(encode_key(prefix), {})[watcher] = None
        return await self._begin(watcher, initial)

    async def first_changes(self, watcher: Watcher, wait_seconds: float) -> Sequence[Change]:
        """The changes so far, or the first changes within a number of seconds. Then the watcher is closed."""
        timer = (
            self.timers.at(self.timers.now() + round(wait_seconds * SECOND), watcher.close) if wait_seconds else None
        )
        try:
            changes = await watcher.so_far()
            return changes if changes or timer is None else await watcher.next()
        finally:
            if timer is not None:
                timer.cancel()
            watcher.close()

    def tell(self, news: KeyNews) -> None:
        """Keys were written or removed, here or by another server."""
        if not self._all:
            return
        if news.keys is None:
            for watcher in list(self._all):
                watcher.tell_all()
            return
        for key in news.keys:
            identity = encode_key(key)
            for watcher in self._by_key.get(identity, ()):
                watcher.tell(identity, key)
            for length in range(1, len(key)) if self._by_prefix else ():
                for watcher in self._by_prefix.get(encode_key(key[:length]), ()):
                    watcher.tell(identity, key)

    async def fetch(self, keys: Sequence[Key]) -> list[KeyEntry | None]:
        """Entries as they are stored."""
        return await self._store.fetch(keys)

    async def fetch_range(self, wanted: KeyRange) -> list[KeyEntry]:
        """A page of entries as they are stored."""
        return await self._store.fetch_range(wanted)

    def open(self, entry: KeyEntry) -> KeyEntry:
        """An entry with a readable value."""
        return self._store.open(entry)

    def missed(self, watcher: Watcher) -> None:
        """A watcher saw a change that it was not told of: there may be more of them."""
        if self._fallback is not None:
            self._fallback.reset(watcher)

    def forget(self, watcher: Watcher) -> None:
        """A watcher is closed."""
        self._all.pop(watcher, None)
        if isinstance(watcher, KeyWatcher):
            for identity in watcher.identities():
                _remove(self._by_key, identity, watcher)
        elif isinstance(watcher, PrefixWatcher):
            _remove(self._by_prefix, encode_key(watcher.prefix), watcher)
        if self._fallback is not None:
            self._fallback.forget(watcher)

    def close(self) -> None:
        """The server stops."""
        self._closed = True
        if self._fallback is not None:
            self._fallback.close()
        for watcher in list(self._all):
            watcher.close()

    def metrics(self) -> dict[str, float]:
        """How many watch, and what."""
        return {
            "watchers": len(self._all),
            "keys": len(self._by_key),
            "prefixes": len(self._by_prefix),
        }

    def _admit(self) -> None:
        if self._closed:
            raise Unavailable("the server is shutting down; retry", code="stopping")
        if len(self._all) >= self._most:
            raise Overloaded(
                f"{len(self._all)} clients already watch keys; retry later or raise limits.max_streams",
                code="too_many_streams",
            )

    async def _begin(self, watcher: W, initial: bool) -> W:
        self._all[watcher] = None
        if not initial:
            try:
                await watcher.skip()
            except BaseException:
                watcher.close()
                raise
        if self._fallback is not None and not watcher.closed:
            self._fallback.watch(watcher)
        return watcher

    def _poll(self, watcher: Watcher) -> None:
        assert self._fallback is not None
        watcher.polled = True
        watcher.tell_all()
        # How it ends is not waited for: a client that reads slowly looks late, and must not hold up the others.
        self._fallback.polled(watcher, found=False)


def _remove(index: _Index, identity: bytes, watcher: Watcher) -> None:
    watchers = index.get(identity)
    if watchers is not None:
        watchers.pop(watcher, None)
        if not watchers:
            del index[identity]
