"""The key-value store: batched calls, readable values, and watches of keys."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain
from typing import NamedTuple, TypeVar

import msgspec

from hark.batching import Batcher
from hark.broker.delivery.streams import admit_stream
from hark.broker.sealing import SealedQueues
from hark.broker.timers import FallbackPolls, Timers, Wakeup
from hark.clock import MILLISECOND, SECOND
from hark.engine.api import Engine
from hark.errors import HarkError, Overloaded, Unavailable
from hark.keys import encode_key
from hark.model import Key, KeyEntry, KeyNotification, KeyRange, KeyWrite, KeyWritten
from hark.settings import Settings

log = logging.getLogger(__name__)

_BYTES_PER_ITEM = 16 * 1024
AT_ONCE = 100
"""Maximum number of keys to read together: a client that does not read must not hold many values."""
_RETRY = SECOND


class KeyValue:
    """Keys and their values. `watchers` notifies the clients that watch them."""

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        sealed: SealedQueues,
        timers: Timers,
        random: Callable[[], float],
        *,
        reads: Batcher[Sequence[Key], list[KeyEntry | None]],
        writes: Batcher[KeyWrite, KeyWritten],
        check_pushes: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._sealed = sealed
        self._check_pushes = check_pushes
        self._reads = reads
        self._writes = writes
        self.watchers = Watchers(self, settings, timers, random, polls=engine.shared and not engine.follows)

    async def read_keys(self, keys: Sequence[Key]) -> list[KeyEntry | None]:
        """The entries of these keys, with readable values."""
        return [entry if entry is None else self.open(entry) for entry in await self.fetch(keys)]

    async def list_keys(self, wanted: KeyRange) -> list[KeyEntry]:
        """A page of entries, with readable values."""
        return [self.open(entry) for entry in await self.fetch_range(wanted)]

    async def write_keys(self, write: KeyWrite) -> KeyWritten:
        """Check and change keys and push messages, all or nothing. Returns when they are on stable storage."""
        if write.messages:
            self._check_pushes()

        async def attempt() -> KeyWritten | None:
            wanted = write
            if write.messages and self._sealed.names:
                wanted = msgspec.structs.replace(write, messages=self._sealed.seal(write.messages))
            try:
                return await self._writes.submit(wanted, _weight(write))
            except HarkError as error:
                if error.code != "sealing_mismatch":
                    raise
                return None

        return await self._sealed.repeat(attempt)

    async def fetch(self, keys: Sequence[Key]) -> list[KeyEntry | None]:
        """Entries as they are stored, read in a shared batch."""
        return await self._reads.submit(keys, len(keys))

    async def fetch_range(self, wanted: KeyRange) -> list[KeyEntry]:
        """A page of entries as they are stored."""
        [entries] = await self._engine.list_keys([wanted])
        return entries

    def open(self, entry: KeyEntry) -> KeyEntry:
        """An entry with a readable value, or with the reason why it cannot be read."""
        if entry.sealed_by is None:
            return entry
        value, reason = self._sealed.shown(entry.sealed_by, entry.value)
        return msgspec.structs.replace(entry, value=value, sealed_by=None, unreadable=reason)


async def read_together(engine: Engine, requests: Sequence[Sequence[Key]]) -> list[list[KeyEntry | None]]:
    """The entries of several requests, each key read once: watchers of the same key are notified at the same time."""
    # Keys are compared by their bytes, because in Python the keys [1] and [true] are equal.
    identities = [[encode_key(key) for key in request] for request in requests]
    keys = dict(zip(chain.from_iterable(identities), chain.from_iterable(requests), strict=True))
    entries = dict(zip(keys, await engine.read_keys(list(keys.values())), strict=True))
    return [[entries[identity] for identity in request] for request in identities]


def _weight(write: KeyWrite) -> int:
    """The number of items in `limits.max_pending` that a write counts as: large values count as more than one."""
    size = sum(len(mutation.value) for mutation in write.mutations) + sum(len(item.payload) for item in write.messages)
    return max(1, len(write.checks) + len(write.mutations) + len(write.messages)) + size // _BYTES_PER_ITEM


# Watches ---------------------------------------------------------------------------------------------------


class Change(NamedTuple):
    """A key with its new entry; None: it was removed."""

    key: Key
    entry: KeyEntry | None


class Shown(NamedTuple):
    """The version of a key that a client knows."""

    key: Key
    version: int


class Watcher(ABC):
    """A watch of one client. It holds versions, never values; a changed key that was not read yet is kept once."""

    def __init__(self, watchers: Watchers, shown: Mapping[bytes, Shown], watched: Collection[bytes]) -> None:
        self.watched = watched
        """The bytes of its keys, or of its prefix."""
        self.closed = False
        self.polled = False
        """Whether the next read is a fallback poll, not the consequence of a notification."""
        self.shown = dict(shown)
        """The versions that the client knows, by the bytes of the keys."""
        self._watchers = watchers
        self._outdated: dict[bytes, Key] = {}
        """Keys that may have changed, in the order of their notifications."""
        self._behind = False
        """All keys must be listed, whichever changed."""
        self._due: dict[bytes, int] = {}
        """When to read keys without a notification, because their entries expire."""
        self._changed = asyncio.Event()
        self._wakeup = Wakeup(watchers.timers, self._ring)

    def notify(self, identity: bytes, key: Key) -> None:
        """Note that a key was written or removed."""
        self._outdated[identity] = key
        self._changed.set()

    @abstractmethod
    def notify_all(self) -> None:
        """Note that any key may have changed."""

    async def skip(self) -> None:
        """Assume that the client knows the current entries."""
        while (self._outdated or self._behind) and not self.closed:
            await self._look()

    async def so_far(self) -> Sequence[Change]:
        """The changes until now, with readable values."""
        changes: list[Change] = []
        while (self._outdated or self._behind) and not self.closed:
            changes += await self._look()
        return self._readable(changes)

    async def next(self) -> Sequence[Change]:
        """Wait for changes. Returns them with readable values; nothing when the watcher is closed."""
        while not self.closed:
            self._changed.clear()
            changes: Sequence[Change] = ()
            if self._outdated or self._behind:
                try:
                    changes = await self._look()
                except (Unavailable, Overloaded) as failure:
                    log.debug("a watcher cannot read keys; retrying: %s", failure)
                    timers = self._watchers.timers
                    timers.at(timers.now() + _RETRY, self._changed.set)
                    await self._changed.wait()
                    continue
            polled, self.polled = self.polled, False
            if changes:
                if polled:
                    self._watchers.missed(self)
                return self._readable(changes)
            if not (self._outdated or self._behind):
                await self._changed.wait()
        return ()

    def close(self) -> None:
        """End the watch."""
        if not self.closed:
            self.closed = True
            self._wakeup.cancel()
            self._watchers.forget(self)
            self._changed.set()

    def _readable(self, changes: Sequence[Change]) -> Sequence[Change]:
        opened = self._watchers.store.open
        return [Change(key, None if entry is None else opened(entry)) for key, entry in changes]

    async def _look(self) -> Sequence[Change]:
        """Read some of the changed keys, and compare them with the state of the client."""
        read = dict(list(self._outdated.items())[:AT_ONCE])
        for identity in read:
            del self._outdated[identity]
        try:
            entries = await self._watchers.store.fetch(list(read.values()))
        except BaseException:  # Nothing was read: the keys must be read again.
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
        # An entry that still exists after its expiry by our clock: the clock of the store is behind by some more.
        late = self._watchers.timers.now() - expires_at
        self._due[identity] = expires_at if late < 0 else expires_at + late + min(late + MILLISECOND, SECOND)

    def _set_timer(self) -> None:
        due = min(self._due.values(), default=None)
        if due is None or self._wakeup.due < due:
            self._wakeup.cancel()
        if due is not None and not self.closed:
            self._wakeup.set(due)

    def _ring(self) -> None:
        now = self._watchers.timers.now()
        for identity in [identity for identity, due in self._due.items() if due <= now]:
            del self._due[identity]
            self.notify(identity, self.shown[identity].key)
        self._set_timer()


class KeyWatcher(Watcher):
    """A watch of individual keys."""

    def __init__(self, watchers: Watchers, keys: Mapping[bytes, Key], shown: Mapping[bytes, Shown]) -> None:
        super().__init__(watchers, shown, keys)
        self.keys = keys
        self.notify_all()

    def notify_all(self) -> None:
        self._outdated |= self.keys
        self._changed.set()


class PrefixWatcher(Watcher):
    """A watch of the first `limit` keys below a prefix: the window.

    A key that is written is read alone. All keys are listed at the start, when a notification names no keys, and when a
    key of a full window is removed, because then the key behind the window enters it. A key that other keys push out of
    the window is no longer watched; it is not reported as removed.
    """

    def __init__(self, watchers: Watchers, prefix: Key, limit: int, shown: Mapping[bytes, Shown]) -> None:
        super().__init__(watchers, shown, [encode_key(prefix)])
        self.prefix = prefix
        self._limit = limit
        self._edge: bytes | None = None
        """The last key of a full window; None: the window contains all keys."""
        self._behind = True

    def notify(self, identity: bytes, key: Key) -> None:
        if self._behind or (self._edge is not None and identity > self._edge):
            return
        super().notify(identity, key)
        if len(self._outdated) > self._limit:
            self.notify_all()

    def notify_all(self) -> None:
        self._behind = True
        self._outdated.clear()
        self._changed.set()

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
        # Before the list: a notification during the list must be noted.
        self._behind = False
        self._edge = None
        try:
            entries = await self._watchers.store.fetch_range(KeyRange(prefix=self.prefix, limit=self._limit))
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


class Watchers:
    """The watchers of all clients, by key and by prefix. Without a notification nothing is read.

    With `polls`, other servers write to the same store and their notifications can be lost: then all watchers poll.
    """

    def __init__(
        self, store: KeyValue, settings: Settings, timers: Timers, random: Callable[[], float], *, polls: bool
    ) -> None:
        self.timers = timers
        self.store = store
        self._most = settings.limits.max_streams
        self._by_key: _Index = {}
        self._by_prefix: _Index = {}
        self._all: dict[Watcher, _Index] = {}
        self._fallback: FallbackPolls[Watcher] | None = None
        if polls:
            self._fallback = FallbackPolls(settings.fallback, timers, self._poll, random)
        self._closed = False

    def __len__(self) -> int:
        return len(self._all)

    async def watch_keys(
        self, keys: Sequence[Key], shown: Mapping[bytes, Shown] | None = None, *, initial: bool = True
    ) -> KeyWatcher:
        """Watch keys. Without `initial`, the client is assumed to know the current entries."""
        self._admit()
        watcher = KeyWatcher(self, {encode_key(key): key for key in keys}, shown or {})
        return await self._begin(watcher, self._by_key, initial)

    async def watch_prefix(
        self, prefix: Key, limit: int, shown: Mapping[bytes, Shown] | None = None, *, initial: bool = True
    ) -> PrefixWatcher:
        """Watch the first keys below a prefix."""
        self._admit()
        return await self._begin(PrefixWatcher(self, prefix, limit, shown or {}), self._by_prefix, initial)

    async def first_changes(self, watcher: Watcher, wait_seconds: float) -> Sequence[Change]:
        """The changes so far, or the first changes within a number of seconds. Then the watcher is closed."""
        wakeup = Wakeup(self.timers, watcher.close)
        if wait_seconds:
            wakeup.set(self.timers.now() + round(wait_seconds * SECOND))
        try:
            changes = await watcher.so_far()
            return changes if changes or not wait_seconds else await watcher.next()
        finally:
            wakeup.cancel()
            watcher.close()

    async def wait_for_change(
        self, keys: Sequence[Key], entries: Sequence[KeyEntry | None], wait_seconds: float
    ) -> None:
        """Wait until one of the keys has another entry than this one, or for a number of seconds."""
        known = [entry for entry in entries if entry is not None]
        shown = {encode_key(entry.key): Shown(entry.key, entry.version) for entry in known}
        await self.first_changes(await self.watch_keys(keys, shown), wait_seconds)

    def notify(self, notification: KeyNotification) -> None:
        """Notify the watchers of changed keys, by this or another server."""
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

    def missed(self, watcher: Watcher) -> None:
        """Poll sooner after a change without a notification: there may be more of them."""
        if self._fallback is not None:
            self._fallback.reset(watcher)

    def forget(self, watcher: Watcher) -> None:
        """Remove a closed watcher."""
        index = self._all.pop(watcher)
        for identity in watcher.watched:
            del index[identity][watcher]
            if not index[identity]:
                del index[identity]
        if self._fallback is not None:
            self._fallback.forget(watcher)

    def close(self) -> None:
        """Close all watchers, because the server shuts down."""
        self._closed = True
        if self._fallback is not None:
            self._fallback.close()
        for watcher in list(self._all):
            watcher.close()

    def metrics(self) -> dict[str, float]:
        """The number of watchers, and of watched keys and prefixes."""
        return {"watchers": len(self._all), "keys": len(self._by_key), "prefixes": len(self._by_prefix)}

    def _admit(self) -> None:
        admit_stream(self._closed, len(self._all), self._most, "clients already watch keys")

    async def _begin(self, watcher: W, index: _Index, initial: bool) -> W:
        # Before the first read, so that a write during the read is noted.
        self._all[watcher] = index
        for identity in watcher.watched:
            index.setdefault(identity, {})[watcher] = None
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
        # Do not wait for the read: a slow client reads late, and must not delay the other polls.
        self._fallback.polled(watcher, found=False)
