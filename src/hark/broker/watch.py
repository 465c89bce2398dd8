"""Watches of keys: clients that are notified of changes. A watch holds versions, never values."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from hark.broker.delivery.fallback import FallbackPolls
from hark.broker.timers import Timer, Timers
from hark.clock import MILLISECOND, SECOND
from hark.errors import Overloaded, Unavailable
from hark.keys import encode_key
from hark.model import Key, KeyEntry, KeyNotification, KeyRange
from hark.settings import Settings

log = logging.getLogger(__name__)

AT_ONCE = 100
"""Keys that are read together at most: a client that does not read should not hold many values."""
_RETRY = SECOND


class Change(NamedTuple):
    """A key whose entry is another one now; None: there is none any more."""

    key: Key
    entry: KeyEntry | None


class Shown(NamedTuple):
    """What a client knows of a key."""

    key: Key
    version: int


class Keeper(Protocol):
    """What a watcher needs of all watchers and of the store."""

    timers: Timers

    async def fetch(self, keys: Sequence[Key]) -> list[KeyEntry | None]:
        """Entries as they are stored."""

    async def fetch_range(self, wanted: KeyRange) -> list[KeyEntry]:
        """A page of entries as they are stored."""

    def open(self, entry: KeyEntry) -> KeyEntry:
        """An entry with a readable value."""

    def forget(self, watcher: Watcher) -> None:
        """A watcher is closed."""

    def missed(self, watcher: Watcher) -> None:
        """A watcher saw a change that it was not told of."""


class Watcher(ABC):
    """Notified of keys by their bytes. A changed key that was not read yet is kept once."""

    def __init__(self, keeper: Keeper, shown: Mapping[bytes, Shown]) -> None:
        self.closed = False
        self.polled = False
        """Whether it looks because of a timer, not because of a notification."""
        self.shown = dict(shown)
        """What its client knows."""
        self._keeper = keeper
        self._outdated: dict[bytes, Key] = {}
        """Keys that may have changed, the one told first first."""
        self._due: dict[bytes, int] = {}
        """When to read keys without a notification, because their entries expire."""
        self._changed = asyncio.Event()
        self._timer: Timer | None = None
        self._rings_at = 0

    @abstractmethod
    def notify(self, identity: bytes, key: Key) -> None:
        """A key was written or removed."""

    @abstractmethod
    def notify_all(self) -> None:
        """Any key may have been."""

    @property
    @abstractmethod
    def _must_look(self) -> bool:
        """Whether there is something that it has not read yet."""

    async def skip(self) -> None:
        """Take what is there now as known."""
        while self._must_look and not self.closed:
            await self._look()

    async def so_far(self) -> Sequence[Change]:
        """The changes by now, with readable values; maybe none."""
        changes: list[Change] = []
        while self._must_look and not self.closed:
            changes += await self._look()
        return self._readable(changes)

    async def next(self) -> Sequence[Change]:
        """Changes with readable values, as soon as there are some; nothing when the watcher is closed."""
        while not self.closed:
            self._changed.clear()
            changes: Sequence[Change] = ()
            if self._must_look:
                try:
                    changes = await self._look()
                except (Unavailable, Overloaded) as failure:
                    log.debug("a watcher tries again later: %s", failure)
                    self._keeper.timers.at(self._keeper.timers.now() + _RETRY, self._changed.set)
                    await self._changed.wait()
                    continue
            polled, self.polled = self.polled, False
            if changes:
                if polled:
                    self._keeper.missed(self)
                return self._readable(changes)
            if not self._must_look:
                await self._changed.wait()
        return ()

    def close(self) -> None:
        """Watch no more."""
        if not self.closed:
            self.closed = True
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._keeper.forget(self)
            self._changed.set()

    def _readable(self, changes: Sequence[Change]) -> Sequence[Change]:
        return [
            Change(change.key, None if change.entry is None else self._keeper.open(change.entry)) for change in changes
        ]

    async def _look(self) -> Sequence[Change]:
        """Read some of the changed keys, and compare them with the state of the client."""
        read = dict(list(self._outdated.items())[:AT_ONCE])
        for identity in read:
            del self._outdated[identity]
        try:
            entries = await self._keeper.fetch(list(read.values()))
        except BaseException:  # Nothing was seen: it has to look again.
            self._outdated = read | self._outdated
            raise
        changes = [
            change
            for (identity, key), entry in zip(read.items(), entries, strict=True)
            if (change := self._compare(identity, key, entry)) is not None
        ]
        self._set_timer()
        return changes

    def _compare(self, identity: bytes, key: Key, entry: KeyEntry | None) -> Change | None:
        shown = self.shown.get(identity)
        if entry is None:
            self._drop(identity)
            return None if shown is None else Change(key, None)
        self._note_expiry(identity, entry.expires_at)
        if shown is not None and shown.version == entry.version:
            return None
        self.shown[identity] = Shown(entry.key, entry.version)
        return Change(entry.key, entry)

    def _drop(self, identity: bytes) -> None:
        self.shown.pop(identity, None)
        self._due.pop(identity, None)

    def _note_expiry(self, identity: bytes, expires_at: int | None) -> None:
        if expires_at is None:
            self._due.pop(identity, None)
            return
        # An entry that is there although its time is over by our clock: that of the store is behind by some more.
        late = self._keeper.timers.now() - expires_at
        self._due[identity] = expires_at if late < 0 else expires_at + late + min(late + MILLISECOND, SECOND)

    def _set_timer(self) -> None:
        due = min(self._due.values(), default=None)
        if self._timer is not None:
            if due == self._rings_at:
                return
            self._timer.cancel()
            self._timer = None
        if due is not None and not self.closed:
            self._rings_at = due
            self._timer = self._keeper.timers.at(due, self._ring)

    def _ring(self) -> None:
        self._timer = None
        now = self._keeper.timers.now()
        for identity in [identity for identity, due in self._due.items() if due <= now]:
            del self._due[identity]
            self.notify(identity, self.shown[identity].key)
        self._set_timer()


class KeyWatcher(Watcher):
    """Watches certain keys."""

    def __init__(self, keeper: Keeper, keys: Mapping[bytes, Key], shown: Mapping[bytes, Shown]) -> None:
        super().__init__(keeper, shown)
        self.keys = keys
        self.notify_all()

    def identities(self) -> Iterable[bytes]:
        """The bytes of its keys."""
        return self.keys

    def notify(self, identity: bytes, key: Key) -> None:
        """One of its keys was written or removed."""
        self._outdated[identity] = key
        self._changed.set()

    def notify_all(self) -> None:
        """Any of its keys may have been."""
        self._outdated |= self.keys
        self._changed.set()

    @property
    def _must_look(self) -> bool:
        return bool(self._outdated)


class PrefixWatcher(Watcher):
    """Watches the first `limit` keys below a prefix.

    A key that is written is read alone. All are listed at the start, when nobody says what changed, and when one of a
    full window is gone, because then the next one behind it comes into view. A key that others push out of the window
    is no longer watched; it is not told as removed.
    """

    def __init__(self, keeper: Keeper, prefix: Key, limit: int, shown: Mapping[bytes, Shown]) -> None:
        super().__init__(keeper, shown)
        self.prefix = prefix
        self._limit = limit
        self._edge: bytes | None = None
        """The last key of a full window; None: all there is is in view."""
        self._behind = True
        """All have to be listed."""

    def notify(self, identity: bytes, key: Key) -> None:
        """A key below the prefix was written or removed."""
        if self._behind or (self._edge is not None and identity > self._edge):
            return
        self._outdated[identity] = key
        if len(self._outdated) > self._limit:
            self._behind = True
            self._outdated.clear()
        self._changed.set()

    def notify_all(self) -> None:
        """Any key below the prefix may have been."""
        self._behind = True
        self._outdated.clear()
        self._changed.set()

    @property
    def _must_look(self) -> bool:
        return self._behind or bool(self._outdated)

    async def _look(self) -> Sequence[Change]:
        if self._behind:
            return await self._list()
        changes = await super()._look()
        if self._edge is not None and any(change.entry is None for change in changes):
            self._behind = True
        if len(self.shown) > self._limit:
            for identity in sorted(self.shown)[self._limit :]:
                self._drop(identity)
        self._find_edge()
        self._set_timer()
        return [change for change in changes if change.entry is None or encode_key(change.key) in self.shown]

    async def _list(self) -> Sequence[Change]:
        # From now on it is told again: of what is written while it lists.
        self._behind = False
        self._edge = None
        try:
            entries = await self._keeper.fetch_range(KeyRange(prefix=self.prefix, limit=self._limit))
        except BaseException:
            self.notify_all()
            raise
        listed = {encode_key(entry.key): entry for entry in entries}
        edge = max(listed) if len(listed) >= self._limit else None
        changes = []
        for identity in [identity for identity in self.shown if identity not in listed]:
            key = self.shown[identity].key
            self._drop(identity)
            if edge is None or identity < edge:
                changes.append(Change(key, None))
        for identity, entry in listed.items():
            if (change := self._compare(identity, entry.key, entry)) is not None:
                changes.append(change)
        self._find_edge()
        self._set_timer()
        return changes

    def _find_edge(self) -> None:
        self._edge = max(self.shown) if len(self.shown) >= self._limit else None


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

    def notify(self, notification: KeyNotification) -> None:
        """Keys were written or removed, here or by another server."""
        if not self._all:
            return
        if notification.keys is None:
            for watcher in list(self._all):
                watcher.notify_all()
            return
        for key in notification.keys:
            identity = encode_key(key)
            for watcher in self._by_key.get(identity, ()):
                watcher.notify(identity, key)
            for length in range(1, len(key)) if self._by_prefix else ():
                for watcher in self._by_prefix.get(encode_key(key[:length]), ()):
                    watcher.notify(identity, key)

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
        watcher.notify_all()
        # How it ends is not waited for: a client that reads slowly looks late, and must not hold up the others.
        self._fallback.polled(watcher, found=False)


def _remove(index: _Index, identity: bytes, watcher: Watcher) -> None:
    watchers = index.get(identity)
    if watchers is not None:
        watchers.pop(watcher, None)
        if not watchers:
            del index[identity]
